//! Parts of nodes that are held for a time, and until when work holds them.

use crate::columns::Columns;
use crate::owners::Who;
use crate::replicas::service_of;
use lattice_model::spec::WALLTIME_MAX;
use lattice_model::{Allocation, AllocationId, AllocationSpec, NodeId, Preemption, Resources, SharePhase, Timestamp, millis};
use std::cmp::Reverse;

/// In how many milliseconds from now work counts as gone that is past its walltime, or has ended and is
/// not released yet.
const OVERDUE_GRACE_MS: u64 = 60_000;
/// A node that has been out of service for less than this, in milliseconds, is expected back.
pub const OUTAGE_MS_MAX: u64 = 15 * 60_000;

/// The longest walltime in milliseconds: work without one counts as running this long from now.
pub fn walltime_ms_max() -> u64 {
    millis(WALLTIME_MAX)
}

/// How long this work lasts at most once it has begun, in milliseconds. Work without a walltime has
/// no end: it never begins on nodes that are reserved, however late the reservation begins.
pub fn duration_ms(spec: &AllocationSpec) -> u64 {
    spec.walltime.map_or(u64::MAX, millis)
}

/// [`duration_ms`] if it begins at this time: less if its deadline is near. `None`: it could not end by its deadline.
pub fn duration_at_ms(spec: &AllocationSpec, now_ms: u64) -> Option<u64> {
    if spec.walltime.is_none() { Some(u64::MAX) } else { spec.walltime_at(Timestamp(now_ms)).map(millis) }
}

/// A part of a node that is held for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// When it begins, in milliseconds; 0 for work that holds it already.
    pub start_ms: u64,
    /// When it is free again at the latest.
    pub end_ms: u64,
    pub amount: Resources,
    pub by: AllocationId,
    pub who: Who,
    /// The service of which it is a replica, if it is one.
    pub replica_of: Option<AllocationId>,
    /// Whether the work has a walltime.
    pub has_end: bool,
    /// Whether it is of this plan: the work does not hold it yet.
    pub is_planned: bool,
}

/// The part of a node that work asks for.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub amount: Resources,
    /// Its owner. A share whose owner [keeps this one off](Who::keeps_off) may not hold a part of the node
    /// at the same time.
    pub who: Who,
    /// The service of which it would be a replica, if it is one. No other replica of it may hold a part
    /// of the node at the same time.
    pub replica_of: Option<AllocationId>,
}

impl Span {
    /// Whether this span excludes the part at the same time, however much of the node is free.
    pub fn keeps_off(&self, part: &Part) -> bool {
        self.who.keeps_off(part.who) || (part.replica_of.is_some() && self.replica_of == part.replica_of)
    }
}

pub fn free_at_ms<'s>(size: &Resources, spans: impl IntoIterator<Item = &'s Span>, at_ms: u64) -> Resources {
    let active = spans.into_iter().filter(|span| span.start_ms <= at_ms && at_ms < span.end_ms);
    size.minus(&active.fold(Resources::default(), |sum, span| sum.plus(&span.amount)))
}

pub fn holds_share(allocation: &Allocation, node: &NodeId) -> bool {
    let share = allocation.shares.rank_of(node).and_then(|rank| allocation.shares.get(rank));
    !allocation.state.is_without_nodes() && share.is_some_and(|share| share.phase != SharePhase::Released)
}

/// Rounds a time up to a whole minute. An end that is counted from now changes with each plan; rounded,
/// it changes only once a minute for people.
fn minute_end_ms(at_ms: u64) -> u64 {
    at_ms.div_ceil(60_000).saturating_mul(60_000)
}

/// The parts of nodes that an allocation holds until a time, by node. `who`: the allocation's owner.
pub fn held_by(columns: &Columns, allocation: &Allocation, who: Who, end_ms: u64) -> impl Iterator<Item = (usize, Span)> {
    let has_end = allocation.spec.walltime.is_some() || allocation.state.is_terminal();
    let (by, replica_of) = (allocation.id, service_of(allocation));
    let held = allocation.shares.iter().filter(|share| share.phase != SharePhase::Released);
    held.filter_map(move |share| {
        let node = *columns.index.get(share.node)?;
        Some((node, Span { start_ms: 0, end_ms, amount: share.resources, by, who, replica_of, has_end, is_planned: false }))
    })
}

/// Inserts the span of work that has the part: the latest end comes first, and equal ends are in the
/// order of the ids.
pub fn hold_in_order(spans: &mut Vec<Span>, span: Span) {
    let place = |span: &Span| (Reverse(span.end_ms), span.by);
    let at = spans.partition_point(|other| place(other) <= place(&span));
    spans.insert(at, span);
}

/// When work that has nodes is expected to have given them back, if that does not depend on the present
/// time. After that, the work is overdue.
pub fn known_end_ms(allocation: &Allocation) -> Option<u64> {
    let is_asked_to_leave = allocation.preemption.as_deref().is_some_and(Preemption::stands);
    let (walltime, started) = allocation.spec.walltime.zip(allocation.started_at)?;
    (!is_asked_to_leave && !allocation.state.is_terminal()).then(|| started.0.saturating_add(millis(walltime)))
}

/// When work that has nodes is expected to have given them back.
pub fn expected_end_ms(allocation: &Allocation, now_ms: u64) -> u64 {
    if allocation.state.is_terminal() {
        return overdue_end_ms(allocation.ended_at.map_or(now_ms, |ended| ended.0), now_ms);
    }
    let end_ms = match (allocation.spec.walltime, allocation.started_at) {
        (None, _) => now_ms + walltime_ms_max(),
        (Some(walltime), Some(started)) => started.0.saturating_add(millis(walltime)),
        // Its walltime counts from the end of the last prologue.
        (Some(walltime), None) => minute_end_ms(now_ms + millis(walltime)),
    };
    let end_ms = if end_ms <= now_ms { overdue_end_ms(end_ms, now_ms) } else { end_ms };
    match &allocation.preemption {
        Some(preemption) if preemption.stands() => {
            let given_back_ms = now_ms.saturating_add(preemption.deadline_ms.max(OVERDUE_GRACE_MS));
            end_ms.min(minute_end_ms(given_back_ms))
        }
        Some(_) | None => end_ms,
    }
}

/// When work that should have been gone by `due_ms` is expected to be gone. If `due_ms` is long ago, the
/// work may last as long as work without a walltime.
pub fn overdue_end_ms(due_ms: u64, now_ms: u64) -> u64 {
    let is_recent = now_ms.saturating_sub(due_ms) < OUTAGE_MS_MAX;
    if is_recent { minute_end_ms(now_ms + OVERDUE_GRACE_MS) } else { now_ms + walltime_ms_max() }
}
