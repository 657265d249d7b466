#!/bin/bash
# expect: run
# prints: prepared
# prints: step of 2
# prints: step of 2
# prints: done
#SBATCH -N 2 -n 2
#SBATCH -t 5
srun -N 1 -n 1 echo prepared
srun -n 2 sh -c 'echo step of $SLURM_NTASKS'
echo done
