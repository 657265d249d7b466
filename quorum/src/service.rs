//! A member's servers: one port for agents, one for members. Both use mTLS; permissions follow from
//! the role in the caller's certificate and, for an operator's request, from the operator's token or
//! from the roles of the account for which the calling agent vouches.

mod answer;
mod auditing;
mod file_source;
mod leasing;
mod miscounted;
mod own;
mod packets;
mod raft_rpc;
mod session;
mod watching;

pub(crate) use answer::ask_leader;
#[cfg(test)]
pub(crate) use answer::{Forward, Forwarded};

use crate::accepting::known::{self, KnownAddresses};
use crate::accepting::{self, Port};
use crate::certify;
use crate::core::Core;
use crate::permission::{self, Author, Call, Grant, Scope};
use crate::service::file_source::FileSource;
use lattice_api::pack::{pack, unpack};
use lattice_api::v1::Packed;
use lattice_api::v1::quorum_server::{Quorum, QuorumServer};
use lattice_api::v1::raft_server::RaftServer;
use lattice_model::access_token::TokenId;
use lattice_model::with_causes;
use lattice_pki::connected::Connected;
use lattice_pki::identity::{Caller, Role};
use lattice_pki::operator;
use lattice_pki::refused::Cause;
use lattice_quorum_client::wire::{Answer, MESSAGE_BYTES_MAX, MayMove, Proof, Refusal, Request, WatchRequest};
use lattice_quorum_client::{LEADER_HEADER, MAY_MOVE_HEADER, TOKEN_HEADER};
use packets::Packets;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::{Response, Status, Streaming};

/// Largest number of concurrent calls of one connection.
const CONNECTION_CALLS_MAX: usize = 256;
/// Largest number of concurrent calls on the agents' port, all connections together. Sessions and
/// watches are not counted.
const CALLS_MAX: usize = 8192;
/// Largest number of open HTTP/2 streams of one connection: each call, session and watch is one.
const CONNECTION_STREAMS_MAX: u32 = 1024;
/// A connection that is silent for this long is pinged. Agents and members are normally silent for
/// a shorter time, because their heartbeats already show that they are alive. A ping for each
/// heartbeat of ten thousand agents would double the cost.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(40);
/// Timeout of a ping.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The server tasks, and why one of them ended by itself.
type Serving = (Vec<JoinHandle<()>>, watch::Receiver<Option<String>>);

/// Starts to serve both ports.
pub(crate) fn serve(core: &Arc<Core>, for_agents: TcpListener, for_members: TcpListener) -> Serving {
    let server = || {
        Server::builder()
            .concurrency_limit_per_connection(CONNECTION_CALLS_MAX)
            .max_concurrent_streams(CONNECTION_STREAMS_MAX)
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20)
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
    };
    let quorum = QuorumServer::new(Service { core: Arc::clone(core), calls: Arc::new(Semaphore::new(CALLS_MAX)) })
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let raft = RaftServer::new(raft_rpc::RaftService { core: Arc::clone(core), source: FileSource::default() })
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let (agents, peers) = (Arc::<KnownAddresses>::default(), Arc::<KnownAddresses>::default());
    let incoming = |listener, port, known: &Arc<KnownAddresses>| {
        accepting::incoming(listener, port, Arc::clone(known), core.identity.credentials.clone(), core.stop.clone())
    };
    let (from_agents, accepting_agents) = incoming(for_agents, Port::Agents, &agents);
    let (from_members, accepting_members) = incoming(for_members, Port::Members, &peers);
    let service = server().add_service(quorum).serve_with_incoming_shutdown(from_agents, core.stop.clone().cancelled_owned());
    let members = server().add_service(raft).serve_with_incoming_shutdown(from_members, core.stop.clone().cancelled_owned());
    let (failed, failures) = watch::channel(None);
    let spawn = |what: &'static str, server: futures::future::BoxFuture<'static, Result<(), tonic::transport::Error>>| {
        let (failed, stop) = (failed.clone(), core.stop.clone());
        tokio::spawn(async move {
            let ended = server.await;
            if !stop.is_cancelled() {
                let why = ended.err().map_or_else(|| "it ended".to_owned(), |e| with_causes(&e));
                failed.send_replace(Some(format!("{what}: {why}")));
            }
        })
    };
    let servers = vec![
        spawn("agents", Box::pin(service)),
        spawn("members", Box::pin(members)),
        accepting_agents,
        accepting_members,
        tokio::spawn(known::refresh(Arc::clone(core), agents, peers)),
    ];
    (servers, failures)
}

