//! The scheduler's role: for each vCluster whose lease this agent holds, it proposes claims from
//! its view of the cluster.
//!
//! A proposal may lose: the quorum refuses a claim that no longer fits, and the next round sees the
//! reason.
//!
//! ```text
//!   a queue's lease is ours ──────▶ every round: what waits in it
//!   it is another's ──────────────▶ what is submitted here and fits while nobody waits, under that lease's token
//! ```
//!
//! So a submission that can be placed at once costs one commit, on whichever agent it is made. Only
//! the lease's holder orders a queue: if anybody waits in it, other agents leave the submission to
//! the holder. A refusal in one queue ends the round of that queue only. An agent holds no lease
//! unless its gossip sees at least half of the Ready nodes alive.

mod counts;

pub use counts::{Proposed, Rounds};

use futures::StreamExt;
use lattice_ledger::{Action, scheduler_lease};
use lattice_membership::Membership;
use lattice_membership::cluster::Cluster;
use lattice_model::{Allocation, AllocationId, AllocationSpec, Claim, DEFAULT_VCLUSTER, NodeId, NodeState, Principal};
use lattice_quorum_client::wire::{Answer, Refusal, Request};
use lattice_quorum_client::{CallError, QuorumClient};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// In a larger cluster, checking all nodes for one submission costs more than the commit that it
/// saves.
const NEWCOMER_NODES_MAX: usize = 1000;
/// Lease requests in flight at once.
const ASKED_AT_ONCE: usize = 16;

/// A lease, as the quorum last reported it.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    token: u64,
    /// When the lease ends without renewal, counted from when it was requested.
    until: Instant,
    ours: bool,
}

/// The known leases of schedulers, by vCluster.
pub type Leases = BTreeMap<String, Lease>;

/// What the API asks of this agent's scheduler.
#[derive(Clone)]
pub struct Placing {
    pub leases: watch::Receiver<Leases>,
    pub cluster: watch::Receiver<Arc<Cluster>>,
    pub membership: Membership,
    pub rounds: Rounds,
}

impl Placing {
    /// Whether this agent holds the lease of the default queue. Its holder is also the checkpoint
    /// broker.
    pub fn leads(&self) -> bool {
        self.leases.borrow().get(DEFAULT_VCLUSTER).is_some_and(|lease| lease.ours && Instant::now() < lease.until)
    }

    /// A claim to submit a new allocation with. `None` unless the token of its queue's lease is
    /// known, the allocation fits now, and nobody waits in the queue.
    pub fn newcomer(&self, id: AllocationId, spec: &AllocationSpec, owner: &Principal) -> Option<Claim> {
        if spec.hold {
            return None;
        }
        let (token, view) = {
            let cluster = self.cluster.borrow();
            let queue = cluster.queue_named(&spec.vcluster);
            let token = self.leases.borrow().get(queue).filter(|l| Instant::now() < l.until)?.token;
            if !cluster.fresh || cluster.nodes.len() > NEWCOMER_NODES_MAX || cluster.somebody_waits(queue) {
                return None;
            }
            (token, cluster.with_alive(self.membership.alive()))
        };
        let newcomer = Allocation::submitted(id, spec.clone(), owner.clone(), lattice_agent_common::clock::now());
        lattice_scheduler::place_newcomer(view, newcomer, token)
    }
}

/// Places work until `stop`, then releases the leases. `held` publishes the known leases.
pub async fn run(me: NodeId, quorum: QuorumClient, placing: Placing, lease_ms: u64, held: watch::Sender<Leases>, stop: CancellationToken) {
    let ttl = Duration::from_millis(lease_ms);
    let Placing { mut cluster, membership, rounds, .. } = placing;
    let mut gossip = membership.watch();
    let mut leases = Leases::new();
    // Queues whose lease was requested since the last tick.
    let mut asked = BTreeSet::new();
    let mut renew = tokio::time::interval(ttl / 3);
    loop {
        let changed = tokio::select! {
            () = stop.cancelled() => break,
            _ = renew.tick() => {
                asked.clear();
                Ok(())
            }
            changed = cluster.changed() => changed,
            changed = gossip.changed() => changed,
        };
        if changed.is_err() {
            break;
        }
        if is_apart(&cluster.borrow(), &membership.alive()) {
            asked.clear();
            held.send_replace(Leases::new());
            rounds.wait(&BTreeMap::new());
            give_back(&quorum, std::mem::take(&mut leases)).await;
            continue;
        }
        let queues = cluster.borrow().queues();
        if !queues.is_subset(&asked) {
            let wanted = queues.difference(&asked).cloned().collect();
            keep_all(&me, &quorum, wanted, lease_ms, &mut leases).await;
            asked.clone_from(&queues);
        }
        let now = Instant::now();
        leases.retain(|name, lease| queues.contains(name) && now < lease.until);
        held.send_replace(leases.clone());
        let tokens: BTreeMap<&str, u64> = leases.iter().filter(|(_, l)| l.ours).map(|(name, l)| (name.as_str(), l.token)).collect();
        if tokens.is_empty() {
            rounds.wait(&BTreeMap::new());
            continue;
        }
        let frozen = {
            gossip.mark_unchanged();
            let now = cluster.borrow_and_update();
            if !now.fresh {
                continue;
            }
            now.with_alive(membership.alive())
        };
        rounds.wait(&depths(&frozen, &tokens));
        let lost = propose(&frozen, &tokens, &quorum, &cluster, &rounds).await;
        if !lost.is_empty() {
            leases.retain(|name, _| !lost.contains(name));
            held.send_replace(leases.clone());
        }
    }
    held.send_replace(Leases::new());
    give_back(&quorum, leases).await;
}

