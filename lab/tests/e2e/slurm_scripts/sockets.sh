#!/bin/bash
# expect: refused --ntasks-per-socket=2: it is not supported
#SBATCH --nodes=1
#SBATCH --ntasks-per-socket=2
srun ./solver
