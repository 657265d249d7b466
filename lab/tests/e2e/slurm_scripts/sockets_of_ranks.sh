#!/bin/bash
# expect: run
# prints: rank
# prints: rank
#SBATCH --ntasks=2
#SBATCH --ntasks-per-socket=2
#SBATCH --sockets-per-node=1
#SBATCH --time=5
srun echo rank
