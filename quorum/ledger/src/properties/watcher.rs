//! A simulated watcher of all nodes, of allocations that have not ended, and of everything else.

use crate::history::ChangeSet;
use crate::{ClusterLimits, DomainKey, Ledger};
use lattice_model::{Allocation, AllocationId, Node, NodeId, Tenant, VCluster, VniPool};
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
    domains: BTreeMap<DomainKey, u32>,
    vni_pool: VniPool,
    limits: ClusterLimits,
}

impl Watcher {
    pub(super) fn list(ledger: &Ledger) -> Self {
        Self {
            nodes: ledger.nodes().map(|n| (n.id.clone(), quiet(n))).collect(),
            allocations: ledger.allocations().filter(|a| !a.state.is_terminal()).map(|a| (a.id, Arc::clone(a))).collect(),
            tenants: ledger.tenants().map(|t| (t.name.clone(), Arc::clone(t))).collect(),
            leases: ledger.leases().map(|(name, l)| (name.to_owned(), (l.holder.clone(), l.token, l.ttl_ms))).collect(),
            vclusters: ledger.vclusters().map(|v| (v.name.clone(), Arc::clone(v))).collect(),
            domains: ledger.domains().map(|(key, domain)| (key.clone(), domain.vni)).collect(),
            vni_pool: ledger.vni_pool(),
            limits: ledger.cluster_limits(),
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
        for (name, tenant) in &set.tenants {
            match tenant {
                Some(tenant) => drop(self.tenants.insert(name.clone(), Arc::clone(tenant))),
                None => drop(self.tenants.remove(name)),
            }
        }
        for (name, vcluster) in &set.vclusters {
            match vcluster {
                Some(vcluster) => drop(self.vclusters.insert(name.clone(), Arc::clone(vcluster))),
                None => drop(self.vclusters.remove(name)),
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
    }
}

/// Without the bookkeeping of reports, which nobody watches.
fn quiet(node: &Node) -> Node {
    Node { report_seq: 0, ..node.clone() }
}
