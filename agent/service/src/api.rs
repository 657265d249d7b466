//! What all handlers share: the handles of this agent, and the requests to the quorum that most of them make.

use super::heads::Heads;
use super::looks::Looks;
use super::refusal::{status, unexpected};
use super::submitted::Submitted;
use crate::user_shares::UserShares;
use lattice_agent_common::config::WorkMay;
use lattice_agent_common::places::Places;
use lattice_agent_common::session_state::SessionState;
use lattice_membership::Membership;
use lattice_membership::cluster::Cluster;
use lattice_meshd::context::Shared;
use lattice_model::{Allocation, AllocationId, NodeId, Timestamp};
use lattice_pki::credentials::Credentials;
use lattice_placing::Placing;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{Answer, Request as Ask};
use lattice_telemetry::push::StoreError;
use lattice_telemetry::query::Query;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio_stream::Stream;
use tokio_util::task::TaskTracker;
use tonic::Status;

/// How long the quorum may take for one answer before the caller is told that it is away.
pub(super) const ANSWER: Duration = Duration::from_secs(3);
/// How long the agent's watch may take to tell of what was just submitted here before the quorum is asked for it.
const ABOUT_TO_TELL: Duration = Duration::from_millis(500);

/// What the handlers need.
#[derive(Clone)]
pub struct Api {
    pub context: Shared,
    pub credentials: Credentials,
    pub quorum: QuorumClient,
    pub cluster: watch::Receiver<Arc<Cluster>>,
    pub membership: Membership,
    pub session: watch::Receiver<SessionState>,
    /// Whether this agent vouches for the users of its machine.
    pub vouches: bool,
    /// What allocations' work may do here.
    pub work_may: WorkMay,
    /// Whether users are shown neither name nor owner of others' allocations.
    pub private: bool,
    /// The scheduler, where this agent is one.
    pub placing: Placing,
    /// What this node cannot do, each with its remedy.
    pub degraded: Arc<Vec<String>>,
    pub started_at: Timestamp,
    /// How many images may be read at once for their digests: reading takes as long as the image is large.
    pub digests: Arc<Semaphore>,
    /// How many of them each user's may be.
    pub own_digests: UserShares,
    /// What was submitted here a moment ago.
    pub submitted: Submitted,
    /// Heads of allocations that are followed here.
    pub heads: Heads,
    /// Who watches how much here.
    pub watches: Places,
    /// Who looks at what is measured of others' work.
    pub looks: Looks,
    /// The store that answers what was measured, or why it cannot be asked.
    pub past: Arc<Result<Option<Query>, StoreError>>,
    /// How long after the end of work its last window is still sent.
    pub stored_tail: Duration,
    /// Who reads how many logs here.
    pub log_streams: Places,
    /// How many each user may.
    pub log_streams_max: usize,
    /// Those that the agent waits for when it stops.
    pub tasks: TaskTracker,
}

pub(super) type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Api {
    /// Asks the quorum; `stale`: one member of it, with how old its answer may be in milliseconds.
    pub(super) async fn ask(&self, question: Ask, stale: bool) -> Result<(Answer, Option<u64>), Status> {
        let question = if stale { Ask::Stale(Box::new(question)) } else { question };
        match self.quorum.call(&question, ANSWER).await.map_err(|e| status(&e))? {
            Answer::Stale { age_ms, answer } => Ok((*answer, Some(age_ms))),
            answer => Ok((answer, None)),
        }
    }

    /// One allocation, by id or prefix, as the quorum has it.
    pub(super) async fn allocation(&self, key: &str) -> Result<Allocation, Status> {
        match self.quorum.call(&Ask::GetAllocation { key: key.to_owned() }, ANSWER).await.map_err(|e| status(&e))? {
            Answer::Allocation(allocation) => Ok(*allocation),
            other => Err(unexpected(&other)),
        }
    }

    /// An allocation to follow: from the agent's own watch, which then follows it, else from the quorum. For one that
    /// was just submitted here, waits for the watch, which costs the quorum nothing. `being_submitted`: the caller is
    /// submitting it at this moment.
    pub(super) async fn followed(&self, key: &str, being_submitted: bool) -> Result<Allocation, Status> {
        let Ok(id) = key.parse::<AllocationId>() else { return self.allocation(key).await };
        if let Some(revision) = self.submitted.at(id, being_submitted).await {
            let mut cluster = self.cluster.clone();
            let told = cluster.wait_for(|cluster| cluster.revision >= revision);
            // A watch that lags or is broken is not waited for.
            let _ = tokio::time::timeout(ABOUT_TO_TELL, told).await;
        }
        let known = {
            let cluster = self.cluster.borrow();
            cluster.allocations.get(&id).filter(|_| cluster.fresh).cloned()
        };
        match known {
            Some(allocation) => Ok(allocation),
            None => self.allocation(key).await,
        }
    }

    /// A command that is answered by its being committed.
    pub(super) async fn done(&self, ask: &Ask) -> Result<(), Status> {
        match self.quorum.call(ask, ANSWER).await.map_err(|e| status(&e))? {
            Answer::Done { .. } => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Where a node's mesh is, as the allocation's own list or the cluster's has it.
    pub(super) fn mesh_address(&self, allocation: AllocationId, node: &NodeId) -> Option<String> {
        let local = self.context.work.workers.get(allocation);
        let listed = local.and_then(|w| w.share.nodes.iter().find(|(n, _)| n == node).map(|(_, a)| a.clone()));
        listed.or_else(|| self.cluster.borrow().nodes.get(node).map(|n| n.addresses.mesh.clone()))
    }
}
