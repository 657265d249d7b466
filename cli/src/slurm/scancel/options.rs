//! The options of `scancel`.

use clap::{ArgAction, Parser};
use lattice_model::signal::WorkSignal;

/// The options. Those that Slurm has for its own daemons change nothing here.
#[derive(Debug, Parser)]
#[command(name = "scancel", about = "Cancel jobs, or send them a signal", disable_version_flag = true)]
pub struct Options {
    /// Only jobs of this account (tenant)
    #[arg(short = 'A', long, value_name = "ACCOUNT")]
    pub account: Option<String>,
    /// The signal goes to the script alone
    #[arg(short, long)]
    pub batch: bool,
    /// The signal goes to the script and to its steps
    #[arg(short, long)]
    pub full: bool,
    /// Accepted; requests always go through an agent
    #[arg(long = "ctld", hide = true)]
    _ctld: bool,
    /// Accepted; there are no burst buffers
    #[arg(short = 'H', long = "hurry", hide = true)]
    _hurry: bool,
    /// The cluster: this one, or all
    #[arg(short = 'M', long, visible_alias = "cluster", value_name = "CLUSTER")]
    pub clusters: Option<String>,
    /// Ask before each job
    #[arg(short, long)]
    pub interactive: bool,
    /// Only jobs of yours
    #[arg(long)]
    pub me: bool,
    /// Only jobs with this name
    #[arg(short = 'n', long, visible_alias = "jobname", value_name = "NAME")]
    pub name: Option<String>,
    /// Only jobs with any of these nodes
    #[arg(short = 'w', long, value_name = "LIST")]
    pub nodelist: Option<String>,
    /// Only jobs in this partition (vCluster)
    #[arg(short, long, value_name = "PARTITION")]
    pub partition: Option<String>,
    /// Only jobs of this QOS (preemption class)
    #[arg(short, long, value_name = "QOS")]
    pub qos: Option<String>,
    /// Do not report jobs that have ended before
    #[arg(short = 'Q', long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Send this signal, and do not cancel
    #[arg(short, long, value_name = "SIGNAL")]
    pub signal: Option<WorkSignal>,
    /// Only jobs in this state: PENDING, RUNNING or SUSPENDED
    #[arg(short = 't', long, value_name = "STATE")]
    pub state: Option<String>,
    /// Only jobs of this user
    #[arg(short, long, value_name = "USER")]
    pub user: Option<String>,
    /// Also report what succeeds
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
    /// The jobs: 12, 12_7, 12_[1-3]
    #[arg(value_name = "JOB")]
    pub jobs: Vec<String>,
}

impl Options {
    /// Whether an option chooses jobs.
    pub fn has_filter(&self) -> bool {
        let named = [&self.account, &self.name, &self.nodelist, &self.partition, &self.qos, &self.state, &self.user];
        self.me || named.into_iter().any(Option::is_some)
    }

    /// The variables that set options; the command line wins.
    pub fn read_environment(&mut self, variable: impl Fn(&str) -> Option<String>) {
        for (option, name) in [
            (&mut self.account, "SCANCEL_ACCOUNT"),
            (&mut self.name, "SCANCEL_NAME"),
            (&mut self.partition, "SCANCEL_PARTITION"),
            (&mut self.qos, "SCANCEL_QOS"),
            (&mut self.state, "SCANCEL_STATE"),
            (&mut self.user, "SCANCEL_USER"),
            (&mut self.clusters, "SLURM_CLUSTERS"),
        ] {
            *option = option.take().or_else(|| variable(name));
        }
        let is_set = |name: &str| variable(name).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"));
        self.batch |= is_set("SCANCEL_BATCH");
        self.full |= is_set("SCANCEL_FULL");
        self.interactive |= is_set("SCANCEL_INTERACTIVE");
        if self.verbose == 0 {
            self.verbose = variable("SCANCEL_VERBOSE").and_then(|level| level.parse().ok()).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn options(line: &str) -> Options {
        Options::try_parse_from(std::iter::once("scancel").chain(line.split_whitespace())).unwrap()
    }

    #[test]
    fn the_options_are_consistent_and_parsed_as_slurm_does() {
        Options::command().debug_assert();
        let given = options("-u ada -pdebug --jobname=x -t PD -s USR1 -vv 12 12_7");
        assert_eq!((given.user.as_deref(), given.partition.as_deref(), given.name.as_deref()), (Some("ada"), Some("debug"), Some("x")));
        assert_eq!((given.signal.map(WorkSignal::number), given.verbose, given.jobs.len()), (Some(10), 2, 2));
        assert_eq!(options("12 --signal SIGTERM").signal.map(WorkSignal::number), Some(15));
        assert!(options("-Q 12 --clusters=all").quiet);
        assert!(options("--me").has_filter() && !options("12 -f -b --ctld").has_filter());
    }

    #[test]
    fn the_command_line_wins_over_variables() {
        let mut given = options("-p long");
        given.read_environment(|name| match name {
            "SCANCEL_PARTITION" => Some("short".into()),
            "SCANCEL_USER" => Some("ada".into()),
            "SCANCEL_FULL" => Some("1".into()),
            "SCANCEL_BATCH" => Some("0".into()),
            _ => None,
        });
        assert_eq!((given.partition.as_deref(), given.user.as_deref(), given.full, given.batch), (Some("long"), Some("ada"), true, false));
    }
}