/// Whether this agent's gossip sees less than half of the Ready nodes alive. It would place nothing
/// on the others, so it leaves the leases to agents that see more.
fn is_apart(cluster: &Cluster, alive: &BTreeSet<NodeId>) -> bool {
    let ready = || cluster.nodes.values().filter(|node| node.state == NodeState::Ready);
    ready().filter(|node| alive.contains(&node.id)).count() * 2 < ready().count()
}

/// Releases the leases that this agent holds.
async fn give_back(quorum: &QuorumClient, leases: Leases) {
    let mut releases = Vec::new();
    for (name, lease) in leases.into_iter().filter(|(_, lease)| lease.ours) {
        releases.push(release(quorum, name, lease.token));
    }
    futures::stream::iter(releases).buffer_unordered(ASKED_AT_ONCE).collect::<()>().await;
}

/// Releases one lease; if that fails, the lease expires by itself.
async fn release(quorum: &QuorumClient, queue: String, token: u64) {
    let release = Request::from(Action::ReleaseLease { name: scheduler_lease(&queue), token, user: None });
    let _ = quorum.call(&release, Duration::from_millis(500)).await;
}

/// Renews or acquires the leases of these queues.
async fn keep_all(me: &NodeId, quorum: &QuorumClient, queues: Vec<String>, lease_ms: u64, leases: &mut Leases) {
    let mut asking = Vec::new();
    for name in queues {
        let ours = leases.get(&name).filter(|l| l.ours).map(|l| l.token);
        asking.push(keep(me, quorum, name, ours, lease_ms));
    }
    let mut answers = futures::stream::iter(asking).buffer_unordered(ASKED_AT_ONCE);
    while let Some((name, asked_at, kept)) = answers.next().await {
        let until = asked_at + Duration::from_millis(lease_ms);
        match kept {
            Kept::Ours(token) => drop(leases.insert(name, Lease { token, until, ours: true })),
            Kept::Others(Some(token)) => drop(leases.insert(name, Lease { token, until, ours: false })),
            Kept::Others(None) => drop(leases.remove(&name)),
            Kept::Unknown => {}
        }
    }
}

/// The result of a lease request: the holder, and the lease's token.
enum Kept {
    Ours(u64),
    /// `None`: the quorum did not send the token.
    Others(Option<u64>),
    /// The quorum did not answer.
    Unknown,
}

/// Renews or acquires one queue's lease; returns the queue, when the request was made, and the
/// result.
async fn keep(me: &NodeId, quorum: &QuorumClient, queue: String, held: Option<u64>, ttl_ms: u64) -> (String, Instant, Kept) {
    let asked_at = Instant::now();
    let kept = renew_or_take(me, quorum, &scheduler_lease(&queue), held, ttl_ms).await;
    (queue, asked_at, kept)
}

