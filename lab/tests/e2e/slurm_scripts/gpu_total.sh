#!/bin/bash
# expect: refused
#SBATCH --nodes=2
#SBATCH --gpus=a100:8
#SBATCH --gpu-bind=closest
#SBATCH --time=60
srun python3 train.py
