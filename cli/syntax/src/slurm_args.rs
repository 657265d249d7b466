//! The command lines of Slurm's commands that show things, one file each.

pub mod sacct;
pub mod sacctmgr;
pub mod scontrol;
pub mod sinfo;
pub mod sprio;
pub mod squeue;
pub mod sshare;
pub mod sstat;
mod with_common;

use clap::{ArgAction, Args};

/// What every command has.
#[derive(Args, Clone, Debug, Default)]
pub struct Common {
    /// Print what the options mean
    #[arg(long, action = ArgAction::Help)]
    pub help: Option<bool>,
    /// Print a short summary of the options
    #[arg(long)]
    pub usage: bool,
    /// Print the version of Slurm whose commands these are like
    #[arg(short = 'V', long)]
    pub version: bool,
    /// Accepted, and changes nothing
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
    /// The cluster: its own name, or "all"
    #[arg(short = 'M', long, value_name = "LIST")]
    pub clusters: Vec<String>,
    /// Accepted: there is one cluster
    #[arg(long)]
    pub local: bool,
    /// Accepted: there is one cluster
    #[arg(long)]
    pub federation: bool,
    /// Accepted: there is one cluster
    #[arg(long)]
    pub sibling: bool,
    /// Accepted: amounts are exact where they have to be
    #[arg(long)]
    pub noconvert: bool,
}

/// Answers as data.
#[derive(Args, Clone, Debug, Default)]
pub struct Data {
    /// Answer with JSON
    #[arg(long, value_name = "VERSION", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub json: Option<String>,
    /// Answer with YAML
    #[arg(long, value_name = "VERSION", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub yaml: Option<String>,
}

/// How sacct, sacctmgr, sshare and sstat write their lines.
#[derive(Args, Clone, Debug, Default)]
pub struct Lines {
    /// Without the lines of headings
    #[arg(short, long)]
    pub noheader: bool,
    /// Fields with | behind each
    #[arg(short, long)]
    pub parsable: bool,
    /// Fields with | between them
    #[arg(short = 'P', long)]
    pub parsable2: bool,
}

/// A command line with the options of [`Common`].
pub trait HasCommon {
    /// These options.
    fn common(&self) -> &Common;
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_command_lines_are_consistent() {
        super::squeue::Squeue::command().debug_assert();
        super::sinfo::Sinfo::command().debug_assert();
        super::scontrol::Scontrol::command().debug_assert();
        super::sacct::Sacct::command().debug_assert();
        super::sacctmgr::Sacctmgr::command().debug_assert();
        super::sstat::Sstat::command().debug_assert();
        super::sprio::Sprio::command().debug_assert();
        super::sshare::Sshare::command().debug_assert();
    }

    #[test]
    fn options_may_be_shortened_joined_and_repeated() {
        let typed = ["squeue", "--noheader", "--format=%i %t", "--job", "1,2", "-tall", "-h", "-h"];
        let squeue = super::squeue::Squeue::try_parse_from(typed).unwrap();
        assert_eq!((squeue.jobs, squeue.noheader), (vec!["1,2".to_owned()], true));
        let typed = ["squeue", "--me", "-o", "%i", "-h", "-r", "-t", "all"];
        assert!(super::squeue::Squeue::try_parse_from(typed).unwrap().array);
        let typed = ["sacct", "-X", "--noheader", "--format=jobid,state%20", "--job", "12", "-j", "13", "--clusters", "all"];
        assert_eq!(super::sacct::Sacct::try_parse_from(typed).unwrap().jobs, ["12", "13"]);
        let typed = ["scontrol", "-a", "show", "-o", "nodes", "n[1-3]"];
        let scontrol = super::scontrol::Scontrol::try_parse_from(typed).unwrap();
        assert!(scontrol.oneliner && scontrol.words == ["show", "nodes", "n[1-3]"]);
        let typed = ["sacctmgr", "-n", "-s", "list", "user", "ada", "format=account%256"];
        let sacctmgr = super::sacctmgr::Sacctmgr::try_parse_from(typed).unwrap();
        assert!(sacctmgr.lines.noheader && sacctmgr.associations && sacctmgr.words.len() == 4);
        let typed = ["sacctmgr", "show", "assoc", "-nP"];
        assert!(super::sacctmgr::Sacctmgr::try_parse_from(typed).unwrap().lines.parsable2);
        assert!(super::sshare::Sshare::try_parse_from(["sshare", "-h"]).unwrap().headless);
        let typed = ["sshare", "-U", "--format", "Account%256", "--noheader"];
        assert!(super::sshare::Sshare::try_parse_from(typed).unwrap().users_only);
    }
}
