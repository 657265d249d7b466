//! Counts the allocations of each user that hold nodes, and refuses those beyond the limit
//! `user_running`.

use crate::draft::Draft;
use lattice_model::Allocation;
use lattice_model::user_running::TooManyRunning;
use std::collections::BTreeMap;

/// The counts by user id; the quorum counts in the same way. Without a limit nothing is counted.
#[derive(Clone)]
pub struct RunningOfUsers {
    most: Option<u32>,
    running: BTreeMap<u32, u32>,
}

impl RunningOfUsers {
    pub fn of(state: &Draft<'_>) -> Self {
        let mut users = Self { most: state.view.user_running, running: BTreeMap::new() };
        if users.most.is_some() {
            let hold_nodes = state.kept.holders.values().filter(|a| !a.state.is_terminal());
            hold_nodes.for_each(|allocation| users.take(allocation));
        }
        users
    }

    /// Counts one more allocation, which gets nodes.
    pub fn take(&mut self, allocation: &Allocation) {
        *self.running.entry(allocation.owner.uid).or_default() += 1;
    }

    /// The reason why the allocation cannot begin on any node; `None`: its user is below the limit.
    pub fn keeps_off(&self, allocation: &Allocation) -> Option<TooManyRunning> {
        let running = self.running.get(&allocation.owner.uid).copied().unwrap_or_default();
        TooManyRunning::of(&allocation.owner.name, running, self.most)
    }
}
