//! What an agent knows of the cluster: nodes and live allocations, from a watch on the quorum. To
//! an agent with a certificate of role `node`, the quorum sends only its own node, and the
//! allocations that have, or had, a share there: so its cost does not grow with the cluster
//! ([`crate::directory`] finds other nodes). While the quorum is unreachable, the agent keeps the
//! last state and marks it as stale.

use crate::{Ask, Membership};
use lattice_model::phases_change::NotApplicable;
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
const WATCH_BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(1));

/// Takes what the watch delivered. On an error the state is marked as stale: a list must follow.
fn apply_news(cluster: &mut Cluster, news: News) -> Result<(), NotApplicable> {
    let (revision, changes) = match news {
        News::List { revision, all } => {
            *cluster = Cluster { checkpoint_bytes_per_second: cluster.checkpoint_bytes_per_second, ..Cluster::default() };
            (revision, all)
        }
        News::Changes { revision, changes } => (revision, changes),
        // The old state stays, marked as stale, until the full list arrives.
        News::Resync { .. } => {
            cluster.fresh = false;
            return Ok(());
        }
    };
    // Every change is applied, even if an earlier one cannot be.
    let mut applied = Ok(());
    for change in changes {
        applied = applied.and(apply_change(cluster, change));
    }
    cluster.revision = revision;
    cluster.fresh = applied.is_ok();
    applied
}

fn apply_change(cluster: &mut Cluster, change: Change) -> Result<(), NotApplicable> {
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
            cluster.usage.remove(&name);
        }
        Change::VCluster(vcluster) => {
            cluster.vclusters.insert(vcluster.name.clone(), *vcluster);
        }
        Change::VClusterDeleted(name) => {
            cluster.vclusters.remove(&name);
        }
        Change::Reservation(reservation) => {
            cluster.reservations.insert(reservation.name.clone(), Arc::new(*reservation));
        }
        Change::ReservationDeleted(name) => {
            cluster.reservations.remove(&name);
        }
        Change::Allocation(allocation) => {
            if allocation.state.is_terminal() && allocation.shares.all_released() {
                cluster.allocations.remove(&allocation.id);
            } else {
                cluster.allocations.insert(allocation.id, *allocation);
            }
        }
        Change::Phases(change) => match cluster.allocations.get_mut(&change.id) {
            Some(record) => change.apply(record)?,
            // The list of live allocations did not have it.
            None if change.state.is_terminal() => {}
            None => return Err(NotApplicable::NoRecord(change.id)),
        },
        Change::Domain { tenant, name, vni } => {
            cluster.domains.insert((tenant, name), vni);
        }
        Change::DomainReleased { tenant, name } => {
            cluster.domains.remove(&(tenant, name));
        }
        Change::VniPool(pool) => cluster.vni_pool = Some(pool),
        Change::Limits(limits) => {
            (cluster.user_running, cluster.budget_period) = (limits.users.user_running, limits.budget_period);
            (cluster.share_policy, cluster.root_may) = (limits.share_policy, Some(limits.root_may));
        }
        Change::TenantUse { tenant, days } => Arc::make_mut(cluster.usage.entry(tenant).or_default()).replace(days),
        // The watch does not request these.
        Change::Lease(_) | Change::LeaseEnded(_) => {}
    }
    Ok(())
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
    let mut pauses = WATCH_BACKOFF;
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
                let mut taken = Ok(());
                out.send_modify(|cluster| taken = apply_news(Arc::make_mut(cluster), news));
                match taken {
                    Ok(()) => pauses.reset(),
                    Err(error) => {
                        tracing::warn!(%error, "a change does not fit this agent's view of the cluster; it reads the list again");
                        following.start_again();
                        pause(&mut pauses).await;
                    }
                }
            }
            Err(error) => {
                tracing::debug!(%error, "the watch on the quorum broke; it is opened again");
                // Send the change to `fresh = false` only once, not at every retry.
                out.send_if_modified(|cluster| cluster.fresh && std::mem::take(&mut Arc::make_mut(cluster).fresh));
                pause(&mut pauses).await;
            }
        }
    }
}

