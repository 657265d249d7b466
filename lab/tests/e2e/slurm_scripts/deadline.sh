#!/bin/bash
# expect: test-only
#SBATCH --time=30
#SBATCH --time-min=10
#SBATCH --deadline=now+2hours
srun ./solver