struct Service {
    core: Arc<Core>,
    calls: Arc<Semaphore>,
}

impl Service {
    fn caller<T>(&self, request: &tonic::Request<T>) -> Result<Arc<Caller>, Status> {
        Caller::of(request).map_err(|error| {
            self.core.identity.credentials.refused().count(error.cause(), &error);
            Status::unauthenticated(error.to_string())
        })
    }

    fn wrong_role(&self, why: String) -> Status {
        self.core.identity.credentials.refused().count(Cause::Role, &why);
        Status::permission_denied(why)
    }

    /// The author that a proof proves.
    fn author(&self, caller: &Caller, proof: Proof) -> Result<Author, Refusal> {
        match proof {
            Proof::Token(token) => operator::verify(&token, &self.core.identity.credentials, crate::clock::now())
                .map(Author::from)
                .map_err(|error| Refusal::NotOperator { why: with_causes(&error) }),
            Proof::Account { by, method } => Author::of_account(caller, by, &method),
        }
    }

    /// Checks whether the caller may make this request, and writes the verified name of its author
    /// into it.
    async fn authorize(&self, caller: &Caller, proof: Option<Proof>, question: &mut Request) -> Result<Grant, Refusal> {
        let author = proof.map(|proof| self.author(caller, proof)).transpose()?;
        let granted = permission::check(caller, author.as_ref(), question)?;
        if let Some(author) = &author {
            self.check_roles(author, Scope::of(question)).await?;
        }
        let is_of_root = |id| self.core.agreed.ledger().allocation(id).is_some_and(|a| a.owner.is_root());
        let is_dag_of_root = |id| self.core.agreed.ledger().dag(id).is_some_and(|dag| dag.owner.is_root());
        permission::name_person(question, caller, author.as_ref(), is_of_root, is_dag_of_root);
        Ok(granted)
    }

    /// Checks that an account has a role for its request, whichever member the request reached. The
    /// leader answers once it has applied everything that was committed before.
    ///
    /// Guaranteed: if a grant or a revocation was answered before the request was sent, the request is
    /// judged with it. Not guaranteed: that the role still exists when the request takes effect. The
    /// check is no part of the command, and the ledger does not repeat it: a revocation that is
    /// committed after the check does not stop the command, which may follow it in the log. This lasts
    /// as long as the command takes to be committed: usually milliseconds, longer while commands wait
    /// or the leader changes; no limit is enforced. The audit log shows such a command behind the
    /// record `RoleRevoked`. Each page of a query is a request with a check of its own; a step of a
    /// change of members that has begun continues.
    async fn check_roles(&self, author: &Author, scope: Scope<'_>) -> Result<(), Refusal> {
        let Some(account) = &author.account else { return Ok(()) };
        match ask_leader(
            Arc::clone(&self.core),
            Request::StandingOf { by: account.clone(), login_tenants: BTreeSet::new(), about: BTreeSet::new() },
        )
        .await?
        {
            Answer::Standing(standing) => permission::check_roles(author, &standing.roles, scope),
            _ => Err(Refusal::Unavailable { why: "the leader answered something else".to_owned() }),
        }
    }

    /// Checks and returns the permission for a call that is not a [`Request`].
    fn granted(&self, call: Call, caller: &Caller) -> Result<Grant, Status> {
        permission::granted(call, caller).map_err(|refusal| self.wrong_role(format!("{}: {refusal}", caller.name)))
    }
}

/// The refusals in an answer: of the request, or of single reads in it.
fn refusals(answer: &Result<Answer, Refusal>) -> impl Iterator<Item = &Refusal> {
    let inner = match answer {
        Ok(Answer::Stale { answer, .. }) => Some(&**answer),
        Ok(answer) => Some(answer),
        Err(_) => None,
    };
    let outcomes = if let Some(Answer::Allocations(outcomes)) = inner { outcomes.as_slice() } else { &[] };
    answer.as_ref().err().into_iter().chain(outcomes.iter().filter_map(|outcome| outcome.as_ref().err()))
}

/// The id of the cluster's token that the caller on the network presented to the agent. Only an
/// agent of role `api` vouches for callers.
fn token_of<T>(request: &tonic::Request<T>, caller: &Caller) -> Option<TokenId> {
    let token = request.metadata().get(TOKEN_HEADER).filter(|_| caller.role == Role::Api)?;
    token.to_str().ok()?.parse().ok()
}

#[tonic::async_trait]
impl Quorum for Service {
    type SessionStream = Packets;
    type WatchStream = Packets;

