//! The nodes and allocations of tenants, and the waiting work that would exceed hard quotas.

use crate::draft::Draft;
use lattice_model::tenant::{Demand, Excess};
use lattice_model::{Allocation, NodeId, Tenant};
use std::collections::{BTreeMap, BTreeSet};

/// For each tenant with quotas: its nodes, and how many of its allocations hold nodes.
#[derive(Clone)]
pub struct Quotas<'a>(BTreeMap<&'a str, (&'a Tenant, BTreeSet<&'a NodeId>, u32)>);

impl<'a> Quotas<'a> {
    pub fn of(state: &Draft<'a>) -> Self {
        let mut quotas = Self(state.view.tenants.values().map(|t| (t.name.as_str(), (t, BTreeSet::new(), 0))).collect());
        if !quotas.0.is_empty() {
            for allocation in state.kept.holders.values().filter(|a| !a.state.is_terminal()) {
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
        // A share may be on nodes that the tenant uses already, so those are not counted in addition.
        let has = if allocation.spec.share.is_some() { 0 } else { u32::try_from(nodes.len()).unwrap_or(u32::MAX) };
        tenant.excess(Demand { nodes: has, more_nodes: allocation.spec.nodes, allocations: *allocations })
    }

    /// The quota that the allocation would exceed with this many nodes that its tenant does not use
    /// yet.
    pub fn excess(&self, allocation: &Allocation, more: usize) -> Option<Excess> {
        let (tenant, nodes, allocations) = self.0.get(allocation.spec.tenant.as_str())?;
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        tenant.excess(Demand { nodes: count(nodes.len()), more_nodes: count(more), allocations: *allocations })
    }

    /// Whether the allocation's tenant uses this node and has a limit of nodes.
    pub fn is_used(&self, allocation: &Allocation, node: &NodeId) -> bool {
        self.limit(allocation).is_some_and(|(used, _)| used.contains(node))
    }

    /// Whether it matters which nodes the allocation gets: its tenant may use fewer new nodes than the
    /// allocation may get.
    pub fn depend_on_nodes(&self, allocation: &Allocation) -> bool {
        self.limit(allocation).is_some_and(|(_, more_max)| more_max < allocation.spec.nodes_most() as usize)
    }

    /// Keeps those of the nodes that the quota allows for the allocation: all that its tenant uses
    /// already, and the first others up to the limit. The order stays. `id_of` gives a node's id.
    pub fn retain_allowed<'n, T>(&self, allocation: &Allocation, nodes: &mut Vec<T>, id_of: impl Fn(&T) -> &'n NodeId) {
        if let Some((used, mut more_max)) = self.limit(allocation) {
            nodes.retain(|node| {
                let is_used = used.contains(id_of(node));
                let is_allowed = is_used || more_max > 0;
                more_max -= usize::from(is_allowed && !is_used);
                is_allowed
            });
        }
    }

    /// The nodes that the allocation's tenant uses, and how many more it may use; `None`: there is
    /// no limit.
    fn limit(&self, allocation: &Allocation) -> Option<(&BTreeSet<&'a NodeId>, usize)> {
        let (tenant, nodes, _) = self.0.get(allocation.spec.tenant.as_str())?;
        Some((nodes, (tenant.max_nodes? as usize).saturating_sub(nodes.len())))
    }
}
