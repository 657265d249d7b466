//! Connections between members: one lazy connection each to another member's Raft and service
//! ports. The membership contains the addresses; a member whose address changed gets new
//! connections.

use crate::clock::uptime;
use crate::cluster_clock::Reading;
use crate::peers::{AuditPage, AuditPageRequest, HeartbeatSummary, RosterAnswer, RosterQuestion, SummaryAnswer};
use crate::shortages::Shortages;
use lattice_api::pack::{PackError, pack, unpack};
use lattice_api::v1::Packed;
use lattice_api::v1::quorum_client::QuorumClient as ServiceClient;
use lattice_api::v1::raft_client::RaftClient;
use lattice_ledger::shortage::RefusedCommands;
use lattice_model::{Revision, Timestamp, with_causes};
use lattice_pki::credentials::{Credentials, Used, Wanted};
use lattice_pki::tls::TlsError;
use lattice_quorum_client::status_text;
use lattice_quorum_client::wire::MESSAGE_BYTES_MAX;
use lattice_store::machine::Agreed;
use lattice_store::raft::{Peer, TypeConfig};
use lattice_store::synced::Synced;
use openraft::AnyError;
use openraft::error::{Infallible, InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest, VoteResponse,
};
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;

/// Header of each Raft message: the sender's generation.
pub const GENERATION_HEADER: &str = "lattice-generation";
/// Header of the answer to a heartbeat summary: the revision that the leader has applied.
pub const REVISION_HEADER: &str = "lattice-revision";
/// Header of each answer to a Raft message: the time of the answering member's clock, in
/// milliseconds since 1970.
pub const CLOCK_HEADER: &str = "lattice-clock";
/// If an answer took longer than this, its clock reading is too inaccurate to be used.
const CLOCK_READING_MAX: Duration = Duration::from_secs(1);
/// Timeout for a page of another member's audit chain.
const PAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before an unreachable member is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The connections to the other members.
#[derive(Clone, Debug)]
pub struct Peers(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    credentials: Credentials,
    links: Mutex<BTreeMap<u64, Link>>,
}

/// The connection to another member.
#[derive(Clone, Debug)]
struct Link {
    peer: Peer,
    raft: Channel,
    service: Channel,
    since: Instant,
    /// When it last answered, in milliseconds after `since`, plus 1; 0: never.
    answered: Arc<AtomicU64>,
    /// Whether its silence has been logged: once, not at each attempt.
    silent: Arc<AtomicBool>,
    /// The latest reading of its clock.
    clock: Arc<Mutex<Option<Reading>>>,
}

impl Link {
    fn record_silence(&self, member: u64, why: &str) {
        if !self.silent.swap(true, Ordering::Relaxed) {
            tracing::warn!(member, why, "a member does not answer");
        }
    }

    fn record_answer(&self, member: u64) {
        if self.silent.swap(false, Ordering::Relaxed) {
            tracing::info!(member, "a member answers again");
        }
        let now = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.answered.store(now + 1, Ordering::Relaxed);
    }

    /// Records the clock in an answer that took `took`, received at `at`.
    fn record_clock(&self, reply: &MetadataMap, took: Duration, at: Duration) {
        let shows = reply.get(CLOCK_HEADER).and_then(|shows| shows.to_str().ok()).and_then(|shows| shows.parse().ok());
        if let Some(shows) = shows.filter(|_| took <= CLOCK_READING_MAX) {
            *self.clock.lock() = Some(Reading { shows: Timestamp(shows), at });
        }
    }
}

