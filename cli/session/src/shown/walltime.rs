//! The walltime of an allocation, how long it has run, and how much is left.

use super::state::{Part, part};
use lattice_api::json::ends_by_ms;
use lattice_api::v1;
use lattice_model::duration::clock_text;
use lattice_model::time::Timestamp;
use std::time::Duration;

pub fn clock(seconds: u64) -> String {
    clock_text(Duration::from_secs(seconds))
}

/// Its walltime; a service has none.
pub fn walltime(a: &v1::Allocation) -> String {
    if a.walltime_seconds == 0 { "service".to_owned() } else { clock(a.walltime_seconds) }
}

/// How long it has run, or had run when it ended.
pub fn elapsed(a: &v1::Allocation, now: Timestamp) -> Option<String> {
    let end = if a.ended_at_ms == 0 { now } else { Timestamp(a.ended_at_ms) };
    (a.started_at_ms != 0).then(|| clock(end.since_ms(Timestamp(a.started_at_ms)) / 1000))
}

/// The rest of its walltime: all of it while it waits. A task group has none.
pub fn left(a: &v1::Allocation, now: Timestamp) -> Option<String> {
    match part(a) {
        _ if a.walltime_seconds == 0 || !a.task_group.is_empty() => None,
        Part::HasNodes => Some(ends_by_ms(a).map_or_else(|| walltime(a), |end| clock(Timestamp(end).since_ms(now) / 1000))),
        Part::InLine | Part::Waits => Some(walltime(a)),
        Part::Ended => None,
    }
}
