//! The nodes that allocations have now: for each tenant, and for sensitive work. Not part of the
//! replicated state: counted when a snapshot is read, and then updated.

use imbl::OrdMap;
use lattice_model::{Allocation, NodeId};

/// See the module documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantUsage {
    /// Tenants without allocations that have nodes are absent.
    pub tenants: OrdMap<String, TenantUse>,
    /// Nodes claimed for sensitive work, with the number of sensitive allocations on each.
    pub sensitive: OrdMap<NodeId, u32>,
}

/// The usage of one tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantUse {
    pub allocations: u32,
    /// For each node, the number of the tenant's allocations that have a part of it.
    pub nodes: OrdMap<NodeId, u32>,
}

impl TenantUsage {
    /// The allocation has nodes from now on.
    pub fn add(&mut self, allocation: &Allocation) {
        let used = self.tenants.entry(allocation.spec.tenant.clone()).or_default();
        used.allocations += 1;
        for node in allocation.nodes() {
            grow(&mut used.nodes, node);
            if allocation.spec.sensitive {
                grow(&mut self.sensitive, node);
            }
        }
    }

    /// The allocation has no nodes any more.
    pub fn remove(&mut self, allocation: &Allocation) {
        let Some(used) = self.tenants.get_mut(&allocation.spec.tenant) else { return };
        used.allocations = used.allocations.saturating_sub(1);
        for node in allocation.nodes() {
            shrink(&mut used.nodes, node);
            if allocation.spec.sensitive {
                shrink(&mut self.sensitive, node);
            }
        }
        if used.allocations == 0 {
            self.tenants.remove(&allocation.spec.tenant);
        }
    }
}

fn grow(counts: &mut OrdMap<NodeId, u32>, node: &NodeId) {
    match counts.get_mut(node) {
        Some(count) => *count += 1,
        None => drop(counts.insert(node.clone(), 1)),
    }
}

fn shrink(counts: &mut OrdMap<NodeId, u32>, node: &NodeId) {
    match counts.get_mut(node) {
        Some(count) if *count > 1 => *count -= 1,
        Some(_) | None => drop(counts.remove(node)),
    }
}
