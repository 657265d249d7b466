//! What all handlers share: the handles of this agent, and the common requests to the quorum.

use super::arguments::replica_key;
use super::heads::Heads;
use super::measurement_reads::MeasurementReads;
use super::outlooks::Outlooks;
use super::refusal::{status, unexpected};
use super::submitted::Submitted;
use crate::user_shares::UserShares;
use lattice_agent_common::config::work::WorkMay;
use lattice_agent_common::session_state::SessionState;
use lattice_agent_common::user_quota::UserQuota;
use lattice_ledger::lane_id;
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
use tonic::{Code, Status};

/// Timeout of one request to the quorum; then the caller gets the status `unavailable`.
pub(super) const QUORUM_TIMEOUT: Duration = Duration::from_secs(3);
/// How long to wait until the agent's watch shows an allocation just submitted here, before the
/// quorum is asked.
const WATCH_WAIT: Duration = Duration::from_millis(500);

/// The site's settings that decide what callers may do and see.
#[derive(Clone)]
pub struct Site {
    /// Whether this agent vouches for the users of its machine.
    pub vouches: bool,
    /// What work inside allocations may do with the API.
    pub work_may: WorkMay,
    /// Whether names and owners of other users' allocations are hidden.
    pub private: bool,
}

/// Limits for callers, most of them for each user.
#[derive(Clone)]
pub struct Limits {
    /// Limits how many images are read at once for their digests, for all users together: large
    /// images take long.
    pub digests: Arc<Semaphore>,
    /// The same for each user.
    pub own_digests: UserShares,
    /// Counts the watches of each user.
    pub watches: UserQuota,
    /// Recent reads of other users' measurements.
    pub measurement_reads: MeasurementReads,
    /// Counts the log streams of each user.
    pub log_streams: UserQuota,
    /// Largest number of log streams of one user.
    pub log_streams_max: usize,
}

/// Past measurements.
#[derive(Clone)]
pub struct Past {
    /// The store that has them, or why it cannot be queried.
    pub store: Arc<Result<Option<Query>, StoreError>>,
    /// How long after the end of work its last numbers are still pushed.
    pub tail: Duration,
}

/// The handles of the handlers.
#[derive(Clone)]
pub struct Api {
    pub context: Shared,
    pub credentials: Credentials,
    pub quorum: QuorumClient,
    pub cluster: watch::Receiver<Arc<Cluster>>,
    pub membership: Membership,
    pub session: watch::Receiver<SessionState>,
    pub site: Site,
    pub limits: Limits,
    /// Makes claims for new allocations, on any agent that knows the queue's lease; counts
    /// scheduling rounds.
    pub placing: Placing,
    pub outlooks: Outlooks,
    /// What this node cannot do, each with its remedy.
    pub degraded: Arc<Vec<String>>,
    pub started_at: Timestamp,
    /// Allocations that were submitted here a moment ago.
    pub submitted: Submitted,
    /// Reports of the heads of the allocations that callers of this agent follow.
    pub heads: Heads,
    pub past: Past,
    /// The tasks that the agent waits for when it stops.
    pub tasks: TaskTracker,
}

pub(super) type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Api {
    /// Asks the quorum. If `stale`, one member answers from its own state; also returns the
    /// greatest age of that answer, in milliseconds.
    pub(super) async fn ask(&self, question: Ask, stale: bool) -> Result<(Answer, Option<u64>), Status> {
        let question = if stale { Ask::Stale(Box::new(question)) } else { question };
        match self.quorum.call(&question, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Stale { age_ms, answer } => Ok((*answer, Some(age_ms))),
            answer => Ok((answer, None)),
        }
    }

    /// One allocation, by id or prefix, from the quorum; or a replica, by its service and its number,
    /// as `ID[3]`.
    pub(super) async fn allocation(&self, key: &str) -> Result<Allocation, Status> {
        self.find_allocation(key, false).await.map(|(allocation, _)| allocation)
    }

    /// As [`Self::allocation`]. If `stale`, one member answers from its own state; also returns the
    /// greatest age of that answer, in milliseconds.
    pub(super) async fn find_allocation(&self, key: &str, stale: bool) -> Result<(Allocation, Option<u64>), Status> {
        let Some((service, number)) = replica_key(key)? else { return self.get_allocation(key.to_owned(), stale).await };
        let (service, _) = self.get_allocation(service.to_owned(), stale).await?;
        let short = service.id.short();
        let none = || {
            Status::not_found(format!(
                "allocation {short} has no replica {number}\nhint: `lattice status {short} --replicas` lists those of a service that \
                 scales; of a task group, `lattice status '{short}[{number}]'` shows a task, and the lanes that ran it"
            ))
        };
        if !service.is_scaled_service() {
            return Err(none());
        }
        match self.get_allocation(lane_id(service.id, number).to_string(), stale).await {
            Err(status) if status.code() == Code::NotFound => Err(none()),
            found => found,
        }
    }

    async fn get_allocation(&self, key: String, stale: bool) -> Result<(Allocation, Option<u64>), Status> {
        match self.ask(Ask::GetAllocation { key }, stale).await? {
            (Answer::Allocation(allocation), age_ms) => Ok((*allocation, age_ms)),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// An allocation to follow: from the agent's own watch, or else from the quorum. If it was just
    /// submitted here, first waits up to [`WATCH_WAIT`] until the watch has it, which costs the
    /// quorum nothing. `being_submitted`: the caller is submitting it at this moment.
    pub(super) async fn followed(&self, key: &str, being_submitted: bool) -> Result<Allocation, Status> {
        let Ok(id) = key.parse::<AllocationId>() else { return self.allocation(key).await };
        if let Some(revision) = self.submitted.at(id, being_submitted).await {
            let mut cluster = self.cluster.clone();
            let caught_up = cluster.wait_for(|cluster| cluster.revision >= revision);
            // Do not wait longer for a watch that lags or is broken.
            let _ = tokio::time::timeout(WATCH_WAIT, caught_up).await;
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

    /// Sends a request whose only answer is [`Answer::Done`].
    pub(super) async fn done(&self, ask: &Ask) -> Result<(), Status> {
        match self.quorum.call(ask, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Done { .. } => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// A node's mesh address, if it is known.
    pub(super) async fn mesh_address(&self, node: &NodeId) -> Option<String> {
        self.context.work.directory.mesh(node).await
    }
}