    async fn call(&self, request: tonic::Request<Packed>) -> Result<Response<Packed>, Status> {
        let caller = self.caller(&request)?;
        let _permit = self.calls.try_acquire().map_err(|_| Status::unavailable("too many calls at once"))?;
        if request.metadata().contains_key(answer::FORWARDED_HEADER) {
            self.granted(Call::Forward, &caller)?;
            let members = self.core.roster().members;
            if !caller.member().is_some_and(|id| members.contains_key(&id)) {
                return Err(self.wrong_role(format!("only members forward requests, and {} is not a member", caller.name)));
            }
            let forwarded = answer::forwarded(&self.core, unpack(request.get_ref())?).await;
            return Ok(Response::new(pack(&forwarded)?));
        }
        let token = token_of(&request, &caller);
        let certificate = request.extensions().get::<Connected>().and_then(|peer| peer.certificate.clone());
        let (proof, mut question) = match unpack(request.get_ref())? {
            Request::AsOperator { proof, request } => (Some(proof), *request),
            other => (None, other),
        };
        let granted = self.authorize(&caller, proof, &mut question).await;
        let answer = match (granted, question) {
            (Ok(_), Request::RenewCertificate { request }) => {
                certify::renew(&self.core, &caller, certificate.as_deref(), &request, ask_leader).await
            }
            (Ok(grant), question) => {
                let answer = answer::answer(&self.core, &caller, grant, question, token).await;
                for refusal in refusals(&answer) {
                    if matches!(refusal, Refusal::Role { .. }) {
                        self.core.identity.credentials.refused().count(Cause::Role, &format_args!("{}: {refusal}", caller.name));
                    }
                }
                answer
            }
            // The leader, which knows the roles of accounts, did not answer.
            (Err(refusal @ (Refusal::Unavailable { .. } | Refusal::NotLeader { .. })), _) => Err(refusal),
            (Err(refusal), _) => {
                self.core.identity.credentials.refused().count(Cause::Role, &format_args!("{}: {refusal}", caller.name));
                Err(refusal)
            }
        };
        let mut response = Response::new(pack(&answer)?);
        if let Some(leader) = answer::leader_elsewhere(&self.core).and_then(|id| self.core.service_of(id)) {
            response.metadata_mut().insert(LEADER_HEADER, leader);
        }
        Ok(response)
    }

    async fn session(&self, request: tonic::Request<Streaming<Packed>>) -> Result<Response<Packets>, Status> {
        let caller = self.caller(&request)?;
        self.granted(Call::Session, &caller)?;
        let may_move = MayMove::read(request.metadata().get(MAY_MOVE_HEADER).and_then(|value| value.to_str().ok()));
        let may_move =
            may_move.ok_or_else(|| Status::invalid_argument(format!("the header {MAY_MOVE_HEADER} must say when the session may move")))?;
        if may_move == MayMove::Now && self.core.leads() {
            return Err(Status::failed_precondition("this member is the leader, and leaves sessions to the others"));
        }
        let from = request.extensions().get::<Connected>().and_then(|peer| peer.address);
        Ok(Response::new(session::open(Arc::clone(&self.core), (caller, from), may_move, request.into_inner())))
    }

    async fn watch(&self, request: tonic::Request<Packed>) -> Result<Response<Packets>, Status> {
        let caller = self.caller(&request)?;
        let wanted: WatchRequest = unpack(request.get_ref())?;
        let mut whose = None;
        for call in watching::calls(&wanted) {
            if self.granted(call, &caller)? == Grant::Own {
                whose = Some(caller.name.parse().map_err(|_| Status::permission_denied("the certificate is of no node"))?);
            }
        }
        Ok(Response::new(watching::open(Arc::clone(&self.core), wanted, whose)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_agents_with_the_role_api_say_with_which_token_a_request_was_made() {
        let with = |role, id: &'static str| {
            let mut request = tonic::Request::new(());
            request.metadata_mut().insert(TOKEN_HEADER, id.parse().unwrap());
            token_of(&request, &Caller { name: "n1".into(), role })
        };
        assert_eq!(with(Role::Api, "00000000000000ab"), Some(TokenId(0xab)));
        for (role, id) in [(Role::Node, "00000000000000ab"), (Role::Quorum, "00000000000000ab"), (Role::Api, "ab")] {
            assert_eq!(with(role, id), None, "{role:?} {id}");
        }
        assert_eq!(token_of(&tonic::Request::new(()), &Caller { name: "n1".into(), role: Role::Api }), None);
    }
}
