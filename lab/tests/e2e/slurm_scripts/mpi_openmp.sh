#!/bin/bash
# expect: run
# sorted: yes
# prints: rank 0 of 2 with 1 threads
# prints: rank 1 of 2 with 1 threads
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --distribution=block:block
#SBATCH --hint=nomultithread
#SBATCH --time=5
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
export OMP_PLACES=cores
srun sh -c 'echo "rank $SLURM_PROCID of $SLURM_NTASKS with $OMP_NUM_THREADS threads"'
