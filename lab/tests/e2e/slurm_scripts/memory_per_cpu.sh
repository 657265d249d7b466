#!/bin/bash
# expect: run
# prints: 1 task with its own memory
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --mem-per-cpu=48M
#SBATCH --time=5
echo "$SLURM_NTASKS task with its own memory"