/// Renews the lease, or acquires it if this agent holds none.
async fn renew_or_take(me: &NodeId, quorum: &QuorumClient, lease: &str, held: Option<u64>, ttl_ms: u64) -> Kept {
    if let Some(token) = held {
        let renewal = Request::RenewLease { name: lease.to_owned(), token, holder: me.clone(), user: None };
        match quorum.call(&renewal, Duration::from_millis(ttl_ms / 3)).await {
            Ok(Answer::Lease { token, .. }) => return Kept::Ours(token),
            // The lease has ended, or the cluster's level has no renewal yet: acquire it again.
            Ok(_) | Err(CallError::Refused(_)) => {}
            Err(CallError::Unavailable { .. }) => return Kept::Unknown,
        }
    }
    let request = Request::AcquireLease { name: lease.to_owned(), holder: me.clone(), ttl_ms, user: None };
    match quorum.call(&request, Duration::from_millis(ttl_ms / 3)).await {
        Ok(Answer::Lease { token, .. }) => Kept::Ours(token),
        Ok(other) => {
            tracing::error!(?other, "the quorum answered a lease with something else");
            Kept::Unknown
        }
        Err(CallError::Refused(Refusal::LeaseHeld { token, .. })) => Kept::Others(token),
        Err(CallError::Refused(Refusal::Held { .. })) => Kept::Others(None),
        Err(error) => {
            tracing::debug!(%error, lease, "a scheduler's lease could not be had");
            Kept::Unknown
        }
    }
}

/// How many allocations wait in each of these queues.
fn depths<'a>(view: &lattice_scheduler::View, tokens: &BTreeMap<&'a str, u64>) -> BTreeMap<&'a str, u64> {
    let mut depths: BTreeMap<&str, u64> = tokens.keys().map(|name| (*name, 0)).collect();
    for allocation in view.allocations.values().filter(|a| a.waits()) {
        if let Some(depth) = depths.get_mut(view.queue_of(allocation)) {
            *depth += 1;
        }
    }
    depths
}

/// Proposes the claims of one round. Returns the queues whose lease this agent has lost.
async fn propose(
    view: &lattice_scheduler::View,
    tokens: &BTreeMap<&str, u64>,
    quorum: &QuorumClient,
    cluster: &watch::Receiver<Arc<Cluster>>,
    rounds: &Rounds,
) -> BTreeSet<String> {
    let began = Instant::now();
    let (mut lost, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for claim in lattice_scheduler::place(view, |queue| tokens.get(queue).copied()) {
        let allocation = claim.allocation;
        let queue = view.allocations.get(&allocation).map_or("", |a| view.queue_of(a));
        if lost.contains(queue) || refused.contains(queue) {
            continue;
        }
        let answer = quorum.call(&Request::Claim(claim), Duration::from_secs(2)).await;
        rounds.proposed(
            queue,
            match &answer {
                Ok(_) => Proposed::Accepted,
                Err(CallError::Refused(_)) => Proposed::Rejected,
                Err(CallError::Unavailable { .. }) => Proposed::Unanswered,
            },
        );
        match answer {
            Ok(_) => tracing::info!(%allocation, queue, "claimed"),
            Err(CallError::Refused(Refusal::StaleLease { .. })) => drop(lost.insert(queue.to_owned())),
            // Only this allocation has to wait, and it takes no nodes: the round goes on.
            Err(CallError::Refused(refusal @ (Refusal::NoVni(_) | Refusal::OverUserLimit { .. }))) => {
                tracing::info!(%allocation, queue, %refusal, "a claim was refused");
            }
            Err(error @ CallError::Unavailable { .. }) => {
                tracing::info!(%allocation, queue, %error, "a claim had no answer");
                // The other claims would get no answer either.
                refused.insert(queue);
                break;
            }
            Err(error @ CallError::Refused(_)) => {
                tracing::info!(%allocation, queue, %error, "a claim was refused");
                refused.insert(queue);
            }
        }
    }
    rounds.over(began.elapsed());
    if !refused.is_empty() {
        // The view that the round was made from is outdated: wait for a change, or a short random
        // time.
        let mut cluster = cluster.clone();
        cluster.mark_unchanged();
        let pause = Duration::from_millis(rand::random_range(20..80));
        let _ = tokio::time::timeout(pause, cluster.changed()).await;
    }
    lost
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::test_builders::node;

    #[test]
    fn who_sees_less_than_half_of_the_nodes_that_are_ready_is_apart() {
        let states = [("n1", NodeState::Ready), ("n2", NodeState::Ready), ("n3", NodeState::Ready), ("n4", NodeState::Down)];
        let nodes = |n: usize| states[..n].iter().map(|(id, state)| (id.parse().unwrap(), node(id, *state))).collect();
        let apart = |n, alive: &[&str]| {
            let cluster = Cluster { nodes: nodes(n), ..Cluster::default() };
            is_apart(&cluster, &alive.iter().map(|id| id.parse().unwrap()).collect())
        };
        assert!(apart(3, &["n1"]) && apart(4, &["n1", "n4"]));
        assert!(!apart(3, &["n1", "n3"]) && !apart(2, &["n1"]) && !apart(1, &["n1"]) && !apart(0, &[]));
    }
}
