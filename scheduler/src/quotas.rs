//! What tenants use now, and which waiting work would exceed their hard quotas.

use crate::view::View;
use lattice_model::tenant::{Demand, Excess};
use lattice_model::{Allocation, Node, NodeId, Tenant};
use std::collections::{BTreeMap, BTreeSet};

/// For each tenant with quotas: its nodes, and how many of its allocations hold nodes.
pub struct Quotas<'a>(BTreeMap<&'a str, (&'a Tenant, BTreeSet<&'a NodeId>, u32)>);

impl<'a> Quotas<'a> {
    pub fn of(view: &'a View) -> Self {
        let mut quotas = Self(view.tenants.values().map(|t| (t.name.as_str(), (t, BTreeSet::new(), 0))).collect());
        if !quotas.0.is_empty() {
            let has_nodes = |a: &&Allocation| !a.state.is_without_nodes() && !a.state.is_terminal();
            for allocation in view.allocations.values().filter(has_nodes) {
                quotas.take(allocation, allocation.nodes());
            }
        }
        quotas
    }

    /// Counts an allocation that gets these nodes.
    pub fn take(&mut self, allocation: &Allocation, with: impl Iterator<Item = &'a NodeId>) {
        if let Some((_, nodes, allocations)) = self.0.get_mut(allocation.spec.tenant.as_str()) {
            nodes.extend(with);
            *allocations += 1;
        }
    }

    /// The quota that the allocation would exceed on any nodes.
    pub fn keeps_off(&self, allocation: &Allocation) -> Option<Excess> {
        let (tenant, nodes, allocations) = self.0.get(allocation.spec.tenant.as_str())?;
        // A share may be on nodes that the tenant already has.
        let has = if allocation.spec.share.is_some() { 0 } else { u32::try_from(nodes.len()).unwrap_or(u32::MAX) };
        tenant.excess(Demand { nodes: has, more_nodes: allocation.spec.nodes, allocations: *allocations })
    }

    /// The quota that the allocation would exceed on these nodes.
    pub fn keeps_off_these(&self, allocation: &Allocation, on: &[&Node]) -> Option<Excess> {
        let (tenant, nodes, allocations) = self.0.get(allocation.spec.tenant.as_str())?;
        let more = on.iter().filter(|n| !nodes.contains(&n.id)).count();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        tenant.excess(Demand { nodes: count(nodes.len()), more_nodes: count(more), allocations: *allocations })
    }
}
