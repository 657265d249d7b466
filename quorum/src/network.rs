//! How members reach each other: one lazy connection each to the other's Raft and service ports. Where a member is, the
//! membership says; one that moved gets new connections.

use crate::clock::ruler;
use crate::cluster_clock::Reading;
use crate::peers::{AuditPage, AuditPageRequest, HeartbeatSummary, RosterAnswer, RosterQuestion, SummaryAnswer};
use crate::raft::{Peer, TypeConfig};
use crate::shortages::Shortages;
use crate::store::machine::Agreed;
use crate::store::synced::Synced;
use lattice_api::pack::{PackError, pack, unpack};
use lattice_api::v1::Packed;
use lattice_api::v1::quorum_client::QuorumClient as ServiceClient;
use lattice_api::v1::raft_client::RaftClient;
use lattice_ledger::shortage::Lack;
use lattice_model::{Revision, Timestamp, with_causes};
use lattice_pki::credentials::{Credentials, Used, Wanted};
use lattice_pki::tls::TlsError;
use lattice_quorum_client::status_text;
use lattice_quorum_client::wire::MESSAGE_BYTES_MAX;
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

/// With each of Raft's messages: the generation of whoever sends it.
pub const GENERATION_HEADER: &str = "lattice-generation";
/// What the leader has applied, beside its answer to a summary of heartbeats.
pub const REVISION_HEADER: &str = "lattice-revision";
/// With each answer to one of Raft's messages: what the clock of whoever answers shows, in milliseconds since 1970.
pub const CLOCK_HEADER: &str = "lattice-clock";
/// What a clock shows is not known better than to this time, and where an answer took longer, not well enough.
const CLOCK_READING_MAX: Duration = Duration::from_secs(1);
/// How long a member may take for a page of its audit chain.
const PAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an unreachable member is left alone.
const BACKOFF: Duration = Duration::from_millis(100);

/// The other members.
#[derive(Clone, Debug)]
pub struct Peers(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    credentials: Credentials,
    links: Mutex<BTreeMap<u64, Link>>,
}

/// One other member.
#[derive(Clone, Debug)]
struct Link {
    peer: Peer,
    raft: Channel,
    service: Channel,
    since: Instant,
    /// Milliseconds after `since` at which it last answered, plus 1; 0 when it never did.
    answered: Arc<AtomicU64>,
    /// Whether its silence was told in the log: once, not at each try.
    silent: Arc<AtomicBool>,
    /// What its clock showed last.
    clock: Arc<Mutex<Option<Reading>>>,
}

impl Link {
    fn is_silent(&self, member: u64, why: &str) {
        if !self.silent.swap(true, Ordering::Relaxed) {
            tracing::warn!(member, why, "a member does not answer");
        }
    }

    fn answers(&self, member: u64) {
        if self.silent.swap(false, Ordering::Relaxed) {
            tracing::info!(member, "a member answers again");
        }
        let now = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.answered.store(now + 1, Ordering::Relaxed);
    }

    /// It answered so long after it was asked, and its clock showed this when it did.
    fn reads(&self, reply: &MetadataMap, took: Duration, at: Duration) {
        let shows = reply.get(CLOCK_HEADER).and_then(|shows| shows.to_str().ok()).and_then(|shows| shows.parse().ok());
        if let Some(shows) = shows.filter(|_| took <= CLOCK_READING_MAX) {
            *self.clock.lock() = Some(Reading { shows: Timestamp(shows), at });
        }
    }
}

