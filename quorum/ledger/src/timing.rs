//! Bounds in time: what a deadline and the least walltime of work mean for its claims.
//!
//! ```text
//!   waits ──it could not end by its deadline any more──▶ Cancelled
//!     │
//!     ╰──claim, with at least its least walltime──▶ prepared ──▶ runs, at most until its deadline
//!     ▲                                                            │
//!     ╰────────── requeued: it has its whole walltime again ◀──────╯
//! ```
//!
//! A claim may give work less than its walltime only if it was submitted with a least one. The walltime counts from the
//! beginning of the work, after its nodes have prepared it: what that took is cut off its end if the deadline is near.
//!
//! Of a task group, its lanes have the deadline and the least walltime of a lane: a lane with less walltime gives its tasks
//! less. The group itself ends when no lane could begin any more and none is prepared, and once its first lane has begun at
//! its deadline, with all tasks that have not ended.

use super::{ApplyContext, Ledger, Subject};
use lattice_ledger_state::refusal::Refusal;
use lattice_model::duration::clock_text;
use lattice_model::{Allocation, AllocationId, AllocationSpec, AuditAction, Claim, EndReason, Timestamp};
use std::sync::Arc;
use std::time::Duration;

/// Work that begins shortly before its deadline has at least this.
const WALLTIME_LEFT_MIN: Duration = Duration::from_secs(1);

/// Checks the times of a submission against the present one.
pub(super) fn admits_times(spec: &AllocationSpec, now: Timestamp) -> Result<(), Refusal> {
    spec.validate_times(now).map_err(|error| Refusal::Malformed { why: error.to_string() })
}

/// The walltime that a claim gives an allocation; `None`: it has none.
pub(super) fn granted_walltime(allocation: &Allocation, claim: &Claim, now: Timestamp) -> Result<Option<Duration>, Refusal> {
    let spec = &allocation.spec;
    let (Some(asked), Some(least)) = (spec.walltime, spec.walltime_least()) else {
        return match claim.walltime {
            Some(_) => Err(Refusal::MalformedClaim { why: "a walltime for an allocation that has none".to_owned() }),
            None => Ok(None),
        };
    };
    let granted = claim.walltime.unwrap_or(asked);
    if granted > asked || granted < least {
        let why = format!("a walltime of {}; {} to {} are possible", clock_text(granted), clock_text(least), clock_text(asked));
        return Err(Refusal::MalformedClaim { why });
    }
    match spec.walltime_at(now) {
        Some(most) => Ok(Some(granted.min(most))),
        None => Err(Refusal::DeadlineMissed { id: allocation.id, deadline: spec.deadline().unwrap_or_default() }),
    }
}

impl Ledger {
    /// Whether an allocation that waits may yet be in time: after a recovery a node may run it, or nodes prepare the first
    /// lane of a task group.
    pub(super) fn may_be_in_time(&self, id: AllocationId) -> bool {
        let has_begun = self.allocations.get(&id).is_some_and(|allocation| allocation.started_at.is_some());
        let is_prepared = !has_begun && self.task_groups.get(&id).is_some_and(|tasks| tasks.lanes_running() > 0);
        is_prepared || self.may_be_adopted(id)
    }

    /// The leader's clock: ends an allocation that waits and could not end by its deadline any more.
    pub(super) fn end_if_deadline_missed(&mut self, context: &mut ApplyContext, id: AllocationId, now: Timestamp) {
        let Some(allocation) = self.allocations.get(&id).filter(|_| !self.may_be_in_time(id)) else { return };
        if let (Some(missed_at), Some(deadline)) = (allocation.deadline_missed_at(), allocation.spec.deadline())
            && missed_at <= now
        {
            self.end_for_good(context, id, EndReason::DeadlineMissed { deadline }, "quorum");
        }
    }

    /// Gives the current claim of an allocation this walltime, if that is less than it has.
    pub(super) fn shorten(&mut self, context: &mut ApplyContext, id: AllocationId, walltime: Duration) {
        let Some(spec) = self.allocations.get(&id).map(|allocation| Arc::clone(&allocation.spec)) else { return };
        let Some(before) = spec.walltime.filter(|before| walltime < *before) else { return };
        self.replace_spec(context, id, AllocationSpec { walltime: Some(walltime), ..AllocationSpec::clone(&spec) });
        if let Some(allocation) = self.allocation_mut(context, id) {
            allocation.asked_walltime = allocation.asked_walltime.or(Some(before));
        }
        let detail = format!("{} instead of {} for this claim", clock_text(walltime), clock_text(before));
        self.record(context, "quorum", AuditAction::WalltimeChanged, Subject { allocation: Some(id), node: None }, detail);
    }

    /// The work has begun, or has another walltime: it runs at most until its deadline.
    pub(super) fn end_by_deadline(&mut self, context: &mut ApplyContext, id: AllocationId) {
        // A task group's walltime is that of a task.
        let allocation = self.allocations.get(&id).filter(|allocation| !allocation.is_task_group());
        let times = allocation.and_then(|allocation| allocation.started_at.zip(allocation.spec.deadline()));
        let Some((started, deadline)) = times else { return };
        self.shorten(context, id, Duration::from_millis(deadline.since_ms(started)).max(WALLTIME_LEFT_MIN));
    }
}
