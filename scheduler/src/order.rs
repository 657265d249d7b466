//! In which order waiting work is served.

use crate::view::View;
use lattice_model::spec::PREEMPTION_CLASS_DEFAULT;
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
            SchedulerKind::HpcBackfill => waiting.sort_by_key(|a| (Reverse(class(a)), age(a))),
        }
        queues.push(Queue { name, scheduler, waiting });
    }
    queues
}

/// The waiting allocations of a vCluster's queue, in the order in which they are served.
pub fn waiting_in<'a>(view: &'a View, vcluster: &str) -> Vec<&'a Allocation> {
    queues(view).into_iter().find(|queue| queue.name == vcluster).map(|queue| queue.waiting).unwrap_or_default()
}

/// Everybody may choose a class. A lower one than the usual lets others go first; a higher one only
/// protects from preemption, and nobody gets ahead of others by it.
fn class(allocation: &Allocation) -> u8 {
    allocation.spec.preemption_class.min(PREEMPTION_CLASS_DEFAULT)
}

fn age(allocation: &Allocation) -> (Timestamp, AllocationId) {
    (allocation.submitted_at, allocation.id)
}

/// The work of all queues in the order in which it is considered, each with the index of its queue.
/// The order within a queue stays; of two queues, the one whose next work is older is first.
pub fn merged<'a>(queues: &[Queue<'a>]) -> Vec<(usize, &'a Allocation)> {
    let first = |queue: usize, at: usize| Some((age(queues[queue].waiting.get(at)?), queue, at));
    let mut next: BTreeSet<((Timestamp, AllocationId), usize, usize)> = (0..queues.len()).filter_map(|queue| first(queue, 0)).collect();
    let mut merged = Vec::with_capacity(queues.iter().map(|queue| queue.waiting.len()).sum());
    while let Some((_, queue, at)) = next.pop_first() {
        merged.push((queue, queues[queue].waiting[at]));
        next.extend(first(queue, at + 1));
    }
    merged
}
