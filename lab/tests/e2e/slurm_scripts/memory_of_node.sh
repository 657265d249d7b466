#!/bin/bash
# expect: run
# prints: a part of a node
#SBATCH --mem=64
#SBATCH -n 1
#SBATCH -t 5
echo "a part of a node"
