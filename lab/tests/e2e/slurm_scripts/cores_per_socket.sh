#!/bin/bash
# expect: refused no constraint counts the cores of a socket
#SBATCH --cores-per-socket=8
#SBATCH --time=5
srun echo rank
