#!/bin/bash
# expect: run
# file: result-4.txt
# prints: square of 4 is 16
#SBATCH --array=0-4:2%1
#SBATCH --output=result-%a.txt
#SBATCH --time=5
echo "square of $SLURM_ARRAY_TASK_ID is $((SLURM_ARRAY_TASK_ID * SLURM_ARRAY_TASK_ID))"
