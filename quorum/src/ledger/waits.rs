//! Requeued work that waits for a time before it is claimed again.
//!
//! ```text
//!   claim over soon ──▶ waits 1 s, 2 s, 4 s … 5 min ──EndWaits──▶ may be claimed
//!   claim over after a minute of running ──▶ may be claimed at once
//! ```
//!
//! What ends work as soon as it begins would otherwise use up all its requeues within a moment. The leader's clock proposes the end
//! of a wait, so that schedulers need none: what waits is told by its record alone.

use super::{Ledger, Outcome, Step};
use lattice_model::{Allocation, AllocationId, AllocationState, EndReason, RequeuePolicy, Timestamp};

/// The first wait of work whose claim was soon over, in milliseconds; it doubles with each such claim in a row.
const REQUEUE_WAIT_MS_FIRST: u64 = 1_000;
/// The longest, in milliseconds.
const REQUEUE_WAIT_MS_MAX: u64 = 5 * 60_000;
/// A claim under which work ran for so long, in milliseconds, was not soon over.
const SETTLED_MS: u64 = 60_000;
/// Requeues in a row that do not count against the most that were asked for, where the work never began. What takes down each node
/// that prepares it must come to an end all the same.
pub(super) const UNCOUNTED_MAX: u32 = 16;

/// How an allocation whose claim is over goes back into the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Requeue {
    /// Whether it counts against the most that were asked for.
    pub(super) is_counted: bool,
    /// Claims in a row that were soon over, with this one.
    pub(super) quick: u32,
    /// Before when it is not claimed again.
    pub(super) waits_until: Option<Timestamp>,
}

impl Requeue {
    /// `None`: it does not go back. Never after a cancel, its walltime, or the last failed prologue. `begun`: whether something of it
    /// may have run under its claim.
    pub(super) fn of(allocation: &Allocation, reason: &EndReason, begun: bool, now: Timestamp) -> Option<Self> {
        let (policy, is_lost) = match reason {
            EndReason::NodeLost { .. } | EndReason::DrainDeadline { .. } | EndReason::RunLeaseLapsed { .. } => {
                (allocation.spec.requeue != RequeuePolicy::Never, true)
            }
            EndReason::Exited { code: 0 }
            | EndReason::WalltimeExceeded
            | EndReason::WalltimeSaved { .. }
            | EndReason::Cancelled { .. }
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
        // Somebody wanted its nodes: that is nothing which it would meet again at once.
        let waits = !matches!(reason, EndReason::Preempted { .. });
        Some(Self { is_counted, quick, waits_until: waits.then(|| Timestamp(now.0.saturating_add(wait_ms(quick)))) })
    }
}

/// How long work waits whose last so many claims were soon over, in milliseconds.
fn wait_ms(quick: u32) -> u64 {
    let doubled = 1u64.checked_shl(quick.saturating_sub(1)).unwrap_or(u64::MAX);
    REQUEUE_WAIT_MS_FIRST.saturating_mul(doubled).min(REQUEUE_WAIT_MS_MAX)
}

/// Whether a wait is over at `now`. One that ends later than any can was begun by a clock that has gone back since.
fn is_over(until: Timestamp, now: Timestamp) -> bool {
    until.0.saturating_sub(now.0) == 0 || until.since_ms(now) > REQUEUE_WAIT_MS_MAX
}

impl Ledger {
    /// Whether the leader's clock says that some wait is over at `now`.
    pub fn waits_are_due(&self, now: Timestamp) -> bool {
        self.waiting.iter().any(|id| self.waits_until(*id).is_none_or(|until| is_over(until, now)))
    }

    pub(super) fn end_waits(&mut self, step: &mut Step, now: Timestamp) -> Outcome {
        let over = |id: &AllocationId| self.waits_until(*id).is_none_or(|until| is_over(until, now));
        for id in self.waiting.iter().copied().filter(over).collect::<Vec<_>>() {
            self.waiting.remove(&id);
            if self.waits_until(id).is_some()
                && let Some(allocation) = self.allocation_mut(step, id)
            {
                allocation.waits_until = None;
            }
        }
        Outcome::Done
    }

    fn waits_until(&self, id: AllocationId) -> Option<Timestamp> {
        self.allocations.get(&id).and_then(|allocation| allocation.waits_until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wait_is_twice_as_long_as_the_one_before_up_to_a_limit() {
        assert_eq!([1, 2, 3, 9, 10, 200].map(wait_ms), [1_000, 2_000, 4_000, 256_000, 300_000, 300_000]);
    }

    #[test]
    fn a_wait_of_a_clock_that_has_gone_back_is_over() {
        let at = |ms| is_over(Timestamp(10_000), Timestamp(ms));
        assert_eq!([at(9_999), at(10_000), at(10_001)], [false, true, true]);
        assert!(is_over(Timestamp(400_000), Timestamp(99_999)) && !is_over(Timestamp(400_000), Timestamp(100_000)));
    }
}