async fn pause(pauses: &mut Backoff) {
    tokio::time::sleep(pauses.next_pause().mul_f64(rand::random_range(0.5..1.0))).await;
}

/// Gossip addresses of nodes that were unknown, or that have a new address.
fn new_addresses(news: &News, known: &Cluster) -> Vec<SocketAddr> {
    let changes = match news {
        News::List { all: changes, .. } | News::Changes { changes, .. } => &changes[..],
        News::Resync { .. } => &[],
    };
    let nodes = changes.iter().filter_map(|change| if let Change::Node(node) = change { Some(&**node) } else { None });
    let new = |n: &&Node| known.nodes.get(&n.id).is_none_or(|k| k.addresses.gossip != n.addresses.gossip);
    nodes.filter(new).filter_map(|n| n.addresses.gossip.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::shares::PhaseRun;
    use lattice_model::{
        Allocation, AllocationId, AllocationSpec, AllocationState, Entrypoint, Epoch, PhasesChange, Principal, Resources, Revision, Share,
        SharePhase, Timestamp,
    };
    use std::path::Path;

    fn id() -> AllocationId {
        "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap()
    }

    fn staging() -> Allocation {
        let spec = AllocationSpec::new("a", Entrypoint::Command { argv: vec!["true".into()] }, Path::new("/"));
        let owner = Principal { name: "u".into(), uid: 1, gid: 1, groups: vec![] };
        let share = |node: &str| Share { node: node.parse().unwrap(), resources: Resources::default(), phase: SharePhase::Claimed };
        let shares = [share("n1"), share("n2")].into();
        let state = AllocationState::Staging;
        Allocation { state, epoch: Epoch(1), shares, revision: Revision(5), ..Allocation::submitted(id(), spec, owner, Timestamp(1)) }
    }

    fn phases(state: AllocationState, previous: u64, phase: SharePhase) -> News {
        let (previous_revision, revision) = (Some(Revision(previous)), Revision(previous + 1));
        let run = PhaseRun { first: 1, len: 1, phase };
        let change = PhasesChange { id: id(), epoch: Epoch(1), state, previous_revision, revision, phases: vec![run], usage: None };
        News::Changes { revision, changes: vec![Change::Phases(Box::new(change))] }
    }

    #[test]
    fn phases_change_the_record_and_a_change_without_its_record_needs_the_list() {
        let list = |all| News::List { revision: Revision(5), all };
        let mut cluster = Cluster::default();
        apply_news(&mut cluster, list(vec![Change::Allocation(Box::new(staging()))])).unwrap();
        apply_news(&mut cluster, phases(AllocationState::Staging, 5, SharePhase::Prepared)).unwrap();
        let known = &cluster.allocations[&id()];
        assert_eq!((known.revision, known.shares.count(SharePhase::Prepared), cluster.fresh), (Revision(6), 1, true));
        // A change in between is missing.
        let gap = apply_news(&mut cluster, phases(AllocationState::Staging, 7, SharePhase::Prepared));
        assert_eq!(gap, Err(NotApplicable::Revision { id: id(), is: Revision(6), wants: Revision(7) }));
        assert!(!cluster.fresh, "it is stale until the list is there");
        apply_news(&mut cluster, list(vec![])).unwrap();
        assert!(cluster.fresh);
        assert_eq!(apply_news(&mut cluster, phases(AllocationState::Running, 8, SharePhase::Prepared)), Err(NotApplicable::NoRecord(id())));
        // An allocation that has ended is not in a list.
        apply_news(&mut cluster, phases(AllocationState::Completed, 9, SharePhase::Released)).unwrap();
        assert!(cluster.fresh && cluster.allocations.is_empty());
    }
}
