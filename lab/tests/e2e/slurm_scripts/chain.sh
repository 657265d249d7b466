#!/bin/bash
# expect: run
# file: chain.log
# prints: first
# prints: second
#SBATCH --time=5
#SBATCH --output=/dev/null
if [ "$1" != second ]; then
    echo first > chain.log
    sbatch --parsable --dependency=afterok:"$SLURM_JOB_ID" chain.sh second
else
    echo second >> chain.log
fi
