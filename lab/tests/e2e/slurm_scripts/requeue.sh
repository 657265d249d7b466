#!/bin/bash
# expect: run
# prints: restarts: 0
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --time=5
echo "restarts: ${SLURM_RESTART_COUNT:-0}"
