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
//! A claim may give work less than its walltime only if it was submitted with a least walltime. The walltime counts from
//! the beginning of the work, after its nodes have prepared it: if the deadline is near, it shortens the walltime then.
//!
//! In a task group, each lane has the deadline and a least walltime: a lane with less walltime gives its tasks less. Before
//! its first lane has begun, the group ends when it is too late for a lane to begin and no lane is being prepared; after
//! that, it ends at its deadline. All tasks that have not ended end with it.

use super::{ApplyContext, Ledger, Subject};
use lattice_ledger_state::refusal::Refusal;
use lattice_model::duration::clock_text;
use lattice_model::{Allocation, AllocationId, AllocationSpec, AuditAction, Claim, EndReason, Timestamp};
use std::sync::Arc;
use std::time::Duration;

/// Work that begins shortly before its deadline gets at least this walltime.
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
    /// Whether a waiting allocation may still be in time: after a recovery a node may already run it, or nodes prepare the
    /// first lane of a task group.
    pub(super) fn may_be_in_time(&self, id: AllocationId) -> bool {
        let has_begun = self.allocations.get(&id).is_some_and(|allocation| allocation.started_at.is_some());
        let is_prepared = !has_begun && self.task_groups.get(&id).is_some_and(|tasks| tasks.lanes_running() > 0);
        is_prepared || self.may_be_adopted(id)
    }

    /// By the leader's clock: ends a waiting allocation that could not end by its deadline any more.
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
        // A task group's walltime is the walltime of one task.
        let allocation = self.allocations.get(&id).filter(|allocation| !allocation.is_task_group());
        let times = allocation.and_then(|allocation| allocation.started_at.zip(allocation.spec.deadline()));
        let Some((started, deadline)) = times else { return };
        self.shorten(context, id, Duration::from_millis(deadline.since_ms(started)).max(WALLTIME_LEFT_MIN));
    }
}
