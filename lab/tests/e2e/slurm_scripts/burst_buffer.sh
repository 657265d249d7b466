#!/bin/bash
# expect: refused burst buffers are not known
#SBATCH --bb="capacity=100G access=striped"
#SBATCH --time=60
true
