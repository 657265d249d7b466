//! `lattice launch`.

use crate::flags::SubmitFlags;
use clap::Args;
use lattice_model::Stdin;

const LAUNCH_EXAMPLES: &str = "Examples:
  lattice launch ./simulate
      in a script: the allocation's ranks, of -n or of tasks-per-node on each of its nodes
  lattice launch -n 4 --label hostname
      in a script: 4 ranks, each line with its rank
  lattice launch --alloc 1f0c9a4e hostname
      from outside, in an allocation that runs
  lattice launch --alloc 1f0c9a4e --pty -n 1 python3
      the same with a terminal, which outlives a restart of the agent
  lattice launch --pty bash
      elsewhere: a job of its own with your terminal, once it has its node; hanging up cancels it
  lattice launch -n 8 -m cyclic ./simulate
      ranks dealt out to the nodes in turn
  lattice launch -n 1 ./server : -n 15 ./worker
      one MPI world of two programs
  lattice launch -w n1,n2,n1 ./simulate
      in a script: rank 0 on n1, rank 1 on n2, rank 2 on n1
  lattice launch -N 2 -n 16 ./simulate
      elsewhere: asks for 2 nodes, waits, shows the output, gives the exit code";

#[derive(Args)]
#[command(after_help = LAUNCH_EXAMPLES)]
pub struct Launch {
    /// Begin each line with its rank
    #[arg(short, long)]
    pub label: bool,
    /// Give the first rank a terminal: yours
    #[arg(long, conflicts_with = "label")]
    pub pty: bool,
    /// The ranks that read standard input: a rank's number, all or none [default: 0, of a pipe or a file]
    #[arg(short = 'i', long, alias = "input", value_name = "RANK", conflicts_with = "pty")]
    pub stdin: Option<Stdin>,
    /// Inside an allocation: tell at the end how each rank ended, on stderr or into a file; as JSON with -o json
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub exit_table: Option<String>,
    /// The allocation to run in; by default the one this process runs in
    #[arg(long, value_name = "ID")]
    pub alloc: Option<String>,
    /// Said by -o per-rank.
    #[arg(skip)]
    pub per_rank: bool,
    #[command(flatten)]
    pub flags: SubmitFlags,
    /// The program and its arguments; further programs of the same launch begin with `: -n RANKS`
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}
