#!/bin/bash
# expect: refused there are no reservations
#SBATCH --reservation=course
#SBATCH --time=60
true
