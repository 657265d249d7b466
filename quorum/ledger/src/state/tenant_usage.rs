//! What tenants have: follows from the allocations, counted once and then kept. Not part of the agreed state.

use lattice_model::{Allocation, NodeId};
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Default)]
pub struct TenantUsage(pub Option<BTreeMap<String, TenantUse>>);

/// What one tenant has.
#[derive(Debug, Default)]
pub struct TenantUse {
    pub allocations: u32,
    /// Each node, and how many of the allocations have a part of it.
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

/// A copy counts anew when it is asked.
impl Clone for TenantUsage {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// What has been counted makes no difference between two ledgers.
impl PartialEq for TenantUsage {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for TenantUsage {}
