#!/bin/bash
# expect: run
# prints: others go first
#SBATCH --nice=10
#SBATCH --comment="a note for people"
#SBATCH --wckey=tests
#SBATCH --acctg-freq=task=30
#SBATCH --oversubscribe
#SBATCH --time=5
echo "others go first"
