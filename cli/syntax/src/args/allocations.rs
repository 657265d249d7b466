//! `lattice status`, `lattice explain`, `lattice wait`, `lattice cancel` and `lattice logs`.

use crate::flags::parse_tag;
use crate::tasks::{OneTarget, Target};
use clap::Args;
use lattice_api::allocation::state_from_name;
use lattice_model::AllocationState;
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

#[derive(Args)]
pub struct Explain {
    /// The allocation: its job number, its id, the beginning of it, or @last; or one task of a task group, or one replica
    /// of a scaled service: 'ID[7]'
    #[arg(required_unless_present = "queue")]
    pub id: Option<OneTarget>,
    /// Instead of one allocation, all that waits in this vCluster, in the order in which it is served, and why it waits
    #[arg(long, value_name = "VCLUSTER", num_args = 0..=1, default_missing_value = lattice_model::DEFAULT_VCLUSTER, conflicts_with = "id")]
    pub queue: Option<String>,
}

#[derive(Args)]
pub struct Status {
    /// One allocation: its job number, its id, the beginning of it, or @last; or one task of a task group, or one replica
    /// of a scaled service: 'ID[7]'
    #[arg(conflicts_with_all = ["all", "state", "limit", "user", "name", "vcluster", "tenant", "project", "node", "tags", "count", "sort", "since", "each"])]
    pub id: Option<OneTarget>,
    /// Show the tasks of a task group: a line for each state and exit code. -o wide, json and yaml have a record for each
    /// range of indices
    #[arg(long, requires = "id", conflicts_with = "watch")]
    pub tasks: bool,
    /// Show the lanes of a task group: the allocations in which its tasks run, one after another
    #[arg(long, requires = "id", conflicts_with_all = ["tasks", "watch"])]
    pub lanes: bool,
    /// Show the replicas of a scaled service: the allocations that run it
    #[arg(long, requires = "id", conflicts_with_all = ["tasks", "lanes", "watch"])]
    pub replicas: bool,
    /// Show the steps of an allocation: its script, and the launches in it with their exit codes, of its present or last
    /// attempt
    #[arg(long, requires = "id", conflicts_with_all = ["tasks", "lanes", "replicas", "watch", "stale"])]
    pub steps: bool,
    /// Allocations of all users, not only yours; the site may hide who owns them
    #[arg(short, long)]
    pub all: bool,
    /// Only those in these states (pending, staging, running, suspended, completed, failed, cancelled)
    #[arg(long, value_delimiter = ',', value_parser = state_from_name)]
    pub state: Vec<AllocationState>,
    #[command(flatten)]
    pub filter: StatusFilter,
    /// At most this many: first those that have not ended, then the newest of the others [default: 100 in a table; no
    /// limit with -o json, yaml, name]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// Instead of allocations, a line for each state: how many there are, and how many nodes they have or wait for
    #[arg(long, conflicts_with_all = ["limit", "watch", "sort", "each"])]
    pub count: bool,
    /// In this order instead of the expected one; several columns with commas, and - before one for the other direction:
    /// --sort=-nodes,name. It is sorted before --limit applies
    #[arg(long, value_name = "[-]COLUMN", value_delimiter = ',', allow_hyphen_values = true, conflicts_with = "watch")]
    pub sort: Vec<SortKey>,
    /// Only what was submitted, or ended, at this time or after it: 2026-03-01, 2026-03-01T10:00:00Z, or 2h for two
    /// hours ago
    #[arg(long, value_name = "TIME", conflicts_with = "watch")]
    pub since: Option<String>,
    /// On a terminal, a line for each allocation, also where neighbours in the list differ in nothing but their ids
    #[arg(long, conflicts_with = "watch")]
    pub each: bool,
    /// Show the state that one member of the quorum has, which may be old; this works even without a majority. Its age
    /// is shown
    #[arg(long)]
    pub stale: bool,
    /// Show the allocations that have not ended, and changes: on a terminal a screen that is redrawn, else a line for each
    /// change. With ID: a line for each change until that allocation has ended
    #[arg(short, long, conflicts_with_all = ["limit", "stale"])]
    pub watch: bool,
}

/// A column by which a list of allocations is sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortKey {
    pub column: SortColumn,
    /// Whether the greatest, latest or last comes first.
    pub is_descending: bool,
}

/// The columns of `--sort`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortColumn {
    Id,
    Job,
    Name,
    Owner,
    State,
    Nodes,
    Submitted,
    Started,
    Ended,
    Walltime,
    Elapsed,
}

