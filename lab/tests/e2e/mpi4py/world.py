"""One rank of a world in Python: `world.py LOCAL`, of which LOCAL are on each node, or `world.py abort|abort-beside-a-barrier`."""

import sys
import time
from array import array

from mpi4py import MPI

# A mebibyte for each other rank: far beyond what any transport sends at once.
WORDS = 1 << 18

world = MPI.COMM_WORLD
rank, size = world.rank, world.size


def must(holds, what):
    if not holds:
        print(f"rank {rank}: {what}", file=sys.stderr, flush=True)
        world.Abort(9)


if sys.argv[1].startswith("abort"):
    if rank == size - 1:
        world.Abort(7)
    # A rank that waits for an aborting rank aborts as well, with its own code.
    if sys.argv[1] == "abort-beside-a-barrier":
        world.Barrier()
    time.sleep(600)
    must(False, "it was not brought down")

must(world.allreduce(rank) == size * (size - 1) // 2, "the ranks' sum is another")

outgoing, incoming = array("i"), array("i", [-1]) * (WORDS * size)
for peer in range(size):
    outgoing.extend(array("i", [rank * 1000 + peer]) * WORDS)
world.Alltoall(outgoing, incoming)
for peer in range(size):
    part = incoming[peer * WORDS : (peer + 1) * WORDS]
    must(part == array("i", [peer * 1000 + rank]) * WORDS, f"other words than its own came of rank {peer}")

node = world.Split_type(MPI.COMM_TYPE_SHARED)
must(node.size == int(sys.argv[1]), f"{node.size} ranks share this node")
must(node.allreduce(rank, MPI.MIN) // node.size == rank // node.size, "a rank of another node seems to share this one")

name = " ".join(MPI.Get_library_version().split(",")[0].splitlines()[0].split())
if rank == 0:
    print(f"{size} ranks, {node.size} a node, {name}")
