//! `lattice submit`.

use crate::flags::SubmitFlags;
use crate::scaling::ScalingFlags;
use crate::tasks::TaskFlags;
use clap::Args;
use std::ffi::OsString;

const SUBMIT_EXAMPLES: &str = "Examples:
  lattice submit job.sh
      a script; its #LATTICE (or #SBATCH) lines contain options
  lattice submit --nodes=4 --walltime=2h job.sh
      the command line wins over the script's lines
  lattice submit --wait job.sh
      wait until it has ended, and exit with its exit code
  lattice submit --task-group=0-99%20 sweep.sh
      100 tasks, at most 20 at the same time, each with its own
      LATTICE_TASK_INDEX
  lattice submit --reactive --min-nodes=2 --max-nodes=6 serve.sh \\
      --scale-metric=cpu_utilization --scale-target=0.8
      a service in 2 to 6 replicas, more while they use more than 80 % of
      their processors
  make-job | lattice submit - --nodes=4
      a script from standard input
  lattice submit --output=%x-%j.out --signal=B:USR1@120 job.sh
      its output also in a file of yours, and SIGUSR1 to the script two minutes
      before its walltime ends
  lattice submit -N 2 --tasks-per-node 8 --uenv ./env.sqfs -- ./simulate in.nml
      16 ranks of one MPI program on 2 nodes

A script's lines, before its first command:
  #!/bin/bash
  #LATTICE --nodes=4 --walltime=2h
  #LATTICE name=simulation
  lattice launch ./simulate input.nml";

// `--output` is a file of the user's here, and `-o` stays the format. Before this command's options are added
// (see `Later`), clap adds the options of every command to it; of `output` this takes the long name away. Its values
// still go to `Global` by its id, and `lattice --output json submit` is the format as before.
#[derive(Args)]
#[command(mut_arg("output", |format| format.long(None::<&'static str>)))]
#[command(after_help = SUBMIT_EXAMPLES, override_usage = "lattice submit [OPTIONS] SCRIPT [-- ARGS...]\n       lattice submit [OPTIONS] -- COMMAND [ARGS...]")]
pub struct Submit {
    #[command(flatten)]
    pub flags: SubmitFlags,
    #[command(flatten)]
    pub tasks: TaskFlags,
    #[command(flatten)]
    pub scaling: ScalingFlags,
    /// Submit the work held: it gets no nodes until `lattice resume ID`
    #[arg(long, conflicts_with = "wait")]
    pub hold: bool,
    /// Check the options and show what would be submitted; submit nothing
    #[arg(long, conflicts_with = "wait")]
    pub dry_run: bool,
    /// Wait until the work has ended, and exit with its exit code (Ctrl-C ends the wait, not the work)
    #[arg(long)]
    pub wait: bool,
    /// The script, which runs on the first node and starts ranks with `lattice launch`; - reads it from standard input
    pub script: Option<OsString>,
    /// The script's arguments; those that begin with a dash go after --
    pub args: Vec<String>,
    /// Without a script: a program and its arguments, run as nodes × tasks-per-node ranks
    #[arg(last = true, value_name = "COMMAND")]
    pub rest: Vec<String>,
}
