"""dask-jobqueue: two workers as jobs, work on them, and their end."""

import sys

from dask_jobqueue import SLURMCluster
from distributed import Client

if __name__ == "__main__":
    cluster = SLURMCluster(
        cores=1, memory="300MB", processes=1, interface="lo", walltime="00:05:00", log_directory=sys.argv[1], local_directory=sys.argv[1]
    )
    cluster.scale(jobs=2)
    client = Client(cluster)
    client.wait_for_workers(2, timeout=90)
    print("squares", client.gather(client.map(lambda x: x * x, range(4))))
    client.close()
    cluster.close()
