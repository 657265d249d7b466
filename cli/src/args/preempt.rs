//! `lattice preempt`, `lattice hold` and `lattice resume`.

use clap::Args;
use std::time::Duration;

const PREEMPT_HELP: &str = "Examples:
  lattice preempt 1f0c9a4e --reason 'the nodes are needed'
      it saves itself, is ended, and waits for nodes again, to go on from there; its place in the queue is the one it had
  lattice preempt 1f0c9a4e --hold --deadline 5m
      the same, and it stays Suspended until `lattice resume 1f0c9a4e`

Work that was submitted without --checkpoint cannot save itself and is refused, with what would be lost; --kill ends it all the same. Work
that is to save itself and does not in time is ended: it is Failed, or back in the queue with --requeue=always. It gets SIGTERM first, and SIGKILL when its grace is over. `lattice status 1f0c9a4e --watch` shows how it
goes. For its owner, and for operators; sensitive work and that of class 10 only for its owner.";

#[derive(Args)]
#[command(after_help = PREEMPT_HELP)]
pub struct Preempt {
    /// The allocations: ids, the beginnings of such, or @last
    #[arg(required = true)]
    pub ids: Vec<String>,
    /// How long each has to save itself: 30s, 5m; then half as long again, once [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = super::ttl::ttl)]
    pub deadline: Option<Duration>,
    /// Why, for its owner and for the audit log
    #[arg(long, value_name = "TEXT", default_value = "asked for")]
    pub reason: String,
    /// End work that cannot save itself (without --checkpoint) as well: what it has done is lost
    #[arg(long)]
    pub kill: bool,
    /// Then keep it Suspended until somebody resumes it, instead of having it wait for nodes
    #[arg(long)]
    pub hold: bool,
}

#[derive(Args)]
pub struct Hold {
    /// The allocations, which wait for nodes: ids, the beginnings of such, or @last
    #[arg(required = true)]
    pub ids: Vec<String>,
}

#[derive(Args)]
pub struct Resume {
    /// The allocations: ids, the beginnings of such, or @last
    #[arg(required = true)]
    pub ids: Vec<String>,
}
