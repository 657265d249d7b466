"""parsl: a block of one node, started by srun, that runs programs and functions."""

import sys

import parsl
from parsl import bash_app, python_app
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.launchers import SrunLauncher
from parsl.providers import SlurmProvider


@python_app
def double(x):
    return 2 * x


@bash_app
def hello(stdout=parsl.AUTO_LOGNAME):
    return "echo hello"


if __name__ == "__main__":
    provider = SlurmProvider(
        init_blocks=1, max_blocks=1, nodes_per_block=1, walltime="00:05:00", exclusive=False, launcher=SrunLauncher(),
        worker_init=f"export PATH={sys.prefix}/bin:$PATH",
    )
    executor = HighThroughputExecutor(label="slurm", address="127.0.0.1", max_workers_per_node=1, provider=provider)
    with parsl.load(Config(executors=[executor], run_dir=sys.argv[1])):
        print("doubled", [future.result() for future in [double(x) for x in range(4)]])
        print("program", hello().result())
