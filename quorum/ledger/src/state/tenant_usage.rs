//! The usage of tenants, derived from the allocations: counted once and then updated. Not part of
//! the replicated state.

use lattice_model::{Allocation, NodeId};
use std::collections::BTreeMap;

/// See the module documentation.
#[derive(Debug, Default)]
pub struct TenantUsage(pub Option<BTreeMap<String, TenantUse>>);

/// The usage of one tenant.
#[derive(Debug, Default)]
pub struct TenantUse {
    pub allocations: u32,
    /// For each node, the number of the tenant's allocations that have a part of it.
    pub nodes: BTreeMap<NodeId, u32>,
}

impl TenantUse {
    pub fn add(&mut self, allocation: &Allocation) {
        self.allocations += 1;
        for node in allocation.nodes() {
            *self.nodes.entry(node.clone()).or_default() += 1;
        }
    }

    pub fn remove(&mut self, allocation: &Allocation) {
        self.allocations = self.allocations.saturating_sub(1);
        for node in allocation.nodes() {
            if let Some(count) = self.nodes.get_mut(node) {
                *count -= 1;
                if *count == 0 {
                    self.nodes.remove(node);
                }
            }
        }
    }
}

/// A copy starts without counts, and counts when needed.
impl Clone for TenantUsage {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// The counts do not matter when two ledgers are compared.
impl PartialEq for TenantUsage {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for TenantUsage {}
