#!/bin/bash
# expect: refused this cluster has 3
#SBATCH --nodes=64
#SBATCH --ntasks-per-node=4
#SBATCH --time=1-12:00:00
srun ./simulate input.nml
