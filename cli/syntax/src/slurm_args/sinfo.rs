//! `sinfo`.

use super::{Common, Data};
use clap::Parser;

/// Shows partitions and nodes, as Slurm's command does
#[derive(Parser, Clone, Debug)]
#[command(name = "sinfo", disable_help_flag = true, disable_version_flag = true, infer_long_args = true, args_override_self = true)]
pub struct Sinfo {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub data: Data,
    /// Accepted: no partition is hidden
    #[arg(short, long)]
    pub all: bool,
    /// Only nodes that do not answer
    #[arg(short, long)]
    pub dead: bool,
    /// Nodes of different sizes in different lines
    #[arg(short, long)]
    pub exact: bool,
    /// The columns, such as "%P %.6D %t %N"
    #[arg(short = 'o', long = "format", value_name = "FORMAT")]
    pub format: Option<String>,
    /// The columns by their names, such as Partition:12,Nodes
    #[arg(short = 'O', long = "Format", value_name = "FORMAT")]
    pub long_format: Option<String>,
    /// Accepted: no partition is hidden
    #[arg(long)]
    pub hide: bool,
    /// Again and again, so many seconds apart
    #[arg(short, long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub iterate: Option<u64>,
    /// Why nodes are down or drained
    #[arg(short = 'R', long)]
    pub list_reasons: bool,
    /// More columns
    #[arg(short, long)]
    pub long: bool,
    /// A line for each node and partition
    #[arg(short = 'N', long = "Node")]
    pub by_node: bool,
    /// Only these nodes
    #[arg(short, long, value_name = "HOSTLIST")]
    pub nodes: Vec<String>,
    /// Without the line of headings
    #[arg(short = 'h', long)]
    pub noheader: bool,
    /// Only these partitions
    #[arg(short, long, value_name = "LIST")]
    pub partition: Vec<String>,
    /// The reservations
    #[arg(short = 'T', long)]
    pub reservation: bool,
    /// Only nodes that answer
    #[arg(short, long)]
    pub responding: bool,
    /// The order, such as P,-t
    #[arg(short = 'S', long, value_name = "LIST", allow_hyphen_values = true)]
    pub sort: Option<String>,
    /// Only nodes in these states
    #[arg(short = 't', long, value_name = "LIST")]
    pub states: Vec<String>,
    /// A line for each partition
    #[arg(short, long)]
    pub summarize: bool,
}
