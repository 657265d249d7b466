"""A training loop that survives preemption: each step is hashed with all steps before it; restored state is checked.

lattice submit --checkpoint=shmem -- python3 train.py 1000
"""

import os
import sys
import time
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from lattice_checkpoint import Listener, restore_from  # noqa: E402


def train(step, chain):
    """Simulates the computation of a real step."""
    time.sleep(0.01)
    return step + 1, zlib.crc32(f"{chain} {step + 1}".encode())


def save(directory, step, chain):
    with open(os.path.join(directory, "state"), "w") as file:
        file.write(f"{step} {chain}\n")


def restore(directory):
    with open(os.path.join(directory, "state")) as file:
        step, chain = map(int, file.read().split())
    expected = 0
    for before in range(step):
        expected = zlib.crc32(f"{expected} {before + 1}".encode())
    if expected != chain:
        sys.exit(f"the restored state is not the result of {step} steps")
    print(f"restored {step}", flush=True)
    return step, chain


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    step, chain = restore(restore_from()) if restore_from() else (0, 0)
    with Listener() as listener:
        print("begun", flush=True)
        while step < steps:
            step, chain = train(step, chain)
            with listener.asked() as request:
                if request:
                    request.progress(0, left_seconds=1)
                    save(request.directory, step, chain)
                    request.step, request.files = step, 1
            print(f"step {step}", flush=True)
    print(f"final {step} {chain}")


main()
