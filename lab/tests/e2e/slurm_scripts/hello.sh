#!/bin/bash
# expect: run
# prints: hello from 1 node
#SBATCH --job-name=hello
#SBATCH --time=5
echo "hello from $SLURM_JOB_NUM_NODES node"
