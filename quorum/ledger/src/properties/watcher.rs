//! Simulated watchers: of all nodes, of allocations that have not ended, and of everything else;
//! and of the allocations of one node.

use crate::history::{ChangeSet, ChangedPhases};
use crate::{ClusterLimits, DomainKey, Ledger};
use lattice_model::{Allocation, AllocationId, DailyUse, Node, NodeId, Reservation, Tenant, VCluster, VniPool};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The state that the watcher has built up.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Watcher {
    nodes: BTreeMap<NodeId, Node>,
    allocations: BTreeMap<AllocationId, Arc<Allocation>>,
    tenants: BTreeMap<String, Arc<Tenant>>,
    leases: BTreeMap<String, (NodeId, u64, u64)>,
    vclusters: BTreeMap<String, Arc<VCluster>>,
    reservations: BTreeMap<String, Arc<Reservation>>,
    domains: BTreeMap<DomainKey, u32>,
    vni_pool: VniPool,
    limits: ClusterLimits,
    tenant_use: BTreeMap<String, DailyUse>,
}

impl Watcher {
    pub(super) fn list(ledger: &Ledger) -> Self {
        Self {
            nodes: ledger.nodes().map(|n| (n.id.clone(), quiet(n))).collect(),
            allocations: ledger.allocations().filter(|a| !a.state.is_terminal()).map(|a| (a.id, Arc::clone(a))).collect(),
            tenants: ledger.tenants().map(|t| (t.name.clone(), Arc::clone(t))).collect(),
            leases: ledger.leases().map(|(name, l)| (name.to_owned(), (l.holder.clone(), l.token, l.ttl_ms))).collect(),
            vclusters: ledger.vclusters().map(|v| (v.name.clone(), Arc::clone(v))).collect(),
            reservations: ledger.reservations().map(|r| (r.name.clone(), Arc::clone(r))).collect(),
            domains: ledger.domains().map(|(key, domain)| (key.clone(), domain.vni)).collect(),
            vni_pool: ledger.vni_pool(),
            limits: ledger.cluster_limits(),
            tenant_use: ledger.tenants().filter_map(|t| Some((t.name.clone(), ledger.tenant_use(&t.name)?.clone()))).collect(),
        }
    }

    pub(super) fn take(&mut self, set: &ChangeSet) {
        self.nodes.extend(set.nodes.iter().map(|n| (n.id.clone(), quiet(n))));
        for node in &set.nodes_removed {
            self.nodes.remove(node);
        }
        for allocation in &set.allocations {
            if allocation.state.is_terminal() {
                self.allocations.remove(&allocation.id);
            } else {
                self.allocations.insert(allocation.id, Arc::clone(allocation));
            }
        }
        for ChangedPhases { change, .. } in &set.phases {
            // Ended allocations are not watched.
            if !change.state.is_terminal() {
                let record = self.allocations.get_mut(&change.id).expect("the list or a change before it has the record");
                change.apply(Arc::make_mut(record)).unwrap();
            }
        }
        for (name, tenant) in &set.tenants {
            match tenant {
                Some(tenant) => drop(self.tenants.insert(name.clone(), Arc::clone(tenant))),
                None => {
                    self.tenants.remove(name);
                    self.tenant_use.remove(name);
                }
            }
        }
        for (name, vcluster) in &set.vclusters {
            match vcluster {
                Some(vcluster) => drop(self.vclusters.insert(name.clone(), Arc::clone(vcluster))),
                None => drop(self.vclusters.remove(name)),
            }
        }
        for (name, reservation) in &set.reservations {
            match reservation {
                Some(reservation) => drop(self.reservations.insert(name.clone(), Arc::clone(reservation))),
                None => drop(self.reservations.remove(name)),
            }
        }
        for (name, lease) in &set.leases {
            match lease {
                Some(l) => drop(self.leases.insert(name.clone(), (l.holder.clone(), l.token, l.ttl_ms))),
                None => drop(self.leases.remove(name)),
            }
        }
        for (key, vni) in &set.domains {
            match vni {
                Some(vni) => drop(self.domains.insert(key.clone(), *vni)),
                None => drop(self.domains.remove(key)),
            }
        }
        self.vni_pool = set.vni_pool.unwrap_or(self.vni_pool);
        self.limits = set.limits.unwrap_or(self.limits);
        for (name, days) in &set.tenant_use {
            self.tenant_use.entry(name.clone()).or_default().replace(days.iter().copied());
        }
    }
}

/// The allocations that have a share on an agent's node and have not ended, as an agent of role
/// `node` has built them up. It gets no phases of other nodes.
#[derive(Clone, Debug)]
pub(super) struct NodeWatcher {
    node: NodeId,
    allocations: BTreeMap<AllocationId, Allocation>,
}

impl NodeWatcher {
    pub(super) fn list(ledger: &Ledger, node: NodeId) -> Self {
        let its = ledger.allocations().filter(|a| !a.state.is_terminal() && a.shares.rank_of(&node).is_some());
        Self { allocations: its.map(|a| (a.id, Allocation::clone(a))).collect(), node }
    }

    pub(super) fn take(&mut self, set: &ChangeSet) {
        for allocation in &set.allocations {
            if allocation.state.is_terminal() || allocation.shares.rank_of(&self.node).is_none() {
                self.allocations.remove(&allocation.id);
            } else {
                self.allocations.insert(allocation.id, Allocation::clone(allocation));
            }
        }
        for change in set.phases.iter().filter_map(|phases| phases.of_node(&self.node)) {
            assert_eq!((change.previous_revision, change.phases.len(), change.phases[0].len), (None, 1, 1));
            if !change.state.is_terminal() {
                change.apply(self.allocations.get_mut(&change.id).expect("the claim was sent before")).unwrap();
            }
        }
    }

    /// Checks that the watcher knows what it must know.
    pub(super) fn agrees_with(&self, ledger: &Ledger) {
        let now = Self::list(ledger, self.node.clone());
        assert!(self.allocations.keys().eq(now.allocations.keys()), "{self:?} {now:?}");
        for (known, record) in self.allocations.values().zip(now.allocations.values()) {
            assert_eq!((known.epoch, known.state, known.shares.list()), (record.epoch, record.state, record.shares.list()));
            assert_eq!(known.shares.phase_of(&self.node), record.shares.phase_of(&self.node));
        }
    }
}

/// The node without the numbers of its reports, which nobody watches.
fn quiet(node: &Node) -> Node {
    Node { report_seq: 0, ..node.clone() }
}
