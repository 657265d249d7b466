//! `squeue`.

use super::{Common, Data};
use clap::Parser;

/// Shows jobs that wait or run, as Slurm's command does
#[derive(Parser, Clone, Debug)]
#[command(name = "squeue", disable_help_flag = true, disable_version_flag = true, infer_long_args = true, args_override_self = true)]
pub struct Squeue {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub data: Data,
    /// Only jobs of these accounts
    #[arg(short = 'A', long, value_name = "LIST")]
    pub account: Vec<String>,
    /// Accepted: no partition is hidden
    #[arg(short, long)]
    pub all: bool,
    /// A line for each task of an array
    #[arg(short = 'r', long)]
    pub array: bool,
    /// A line for each task of an array that waits
    #[arg(long)]
    pub array_unique: bool,
    /// The columns, such as "%.18i %.9P %j"
    #[arg(short = 'o', long = "format", value_name = "FORMAT", allow_hyphen_values = true)]
    pub format: Option<String>,
    /// The columns by their names, such as JobID:18,State
    #[arg(short = 'O', long = "Format", value_name = "FORMAT")]
    pub long_format: Option<String>,
    /// Accepted: no partition is hidden
    #[arg(long)]
    pub hide: bool,
    /// Again and again, so many seconds apart
    #[arg(short, long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub iterate: Option<u64>,
    /// Only these jobs
    #[arg(short, long = "jobs", value_name = "LIST", num_args = 0..=1)]
    pub jobs: Vec<String>,
    /// Refused: Lattice has no licenses
    #[arg(short = 'L', long, value_name = "LIST")]
    pub licenses: Vec<String>,
    /// More columns
    #[arg(short, long)]
    pub long: bool,
    /// Only your own jobs
    #[arg(long)]
    pub me: bool,
    /// Only jobs with these names
    #[arg(short, long, value_name = "LIST")]
    pub name: Vec<String>,
    /// Only jobs on these nodes
    #[arg(short = 'w', long, alias = "nodes", value_name = "HOSTLIST")]
    pub nodelist: Vec<String>,
    /// Without the line of headings
    #[arg(short = 'h', long)]
    pub noheader: bool,
    /// Only jobs of these partitions
    #[arg(short, long, value_name = "LIST")]
    pub partition: Vec<String>,
    /// Accepted: a job has one partition
    #[arg(short = 'P', long)]
    pub priority: bool,
    /// Only jobs of these QOS
    #[arg(short, long, value_name = "LIST")]
    pub qos: Vec<String>,
    /// Only jobs of this reservation
    #[arg(short = 'R', long, value_name = "NAME")]
    pub reservation: Option<String>,
    /// The order, such as P,t,-p
    #[arg(short = 'S', long, value_name = "LIST", allow_hyphen_values = true)]
    pub sort: Option<String>,
    /// When jobs that wait are expected to start
    #[arg(long)]
    pub start: bool,
    /// Only jobs in these states, or "all"
    #[arg(short = 't', long, value_name = "LIST")]
    pub states: Vec<String>,
    /// The steps that run: all, or only of these jobs, such as 12, or only these steps, such as 12.0
    #[arg(short = 's', long, value_name = "LIST", num_args = 0..=1, default_missing_value = "")]
    pub steps: Option<String>,
    /// Only jobs of these users
    #[arg(short, long, alias = "users", value_name = "LIST")]
    pub user: Vec<String>,
}
