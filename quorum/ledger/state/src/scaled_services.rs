//! The replicas of a scaled service, as numbers: see [`Lanes`], which they share with task groups.

use crate::task_groups::{LanePhase, Lanes};
use lattice_model::{Allocation, PreemptCause};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The replicas of one scaled service whose claims are not over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceReplicas {
    /// The replicas by number. A replica that was asked to leave is leaving, whether it has ended or not.
    pub lanes: Lanes,
    /// The running replicas whose work has begun.
    pub serving: BTreeSet<u32>,
    /// The highest number of a replica that ended early: by itself, soon after it had begun. `None`: none
    /// has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_number: Option<u32>,
}

/// How many replicas of a service are in each phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaCounts {
    pub waiting: u32,
    /// Replicas that have nodes and were not asked to leave.
    pub running: u32,
    /// The running replicas whose work has begun.
    pub serving: u32,
    pub leaving: u32,
}

fn count(numbers: &BTreeSet<u32>) -> u32 {
    u32::try_from(numbers.len()).unwrap_or(u32::MAX)
}

impl ServiceReplicas {
    /// The number of replicas in each phase.
    pub fn counts(&self) -> ReplicaCounts {
        let Lanes { next: _, current_from: _, waiting, running, leaving } = &self.lanes;
        let serving = count(&self.serving);
        ReplicaCounts { waiting: count(waiting), running: count(running), serving, leaving: count(leaving) }
    }

    /// The replica with this number is in this phase from now on. `has_begun`: its work runs.
    pub fn set_phase(&mut self, number: u32, phase: LanePhase, has_begun: bool) {
        self.lanes.set_phase(number, phase);
        if has_begun && phase == LanePhase::Running {
            self.serving.insert(number);
        } else {
            self.serving.remove(&number);
        }
    }

    /// The running replicas that were created after the last one that ended early.
    pub fn running_since_early_end(&self) -> impl Iterator<Item = u32> {
        let from = self.early_number.map_or(0, |number| number.saturating_add(1));
        self.lanes.running.range(from..).copied()
    }

    /// The replica of this number has ended early.
    pub fn note_early_end(&mut self, number: u32) {
        self.early_number = self.early_number.max(Some(number));
    }
}

/// Whether the allocation is a replica that was asked to leave, because its service needs fewer.
pub fn is_asked_to_leave(allocation: &Allocation) -> bool {
    let order = allocation.preemption.as_deref().filter(|_| allocation.replica.is_some());
    order.is_some_and(|order| order.stands() && order.cause == PreemptCause::ScaleDown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_since_early_end_has_replicas_created_after_it() {
        let mut replicas = ServiceReplicas::default();
        (0..4).for_each(|number| replicas.set_phase(number, LanePhase::Running, number > 0));
        replicas.set_phase(4, LanePhase::Waiting, false);
        replicas.set_phase(5, LanePhase::Leaving, false);
        assert_eq!(replicas.counts(), ReplicaCounts { waiting: 1, running: 4, serving: 3, leaving: 1 });
        assert_eq!(replicas.running_since_early_end().collect::<Vec<_>>(), [0, 1, 2, 3]);
        replicas.note_early_end(2);
        replicas.note_early_end(1);
        assert_eq!(replicas.running_since_early_end().collect::<Vec<_>>(), [3]);
    }
}
