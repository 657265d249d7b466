//! The frozen view of the cluster from which all of this crate's decisions are made.

use crate::table::Table;
use lattice_model::access::RootMay;
use lattice_model::{
    Allocation, AllocationId, BudgetPeriod, DEFAULT_VCLUSTER, DailyUse, Node, NodeId, Reservation, Revision, SchedulerKind, SharePolicy,
    Tenant, Timestamp, VCluster, VniPool, Weights,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What an agent's gossip shows of the nodes: see the fields of [`View`].
#[derive(Clone, Debug, Default)]
pub struct Gossiped {
    pub alive: BTreeSet<NodeId>,
    pub silent_since: BTreeMap<NodeId, Timestamp>,
    pub gossips_since: Timestamp,
}

/// An agent's knowledge at one moment, from its watch on the quorum and from gossip. Free = size −
/// committed shares; gossip can only subtract nodes.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// All nodes, by id.
    pub nodes: Table<NodeId, Node>,
    /// All allocations that have not ended, and ended ones that still hold shares.
    pub allocations: Table<AllocationId, Allocation>,
    /// Tenants with their quotas, shares and budgets, by name.
    pub tenants: BTreeMap<String, Tenant>,
    /// vClusters, by name; `default` has no record.
    pub vclusters: BTreeMap<String, VCluster>,
    /// Nodes that operators set aside for a time, by the name of the reservation.
    pub reservations: BTreeMap<String, Arc<Reservation>>,
    /// The VNIs of network domains that have one, by tenant and name.
    pub domains: BTreeMap<(String, String), u32>,
    /// The pool of VNIs; `None`: it is not known.
    pub vni_pool: Option<VniPool>,
    /// The recorded use of tenants that have some, by name. Running work is not included: its use
    /// since it began is computed with [`lattice_model::NodeUse::of`].
    pub usage: BTreeMap<String, Arc<DailyUse>>,
    /// How far budgets look back.
    pub budget_period: BudgetPeriod,
    /// How many allocations of one user may hold nodes at once; `None`: any number.
    pub user_running: Option<u32>,
    /// Whose shares may be on a node at the same time.
    pub share_policy: SharePolicy,
    /// What root may do on a machine whose agents vouch for users; `None`: unknown.
    pub root_may: Option<RootMay>,
    /// The bandwidth of the checkpoint store, in bytes per second; `None`: it is not known.
    pub checkpoint_bytes_per_second: Option<f64>,
    /// Nodes that this agent's gossip shows alive ([`View::with_gossip`]).
    pub alive: BTreeSet<NodeId>,
    /// For the nodes that gossip lists but does not show alive: since when.
    pub silent_since: BTreeMap<NodeId, Timestamp>,
    /// Since when this agent gossips.
    pub gossips_since: Timestamp,
    /// The newest revision that the watch received.
    pub revision: Revision,
    /// Whether the watch is connected: then the view is no older than the network's delay.
    pub fresh: bool,
}

impl View {
    /// The vCluster that an allocation names, if one has that name.
    pub(crate) fn named(&self, allocation: &Allocation) -> Option<&VCluster> {
        self.vclusters.get(&allocation.spec.vcluster)
    }

    /// The vCluster in whose queue an allocation waits.
    pub fn queue_of(&self, allocation: &Allocation) -> &str {
        self.queue_named(&allocation.spec.vcluster)
    }

    /// The vCluster in whose queue work with this label waits.
    pub fn queue_named(&self, label: &str) -> &str {
        VCluster::queue(self.vclusters.get(label))
    }

    /// The names of all vClusters.
    pub fn queues(&self) -> BTreeSet<String> {
        std::iter::once(DEFAULT_VCLUSTER.to_owned()).chain(self.vclusters.keys().cloned()).collect()
    }

    /// Whether any allocation waits in this queue.
    pub fn somebody_waits(&self, queue: &str) -> bool {
        self.allocations.values().any(|a| a.waits() && self.queue_of(a) == queue)
    }

    /// This view with the current state of gossip: the scheduler's input. All records are shared,
    /// not copied.
    pub fn with_gossip(&self, Gossiped { alive, silent_since, gossips_since }: Gossiped) -> Self {
        Self { alive, silent_since, gossips_since, ..self.clone() }
    }

    /// Since when gossip has not shown this node alive. For a node that gossip does not list: since
    /// it got its state, or since this agent began to gossip, whichever is later.
    pub(crate) fn silent_since(&self, node: &Node) -> Timestamp {
        self.silent_since.get(&node.id).copied().unwrap_or_else(|| node.state_since.max(self.gossips_since))
    }

    /// The weights of a queue's score; `None`: the queue is served in the order of submission.
    pub fn weights_of(&self, queue: &str) -> Option<Weights> {
        let profile = self.scheduler_of(queue).profile()?;
        Some(self.vclusters.get(queue).and_then(|vcluster| vcluster.weights).unwrap_or_else(|| profile.weights()))
    }

    /// See [`Allocation::effective_class`].
    pub fn effective_class(&self, allocation: &Allocation) -> u8 {
        allocation.effective_class(self.tenants.get(&allocation.spec.tenant).and_then(|tenant| tenant.class_max))
    }

    /// How a queue is scheduled.
    pub fn scheduler_of(&self, queue: &str) -> SchedulerKind {
        self.vclusters.get(queue).map_or(SchedulerKind::OF_DEFAULT, |vcluster| vcluster.scheduler)
    }
}
