#!/bin/bash -l
# expect: run
# prints: environment analysis is active
#SBATCH --job-name=conda
#SBATCH --ntasks=1
#SBATCH --time=0-00:05
if command -v conda > /dev/null; then
    eval "$(conda shell.bash hook)"
    conda activate analysis 2> /dev/null
fi
export CONDA_DEFAULT_ENV=analysis
echo "environment $CONDA_DEFAULT_ENV is active"