impl Peers {
    /// Without any members yet.
    pub fn new(credentials: Credentials) -> Self {
        Self(Arc::new(Inner { credentials, links: Mutex::default() }))
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<u64, Link>> {
        self.0.links.lock()
    }

    /// The connections to `member` at `peer`, created if necessary; nothing is sent yet.
    fn link(&self, member: u64, peer: &Peer) -> Result<Link, TlsError> {
        let mut links = self.links();
        if let Some(link) = links.get(&member).filter(|link| link.peer == *peer) {
            return Ok(link.clone());
        }
        let link = self.open(member, peer)?;
        links.insert(member, link.clone());
        Ok(link)
    }

    fn open(&self, member: u64, peer: &Peer) -> Result<Link, TlsError> {
        let wanted = Wanted::Member(member);
        Ok(Link {
            peer: peer.clone(),
            raft: self.0.credentials.channel(&peer.raft, wanted, Used::Calls)?,
            service: self.0.credentials.channel(&peer.service, wanted, Used::Calls)?,
            since: Instant::now(),
            answered: Arc::new(AtomicU64::new(0)),
            silent: Arc::default(),
            clock: Arc::default(),
        })
    }

    fn known(&self, member: u64) -> Option<Link> {
        self.links().get(&member).cloned()
    }

    /// Adds the addresses of members that are not known yet; sends nothing. Later addresses from
    /// the membership replace these.
    pub fn introduce<'a>(&self, this: u64, members: impl IntoIterator<Item = (u64, &'a Peer)>) {
        for (member, peer) in members {
            if member != this
                && self.known(member).is_none()
                && let Err(error) = self.link(member, peer)
            {
                tracing::warn!(member, error = %with_causes(&error), "a member's address cannot be used");
            }
        }
    }

    /// Closes the connections to a removed member.
    pub fn forget(&self, member: u64) {
        self.links().remove(&member);
    }

    /// How long ago this member last answered.
    pub fn silence(&self, member: u64) -> Option<Duration> {
        let link = self.known(member)?;
        let answered = link.answered.load(Ordering::Relaxed).checked_sub(1)?;
        Some(link.since.elapsed().saturating_sub(Duration::from_millis(answered)))
    }

    /// The latest readings of the others' clocks.
    pub fn clocks(&self) -> BTreeMap<u64, Reading> {
        let links = self.links();
        let reading = |link: &Link| *link.clock.lock();
        links.iter().filter_map(|(member, link)| Some((*member, reading(link)?))).collect()
    }

    /// A client of this member's service.
    pub fn service(&self, member: u64, peer: &Peer) -> Result<ServiceClient<Channel>, TlsError> {
        let client = ServiceClient::new(self.link(member, peer)?.service);
        Ok(client.max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX))
    }

    /// The ids of the other members.
    pub fn ids(&self) -> Vec<u64> {
        self.links().keys().copied().collect()
    }

    /// Audit records of this member after `after`, as many as fit in one message. With `u64::MAX`
    /// the page contains only the head: the member has its state and its audit chain up to there,
    /// and may vote if it is a learner.
    pub async fn audit_page(&self, member: u64, after: u64) -> Result<AuditPage, NoReply> {
        let link = self.known(member).ok_or(NoReply::UnknownAddress)?;
        let body = pack(&AuditPageRequest { after })?;
        let page = within(PAGE_TIMEOUT, raft_client(&link).audit(body)).await?;
        Ok(unpack(page.get_ref())?)
    }

    /// Sends this member's heartbeat summary to the leader. If the leader accepted it, returns its
    /// answer and the revision that the leader had applied by then.
    pub async fn heartbeats(
        &self,
        leader: u64,
        peer: &Peer,
        summary: &HeartbeatSummary,
        limit: Duration,
    ) -> Option<(SummaryAnswer, Revision)> {
        let (link, body) = (self.link(leader, peer).ok()?, pack(summary).ok()?);
        let reply = tokio::time::timeout(limit, raft_client(&link).heartbeats(body)).await.ok()?.ok()?;
        let revision = reply.metadata().get(REVISION_HEADER)?.to_str().ok()?.parse().ok()?;
        Some((unpack(reply.get_ref()).ok()?, Revision(revision)))
    }

    /// Asks the member at `peer` for its identity and its committed membership.
    pub async fn roster(&self, member: u64, peer: &Peer, question: &RosterQuestion, limit: Duration) -> Result<RosterAnswer, NoReply> {
        // Separate connections, because the peer need not be a member.
        let link = self.open(member, peer)?;
        let body = pack(question)?;
        let reply = within(limit, raft_client(&link).roster(body)).await?;
        Ok(unpack(reply.get_ref())?)
    }

    /// Asks a member to become a candidate now. Returns whether it does.
    pub async fn campaign(&self, member: u64, limit: Duration) -> bool {
        let Some(link) = self.known(member) else { return false };
        matches!(tokio::time::timeout(limit, raft_client(&link).campaign(Packed::default())).await, Ok(Ok(_)))
    }
}

