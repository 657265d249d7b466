//! Waits for a point in time. Backoff: requeued work waits before it is claimed again, or before a node is
//! claimed for it again. Delays: work begins a while after other work has begun.
//!
//! ```text
//!   claim ended soon ──▶ waits 1 s, 2 s, 4 s … 5 min ──EndWaits──▶ may be claimed
//!   claim ended after a minute of running ──▶ may be claimed at once
//!
//!   prologue failed on a node ──▶ node excluded for it: 30 s, 1 min … 30 min ──EndWaits──▶ may be claimed for it
//!                                 └── the node is well again, has booted, or a hold of it is lifted ─┘
//!
//!   other work begins ──▶ `after+10m` waits: up to 365 days ──EndWaits──▶ met
//!   submitted with a begin ──▶ not in its queue: up to 365 days ──EndWaits──▶ in its queue
//!   submitted with a deadline ──▶ could not end in time any more ──EndWaits──▶ Cancelled ([`super::timing`])
//!   half of a walltime is over ──EndWaits──▶ mail is due ([`super::mail`])
//! ```
//!
//! Without backoff, a problem that ends work as soon as it starts would use up all requeues within a
//! moment. The leader's clock proposes the end of a wait, so schedulers need no clock for it: the
//! allocation's record shows whether it waits.

use super::{ApplyContext, Ledger, Outcome};
use imbl::OrdSet;
use lattice_model::dependency::DELAY_LEFT_MS_MAX;
use lattice_model::{Allocation, AllocationId, AllocationState, EndReason, Exclusion, NodeId, RequeuePolicy, Timestamp};
use std::collections::BTreeSet;
use uuid::Uuid;

/// The first wait of work whose claim ended soon, in milliseconds; it doubles with each consecutive
/// such claim.
const REQUEUE_WAIT_MS_FIRST: u64 = 1_000;
/// The longest such wait, in milliseconds.
const REQUEUE_WAIT_MS_MAX: u64 = 5 * 60_000;
/// A claim under which work ran for this long, in milliseconds, did not end soon.
const SETTLED_MS: u64 = 60_000;
/// How long a node is excluded for an allocation after the first failed prologue there, in
/// milliseconds; it doubles with each failure.
const EXCLUSION_MS_FIRST: u64 = 30_000;
/// The longest such exclusion, in milliseconds.
const EXCLUSION_MS_MAX: u64 = 30 * 60_000;
/// Largest number of delays that one command ends: all work that depends on the same beginning may wait
/// for the same time.
const DELAYS_AT_ONCE_MAX: usize = 1000;
/// Largest number of consecutive requeues that do not count against the requested maximum because
/// the work never began: work that takes down each node that prepares it must end some time.
pub(super) const UNCOUNTED_MAX: u32 = 16;

/// How an allocation whose claim has ended goes back into the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Requeue {
    /// Whether it counts against the requested maximum.
    pub(super) is_counted: bool,
    /// Number of consecutive claims that ended soon, including this one.
    pub(super) quick: u32,
    /// The allocation is not claimed again before this time.
    pub(super) waits_until: Option<Timestamp>,
}

