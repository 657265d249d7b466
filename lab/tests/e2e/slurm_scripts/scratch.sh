#!/bin/bash
# expect: test-only
#SBATCH --time=1:00:00
#SBATCH --begin=now+1hour
#SBATCH --nodes=2
cp input.dat "$TMPDIR"