/// Why a member did not answer a call.
#[derive(Debug, thiserror::Error)]
pub enum NoReply {
    #[error("its address is not known")]
    UnknownAddress,
    #[error(transparent)]
    Connection(#[from] TlsError),
    #[error(transparent)]
    Message(#[from] PackError),
    #[error("{}", status_text(.0))]
    Status(Box<tonic::Status>),
    #[error("no answer in time")]
    Timeout,
}

async fn within<T>(limit: Duration, call: impl Future<Output = Result<T, tonic::Status>>) -> Result<T, NoReply> {
    match tokio::time::timeout(limit, call).await {
        Ok(reply) => reply.map_err(|status| NoReply::Status(Box::new(status))),
        Err(_) => Err(NoReply::Timeout),
    }
}

fn raft_client(link: &Link) -> RaftClient<Channel> {
    RaftClient::new(link.raft.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// The network layer for Raft.
#[derive(Clone, Debug)]
pub struct Network {
    /// The connections.
    pub peers: Peers,
    /// This member's state, with its generation.
    pub agreed: Arc<Agreed>,
    /// A commit that is not on this member's disk is not announced to others.
    pub synced: Synced,
    /// Members without disk space are not sent entries.
    pub shortages: Arc<Shortages>,
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Wire;

    async fn new_client(&mut self, target: u64, peer: &Peer) -> Wire {
        Wire {
            target,
            link: self.peers.link(target, peer),
            agreed: Arc::clone(&self.agreed),
            synced: self.synced.clone(),
            shortages: Arc::clone(&self.shortages),
            reports_match: false,
        }
    }
}

/// Raft's messages to one member.
#[derive(Debug)]
pub struct Wire {
    target: u64,
    /// The connection, or why there is none.
    link: Result<Link, TlsError>,
    agreed: Arc<Agreed>,
    synced: Synced,
    shortages: Arc<Shortages>,
    /// While entries are held back: whether openraft was last told that the logs match.
    reports_match: bool,
}

#[derive(Clone, Copy)]
enum Rpc {
    Append,
    Vote,
    InstallSnapshot,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[error("member {target}: {why}")]
struct NoAnswer {
    target: u64,
    why: String,
}

type RpcResult<T, E> = Result<T, RPCError<u64, Peer, RaftError<u64, E>>>;

impl Wire {
    async fn ask<Q, A, E>(&self, rpc: Rpc, question: &Q, option: RPCOption) -> RpcResult<A, E>
    where
        Q: Serialize,
        A: DeserializeOwned,
        E: std::error::Error + DeserializeOwned + Serialize,
    {
        let no_answer = |why: String| NoAnswer { target: self.target, why };
        let link = match &self.link {
            Ok(link) => link,
            Err(error) => return Err(RPCError::Unreachable(Unreachable::new(&no_answer(with_causes(error))))),
        };
        let broken = |error: PackError| RPCError::Network(NetworkError::from(AnyError::new(&error)));
        let body: Packed = pack(question).map_err(broken)?;
        let mut body = tonic::Request::new(body);
        if let Some(generation) = self.agreed.generation() {
            body.metadata_mut().insert(GENERATION_HEADER, generation.0.into());
        }
        let mut client = raft_client(link);
        let asked = uptime();
        let reply = tokio::time::timeout(option.hard_ttl(), async {
            match rpc {
                Rpc::Append => client.append(body).await,
                Rpc::Vote => client.vote(body).await,
                Rpc::InstallSnapshot => client.install_snapshot(body).await,
            }
        })
        .await;
        let reply = match reply {
            Ok(Ok(reply)) => {
                link.record_answer(self.target);
                let at = uptime();
                link.record_clock(reply.metadata(), at.saturating_sub(asked), at);
                reply
            }
            Ok(Err(status)) => {
                let why = status_text(&status);
                match status.code() {
                    // The member answers that its disk has no space for the message.
                    tonic::Code::ResourceExhausted => link.record_answer(self.target),
                    _ => link.record_silence(self.target, &why),
                }
                return Err(RPCError::Unreachable(Unreachable::new(&no_answer(why))));
            }
            Err(_) => {
                link.record_silence(self.target, "no answer in time");
                return Err(RPCError::Network(NetworkError::new(&no_answer("no answer in time".to_owned()))));
            }
        };
        let answer: Result<A, RaftError<u64, E>> = unpack(reply.get_ref()).map_err(broken)?;
        answer.map_err(|error| RPCError::RemoteError(RemoteError::new(self.target, error)))
    }
}

impl Wire {
    fn disk_full<E: std::error::Error>(&self) -> RPCError<u64, Peer, E> {
        let why = "its disk is full".to_owned();
        RPCError::Unreachable(Unreachable::new(&NoAnswer { target: self.target, why }))
    }
}

impl RaftNetwork<TypeConfig> for Wire {
    async fn append_entries(
        &mut self,
        mut rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RPCError<u64, Peer, RaftError<u64>>> {
        rpc.leader_commit = rpc.leader_commit.min(self.synced.upto());
        let held_back = !rpc.entries.is_empty() && self.shortages.of(self.target) == Some(RefusedCommands::All);
        if held_back {
            rpc.entries.clear();
            rpc.leader_commit = rpc.leader_commit.min(rpc.prev_log_id);
        }
        let pause = option.hard_ttl() / 2;
        let answer = self.ask(Rpc::Append, &rpc, option).await?;
        if !held_back || !matches!(answer, AppendEntriesResponse::Success) {
            return Ok(answer);
        }
        // openraft repeats the request at once. Alternately it gets two answers. The first says
        // that the logs match up to these entries, so that the member counts as a follower. The
        // second reports a failure, because openraft keeps the whole log for a member as long as
        // entries are on their way to it.
        tokio::time::sleep(pause).await;
        self.reports_match = !self.reports_match && rpc.prev_log_id.is_some();
        if self.reports_match { Ok(AppendEntriesResponse::PartialSuccess(rpc.prev_log_id)) } else { Err(self.disk_full()) }
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, RPCError<u64, Peer, RaftError<u64, InstallSnapshotError>>> {
        if self.shortages.of(self.target).is_some() {
            // openraft sends no heartbeats to a member while it sends it a snapshot; without
            // heartbeats the member would start an election.
            let heartbeat =
                AppendEntriesRequest::<TypeConfig> { vote: rpc.vote, prev_log_id: None, entries: Vec::new(), leader_commit: None };
            let _answer: RpcResult<AppendEntriesResponse<u64>, Infallible> = self.ask(Rpc::Append, &heartbeat, option).await;
            return Err(self.disk_full());
        }
        self.ask(Rpc::InstallSnapshot, &rpc, option).await
    }

    async fn vote(&mut self, rpc: VoteRequest<u64>, option: RPCOption) -> Result<VoteResponse<u64>, RPCError<u64, Peer, RaftError<u64>>> {
        self.ask(Rpc::Vote, &rpc, option).await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(RETRY_PAUSE))
    }
}