impl Requeue {
    /// `None`: it is not requeued, for example after a cancel, its walltime, or the last failed
    /// prologue. `begun`: whether its work may have run under the claim.
    pub(super) fn of(allocation: &Allocation, reason: &EndReason, begun: bool, now: Timestamp) -> Option<Self> {
        let (policy, is_lost) = match reason {
            EndReason::NodeLost { .. } | EndReason::DrainDeadline { .. } | EndReason::RunLeaseLapsed { .. } => {
                (allocation.spec.requeue != RequeuePolicy::Never, true)
            }
            // On request: allowed for work that may be requeued at all.
            EndReason::Requeued { .. } => (allocation.spec.requeue != RequeuePolicy::Never, true),
            EndReason::Exited { code: 0 }
            | EndReason::WalltimeExceeded
            | EndReason::WalltimeSaved { .. }
            | EndReason::Cancelled { .. }
            | EndReason::DependencyUnmet { .. }
            | EndReason::DeadlineMissed { .. }
            | EndReason::TasksFailed { .. }
            | EndReason::PrologueFailed { .. } => (false, false),
            EndReason::Preempted { .. }
            | EndReason::Exited { .. }
            | EndReason::LaunchAborted { .. }
            | EndReason::OutOfMemory { .. }
            | EndReason::ProbeFailed { .. } => (allocation.spec.requeue == RequeuePolicy::Always, false),
        };
        let is_counted = begun || !is_lost || allocation.quick_requeues >= UNCOUNTED_MAX;
        if !policy || (is_counted && allocation.requeue_count >= allocation.spec.requeues_max) {
            return None;
        }
        let ran = allocation.started_at.filter(|_| allocation.state == AllocationState::Running);
        if ran.is_some_and(|since| now.since_ms(since) >= SETTLED_MS) {
            return Some(Self { is_counted, quick: 0, waits_until: None });
        }
        let quick = allocation.quick_requeues.saturating_add(1);
        // After a request or a preemption, there is no problem that a new claim would meet again.
        let waits = !matches!(reason, EndReason::Preempted { .. } | EndReason::Requeued { .. });
        Some(Self { is_counted, quick, waits_until: waits.then(|| Timestamp(now.0.saturating_add(wait_ms(quick)))) })
    }
}

/// How long work waits after this many consecutive claims that ended soon, in milliseconds.
fn wait_ms(quick: u32) -> u64 {
    let doubled = 1u64.checked_shl(quick.saturating_sub(1)).unwrap_or(u64::MAX);
    REQUEUE_WAIT_MS_FIRST.saturating_mul(doubled).min(REQUEUE_WAIT_MS_MAX)
}

/// How long a node is excluded after this many failed prologues, in milliseconds.
fn exclusion_ms(failures: u32) -> u64 {
    let doubled = 1u64.checked_shl(failures.saturating_sub(1)).unwrap_or(u64::MAX);
    EXCLUSION_MS_FIRST.saturating_mul(doubled).min(EXCLUSION_MS_MAX)
}

/// Whether a wait until then is over at `now`. An end further away than the longest wait was set by
/// a clock that has gone back since.
fn is_over(until: Timestamp, now: Timestamp, longest_ms: u64) -> bool {
    until <= now || until.since_ms(now) > longest_ms
}

fn wait_is_over(allocation: &Allocation, now: Timestamp) -> bool {
    allocation.waits_until.is_some_and(|until| is_over(until, now, REQUEUE_WAIT_MS_MAX))
}

fn exclusion_is_over(excluded: &Exclusion, now: Timestamp) -> bool {
    excluded.until.is_some_and(|until| is_over(until, now, EXCLUSION_MS_MAX))
}

/// The allocations whose waits are over, as [`is_over`] decides.
fn ends_over(ends: &OrdSet<(Timestamp, AllocationId)>, now: Timestamp, longest_ms: u64) -> impl Iterator<Item = AllocationId> {
    let passed = ends.iter().take_while(move |(end, _)| *end <= now);
    let far = ends.iter().rev().take_while(move |(end, _)| *end > now && is_over(*end, now, longest_ms));
    passed.chain(far).map(|(_, id)| *id)
}

impl Ledger {
    /// Whether a wait, an exclusion or a delay is over at `now`, a deadline is missed, or mail of a walltime is due, by the
    /// leader's clock.
    pub fn waits_are_due(&self, now: Timestamp) -> bool {
        self.waits_due(now).next().is_some()
    }

