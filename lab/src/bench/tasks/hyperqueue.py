"""A server and a worker of HyperQueue; each line of input is a number of tasks, the answer the seconds that they took."""
import sys
import tempfile
import time
from importlib.metadata import version

from hyperqueue import Job
from hyperqueue.cluster import LocalCluster, WorkerConfig

with tempfile.TemporaryDirectory() as folder, LocalCluster() as cluster:
    cluster.start_worker(WorkerConfig(cores=int(sys.argv[1])))
    client = cluster.client()
    print(version("hyperqueue"), flush=True)
    for line in sys.stdin:
        job = Job(default_workdir=folder)
        for _ in range(int(line)):
            job.program(["/bin/true"], stdout=None, stderr=None)
        begun = time.monotonic()
        client.wait_for_jobs([client.submit(job)])
        print(time.monotonic() - begun, flush=True)
