#!/bin/bash
# expect: run
# file: split-{N}.err
# prints: a warning
#SBATCH --job-name=split
#SBATCH --output=%x-%j.out
#SBATCH --error=%x-%j.err
#SBATCH --time=5
echo "a result"
echo "a warning" >&2