impl Peers {
    /// Knows nobody yet.
    pub fn new(credentials: Credentials) -> Self {
        Self(Arc::new(Inner { credentials, links: Mutex::default() }))
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<u64, Link>> {
        self.0.links.lock()
    }

    /// The connections to `member` at `peer`, made where there are none; nothing is sent yet.
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

    /// Learns where members are that are not known yet; nothing is sent. What the membership says later counts more.
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

    /// Closes the connections to a member that is none any more.
    pub fn forget(&self, member: u64) {
        self.links().remove(&member);
    }

    /// How long ago this member last answered.
    pub fn silence(&self, member: u64) -> Option<Duration> {
        let link = self.known(member)?;
        let answered = link.answered.load(Ordering::Relaxed).checked_sub(1)?;
        Some(link.since.elapsed().saturating_sub(Duration::from_millis(answered)))
    }

    /// What the others' clocks showed when they last answered.
    pub fn clocks(&self) -> BTreeMap<u64, Reading> {
        let links = self.links();
        let reading = |link: &Link| *link.clock.lock();
        links.iter().filter_map(|(member, link)| Some((*member, reading(link)?))).collect()
    }

    /// The service of this member.
    pub fn service(&self, member: u64, peer: &Peer) -> Result<ServiceClient<Channel>, TlsError> {
        let client = ServiceClient::new(self.link(member, peer)?.service);
        Ok(client.max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX))
    }

    /// The other members.
    pub fn ids(&self) -> Vec<u64> {
        self.links().keys().copied().collect()
    }

    /// Audit records of this member behind `after`, as many as one message takes. With `u64::MAX` the page's head alone
    /// comes: the member has its state and its audit chain up to there, and a learner may vote.
    pub async fn audit_page(&self, member: u64, after: u64) -> Result<AuditPage, NoPage> {
        let link = self.known(member).ok_or_else(|| NoPage("it is not known where it is".to_owned()))?;
        let body = pack(&AuditPageRequest { after }).map_err(|e| NoPage(with_causes(&e)))?;
        match tokio::time::timeout(PAGE_TIMEOUT, raft_client(&link).audit(body)).await {
            Ok(Ok(page)) => unpack(page.get_ref()).map_err(|e| NoPage(with_causes(&e))),
            Ok(Err(status)) => Err(NoPage(status_text(&status))),
            Err(_) => Err(NoPage("no answer in time".to_owned())),
        }
    }

    /// Tells the leader what this member heard. When it took it: which members' disks are short of room, as it knows, and the
    /// revision that it had applied by then.
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

    /// Asks whoever is at `peer` who it is and which membership it has committed; why there is no answer otherwise.
    pub async fn roster(&self, member: u64, peer: &Peer, question: &RosterQuestion, limit: Duration) -> Result<RosterAnswer, String> {
        // Connections of its own: who is asked need not be a member.
        let link = self.open(member, peer).map_err(|e| with_causes(&e))?;
        let body = pack(question).map_err(|e| with_causes(&e))?;
        match tokio::time::timeout(limit, raft_client(&link).roster(body)).await {
            Ok(Ok(reply)) => unpack(reply.get_ref()).map_err(|e| with_causes(&e)),
            Ok(Err(status)) => Err(status_text(&status)),
            Err(_) => Err("no answer in time".to_owned()),
        }
    }

    /// Asks a member to become a candidate now. True when it does.
    pub async fn campaign(&self, member: u64, limit: Duration) -> bool {
        let Some(link) = self.known(member) else { return false };
        matches!(tokio::time::timeout(limit, raft_client(&link).campaign(Packed::default())).await, Ok(Ok(_)))
    }
}

/// Why a member gave no page of its audit chain.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoPage(String);

