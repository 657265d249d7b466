#!/bin/bash
# expect: run
# prints: threads: 1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --time=5
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
echo "threads: $OMP_NUM_THREADS"
