"""psij: a job of two processes by srun, one that fails, one that is cancelled."""

import sys
from datetime import timedelta
from pathlib import Path

from psij import Job, JobExecutor, JobSpec, JobState, ResourceSpecV1
from psij.executors.batch.slurm import SlurmExecutorConfig

folder = Path(sys.argv[1])
config = SlurmExecutorConfig(work_directory=folder, queue_polling_interval=1, initial_queue_polling_delay=1)
executor = JobExecutor.get_instance("slurm", config=config)


def run(name, program, *arguments, processes=1):
    spec = JobSpec(executable=program, arguments=list(arguments), stdout_path=folder / f"{name}.out", launcher="srun")
    spec.resources = ResourceSpecV1(node_count=1, processes_per_node=processes)
    spec.attributes.duration = timedelta(minutes=5)
    job = Job(spec)
    executor.submit(job)
    return job


two = run("two", "/bin/echo", "hello", processes=2)
print("two", two.wait(timedelta(seconds=100)).state.name, (folder / "two.out").read_text().split())
bad = run("bad", "/bin/false")
status = bad.wait(timedelta(seconds=100))
print("bad", status.state.name, status.exit_code)
long = run("long", "/bin/sleep", "600")
long.wait(timedelta(seconds=100), target_states=[JobState.ACTIVE])
long.cancel()
print("long", long.wait(timedelta(seconds=100)).state.name)
