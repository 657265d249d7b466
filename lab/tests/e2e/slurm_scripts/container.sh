#!/bin/bash
# expect: refused use --uenv=IMAGE
#SBATCH --container=/containers/solver
#SBATCH --time=60
./solve
