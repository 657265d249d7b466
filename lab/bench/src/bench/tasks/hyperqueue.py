"""A server and a worker of HyperQueue. Each line of input is a number of tasks; the answer is the seconds that they took.

Arguments: the worker's cores, and an empty folder for all files."""
import os
import sys
import time
from importlib.metadata import version

from hyperqueue import Job
from hyperqueue.cluster import LocalCluster, WorkerConfig

ASK_INTERVAL_S = 0.02


class Unfinished(Exception):
    """The job has not ended."""


def check(jobs):
    if not all(job["completed"] for job in jobs.values()):
        raise Unfinished


def wait(client, job):
    """`Client.wait_for_jobs` asks once a second, and would see the end up to a second late."""
    while True:
        try:
            failed = client.connection.wait_for_jobs((job.id,), check)
            break
        except Unfinished:
            time.sleep(ASK_INTERVAL_S)
    if failed:
        raise RuntimeError("tasks failed")


# The server prints what it is.
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
cores, folder = int(sys.argv[1]), sys.argv[2]
with LocalCluster(server_dir=folder) as cluster:
    cluster.start_worker(WorkerConfig(cores=cores))
    client = cluster.client()
    print(version("hyperqueue"), file=answers)
    for line in sys.stdin:
        job = Job(default_workdir=folder)
        for _ in range(int(line)):
            job.program(["/bin/true"], stdout=None, stderr=None)
        begun = time.monotonic()
        submitted = client.submit(job)
        wait(client, submitted)
        print(time.monotonic() - begun, file=answers)
        # Ended jobs stay in the server's memory.
        client.forget(submitted)
