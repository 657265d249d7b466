//! `lattice preempt`, `lattice hold` and `lattice resume`.

use clap::Args;
use std::time::Duration;

const PREEMPT_HELP: &str = "Examples:
  lattice preempt 1f0c9a4e --reason 'the nodes are needed'
      it saves its state and is ended; it keeps its place in the queue, and
      continues from there when it gets nodes again
  lattice preempt 1f0c9a4e --hold --deadline 5m
      the same, but it stays Suspended until `lattice resume 1f0c9a4e`

Work that was submitted without --checkpoint cannot save its state. It is
refused, and the message says what would be lost; --kill ends it all the same.
Work that does not save its state in time is ended (SIGTERM, and SIGKILL after
its grace): it is Failed, or back in the queue with --requeue=always.
`lattice status 1f0c9a4e --watch` shows the progress.

For the owner, admins of its tenant and operators; sensitive work, and work of
preemption class 10, for the owner alone.";

#[derive(Args)]
#[command(after_help = PREEMPT_HELP)]
pub struct Preempt {
    /// The allocations: job numbers, ids, the beginnings of ids, or @last
    #[arg(required = true)]
    pub ids: Vec<String>,
    /// How long each has to save its state, such as 30s or 5m (a bare number is seconds); one that is late gets half of
    /// that in addition, once [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = super::ttl::parse_save_deadline)]
    pub deadline: Option<Duration>,
    /// Why, for its owner and for the audit log
    #[arg(long, value_name = "TEXT", default_value = "asked for")]
    pub reason: String,
    /// Also end work that cannot save its state (without --checkpoint): what it has done is lost
    #[arg(long)]
    pub kill: bool,
    /// Keep it Suspended until `lattice resume`; without this it waits for nodes again
    #[arg(long)]
    pub hold: bool,
}

#[derive(Args)]
pub struct Hold {
    /// The allocations, which wait for nodes: job numbers, ids, the beginnings of ids, or @last
    #[arg(required = true)]
    pub ids: Vec<String>,
}

#[derive(Args)]
pub struct Resume {
    /// The allocations: job numbers, ids, the beginnings of ids, or @last
    #[arg(required = true)]
    pub ids: Vec<String>,
}
