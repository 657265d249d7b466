#!/bin/bash
# expect: run
# prints: on n2
#SBATCH --nodelist=n2
#SBATCH --time=5
echo "on $SLURM_JOB_NODELIST"
