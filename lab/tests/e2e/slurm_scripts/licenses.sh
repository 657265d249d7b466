#!/bin/bash
# expect: refused --licenses=matlab:2: it is not supported
#SBATCH --licenses=matlab:2
#SBATCH --time=60
matlab -batch run
