//! `lattice status`, `lattice explain`, `lattice wait`, `lattice cancel` and `lattice logs`.

use clap::Args;
use lattice_api::allocation::state_from_name;
use lattice_model::AllocationState;
use std::time::Duration;

#[derive(Args)]
pub struct Key {
    /// The allocation: its id, the beginning of it, or @last
    pub id: String,
}

#[derive(Args)]
pub struct Status {
    /// One allocation: its id, the beginning of it, or @last
    #[arg(conflicts_with_all = ["all", "state", "limit", "user", "name", "vcluster", "tenant", "node"])]
    pub id: Option<String>,
    /// Everybody's, not only your own; the site may hide whose the others are
    #[arg(short, long)]
    pub all: bool,
    /// Only those in these states (pending, staging, running, suspended, completed, failed, cancelled)
    #[arg(long, value_delimiter = ',', value_parser = state)]
    pub state: Vec<AllocationState>,
    #[command(flatten)]
    pub filter: StatusFilter,
    /// At most this many: what has not ended, then the newest that have [default: 100 in a table; no limit with -o json, yaml, name]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// As one member of the quorum has it, agreed with nobody: also without a majority. Its age is said
    #[arg(long)]
    pub stale: bool,
    /// Those that have not ended, then a line for each change; one that is named, until it has ended
    #[arg(short, long, conflicts_with_all = ["limit", "stale"])]
    pub watch: bool,
}

/// Which allocations are listed, or watched; all that is given must hold.
#[derive(Args, Clone, Default)]
pub struct StatusFilter {
    /// Only this user's
    #[arg(short, long, value_name = "USER")]
    pub user: Option<String>,
    /// Only those of this name
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Only those in the queue of this vCluster
    #[arg(long, value_name = "NAME")]
    pub vcluster: Option<String>,
    /// Only this tenant's
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Only those with this node, now or last
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
}

const WAIT_HELP: &str = "Exit codes: the highest of the programs' own codes (128 + signal), 0 where all ended well; 125 where one
ended without a code of its program (cancelled, its walltime over, lost) or Lattice failed; 124 where the
timeout was over first. What is waited for goes on when this command is ended.";

#[derive(Args)]
#[command(after_help = WAIT_HELP)]
pub struct Wait {
    /// The allocations: ids, the beginnings of such, or @last
    #[arg(required = true)]
    pub ids: Vec<String>,
    /// Wait no longer than this: 90s, 30m, 2h
    #[arg(long, value_name = "TIME", value_parser = super::ttl::ttl)]
    pub timeout: Option<Duration>,
}

#[derive(Args)]
pub struct Cancel {
    /// The allocations
    #[arg(required_unless_present = "all_mine", conflicts_with = "all_mine")]
    pub ids: Vec<String>,
    /// All of your own that have not ended
    #[arg(long)]
    pub all_mine: bool,
    /// With --all-mine: only those in these states
    #[arg(long, value_delimiter = ',', value_parser = state, requires = "all_mine")]
    pub state: Vec<AllocationState>,
}

const LOGS_NOTE: &str = "\
Each rank's stdout goes to stdout and its stderr to stderr. What was written before comes one rank after the other, and
the two streams of a rank in the order in which they were written, to about a second. With --follow, new lines come as
they are written.";

#[derive(Args)]
#[command(after_help = LOGS_NOTE)]
pub struct Logs {
    /// The allocation
    pub id: String,
    /// Follow until it has ended, then give its program's exit code
    #[arg(short, long)]
    pub follow: bool,
    /// Only this rank
    #[arg(long)]
    pub rank: Option<u32>,
    /// Of each rank's output, begin with the last N lines
    #[arg(long, value_name = "N")]
    pub tail: Option<u64>,
    /// Only what was written after this: 2026-03-01T10:00:00Z, or 10m for ten minutes ago (to about a second)
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only what was written by this
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Only stdout
    #[arg(long, conflicts_with = "stderr")]
    pub stdout: bool,
    /// Only stderr
    #[arg(long)]
    pub stderr: bool,
    /// Only the ranks of this node
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// Begin each line with its rank
    #[arg(short, long)]
    pub label: bool,
    /// Begin each line with when it was written, in UTC, to about a second
    #[arg(long)]
    pub timestamps: bool,
    /// What attempt N wrote, before it was requeued or suspended; `lattice status ID` lists the attempts, 1 is the first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "follow")]
    pub attempt: Option<u32>,
    /// What the last attempt before the present one wrote
    #[arg(long, conflicts_with_all = ["follow", "attempt"])]
    pub previous: bool,
}

fn state(text: &str) -> Result<AllocationState, String> {
    state_from_name(text).map_err(|error| error.to_string())
}
