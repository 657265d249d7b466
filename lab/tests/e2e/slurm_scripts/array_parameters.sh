#!/bin/bash
# expect: run
# file: sweep_3.log
# prints: learning rate 0.001, seed 11
#SBATCH -J sweep
#SBATCH -a 1-3
#SBATCH -o %x_%a.log
#SBATCH -t 5
read -r rate seed < <(sed -n "${SLURM_ARRAY_TASK_ID}p" <<'PARAMETERS'
0.1 7
0.01 9
0.001 11
PARAMETERS
)
echo "learning rate $rate, seed $seed"
