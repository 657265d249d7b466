#!/bin/bash
# expect: run
# code: 5
# prints: about to fail
#SBATCH --wait
#SBATCH --time=5
echo "about to fail"
exit 5
