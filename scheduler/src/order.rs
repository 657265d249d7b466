//! The order in which waiting work is served: by class and score, or by the time at which it came into the
//! queue. That is the time of its submission or, for work that depends on other work, the time when its
//! dependencies were met; its `nice` makes it later. A lane has the time of its task group, and a replica
//! that of its service, so the lanes of one group and the replicas of one service follow each other.

use crate::classes::Classes;
use crate::draft::Draft;
use crate::score::Scorer;
use crate::state::State;
use crate::view::View;
use lattice_model::{Allocation, AllocationId, SchedulerKind, Timestamp, Weights};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A vCluster's queue.
pub struct Queue<'a> {
    /// The vCluster's name.
    pub name: &'a str,
    pub scheduler: SchedulerKind,
    /// The weights of the score; `None`: it is served in the order in which work came into it.
    pub weights: Option<Weights>,
    /// Its waiting work, in the order in which it is served.
    pub waiting: Vec<Waiting<'a>>,
}

/// Work that waits.
#[derive(Clone, Copy)]
pub struct Waiting<'a> {
    pub allocation: &'a Allocation,
    /// The index of its class.
    pub class: usize,
}

/// A state with the order of its queues.
pub struct Ordered<'a> {
    pub state: Draft<'a>,
    pub classes: &'a Classes,
    pub scorer: Scorer<'a>,
    /// The queues in which work waits, by name.
    pub queues: Vec<Queue<'a>>,
}

impl<'a> Ordered<'a> {
    pub fn of(kept: &'a State, now: Timestamp) -> Self {
        let (state, view, classes) = (Draft::of(kept, now), &kept.view, &kept.classes);
        // By class: the queue in which its work waits.
        let mut queue_of: Vec<Option<usize>> = vec![None; classes.all.len()];
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        let mut waiting: Vec<Vec<Waiting<'_>>> = Vec::new();
        for (allocation, class) in kept.waiting.values() {
            let queue = *queue_of[*class].get_or_insert_with(|| {
                let next = names.len();
                *names.entry(view.queue_of(allocation)).or_insert(next)
            });
            waiting.resize_with(names.len(), Vec::new);
            waiting[queue].push(Waiting { allocation, class: *class });
        }
        let scorer = Scorer::of(&state);
        let mut queues = Vec::with_capacity(names.len());
        for (name, queue) in names {
            let mut waiting = std::mem::take(&mut waiting[queue]);
            let (scheduler, weights) = (view.scheduler_of(name), view.weights_of(name));
            match &weights {
                None => waiting.sort_by_cached_key(|w| age(view, w.allocation)),
                Some(weights) => waiting.sort_by_cached_key(|w| {
                    let score = scorer.score(w.allocation, &classes.all[w.class], weights);
                    // The bits of numbers that are not negative are in the order of the numbers.
                    (Reverse(score.class), score.is_over_budget(), Reverse(score.total().to_bits()), age(view, w.allocation))
                }),
            }
            queues.push(Queue { name, scheduler, weights, waiting });
        }
        Self { state, classes, scorer, queues }
    }

    /// The work of all queues in the order in which it is considered, each with the index of its
    /// queue. The order within a queue stays. Of two queues, the one whose next work is of a higher
    /// class comes first, or is older and of the same class: so work gets the nodes that were preempted
    /// for it.
    pub fn merged(&self) -> Vec<(usize, Waiting<'a>)> {
        if let [queue] = &self.queues[..] {
            return queue.waiting.iter().map(|waiting| (0, *waiting)).collect();
        }
        type Place = (Reverse<u8>, Age);
        let place = |allocation: &Allocation| (Reverse(self.state.view.effective_class(allocation)), age(self.state.view, allocation));
        let first = |queue: usize, at: usize| Some((place(self.queues[queue].waiting.get(at)?.allocation), queue, at));
        let mut next: BTreeSet<(Place, usize, usize)> = (0..self.queues.len()).filter_map(|queue| first(queue, 0)).collect();
        let mut merged = Vec::with_capacity(self.queues.iter().map(|queue| queue.waiting.len()).sum());
        while let Some((_, queue, at)) = next.pop_first() {
            merged.push((queue, self.queues[queue].waiting[at]));
            next.extend(first(queue, at + 1));
        }
        merged
    }
}

/// The waiting allocations of a vCluster's queue, in the order in which they are served now.
pub fn waiting_in<'a>(view: &'a View, vcluster: &str, now: Timestamp) -> Vec<&'a Allocation> {
    let state = State::from(view.clone());
    let queue = Ordered::of(&state, now).queues.into_iter().find(|queue| queue.name == vcluster);
    let waiting = queue.into_iter().flat_map(|queue| queue.waiting);
    waiting.filter_map(|waiting| view.allocations.get(&waiting.allocation.id)).collect()
}

/// When work came into its queue, shifted by its `nice`. For equal times the id decides; among the lanes of a task group or
/// the replicas of a service, their numbers decide.
type Age = (Timestamp, AllocationId, u32);

fn age(view: &View, allocation: &Allocation) -> Age {
    if let Some(lane) = allocation.lane {
        return (allocation.ordered_at(), lane.group, lane.number);
    }
    let Some(replica) = &allocation.replica else { return (allocation.ordered_at(), allocation.id, 0) };
    let service = view.allocations.get(&replica.service);
    (service.unwrap_or(allocation).ordered_at(), replica.service, replica.number)
}
