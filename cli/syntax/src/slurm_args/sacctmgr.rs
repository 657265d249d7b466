//! `sacctmgr`: only its commands that show something.

use super::{Common, Lines};
use clap::Parser;

/// Shows accounts, users, their associations, QOS and the cluster, as Slurm's command does
#[derive(Parser, Clone, Debug)]
#[command(name = "sacctmgr", disable_help_flag = true, disable_version_flag = true, infer_long_args = true, args_override_self = true)]
pub struct Sacctmgr {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub lines: Lines,
    /// Also show the associations of users and accounts
    #[arg(short = 's', long)]
    pub associations: bool,
    /// Print what the options mean
    #[arg(short = 'h', action = clap::ArgAction::Help)]
    pub short_help: Option<bool>,
    /// Accepted: nothing is changed
    #[arg(short, long)]
    pub immediate: bool,
    /// Accepted: each record is in one line
    #[arg(short, long)]
    pub oneliner: bool,
    /// Print no messages
    #[arg(short = 'Q', long)]
    pub quiet: bool,
    /// Accepted: nothing is changed
    #[arg(short, long)]
    pub readonly: bool,
    /// The command: show (or list) user, account, association, qos or cluster, then NAME=VALUE such as user=ada,
    /// account=physics or format=account%20,user
    #[arg(value_name = "COMMAND")]
    pub words: Vec<String>,
}
