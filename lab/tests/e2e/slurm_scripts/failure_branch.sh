#!/bin/bash
# expect: run
# file: branch.log
# prints: cleaned up
#SBATCH --time=5
#SBATCH --output=/dev/null
if [ "$1" = clean ]; then
    echo "cleaned up" > branch.log
    exit 0
fi
sbatch --parsable --dependency=afternotok:"$SLURM_JOB_ID" --kill-on-invalid-dep=yes failure_branch.sh clean
exit 3
