//! What an `api` agent knows of the cluster: nodes and live allocations, kept by a watch on the quorum.
//! When the quorum is away, the last that was known, and how old it is.

use crate::membership::{Ask, Membership};
use lattice_model::{Allocation, AllocationId, AllocationState, Node, NodeId, Revision, Tenant};
use lattice_quorum::client::QuorumClient;
use lattice_quorum::wire::{Change, WatchAllocations, WatchRequest};
use lattice_scheduler::View;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The cluster as the watch has it.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// All nodes.
    pub nodes: BTreeMap<NodeId, Node>,
    /// Allocations that have not ended, and ended ones that still hold shares.
    pub allocations: BTreeMap<AllocationId, Allocation>,
    /// Tenants with quotas.
    pub tenants: BTreeMap<String, Tenant>,
    /// The newest revision that was heard of.
    pub revision: Revision,
    /// Whether the watch stands: what is here is no older than the network's delay.
    pub fresh: bool,
}

impl Cluster {
    /// What the scheduler decides by.
    pub fn view(&self, membership: &Membership) -> View {
        View { nodes: self.nodes.clone(), allocations: self.allocations.clone(), tenants: self.tenants.clone(), alive: membership.alive() }
    }

    /// Whether an allocation waits for its place.
    pub fn somebody_waits(&self) -> bool {
        self.allocations.values().any(|a| a.state == AllocationState::Pending)
    }

    fn take(&mut self, change: Change) {
        match change {
            Change::Start { nodes, allocations, tenants, revision, .. } => {
                self.revision = revision;
                self.nodes = nodes.into_iter().map(|n| (n.id.clone(), n)).collect();
                self.allocations = allocations.into_iter().map(|a| (a.id, a)).collect();
                self.tenants = tenants.into_iter().map(|t| (t.name.clone(), t)).collect();
                self.fresh = true;
            }
            Change::Node(node) => {
                self.revision = self.revision.max(node.revision);
                self.nodes.insert(node.id.clone(), *node);
            }
            Change::Tenant(tenant) => {
                self.revision = self.revision.max(tenant.revision);
                self.tenants.insert(tenant.name.clone(), *tenant);
            }
            Change::TenantDeleted(name) => {
                self.tenants.remove(&name);
            }
            Change::Allocation(allocation) => {
                self.revision = self.revision.max(allocation.revision);
                let held = allocation.shares.iter().any(|s| s.phase != lattice_model::SharePhase::Released);
                if allocation.state.is_terminal() && !(held && allocation.state != AllocationState::Pending) {
                    self.allocations.remove(&allocation.id);
                } else {
                    self.allocations.insert(allocation.id, *allocation);
                }
            }
        }
    }
}

/// Watches until `stop`, and tells gossip where others are.
pub async fn follow(quorum: QuorumClient, membership: Membership, out: watch::Sender<Arc<Cluster>>, stop: CancellationToken) {
    let request = WatchRequest { nodes: true, allocations: WatchAllocations::Live, tenants: true };
    while !stop.is_cancelled() {
        let run = async {
            let mut changes = quorum.watch(&request).await?;
            loop {
                let change = changes.next().await?;
                let new = new_addresses(&change, &out.borrow());
                for address in new {
                    membership.ask(Ask::Join(address)).await;
                }
                out.send_modify(|cluster| Arc::make_mut(cluster).take(change));
            }
        };
        let ended: Result<(), lattice_quorum::client::CallError> = tokio::select! {
            () = stop.cancelled() => return,
            ended = run => ended,
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "the watch on the quorum ended; it is begun again");
        }
        out.send_modify(|cluster| Arc::make_mut(cluster).fresh = false);
        tokio::time::sleep(Duration::from_millis(rand::random_range(50..250))).await;
    }
}

/// Nodes at addresses that were not known: gossip may reach them there.
fn new_addresses(change: &Change, known: &Cluster) -> Vec<SocketAddr> {
    let nodes: Vec<&Node> = match change {
        Change::Start { nodes, .. } => nodes.iter().collect(),
        Change::Node(node) => vec![node],
        Change::Allocation(_) | Change::Tenant(_) | Change::TenantDeleted(_) => vec![],
    };
    let new = |n: &&Node| known.nodes.get(&n.id).is_none_or(|k| k.addresses.gossip != n.addresses.gossip);
    nodes.into_iter().filter(new).filter_map(|n| n.addresses.gossip.parse().ok()).collect()
}
