//! In which order waiting work is served.

use crate::view::View;
use lattice_model::{Allocation, AllocationId, SchedulerKind, Timestamp};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A vCluster's queue.
pub struct Queue<'a> {
    /// The vCluster's name.
    pub name: &'a str,
    pub scheduler: SchedulerKind,
    /// What waits in it, the first one first.
    pub waiting: Vec<&'a Allocation>,
}

/// The queues of a view in which work waits, by name.
pub fn queues(view: &View) -> Vec<Queue<'_>> {
    let mut waiting: BTreeMap<&str, Vec<&Allocation>> = BTreeMap::new();
    for allocation in view.allocations.values().filter(|a| a.waits()) {
        waiting.entry(view.queue_of(allocation)).or_default().push(allocation);
    }
    let mut queues = Vec::with_capacity(waiting.len());
    for (name, mut waiting) in waiting {
        let scheduler = view.scheduler_of(name);
        match scheduler {
            SchedulerKind::InteractiveFifo => waiting.sort_by_key(|a| age(a)),
            SchedulerKind::HpcBackfill => waiting.sort_by_key(|a| (Reverse(a.spec.preemption_class), age(a))),
        }
        queues.push(Queue { name, scheduler, waiting });
    }
    queues
}

/// The waiting allocations of a vCluster's queue, in the order in which they are served.
pub fn waiting_in<'a>(view: &'a View, vcluster: &str) -> Vec<&'a Allocation> {
    queues(view).into_iter().find(|queue| queue.name == vcluster).map(|queue| queue.waiting).unwrap_or_default()
}

fn age(allocation: &Allocation) -> (Timestamp, AllocationId) {
    (allocation.submitted_at, allocation.id)
}

/// The work of all queues in the order in which it is considered, each with the index of its queue.
/// The order within a queue stays; of two queues, the one in which the older work waits is first.
pub fn merged<'a>(queues: &[Queue<'a>]) -> Vec<(usize, &'a Allocation)> {
    // For each queue: the oldest of what is left from each position on.
    let oldest: Vec<Vec<(Timestamp, AllocationId)>> = queues.iter().map(|queue| oldest_left(&queue.waiting)).collect();
    let mut next: BTreeSet<((Timestamp, AllocationId), usize, usize)> = BTreeSet::new();
    next.extend(oldest.iter().enumerate().filter_map(|(queue, oldest)| Some((*oldest.first()?, queue, 0))));
    let mut merged = Vec::with_capacity(oldest.iter().map(Vec::len).sum());
    while let Some((_, queue, at)) = next.pop_first() {
        merged.push((queue, queues[queue].waiting[at]));
        next.extend(oldest[queue].get(at + 1).map(|age| (*age, queue, at + 1)));
    }
    merged
}

fn oldest_left(waiting: &[&Allocation]) -> Vec<(Timestamp, AllocationId)> {
    let mut oldest: Vec<_> = waiting.iter().map(|a| age(a)).collect();
    for at in (1..oldest.len()).rev() {
        oldest[at - 1] = oldest[at - 1].min(oldest[at]);
    }
    oldest
}
