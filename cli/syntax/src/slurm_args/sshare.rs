//! `sshare`.

use super::{Common, Lines};
use clap::Parser;

/// Shows the shares of accounts and what they used, as Slurm's command does
#[derive(Parser, Clone, Debug)]
#[command(name = "sshare", disable_help_flag = true, disable_version_flag = true, infer_long_args = true, args_override_self = true)]
pub struct Sshare {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub lines: Lines,
    /// Only these accounts
    #[arg(short = 'A', long, value_name = "LIST")]
    pub accounts: Vec<String>,
    /// Accepted: all accounts are shown
    #[arg(short, long)]
    pub all: bool,
    /// The fields, such as Account%20,RawUsage
    #[arg(short = 'o', long, value_name = "FIELDS")]
    pub format: Vec<String>,
    /// Print the fields that --format knows
    #[arg(short = 'e', long)]
    pub helpformat: bool,
    /// More fields
    #[arg(short, long)]
    pub long: bool,
    /// Without the lines of headings
    #[arg(short = 'h', hide = true)]
    pub headless: bool,
    /// Accepted: shares are of accounts, not of partitions
    #[arg(short = 'm', long)]
    pub partition: bool,
    /// The use of these users
    #[arg(short = 'u', long = "users", value_name = "LIST")]
    pub users: Vec<String>,
    /// Only users, not accounts
    #[arg(short = 'U', long = "Users")]
    pub users_only: bool,
}
