#!/bin/bash
# expect: refused the site has no QOS "gold"
#SBATCH --qos=gold
#SBATCH --time=5
true
