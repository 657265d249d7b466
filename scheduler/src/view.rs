//! What is known of the cluster: from a frozen one everything here is decided.

use lattice_model::{Allocation, AllocationId, DEFAULT_VCLUSTER, Node, NodeId, Revision, Tenant, VCluster, VniPool};
use std::collections::{BTreeMap, BTreeSet};

/// What an agent knows at one moment, by its watch on the quorum and by gossip. Free = size − committed shares; gossip can only subtract.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// All nodes, by id.
    pub nodes: BTreeMap<NodeId, Node>,
    /// All allocations that have not ended, and ended ones that still hold shares.
    pub allocations: BTreeMap<AllocationId, Allocation>,
    /// Tenants with quotas, by name.
    pub tenants: BTreeMap<String, Tenant>,
    /// vClusters, by name; `default` has no record.
    pub vclusters: BTreeMap<String, VCluster>,
    /// Network domains that have a number, by tenant and name.
    pub domains: BTreeMap<(String, String), u32>,
    /// Where such numbers come from; `None`: it is not known.
    pub vni_pool: Option<VniPool>,
    /// Allocations of one user that may hold nodes at once; `None`: any number.
    pub user_running: Option<u32>,
    /// Nodes that this agent's gossip shows alive ([`View::with_alive`]).
    pub alive: BTreeSet<NodeId>,
    /// The newest revision that the watch brought.
    pub revision: Revision,
    /// Whether the watch stands: what is here is no older than the network's delay.
    pub fresh: bool,
}

impl View {
    /// The vCluster that an allocation names, where there is one of that name.
    pub(crate) fn named(&self, allocation: &Allocation) -> Option<&VCluster> {
        self.vclusters.get(&allocation.spec.vcluster)
    }

    /// The vCluster in whose queue an allocation waits.
    pub fn queue_of(&self, allocation: &Allocation) -> &str {
        self.queue_named(&allocation.spec.vcluster)
    }

    /// The vCluster in whose queue work of this label stands.
    pub fn queue_named(&self, label: &str) -> &str {
        VCluster::queue(self.vclusters.get(label))
    }

    /// All vClusters.
    pub fn queues(&self) -> BTreeSet<String> {
        std::iter::once(DEFAULT_VCLUSTER.to_owned()).chain(self.vclusters.keys().cloned()).collect()
    }

    /// Whether an allocation waits for its place in this queue.
    pub fn somebody_waits(&self, queue: &str) -> bool {
        self.allocations.values().any(|a| a.waits() && self.queue_of(a) == queue)
    }

    /// What the scheduler decides by: the same, with the nodes that gossip shows alive now.
    pub fn with_alive(&self, alive: BTreeSet<NodeId>) -> Self {
        Self { alive, ..self.clone() }
    }

    /// What waits in a vCluster's queue, in the order in which it is served.
    pub fn waiting_in(&self, vcluster: &str) -> Vec<&Allocation> {
        queue(self).into_iter().filter(|a| self.queue_of(a) == vcluster).collect()
    }
}

/// The pending allocations in the order in which they are served: by submission, then id.
pub(crate) fn queue(view: &View) -> Vec<&Allocation> {
    let mut queue: Vec<&Allocation> = view.allocations.values().filter(|a| a.waits()).collect();
    queue.sort_by_key(|a| (a.submitted_at, a.id));
    queue
}
