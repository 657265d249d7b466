//! What is looked up of all allocations, by the leader's clocks above all. Not part of the
//! replicated state: derived from the allocations when a snapshot is read, and then updated with
//! each changed allocation. An allocation without waits, exclusions and measurements has no entry
//! of its own.

use super::user_usage::holds_nodes;
use imbl::{OrdMap, OrdSet};
use lattice_model::{Allocation, AllocationId, AllocationState, NodeId, Timestamp};

/// See the module documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocationIndex {
    /// How many allocations are in each state; states without any are absent.
    pub states: OrdMap<AllocationState, u32>,
    /// The allocations that have not ended, by their tenant; tenants without any are absent.
    pub live_of_tenant: OrdMap<String, u32>,
    /// The allocations that have not ended, by the vCluster that they name.
    pub queues: OrdMap<String, QueueCounts>,
    /// When the waits of requeued allocations end.
    pub wait_ends: OrdSet<(Timestamp, AllocationId)>,
    /// When nodes are no longer excluded for allocations.
    pub exclusion_ends: OrdSet<(Timestamp, AllocationId)>,
    /// The nodes that are excluded for an allocation, with it.
    pub excluded: OrdSet<(NodeId, AllocationId)>,
    /// When measurements end that have an end.
    pub telemetry_ends: OrdSet<(Timestamp, AllocationId)>,
}

/// Allocations that have not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Those that wait for nodes and are not held.
    pub pending: u32,
    /// Those that have nodes.
    pub running: u32,
    /// Those that are held.
    pub held: u32,
}

impl QueueCounts {
    /// All of them.
    pub fn live(&self) -> u32 {
        self.pending.saturating_add(self.running).saturating_add(self.held)
    }
}

/// What the index has of one allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationFacts {
    tenant: String,
    vcluster: String,
    state: AllocationState,
    held: bool,
    wait_ends: Option<Timestamp>,
    exclusions: Vec<(NodeId, Timestamp)>,
    telemetry_ends: Option<Timestamp>,
}

impl AllocationFacts {
    /// Of this allocation.
    pub fn of(allocation: &Allocation) -> Self {
        let is_live = !allocation.state.is_terminal();
        let exclusions = allocation.excluded.iter().filter(|_| is_live);
        Self {
            tenant: allocation.spec.tenant.clone(),
            vcluster: allocation.spec.vcluster.clone(),
            state: allocation.state,
            held: allocation.held,
            wait_ends: allocation.waits_until.filter(|_| is_live),
            exclusions: exclusions.filter_map(|excluded| Some((excluded.node.clone(), excluded.until?))).collect(),
            telemetry_ends: allocation.telemetry.as_ref().and_then(|order| order.until),
        }
    }
}

impl AllocationIndex {
    /// Adds an allocation.
    pub fn add(&mut self, id: AllocationId, facts: &AllocationFacts) {
        *self.states.entry(facts.state).or_default() += 1;
        if !facts.state.is_terminal() {
            *self.live_of_tenant.entry(facts.tenant.clone()).or_default() += 1;
            *count_of(self.queues.entry(facts.vcluster.clone()).or_default(), facts) += 1;
        }
        if let Some(end) = facts.wait_ends {
            self.wait_ends.insert((end, id));
        }
        for (node, end) in &facts.exclusions {
            self.exclusion_ends.insert((*end, id));
            self.excluded.insert((node.clone(), id));
        }
        if let Some(end) = facts.telemetry_ends {
            self.telemetry_ends.insert((end, id));
        }
    }

    /// Removes an allocation with these facts.
    pub fn remove(&mut self, id: AllocationId, facts: &AllocationFacts) {
        match self.states.get_mut(&facts.state) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) | None => drop(self.states.remove(&facts.state)),
        }
        if !facts.state.is_terminal() {
            match self.live_of_tenant.get_mut(&facts.tenant) {
                Some(count) if *count > 1 => *count -= 1,
                Some(_) | None => drop(self.live_of_tenant.remove(&facts.tenant)),
            }
            if let Some(queue) = self.queues.get_mut(&facts.vcluster) {
                let count = count_of(queue, facts);
                *count = count.saturating_sub(1);
                if *queue == QueueCounts::default() {
                    self.queues.remove(&facts.vcluster);
                }
            }
        }
        if let Some(end) = facts.wait_ends {
            self.wait_ends.remove(&(end, id));
        }
        for (node, end) in &facts.exclusions {
            self.exclusion_ends.remove(&(*end, id));
            self.excluded.remove(&(node.clone(), id));
        }
        if let Some(end) = facts.telemetry_ends {
            self.telemetry_ends.remove(&(end, id));
        }
    }
}

fn count_of<'a>(queue: &'a mut QueueCounts, facts: &AllocationFacts) -> &'a mut u32 {
    if holds_nodes(facts.state) {
        &mut queue.running
    } else if facts.held {
        &mut queue.held
    } else {
        &mut queue.pending
    }
}
