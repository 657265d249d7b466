#!/bin/bash
# expect: refused there is no reservation "course"
#SBATCH --reservation=course
#SBATCH --time=60
true