impl SortColumn {
    /// Every column with its name.
    pub const ALL: [(&str, Self); 11] = [
        ("id", Self::Id),
        ("job", Self::Job),
        ("name", Self::Name),
        ("owner", Self::Owner),
        ("state", Self::State),
        ("nodes", Self::Nodes),
        ("submitted", Self::Submitted),
        ("started", Self::Started),
        ("ended", Self::Ended),
        ("walltime", Self::Walltime),
        ("elapsed", Self::Elapsed),
    ];
}

/// A text that names no column.
#[derive(Debug, Error)]
#[error("{0:?} is no column: use id, job, name, owner, state, nodes, submitted, started, ended, walltime or elapsed")]
pub struct UnknownColumn(String);

impl FromStr for SortKey {
    type Err = UnknownColumn;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (is_descending, name) = match text.strip_prefix('-') {
            Some(name) => (true, name),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let found = SortColumn::ALL.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, column)| Self { column, is_descending }).ok_or_else(|| UnknownColumn(name.to_owned()))
    }
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
    /// Only this project's
    #[arg(long, value_name = "NAME")]
    pub project: Option<String>,
    /// Only those that have this node, or had it at their end
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// Only those with this tag and value; may be given more than once, and with commas: all of them must hold
    #[arg(long = "tag", visible_alias = "tags", value_name = "NAME=VALUE", value_delimiter = ',', value_parser = parse_tag)]
    pub tags: Vec<(String, String)>,
}

const WAIT_HELP: &str = "Exit codes: the highest of the programs' own codes (128 + signal); 0 when all
of them succeeded; 1 for a task group that is not Completed; 125 when one ended
without a code of its program (cancelled, walltime over, lost) or Lattice
failed; 124 when the timeout was over first.
The allocations continue when this command is ended.";

#[derive(Args)]
#[command(after_help = WAIT_HELP)]
pub struct Wait {
    /// The allocations: job numbers, ids, the beginnings of ids, or @last
    #[arg(required = true)]
    pub ids: Vec<String>,
    /// Wait no longer than this: 90s, 30m, 2h (a bare number is seconds) [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = super::ttl::parse_ttl)]
    pub timeout: Option<Duration>,
}

#[derive(Args)]
pub struct Cancel {
    /// The allocations; or tasks of a task group, or replicas of a scaled service, in quotes: 'ID[7]' or 'ID[10-20,30]'
    #[arg(required_unless_present = "all_mine", conflicts_with = "all_mine")]
    pub ids: Vec<Target>,
    /// All of yours that have not ended
    #[arg(long)]
    pub all_mine: bool,
    /// With --all-mine: only those in these states
    #[arg(long, value_delimiter = ',', value_parser = state_from_name, requires = "all_mine")]
    pub state: Vec<AllocationState>,
}

const LOGS_NOTE: &str = "\
The stdout of each rank goes to stdout, and its stderr to stderr. Old output
comes one rank after the other; the two streams of a rank are in the order in
which they were written, to about a second. With --follow, new lines come as
they are written. Each task of a task group has output of its own; --follow then
ends with the task.";

#[derive(Args)]
#[command(after_help = LOGS_NOTE)]
pub struct Logs {
    /// The allocation; or one task of a task group, or one replica of a scaled service: 'ID[7]'
    pub id: OneTarget,
    /// Of a task group: the task with this index
    #[arg(long, value_name = "INDEX", conflicts_with = "rank")]
    pub task: Option<u32>,
    /// Follow the output until the allocation has ended, then exit with its program's exit code
    #[arg(short, long)]
    pub follow: bool,
    /// Only this rank
    #[arg(long)]
    pub rank: Option<u32>,
    /// Begin with the last N lines of each rank [default: all]
    #[arg(long, value_name = "N")]
    pub tail: Option<u64>,
    /// Only what was written after this time: 2026-03-01T10:00:00Z, or 10m for ten minutes ago (to about a second)
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only what was written before this time
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
    /// Begin each line with the time when it was written, in UTC, to about a second
    #[arg(long)]
    pub timestamps: bool,
    /// The output of attempt N, which was requeued or suspended; `lattice status ID` lists the attempts, from 1
    /// [default: the current attempt]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "follow")]
    pub attempt: Option<u32>,
    /// The output of the attempt before the current one
    #[arg(long, conflicts_with_all = ["follow", "attempt"])]
    pub previous: bool,
}
