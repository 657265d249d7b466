//! What all handlers share: the handles of this agent, and the common requests to the quorum.

use super::heads::Heads;
use super::measurement_reads::MeasurementReads;
use super::outlooks::Outlooks;
use super::refusal::{status, unexpected};
use super::submitted::Submitted;
use crate::user_shares::UserShares;
use lattice_agent_common::config::work::WorkMay;
use lattice_agent_common::session_state::SessionState;
use lattice_agent_common::user_quota::UserQuota;
use lattice_membership::Membership;
use lattice_membership::cluster::Cluster;
use lattice_meshd::context::Shared;
use lattice_model::{NodeId, Timestamp};
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

/// Timeout of one request to the quorum; then the caller gets the status `unavailable`.
pub(super) const QUORUM_TIMEOUT: Duration = Duration::from_secs(3);

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
    /// Limits how many questions about ended work each user asks at once, so that slow ones leave the store to others.
    pub own_questions: UserShares,
    /// Counts the streams of each caller on the network.
    pub network_streams: UserQuota,
    /// Largest number of streams of one account on the network.
    pub network_streams_max: usize,
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
