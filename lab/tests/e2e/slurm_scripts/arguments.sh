#!/bin/bash
# expect: run
# args: 7 seven
# prints: 2 arguments: 7 seven
#SBATCH -t 5
echo "$# arguments: $*"
