//! `sstat`.

use super::{Common, Lines};
use clap::Parser;

/// Shows what running jobs use, as Slurm's command does
#[derive(Parser, Clone, Debug)]
#[command(name = "sstat", disable_help_flag = true, disable_version_flag = true, infer_long_args = true, args_override_self = true)]
pub struct Sstat {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub lines: Lines,
    /// Accepted: Lattice measures all of a job together
    #[arg(short, long)]
    pub allsteps: bool,
    /// The fields, such as JobID%20,MaxRSS
    #[arg(short = 'o', long = "format", alias = "fields", value_name = "FIELDS")]
    pub format: Vec<String>,
    /// Print what the options mean
    #[arg(short = 'h', action = clap::ArgAction::Help)]
    pub short_help: Option<bool>,
    /// Print the fields that --format knows
    #[arg(short = 'e', long)]
    pub helpformat: bool,
    /// The jobs
    #[arg(short, long, value_name = "LIST")]
    pub jobs: Vec<String>,
    /// The processes of each job
    #[arg(short = 'i', long)]
    pub pidformat: bool,
    /// The jobs, too
    #[arg(value_name = "JOBS")]
    pub more_jobs: Vec<String>,
}
