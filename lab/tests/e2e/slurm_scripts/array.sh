#!/bin/bash
# expect: run
# file: slurm-{N}_2.out
# prints: task 2 of 3, from 1 to 3
#SBATCH --array=1-3
#SBATCH --time=00:05:00
echo "task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT, from $SLURM_ARRAY_TASK_MIN to $SLURM_ARRAY_TASK_MAX"
