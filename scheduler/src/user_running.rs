//! How many allocations of each user hold nodes, and what of a queue that keeps off.

use crate::view::View;
use lattice_model::Allocation;
use lattice_model::user_running::TooManyRunning;
use std::collections::BTreeMap;

/// Counted by the user's number, as the quorum does.
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

    /// The allocation holds nodes from now on.
    pub fn take(&mut self, allocation: &Allocation) {
        *self.running.entry(allocation.owner.uid).or_default() += 1;
    }

    /// What keeps an allocation off, whatever nodes there are.
    pub fn keeps_off(&self, allocation: &Allocation) -> Option<TooManyRunning> {
        let running = self.running.get(&allocation.owner.uid).copied().unwrap_or_default();
        TooManyRunning::of(&allocation.owner.name, running, self.most)
    }
}
