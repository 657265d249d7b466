#!/bin/bash
# expect: run
# prints: somebody reads of it
#SBATCH --mail-type=BEGIN,END,FAIL
#SBATCH --mail-user=ada@example.com
#SBATCH --time=5
echo "somebody reads of it"
