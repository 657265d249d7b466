//! How members reach each other: one lazy connection each to the other's Raft and service ports.

use crate::config::MemberAddress;
use crate::identity::member_name;
use crate::pack::{PackError, pack, unpack, with_causes};
use crate::raft::{Peer, TypeConfig};
use crate::tls::{ClientTls, TlsError};
use crate::wire::{AuditPage, AuditPageRequest, HeartbeatSummary, MESSAGE_BYTES_MAX};
use lattice_api::v1::Packed;
use lattice_api::v1::quorum_client::QuorumClient as ServiceClient;
use lattice_api::v1::raft_client::RaftClient;
use openraft::AnyError;
use openraft::error::{InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest, VoteResponse,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tonic::transport::Channel;

/// How long a member may take for a page of its audit chain.
const PAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an unreachable member is left alone.
const BACKOFF: Duration = Duration::from_millis(100);

/// The other members.
#[derive(Clone, Debug)]
pub struct Peers(Arc<BTreeMap<u64, Link>>);

/// One other member.
#[derive(Clone, Debug)]
struct Link {
    raft: Channel,
    service: Channel,
    since: Instant,
    /// Milliseconds after `since` at which it last answered, plus 1; 0 when it never did.
    answered: Arc<AtomicU64>,
    /// Whether its silence was told in the log: once, not at each try.
    silent: Arc<AtomicBool>,
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
    }
}

impl Peers {
    /// Prepares connections; nothing is sent yet.
    pub fn new(members: &[MemberAddress], this: u64, tls: &ClientTls) -> Result<Self, TlsError> {
        let mut links = BTreeMap::new();
        for member in members.iter().filter(|m| m.id != this) {
            let name = member_name(member.id);
            let link = Link {
                raft: tls.channel(&member.raft, &name)?,
                service: tls.channel(&member.service, &name)?,
                since: Instant::now(),
                answered: Arc::new(AtomicU64::new(0)),
                silent: Arc::default(),
            };
            links.insert(member.id, link);
        }
        Ok(Self(Arc::new(links)))
    }

    /// How long ago this member last answered.
    pub fn silence(&self, member: u64) -> Option<Duration> {
        let link = self.0.get(&member)?;
        let answered = link.answered.load(Ordering::Relaxed).checked_sub(1)?;
        Some(link.since.elapsed().saturating_sub(Duration::from_millis(answered)))
    }

    /// The service of this member.
    pub fn service(&self, member: u64) -> Option<ServiceClient<Channel>> {
        let channel = self.0.get(&member)?.service.clone();
        let client = ServiceClient::new(channel);
        Some(client.max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX))
    }

    /// The other members.
    pub fn ids(&self) -> Vec<u64> {
        self.0.keys().copied().collect()
    }

    /// Audit records of this member behind `after`, as many as one message takes. With `u64::MAX` the page's head alone
    /// comes: the member has its state and its audit chain up to there, and a learner may vote.
    pub async fn audit_page(&self, member: u64, after: u64) -> Result<AuditPage, NoPage> {
        let link = self.0.get(&member).ok_or_else(|| NoPage::Unanswered("it is not in this member's configuration".to_owned()))?;
        let body = pack(&AuditPageRequest { after }).map_err(|e| NoPage::Unanswered(with_causes(&e)))?;
        match tokio::time::timeout(PAGE_TIMEOUT, raft_client(link).audit(body)).await {
            Ok(Ok(page)) => unpack(page.get_ref()).map_err(|e| NoPage::Unanswered(with_causes(&e))),
            Ok(Err(status)) if status.code() == tonic::Code::Unimplemented => Err(NoPage::Unknown),
            Ok(Err(status)) => {
                Err(NoPage::Unanswered(std::error::Error::source(&status).map_or_else(|| status.message().to_owned(), with_causes)))
            }
            Err(_) => Err(NoPage::Unanswered("no answer in time".to_owned())),
        }
    }

    /// Tells the leader what this member heard. True when it took it.
    pub async fn heartbeats(&self, leader: u64, summary: &HeartbeatSummary, limit: Duration) -> bool {
        let (Some(link), Ok(body)) = (self.0.get(&leader), pack(summary)) else { return false };
        matches!(tokio::time::timeout(limit, raft_client(link).heartbeats(body)).await, Ok(Ok(_)))
    }
}

/// Why a member gave no page of its audit chain.
#[derive(Debug, thiserror::Error)]
pub enum NoPage {
    #[error("it is of a version that sends no audit records by themselves")]
    Unknown,
    #[error("{0}")]
    Unanswered(String),
}

fn raft_client(link: &Link) -> RaftClient<Channel> {
    RaftClient::new(link.raft.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX)
}

impl RaftNetworkFactory<TypeConfig> for Peers {
    type Network = Wire;

    async fn new_client(&mut self, target: u64, _peer: &Peer) -> Wire {
        Wire { target, link: self.0.get(&target).cloned() }
    }
}

/// Raft's messages to one member.
#[derive(Debug)]
pub struct Wire {
    target: u64,
    link: Option<Link>,
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
        let Some(link) = &self.link else {
            return Err(RPCError::Unreachable(Unreachable::new(&no_answer("it is not in this member's configuration".to_owned()))));
        };
        let broken = |error: PackError| RPCError::Network(NetworkError::from(AnyError::new(&error)));
        let body: Packed = pack(question).map_err(broken)?;
        let mut client = raft_client(link);
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
                reply
            }
            Ok(Err(status)) => {
                let why = std::error::Error::source(&status).map_or_else(|| status.message().to_owned(), with_causes);
                link.is_silent(self.target, &why);
                return Err(RPCError::Unreachable(Unreachable::new(&no_answer(why))));
            }
            Err(_) => {
                link.is_silent(self.target, "no answer in time");
                return Err(RPCError::Network(NetworkError::new(&no_answer("no answer in time".to_owned()))));
            }
        };
        let now = u64::try_from(link.since.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        link.answered.store(now + 1, Ordering::Relaxed);
        let answer: Result<A, RaftError<u64, E>> = unpack(reply.get_ref()).map_err(broken)?;
        answer.map_err(|error| RPCError::RemoteError(RemoteError::new(self.target, error)))
    }
}

impl RaftNetwork<TypeConfig> for Wire {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RPCError<u64, Peer, RaftError<u64>>> {
        self.ask(Rpc::Append, &rpc, option).await
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, RPCError<u64, Peer, RaftError<u64, InstallSnapshotError>>> {
        self.ask(Rpc::InstallSnapshot, &rpc, option).await
    }

    async fn vote(&mut self, rpc: VoteRequest<u64>, option: RPCOption) -> Result<VoteResponse<u64>, RPCError<u64, Peer, RaftError<u64>>> {
        self.ask(Rpc::Vote, &rpc, option).await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(BACKOFF))
    }
}
