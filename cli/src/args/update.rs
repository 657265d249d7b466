//! `lattice update`.

use crate::flags::walltime;
use clap::Args;
use std::time::Duration;

const UPDATE_HELP: &str = "Examples:
  lattice update 1f0c9a4e --walltime 90
      90 minutes, counted from its beginning; work that waits begins with that
  lattice update @last -t 30m
      work that runs ends after 30 minutes in all, with the usual SIGTERM and grace

Its owner may shorten the walltime at any time, to no less than what has run and a minute, and lengthen it
while the work waits for nodes or is held. Operators may lengthen that of running work as well. Nodes that
are cut off follow when they are back. Who changed it is in the audit log.";

#[derive(Args)]
#[command(after_help = UPDATE_HELP)]
pub struct Update {
    /// The allocations: ids, the beginnings of such, or @last
    #[arg(required = true)]
    pub ids: Vec<String>,
    /// How long it may run, from its beginning: 90 (minutes), 90s, 10m, 2h, HH:MM:SS, D-HH
    #[arg(short = 't', long, visible_alias = "time", value_name = "TIME", value_parser = walltime)]
    pub walltime: Duration,
}
