#!/bin/bash
# expect: refused hetjob: it is not supported
#SBATCH --ntasks=1 --mem=64G
#SBATCH hetjob
#SBATCH --ntasks=16 --mem=4G
srun ./server : ./worker
