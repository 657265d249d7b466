#!/bin/bash
# expect: run
# prints: working
# prints: saved
#SBATCH --time=0:20
#SBATCH --signal=B:USR1@15
#SBATCH --open-mode=append
save() { echo saved; exit 0; }
trap save USR1
echo working
while :; do sleep 0.2; done
