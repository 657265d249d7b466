//! The scheduler's role: while this agent holds the lease, it proposes claims for what its view shows.
//!
//! It proposes and may lose: the quorum refuses what does not hold any more, and the next round sees why.
//!
//! ```text
//!   lease is ours ──────▶ every round: what waits
//!   lease is another's ─▶ what is submitted here and finds room while nobody waits, under that lease's token
//! ```
//!
//! A submission that can be placed at once so costs one commit, wherever it is made (decision 0021). Order is the lease's
//! holder's alone: who finds anybody waiting leaves it to him.

use crate::cluster::Cluster;
use crate::membership::Membership;
use lattice_model::{Allocation, AllocationId, AllocationSpec, Claim, NodeId, Principal};
use lattice_quorum::client::{CallError, QuorumClient};
use lattice_quorum::ledger::SCHEDULER_LEASE;
use lattice_quorum::wire::{Answer, Refusal, Request};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// In a cluster of more nodes, looking at all of them for one submission costs more than the commit that it saves.
const NEWCOMER_NODES_MAX: usize = 1000;

/// The lease as last heard of.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    token: u64,
    /// When it ends unless it is renewed, counted from when it was asked for.
    until: Instant,
    ours: bool,
}

/// What the API asks the scheduler of this agent.
#[derive(Clone)]
pub struct Placing {
    pub lease: watch::Receiver<Option<Lease>>,
    pub cluster: watch::Receiver<Arc<Cluster>>,
    pub membership: Membership,
}

impl Placing {
    /// The claim to submit an allocation with: where the lease's token is known and there is room and nobody waits.
    pub fn newcomer(&self, id: AllocationId, spec: &AllocationSpec, owner: &Principal) -> Option<Claim> {
        let lease = (*self.lease.borrow()).filter(|l| Instant::now() < l.until)?;
        let view = {
            let cluster = self.cluster.borrow();
            if !cluster.fresh || cluster.nodes.len() > NEWCOMER_NODES_MAX || cluster.somebody_waits() {
                return None;
            }
            cluster.view(&self.membership)
        };
        let newcomer = Allocation::submitted(id, spec.clone(), owner.clone(), crate::service::now());
        lattice_scheduler::place_newcomer(view, newcomer, lease.token)
    }
}

/// Places until `stop`; then gives the lease back. `held` says what is known of the lease.
pub async fn run(
    me: NodeId,
    quorum: QuorumClient,
    placing: Placing,
    lease_ms: u64,
    held: watch::Sender<Option<Lease>>,
    stop: CancellationToken,
) {
    let ttl = Duration::from_millis(lease_ms);
    let Placing { mut cluster, membership, .. } = placing;
    let mut gossip = membership.watch();
    let mut lease: Option<Lease> = None;
    let mut renew = tokio::time::interval(ttl / 3);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = renew.tick() => {
                let until = Instant::now() + ttl;
                let ours = lease.filter(|l| l.ours).map(|l| l.token);
                lease = match keep(&me, &quorum, ours, lease_ms).await {
                    Kept::Ours(token) => Some(Lease { token, until, ours: true }),
                    Kept::Others(token) => token.map(|token| Lease { token, until, ours: false }),
                    Kept::Unknown => lease.filter(|l| l.until > Instant::now()),
                };
                held.send_replace(lease);
            }
            changed = cluster.changed() => if changed.is_err() { break },
            changed = gossip.changed() => if changed.is_err() { break },
        }
        let Some(Lease { token, until, ours: true }) = lease else { continue };
        if Instant::now() >= until {
            lease = None;
            held.send_replace(None);
            continue;
        }
        let frozen = {
            gossip.mark_unchanged();
            let now = cluster.borrow_and_update();
            if !now.fresh {
                continue;
            }
            now.view(&membership)
        };
        if !propose(&frozen, token, &quorum, &cluster).await {
            lease = None;
            held.send_replace(None);
        }
    }
    held.send_replace(None);
    if let Some(Lease { token, ours: true, .. }) = lease {
        let release = Request::ReleaseLease { name: SCHEDULER_LEASE.to_owned(), token, user: None };
        let _ = quorum.call(&release, Duration::from_millis(500)).await;
    }
}

/// Whose the lease is, and its token.
enum Kept {
    Ours(u64),
    /// The quorum may be of a version that does not tell it.
    Others(Option<u64>),
    /// The quorum did not say.
    Unknown,
}

/// Renews the lease, or takes it where there is none to renew.
async fn keep(me: &NodeId, quorum: &QuorumClient, held: Option<u64>, ttl_ms: u64) -> Kept {
    if let Some(token) = held {
        let renewal = Request::RenewLease { name: SCHEDULER_LEASE.to_owned(), token, holder: me.clone(), user: None };
        match quorum.call(&renewal, Duration::from_millis(ttl_ms / 3)).await {
            Ok(Answer::Lease { token, .. }) => return Kept::Ours(token),
            // It ended, or is of a cluster level that knows no renewal: it is taken anew.
            Ok(_) | Err(CallError::Refused(_)) => {}
            Err(CallError::Unavailable { .. }) => return Kept::Unknown,
        }
    }
    let request = Request::AcquireLease { name: SCHEDULER_LEASE.to_owned(), holder: me.clone(), ttl_ms, user: None };
    match quorum.call(&request, Duration::from_millis(ttl_ms / 3)).await {
        Ok(Answer::Lease { token, .. }) => Kept::Ours(token),
        Ok(other) => {
            tracing::error!(?other, "the quorum answered a lease with something else");
            Kept::Unknown
        }
        Err(CallError::Refused(Refusal::LeaseHeld { token, .. })) => Kept::Others(token),
        Err(CallError::Refused(Refusal::Held { .. })) => Kept::Others(None),
        Err(error) => {
            tracing::debug!(%error, "the scheduler's lease could not be had");
            Kept::Unknown
        }
    }
}

/// Proposes one round. `false`: the lease is not ours any more.
async fn propose(view: &lattice_scheduler::View, token: u64, quorum: &QuorumClient, cluster: &watch::Receiver<Arc<Cluster>>) -> bool {
    for claim in lattice_scheduler::place(view, token) {
        let allocation = claim.allocation;
        match quorum.call(&Request::Claim(claim), Duration::from_secs(2)).await {
            Ok(_) => tracing::info!(%allocation, "claimed"),
            Err(CallError::Refused(Refusal::StaleLease { .. })) => return false,
            Err(error) => {
                tracing::info!(%allocation, %error, "a claim was refused");
                // The round was made from a view that does not hold: the next one waits for news, or a jittered moment.
                let mut cluster = cluster.clone();
                cluster.mark_unchanged();
                let pause = Duration::from_millis(rand::random_range(20..80));
                let _ = tokio::time::timeout(pause, cluster.changed()).await;
                return true;
            }
        }
    }
    true
}
