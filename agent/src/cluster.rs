//! What an agent knows of the cluster: nodes and live allocations, kept by a watch on the quorum. The quorum tells an agent with a
//! certificate of role `node` of those allocations alone that have, or had, a share on its node.
//! When the quorum is away, the last that was known, and how old it is.

use crate::membership::{Ask, Membership};
use lattice_model::{Allocation, AllocationId, Backoff, DEFAULT_VCLUSTER, Node, NodeId, Revision, Tenant, VCluster, VniPool};
use lattice_quorum::client::QuorumClient;
use lattice_quorum::following::{Following, News};
use lattice_quorum::identity::Role;
use lattice_quorum::wire::{Change, WatchAllocations, WatchRequest};
use lattice_scheduler::View;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Between two tries to open the watch again: every agent does while the quorum is away.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(1));

/// The cluster as the watch has it.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// All nodes.
    pub nodes: BTreeMap<NodeId, Node>,
    /// Allocations that have not ended, and ended ones that still hold shares.
    pub allocations: BTreeMap<AllocationId, Allocation>,
    /// Tenants with quotas.
    pub tenants: BTreeMap<String, Tenant>,
    /// vClusters but `default`.
    pub vclusters: BTreeMap<String, VCluster>,
    /// Network domains that have a number, by tenant and name.
    pub domains: BTreeMap<(String, String), u32>,
    /// Where such numbers come from, once that is known.
    pub vni_pool: Option<VniPool>,
    /// Allocations of one user that may hold nodes at once; `None`: any number.
    pub user_running: Option<u32>,
    /// The newest revision that was heard of.
    pub revision: Revision,
    /// Whether the watch stands: what is here is no older than the network's delay.
    pub fresh: bool,
}

impl Cluster {
    /// What the scheduler decides by.
    pub fn view(&self, membership: &Membership) -> View {
        View {
            nodes: self.nodes.clone(),
            allocations: self.allocations.clone(),
            tenants: self.tenants.clone(),
            vclusters: self.vclusters.clone(),
            domains: self.domains.clone(),
            vni_pool: self.vni_pool,
            user_running: self.user_running,
            alive: membership.alive(),
        }
    }

    /// The vCluster in whose queue work of this label stands.
    pub fn queue_of(&self, label: &str) -> &str {
        VCluster::queue(self.vclusters.get(label))
    }

    /// All vClusters.
    pub fn queues(&self) -> BTreeSet<String> {
        std::iter::once(DEFAULT_VCLUSTER.to_owned()).chain(self.vclusters.keys().cloned()).collect()
    }

    /// Whether an allocation waits for its place in this queue.
    pub fn somebody_waits(&self, queue: &str) -> bool {
        self.allocations.values().any(|a| a.waits() && self.queue_of(&a.spec.vcluster) == queue)
    }

    fn take(&mut self, news: News) {
        let (revision, changes) = match news {
            News::List { revision, all } => {
                *self = Self::default();
                (revision, all)
            }
            News::Changes { revision, changes } => (revision, changes),
            // What is known stays, and is old, until the list is there.
            News::StartAgain { .. } => {
                self.fresh = false;
                return;
            }
        };
        changes.into_iter().for_each(|change| self.apply(change));
        self.revision = revision;
        self.fresh = true;
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Node(node) => {
                self.nodes.insert(node.id.clone(), *node);
            }
            Change::Tenant(tenant) => {
                self.tenants.insert(tenant.name.clone(), *tenant);
            }
            Change::TenantDeleted(name) => {
                self.tenants.remove(&name);
            }
            Change::VCluster(vcluster) => {
                self.vclusters.insert(vcluster.name.clone(), *vcluster);
            }
            Change::VClusterDeleted(name) => {
                self.vclusters.remove(&name);
            }
            Change::Allocation(allocation) => {
                let held = allocation.shares.iter().any(|s| s.phase != lattice_model::SharePhase::Released);
                if allocation.state.is_terminal() && !held {
                    self.allocations.remove(&allocation.id);
                } else {
                    self.allocations.insert(allocation.id, *allocation);
                }
            }
            Change::Domain { tenant, name, vni } => {
                self.domains.insert((tenant, name), vni);
            }
            Change::DomainReleased { tenant, name } => {
                self.domains.remove(&(tenant, name));
            }
            Change::VniPool(pool) => self.vni_pool = Some(pool),
            Change::Limits(limits) => self.user_running = limits.users.user_running,
            // Not asked for.
            Change::Lease(_) | Change::LeaseEnded(_) => {}
        }
    }
}

/// Watches until `stop`, and tells gossip where others are. A watch that broke goes on where it was, at another member.
pub async fn follow(quorum: QuorumClient, membership: Membership, out: watch::Sender<Arc<Cluster>>, stop: CancellationToken) {
    // Quotas, queues, domains and limits are for who places work.
    let places = quorum.role() == Role::Api;
    let request = WatchRequest {
        nodes: true,
        allocations: WatchAllocations::Live,
        tenants: places,
        vclusters: places,
        domains: places,
        limits: places,
        ..WatchRequest::nothing()
    };
    let mut following = Following::new(quorum, request);
    let mut pauses = PAUSES;
    loop {
        let news = tokio::select! {
            () = stop.cancelled() => return,
            news = following.next() => news,
        };
        match news {
            Ok(news) => {
                let new = new_addresses(&news, &out.borrow());
                for address in new {
                    membership.ask(Ask::Join(address)).await;
                }
                out.send_modify(|cluster| Arc::make_mut(cluster).take(news));
                pauses.reset();
            }
            Err(error) => {
                tracing::debug!(%error, "the watch on the quorum broke; it is opened again");
                // Told once: nobody else has to try again as often as this does.
                out.send_if_modified(|cluster| cluster.fresh && std::mem::take(&mut Arc::make_mut(cluster).fresh));
                tokio::time::sleep(pauses.next_pause().mul_f64(rand::random_range(0.5..1.0))).await;
            }
        }
    }
}

/// Nodes at addresses that were not known: gossip may reach them there.
fn new_addresses(news: &News, known: &Cluster) -> Vec<SocketAddr> {
    let changes = match news {
        News::List { all: changes, .. } | News::Changes { changes, .. } => &changes[..],
        News::StartAgain { .. } => &[],
    };
    let nodes = changes.iter().filter_map(|change| if let Change::Node(node) = change { Some(&**node) } else { None });
    let new = |n: &&Node| known.nodes.get(&n.id).is_none_or(|k| k.addresses.gossip != n.addresses.gossip);
    nodes.filter(new).filter_map(|n| n.addresses.gossip.parse().ok()).collect()
}
