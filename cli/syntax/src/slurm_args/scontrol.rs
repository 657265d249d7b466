//! `scontrol`.

use super::{Common, Data};
use clap::Parser;

/// Shows and changes jobs and nodes, as Slurm's command does
#[derive(Parser, Clone, Debug)]
#[command(name = "scontrol", disable_help_flag = true, disable_version_flag = true, infer_long_args = true, args_override_self = true)]
pub struct Scontrol {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub data: Data,
    /// Accepted: no partition is hidden
    #[arg(short, long)]
    pub all: bool,
    /// What a job has on each of its nodes
    #[arg(short, long)]
    pub details: bool,
    /// Accepted: all nodes are real
    #[arg(short = 'F', long)]
    pub future: bool,
    /// Print what the options mean
    #[arg(short = 'h', action = clap::ArgAction::Help)]
    pub short_help: Option<bool>,
    /// Accepted: no partition is hidden
    #[arg(long)]
    pub hide: bool,
    /// Each record in one line
    #[arg(short, long)]
    pub oneliner: bool,
    /// Print no messages
    #[arg(short = 'Q', long)]
    pub quiet: bool,
    /// Refused: Lattice acts for the calling user
    #[arg(short, long, value_name = "UID")]
    pub uid: Option<String>,
    /// The command: show, hold, release, update, requeue, ping, …
    #[arg(value_name = "COMMAND")]
    pub words: Vec<String>,
}
