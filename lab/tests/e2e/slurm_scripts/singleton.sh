#!/bin/bash
# expect: run
# prints: the only one of its name
#SBATCH --job-name=only
#SBATCH --dependency=singleton
#SBATCH --time=5
echo "the only one of its name"
