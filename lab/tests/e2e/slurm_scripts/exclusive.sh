#!/bin/bash
# expect: run
# prints: alone on 1 node
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=5
echo "alone on $SLURM_JOB_NUM_NODES node"
