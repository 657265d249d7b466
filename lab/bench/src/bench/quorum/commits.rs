//! Clients of Lattice that commit submissions and claims.

use super::load::Client;
use anyhow::{Context, Result, bail, ensure};
use lattice_lab::quorum::members::NAME;
use lattice_ledger::{Action, SCHEDULER_LEASE};
use lattice_model::claim::ClaimShare;
use lattice_model::{AllocationId, AllocationSpec, Claim, Entrypoint, Node, NodeId, Principal, Resources};
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{Answer, Request};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use uuid::Uuid;

/// Timeout of a command; then the bench fails.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The number of users that submit in turn.
const USERS: u32 = 1000;
/// The lease lasts longer than any bench.
const LEASE_MS: u64 = 3_600_000;

/// Allocations for the next step, with their owners: to be claimed, or to be ended.
pub type Submitted = Arc<Mutex<Vec<(AllocationId, Principal)>>>;

/// The request of a bench allocation: one core of one node.
pub fn spec() -> AllocationSpec {
    let command = Entrypoint::Command { argv: vec!["/bin/true".into()] };
    let share = Some(Resources { cores: 1, memory_bytes: 0, gpus: 0 });
    AllocationSpec { share, ..AllocationSpec::new("bench", command, Path::new("/")) }
}

/// The owner; each of many users submits far fewer than a user may.
pub fn owner() -> Principal {
    static SUBMITTED: AtomicU32 = AtomicU32::new(0);
    let uid = 1000 + SUBMITTED.fetch_add(1, Ordering::Relaxed) % USERS;
    Principal { name: format!("bench-{uid}"), uid, gid: uid, groups: vec![] }
}

/// Submits one small allocation after the other, to be claimed later.
#[derive(Clone)]
pub struct Submitter {
    client: QuorumClient,
    submitted: Submitted,
}

impl Submitter {
    /// A client that records its submissions.
    pub fn new(client: QuorumClient, submitted: &Submitted) -> Self {
        Self { client, submitted: Arc::clone(submitted) }
    }
}

impl Client for Submitter {
    async fn commit(&mut self) -> Result<()> {
        let (id, owner) = (AllocationId(Uuid::new_v4()), owner());
        let request =
            Request::Submit { id, spec: Box::new(spec()), owner: owner.clone(), claim: None, life: None, login_tenants: [].into() };
        self.client.call(&request, PATIENCE).await?;
        self.submitted.lock().unwrap_or_else(PoisonError::into_inner).push((id, owner));
        Ok(())
    }
}

/// Nodes on which shares are claimed in turn.
pub struct Room {
    token: u64,
    nodes: Vec<Node>,
    next: AtomicUsize,
}

impl Room {
    /// Takes the scheduler's lease and reads the nodes.
    pub async fn new(client: &QuorumClient) -> Result<Self> {
        Self::with(client, take_lease(client).await?, |_| true).await
    }

    /// Reads the nodes, and claims some of them with the token of the scheduler's lease.
    pub async fn with(client: &QuorumClient, token: u64, is_used: impl Fn(&Node) -> bool) -> Result<Self> {
        let Answer::Nodes(mut nodes) = client.call(&Request::ListNodes, PATIENCE).await? else {
            bail!("the answer is not a list of nodes")
        };
        nodes.retain(is_used);
        ensure!(!nodes.is_empty(), "no node is registered");
        Ok(Self { token, nodes, next: AtomicUsize::new(0) })
    }

    /// A claim of one core of the next node.
    pub fn claim(&self, allocation: AllocationId) -> Claim {
        let node = &self.nodes[self.next.fetch_add(1, Ordering::Relaxed) % self.nodes.len()];
        let share = ClaimShare { node: node.id.clone(), resources: spec().amount_of(&node.size), hold_revision: node.hold_revision };
        Claim { allocation, requeue_count: 0, lease_token: self.token, shares: vec![share], after: None, by: None, walltime: None }
    }
}

/// Takes the scheduler's lease; returns its token.
pub async fn take_lease(client: &QuorumClient) -> Result<u64> {
    let holder: NodeId = NAME.parse()?;
    let lease = Request::AcquireLease { name: SCHEDULER_LEASE.to_owned(), holder, ttl_ms: LEASE_MS, user: None };
    let Answer::Lease { token, .. } = client.call(&lease, PATIENCE).await? else { bail!("the answer is not a lease") };
    Ok(token)
}

/// Claims one core for one waiting allocation after the other, each on another node.
pub struct Claimer {
    client: QuorumClient,
    room: Arc<Room>,
    waiting: Submitted,
    claimed: Submitted,
}

impl Claimer {
    /// A client that takes waiting allocations, and records its claims.
    pub fn new(client: QuorumClient, room: &Arc<Room>, waiting: &Submitted, claimed: &Submitted) -> Self {
        Self { client, room: Arc::clone(room), waiting: Arc::clone(waiting), claimed: Arc::clone(claimed) }
    }
}

impl Client for Claimer {
    async fn commit(&mut self) -> Result<()> {
        let allocation = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let (allocation, owner) = allocation.context("no allocation waits for a claim any more")?;
        match self.client.call(&Request::Claims(vec![self.room.claim(allocation)]), PATIENCE).await? {
            Answer::Claims(outcomes) if outcomes.iter().all(Result::is_ok) => {
                self.claimed.lock().unwrap_or_else(PoisonError::into_inner).push((allocation, owner));
                Ok(())
            }
            other => bail!("unexpected answer to a claim: {other:?}"),
        }
    }
}

/// Ends all claimed allocations, because the quorum limits the number of living ones.
pub async fn end_all(clients: &[QuorumClient], claimed: &Submitted) -> Result<()> {
    let ending: Vec<_> = clients
        .iter()
        .map(|client| {
            let (client, claimed) = (client.clone(), Arc::clone(claimed));
            tokio::spawn(async move {
                while let Some((id, by)) = { claimed.lock().unwrap_or_else(PoisonError::into_inner).pop() } {
                    client.call(&Request::from(Action::Cancel { id, by }), PATIENCE).await?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for task in ending {
        task.await.context("a client's task")??;
    }
    Ok(())
}