    /// The allocations for which something is due, some repeatedly. One that may still end in time misses no deadline.
    fn waits_due(&self, now: Timestamp) -> impl Iterator<Item = AllocationId> {
        let index = &self.allocation_index;
        let waits = ends_over(&index.wait_ends, now, REQUEUE_WAIT_MS_MAX).chain(ends_over(&index.exclusion_ends, now, EXCLUSION_MS_MAX));
        let delays = ends_over(&index.delay_ends, now, DELAY_LEFT_MS_MAX).take(DELAYS_AT_ONCE_MAX);
        // With no longest wait: a clock that has gone back must not end work.
        let missed = ends_over(&index.deadline_ends, now, u64::MAX).filter(move |id| !self.may_be_in_time(*id)).take(DELAYS_AT_ONCE_MAX);
        let marks = ends_over(&index.mail_marks, now, u64::MAX).take(DELAYS_AT_ONCE_MAX);
        waits.chain(delays).chain(missed).chain(marks)
    }

    pub(super) fn end_waits(&mut self, context: &mut ApplyContext, now: Timestamp) -> Outcome {
        for id in self.waits_due(now).collect::<BTreeSet<_>>() {
            let Some(allocation) = self.allocation_mut(context, id) else { continue };
            if wait_is_over(allocation, now) {
                allocation.waits_until = None;
            }
            for excluded in allocation.excluded.iter_mut().filter(|excluded| exclusion_is_over(excluded, now)) {
                excluded.until = None;
            }
            if let Some(all) = &mut allocation.dependencies {
                all.end_delays(now);
            }
            self.end_if_deadline_missed(context, id, now);
            self.mail_of_walltime(context, id, now);
        }
        Outcome::Done
    }

    /// Excludes the node for the allocation for a while because the prologue failed there. Returns
    /// on how many nodes it has failed since the allocation last ran.
    pub(super) fn exclude(&mut self, context: &mut ApplyContext, id: AllocationId, node: &NodeId, why: &str) -> usize {
        let at = context.at;
        let Some(allocation) = self.allocation_mut(context, id) else { return 0 };
        let before = allocation.excluded.iter().find(|excluded| excluded.node == *node).map_or(0, |excluded| excluded.failures);
        let failures = before.saturating_add(1);
        allocation.excluded.retain(|excluded| excluded.node != *node);
        let until = Some(Timestamp(at.0.saturating_add(exclusion_ms(failures))));
        allocation.excluded.push(Exclusion { node: node.clone(), why: why.to_owned(), failures, until });
        allocation.excluded.len()
    }

    /// The node's problem is solved, or somebody says so: ends its exclusions.
    pub(super) fn end_exclusions(&mut self, context: &mut ApplyContext, node: &NodeId) {
        self.update_indexes(context);
        let first = (node.clone(), AllocationId(Uuid::nil()));
        let excluding = self.allocation_index.excluded.range(first..).take_while(|(excluded, _)| excluded == node);
        for id in excluding.map(|(_, id)| *id).collect::<Vec<_>>() {
            if let Some(allocation) = self.allocation_mut(context, id) {
                allocation.excluded.iter_mut().filter(|excluded| excluded.node == *node).for_each(|excluded| excluded.until = None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wait_is_twice_as_long_as_the_one_before_up_to_a_limit() {
        assert_eq!([1, 2, 3, 9, 10, 200].map(wait_ms), [1_000, 2_000, 4_000, 256_000, 300_000, 300_000]);
        assert_eq!([1, 2, 3, 7, 200].map(exclusion_ms), [30_000, 60_000, 120_000, 1_800_000, 1_800_000]);
    }

    #[test]
    fn a_wait_of_a_clock_that_has_gone_back_is_over() {
        let at = |ms| is_over(Timestamp(10_000), Timestamp(ms), 300_000);
        assert_eq!([at(9_999), at(10_000), at(10_001)], [false, true, true]);
        let far = |ms| is_over(Timestamp(400_000), Timestamp(ms), 300_000);
        assert_eq!([far(99_999), far(100_000)], [true, false]);
    }
}
