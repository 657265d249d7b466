//! `sprio`.

use super::Common;
use clap::Parser;

/// Shows what the priorities of waiting jobs consist of, as Slurm's command does
#[derive(Parser, Clone, Debug)]
#[command(name = "sprio", disable_help_flag = true, disable_version_flag = true, infer_long_args = true, args_override_self = true)]
pub struct Sprio {
    #[command(flatten)]
    pub common: Common,
    /// The columns, such as "%.15i %.10Y %.10A"
    #[arg(short = 'o', long, value_name = "FORMAT")]
    pub format: Option<String>,
    /// Only these jobs
    #[arg(short, long, value_name = "LIST", num_args = 0..=1)]
    pub jobs: Vec<String>,
    /// More columns
    #[arg(short, long)]
    pub long: bool,
    /// Without the line of headings
    #[arg(short = 'h', long)]
    pub noheader: bool,
    /// The factors without their weights
    #[arg(short, long)]
    pub norm: bool,
    /// Only jobs of these partitions
    #[arg(short, long, value_name = "LIST")]
    pub partition: Vec<String>,
    /// The order, such as u,-y
    #[arg(short = 'S', long, value_name = "LIST", allow_hyphen_values = true)]
    pub sort: Option<String>,
    /// Only jobs of these users
    #[arg(short, long, value_name = "LIST")]
    pub user: Vec<String>,
    /// The weights of the factors, instead of jobs
    #[arg(short, long)]
    pub weights: bool,
}