fn raft_client(link: &Link) -> RaftClient<Channel> {
    RaftClient::new(link.raft.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// What Raft sends through.
#[derive(Clone, Debug)]
pub struct Network {
    /// To whom.
    pub peers: Peers,
    /// What this member has, and of which generation.
    pub agreed: Arc<Agreed>,
    /// Nobody is told of a commit that is not on this member's disk.
    pub synced: Synced,
    /// Nobody is sent what there is no room for.
    pub shortages: Arc<Shortages>,
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Wire;

    async fn new_client(&mut self, target: u64, peer: &Peer) -> Wire {
        Wire {
            target,
            link: self.peers.link(target, peer).map_err(|e| with_causes(&e)),
            agreed: Arc::clone(&self.agreed),
            synced: self.synced.clone(),
            shortages: Arc::clone(&self.shortages),
            says_matched: false,
        }
    }
}

/// Raft's messages to one member.
#[derive(Debug)]
pub struct Wire {
    target: u64,
    /// Or why there can be none.
    link: Result<Link, String>,
    agreed: Arc<Agreed>,
    synced: Synced,
    shortages: Arc<Shortages>,
    /// Whether openraft was told last how far the logs agree, where entries are held back.
    says_matched: bool,
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
            Err(why) => return Err(RPCError::Unreachable(Unreachable::new(&no_answer(why.clone())))),
        };
        let broken = |error: PackError| RPCError::Network(NetworkError::from(AnyError::new(&error)));
        let body: Packed = pack(question).map_err(broken)?;
        let mut body = tonic::Request::new(body);
        if let Some(generation) = self.agreed.generation() {
            body.metadata_mut().insert(GENERATION_HEADER, generation.0.into());
        }
        let mut client = raft_client(link);
        let asked = ruler();
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
                link.answers(self.target);
                let at = ruler();
                link.reads(reply.metadata(), at.saturating_sub(asked), at);
                reply
            }
            Ok(Err(status)) => {
                let why = status_text(&status);
                match status.code() {
                    // It has no room on its disk for what was sent, and says so.
                    tonic::Code::ResourceExhausted => link.answers(self.target),
                    _ => link.is_silent(self.target, &why),
                }
                return Err(RPCError::Unreachable(Unreachable::new(&no_answer(why))));
            }
            Err(_) => {
                link.is_silent(self.target, "no answer in time");
                return Err(RPCError::Network(NetworkError::new(&no_answer("no answer in time".to_owned()))));
            }
        };
        let answer: Result<A, RaftError<u64, E>> = unpack(reply.get_ref()).map_err(broken)?;
        answer.map_err(|error| RPCError::RemoteError(RemoteError::new(self.target, error)))
    }
}

impl Wire {
    fn no_room<E: std::error::Error>(&self) -> RPCError<u64, Peer, E> {
        let why = "there is no room on its disk".to_owned();
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
        let held_back = !rpc.entries.is_empty() && self.shortages.of(self.target) == Some(Lack::All);
        if held_back {
            rpc.entries.clear();
            rpc.leader_commit = rpc.leader_commit.min(rpc.prev_log_id);
        }
        let pause = option.hard_ttl() / 2;
        let answer = self.ask(Rpc::Append, &rpc, option).await?;
        if !held_back || !matches!(answer, AppendEntriesResponse::Success) {
            return Ok(answer);
        }
        // openraft sends the same again at once. Every other time it hears that the logs agree up to before these entries: the
        // member counts as one that follows. The times between it hears of a failure: while entries are on their way to a
        // member, it keeps the whole log for it.
        tokio::time::sleep(pause).await;
        self.says_matched = !self.says_matched && rpc.prev_log_id.is_some();
        if self.says_matched { Ok(AppendEntriesResponse::PartialSuccess(rpc.prev_log_id)) } else { Err(self.no_room()) }
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, RPCError<u64, Peer, RaftError<u64, InstallSnapshotError>>> {
        if self.shortages.of(self.target).is_some() {
            // No heartbeats go to a member that a snapshot is sent to: without any, it would want to lead.
            let heartbeat =
                AppendEntriesRequest::<TypeConfig> { vote: rpc.vote, prev_log_id: None, entries: Vec::new(), leader_commit: None };
            let _heard: RpcResult<AppendEntriesResponse<u64>, Infallible> = self.ask(Rpc::Append, &heartbeat, option).await;
            return Err(self.no_room());
        }
        self.ask(Rpc::InstallSnapshot, &rpc, option).await
    }

    async fn vote(&mut self, rpc: VoteRequest<u64>, option: RPCOption) -> Result<VoteResponse<u64>, RPCError<u64, Peer, RaftError<u64>>> {
        self.ask(Rpc::Vote, &rpc, option).await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(BACKOFF))
    }
}
