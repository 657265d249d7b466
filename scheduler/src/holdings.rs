//! The parts of nodes that allocations hold.

use lattice_model::{Allocation, AllocationId, Epoch, Node, NodeId, Resources, SharePhase};
use std::collections::BTreeMap;

/// Shares that are not released, including those of work that has ended. A share that both the
/// allocation and the node list counts once.
#[derive(Clone, Debug, Default)]
pub struct Holdings(BTreeMap<NodeId, BTreeMap<(AllocationId, Epoch), Resources>>);

impl Holdings {
    /// The parts that these allocations hold on all nodes, and that leaving shares hold on these nodes.
    pub fn of<'a>(nodes: impl Iterator<Item = &'a Node>, allocations: impl Iterator<Item = &'a Allocation>) -> Self {
        let mut held = Self::default();
        for node in nodes {
            for leaving in &node.leaving {
                held.take(&node.id, leaving.allocation, leaving.epoch, leaving.resources);
            }
        }
        for allocation in allocations.filter(|a| !a.state.is_without_nodes()) {
            for share in allocation.shares.iter().filter(|s| s.phase != SharePhase::Released) {
                held.take(share.node, allocation.id, allocation.epoch, share.resources);
            }
        }
        held
    }

    /// Reserves a part of a node for an allocation.
    pub(crate) fn take(&mut self, node: &NodeId, allocation: AllocationId, epoch: Epoch, resources: Resources) {
        self.0.entry(node.clone()).or_default().insert((allocation, epoch), resources);
    }

    /// The sum of the held parts of a node.
    pub fn committed(&self, node: &NodeId) -> Resources {
        self.0.get(node).into_iter().flat_map(BTreeMap::values).fold(Resources::default(), |sum, part| sum.plus(part))
    }

    /// The allocations that hold a part of the node.
    pub(crate) fn holders(&self, node: &NodeId) -> impl Iterator<Item = AllocationId> {
        self.0.get(node).into_iter().flat_map(BTreeMap::keys).map(|(allocation, _)| *allocation)
    }

    /// The allocation that holds most of the node, by cores and then by memory, and what it holds.
    pub(crate) fn largest(&self, node: &NodeId) -> Option<(AllocationId, Resources)> {
        let held = self.0.get(node)?.iter().max_by_key(|(_, r)| (r.cores, r.memory_bytes));
        held.map(|((allocation, _), resources)| (*allocation, *resources))
    }
}
