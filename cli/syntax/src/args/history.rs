//! `lattice history`.

use crate::flags::parse_tag;
use crate::tasks::JobOrTask;
use clap::Args;
use lattice_api::allocation::{UnknownState, state_from_name};
use lattice_model::AllocationState;
use thiserror::Error;

const HISTORY_NOTE: &str = "\
Ended work of any age, from the accounting store, if the site has one. Work is
there about a second after its end. Node-hours are those of `lattice usage`: of
all attempts, without the time of prologues. Without --since and --job, the
work that ended in the last seven days is shown.

Everybody sees their own work, admins of a tenant also that of the tenant,
operators all.

Examples:
  lattice history --since 2026-02-01 --until 2026-03-01 --sum
      what you used in February, for each tenant and project
  lattice history --all --tenant physics --state failed --name 'night-*'";

#[derive(Args)]
#[command(after_help = HISTORY_NOTE)]
pub struct History {
    #[command(flatten)]
    pub filter: HistoryFilter,
    /// Work of all users that you may see, not only yours
    #[arg(short, long, conflicts_with = "user")]
    pub all: bool,
    /// Instead of the work, what it used: a line for each user, tenant and project
    #[arg(long)]
    pub sum: bool,
    /// At most this many, the newest first
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,
}

/// Which ended work is meant; all that is given must hold.
#[derive(Args)]
pub struct HistoryFilter {
    /// Only what ended at this time or after it: 2026-03-01, 2026-03-01T10:00:00Z, or 7d for seven days ago
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only what ended before this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Only this user's
    #[arg(short, long, value_name = "USER")]
    pub user: Option<String>,
    /// Only this tenant's
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Only this project's
    #[arg(long, value_name = "NAME")]
    pub project: Option<String>,
    /// Only what was in the queue of this vCluster
    #[arg(long, value_name = "NAME")]
    pub vcluster: Option<String>,
    /// Only what ended in these states (completed, failed, cancelled)
    #[arg(long, value_delimiter = ',', value_parser = ended_state)]
    pub state: Vec<AllocationState>,
    /// Only those of this name, in which * stands for any text
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Only those with these job numbers, whenever they ended; 42_7 or 42[7] is one task of task group 42; may be given
    /// more than once, and with commas
    #[arg(long, value_name = "NUMBER", value_delimiter = ',')]
    pub job: Vec<JobOrTask>,
    /// Only those with this tag and value; may be given more than once, and with commas: all of them must hold
    #[arg(long = "tag", visible_alias = "tags", value_name = "NAME=VALUE", value_delimiter = ',', value_parser = parse_tag)]
    pub tags: Vec<(String, String)>,
}

/// A text that names no state of ended work.
#[derive(Debug, Error)]
enum EndedStateError {
    #[error("{0} work has not ended: use completed, failed or cancelled, or `lattice status`")]
    NotEnded(AllocationState),
    #[error(transparent)]
    Unknown(#[from] UnknownState),
}

fn ended_state(name: &str) -> Result<AllocationState, EndedStateError> {
    let state = state_from_name(name)?;
    if state.is_terminal() { Ok(state) } else { Err(EndedStateError::NotEnded(state)) }
}
