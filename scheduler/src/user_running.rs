//! Counts the allocations of each user that hold nodes, and refuses those beyond the limit
//! `user_running`.

use crate::view::View;
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
    pub fn of(view: &View) -> Self {
        let mut users = Self { most: view.user_running, running: BTreeMap::new() };
        if users.most.is_some() {
            let holds_nodes = |a: &&Allocation| !a.state.is_without_nodes() && !a.state.is_terminal();
            view.allocations.values().filter(holds_nodes).for_each(|allocation| users.take(allocation));
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
