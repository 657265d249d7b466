#!/bin/bash
# expect: run
# prints: on n3
#SBATCH --nodes=1
#SBATCH --exclude=n[1-2]
#SBATCH --time=5
echo "on $SLURM_JOB_NODELIST"
