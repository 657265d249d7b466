//! `lattice update`.

use crate::flags::parse_walltime;
use clap::Args;
use std::time::Duration;

const UPDATE_HELP: &str = "Examples:
  lattice update 1f0c9a4e --walltime 90
      90 minutes from its beginning; work that waits gets that walltime
  lattice update @last -t 30m
      work that runs is ended after 30 minutes in all, with SIGTERM and its
      grace

The owner may shorten the walltime at any time, to at least a minute more than
the work has run, and lengthen it while the work waits for nodes or is held.
Operators may also lengthen it while the work runs. A node that is cut off gets
the new walltime when it is connected again. Who changed it is in the audit log.";

#[derive(Args)]
#[command(after_help = UPDATE_HELP)]
pub struct Update {
    /// The allocations: ids, the beginnings of ids, or @last
    #[arg(required = true)]
    pub ids: Vec<String>,
    /// How long it may run, from its beginning: 90 (minutes), 90s, 10m, 2h, HH:MM:SS or D-HH
    #[arg(short = 't', long, visible_alias = "time", value_name = "TIME", value_parser = parse_walltime)]
    pub walltime: Duration,
}
