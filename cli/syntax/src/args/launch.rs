//! `lattice launch`.

use crate::flags::SubmitFlags;
use clap::Args;
use lattice_model::Stdin;

const LAUNCH_EXAMPLES: &str = "Inside an allocation, such as in a script:
  lattice launch ./simulate
      as many ranks as the allocation has: -n, or tasks-per-node on each node
  lattice launch -n 4 --label hostname
      4 ranks; each line of output begins with its rank
  lattice launch -n 8 -m cyclic ./simulate
      8 ranks, distributed over the nodes in turn
  lattice launch -w n1,n2,n1 ./simulate
      rank 0 on n1, rank 1 on n2, rank 2 on n1
  lattice launch -n 1 ./server : -n 15 ./worker
      one MPI world of two programs

In an allocation that runs, from outside it:
  lattice launch --alloc 1f0c9a4e hostname
  lattice launch --alloc 1f0c9a4e --pty -n 1 python3
      with your terminal, which survives a restart of the agent

As a job of its own:
  lattice launch -N 2 -n 16 ./simulate
      asks for 2 nodes, waits for them, shows the output, and exits with the
      program's exit code
  lattice launch --pty bash
      the same with your terminal; hanging up cancels the job";

#[derive(Args)]
#[command(after_help = LAUNCH_EXAMPLES)]
pub struct Launch {
    /// Begin each line of output with its rank
    #[arg(short, long)]
    pub label: bool,
    /// Connect your terminal to the first rank
    #[arg(long, conflicts_with = "label")]
    pub pty: bool,
    /// Which ranks read standard input: the number of one, all or none [default: 0, if it is a pipe or a file]
    #[arg(short = 'i', long, alias = "input", value_name = "RANK", conflicts_with = "pty")]
    pub stdin: Option<Stdin>,
    /// Inside an allocation: print how each rank ended, on stderr or into a file; as JSON with -o json
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub exit_table: Option<String>,
    /// The allocation to run in [default: the one that this process runs in]
    #[arg(long, value_name = "ID")]
    pub alloc: Option<String>,
    /// Set by `-o per-rank`.
    #[arg(skip)]
    pub per_rank: bool,
    #[command(flatten)]
    pub flags: SubmitFlags,
    /// The program and its arguments; further programs of the same launch begin with `: -n RANKS`
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}
