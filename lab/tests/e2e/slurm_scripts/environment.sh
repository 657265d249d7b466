#!/bin/bash
# expect: run
# prints: mode fast in job tuned
#SBATCH --export=ALL,MODE=fast
#SBATCH -J tuned
#SBATCH -t 5
echo "mode $MODE in job $SLURM_JOB_NAME"
