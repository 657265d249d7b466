"""submitit: an array of functions, ranks of one job, a failure, a cancellation."""

import sys
import time

import submitit


def add(a, b):
    return a + b


def rank():
    here = submitit.JobEnvironment()
    return (here.global_rank, here.num_tasks, here.num_nodes)


def fail():
    raise ValueError("as it should")


executor = submitit.AutoExecutor(folder=sys.argv[1], cluster="slurm")
executor.update_parameters(timeout_min=5, slurm_array_parallelism=2)
print("array", [job.result() for job in executor.map_array(add, [1, 2, 3], [10, 20, 30])])
executor.update_parameters(nodes=2, tasks_per_node=2)
print("ranks", sorted(executor.submit(rank).results()))
executor.update_parameters(nodes=1, tasks_per_node=1)
bad = executor.submit(fail)
print("failure", "as it should" in str(bad.exception()))
long = executor.submit(time.sleep, 600)
while long.watcher.get_state(long.job_id, mode="force") != "RUNNING":
    time.sleep(0.2)
long.cancel(check=True)
while not long.watcher.get_state(long.job_id, mode="force").startswith("CANCELLED"):
    time.sleep(0.2)
print("cancelled", long.watcher.get_state(long.job_id, mode="force").split()[0])
