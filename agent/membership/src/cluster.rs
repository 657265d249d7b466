//! What an agent knows of the cluster: nodes and live allocations, from a watch on the quorum. To
//! an agent with a certificate of role `node`, the quorum sends only its own node, and the
//! allocations that have, or had, a share there: so its cost does not grow with the cluster
//! ([`crate::directory`] finds other nodes). While the quorum is unreachable, the agent keeps the
//! last state and marks it as stale.

use crate::{Ask, Membership};
use lattice_model::{Backoff, Node};
use lattice_pki::identity::Role;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::following::{Following, News};
use lattice_quorum_client::wire::{Change, WatchAllocations, WatchRequest};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The cluster as the watch delivered it. It does not say which nodes are alive: gossip does.
pub use lattice_scheduler::View as Cluster;

/// Backoff between attempts to open the watch again: while the quorum is unreachable, every agent
/// tries.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(1));

fn take(cluster: &mut Cluster, news: News) {
    let (revision, changes) = match news {
        News::List { revision, all } => {
            *cluster = Cluster::default();
            (revision, all)
        }
        News::Changes { revision, changes } => (revision, changes),
        // The old state stays, marked as stale, until the full list arrives.
        News::StartAgain { .. } => {
            cluster.fresh = false;
            return;
        }
    };
    changes.into_iter().for_each(|change| apply(cluster, change));
    cluster.revision = revision;
    cluster.fresh = true;
}

fn apply(cluster: &mut Cluster, change: Change) {
    match change {
        Change::Node(node) => {
            cluster.nodes.insert(node.id.clone(), *node);
        }
        Change::NodeRemoved(node) => {
            cluster.nodes.remove(&node);
        }
        Change::Tenant(tenant) => {
            cluster.tenants.insert(tenant.name.clone(), *tenant);
        }
        Change::TenantDeleted(name) => {
            cluster.tenants.remove(&name);
        }
        Change::VCluster(vcluster) => {
            cluster.vclusters.insert(vcluster.name.clone(), *vcluster);
        }
        Change::VClusterDeleted(name) => {
            cluster.vclusters.remove(&name);
        }
        Change::Allocation(allocation) => {
            if allocation.state.is_terminal() && allocation.shares.all_released() {
                cluster.allocations.remove(&allocation.id);
            } else {
                cluster.allocations.insert(allocation.id, *allocation);
            }
        }
        Change::Domain { tenant, name, vni } => {
            cluster.domains.insert((tenant, name), vni);
        }
        Change::DomainReleased { tenant, name } => {
            cluster.domains.remove(&(tenant, name));
        }
        Change::VniPool(pool) => cluster.vni_pool = Some(pool),
        Change::Limits(limits) => cluster.user_running = limits.users.user_running,
        // The watch does not request these.
        Change::Lease(_) | Change::LeaseEnded(_) => {}
    }
}

/// Watches the quorum until `stop`, and gives gossip the addresses of new nodes. A broken watch
/// resumes at the same revision with another member.
pub async fn follow(quorum: QuorumClient, membership: Membership, out: watch::Sender<Arc<Cluster>>, stop: CancellationToken) {
    // Only an agent that places work needs quotas, queues, domains and limits.
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
                out.send_modify(|cluster| take(Arc::make_mut(cluster), news));
                pauses.reset();
            }
            Err(error) => {
                tracing::debug!(%error, "the watch on the quorum broke; it is opened again");
                // Send the change to `fresh = false` only once, not at every retry.
                out.send_if_modified(|cluster| cluster.fresh && std::mem::take(&mut Arc::make_mut(cluster).fresh));
                tokio::time::sleep(pauses.next_pause().mul_f64(rand::random_range(0.5..1.0))).await;
            }
        }
    }
}

/// Gossip addresses of nodes that were unknown, or that have a new address.
fn new_addresses(news: &News, known: &Cluster) -> Vec<SocketAddr> {
    let changes = match news {
        News::List { all: changes, .. } | News::Changes { changes, .. } => &changes[..],
        News::StartAgain { .. } => &[],
    };
    let nodes = changes.iter().filter_map(|change| if let Change::Node(node) = change { Some(&**node) } else { None });
    let new = |n: &&Node| known.nodes.get(&n.id).is_none_or(|k| k.addresses.gossip != n.addresses.gossip);
    nodes.filter(new).filter_map(|n| n.addresses.gossip.parse().ok()).collect()
}
