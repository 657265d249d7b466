#!/bin/bash
# expect: run
# prints: by the names of the site
#SBATCH --partition=normal
#SBATCH --qos=long
#SBATCH --time=5
echo "by the names of the site"
