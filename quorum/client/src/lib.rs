//! The agents' client of the quorum: it uses any member, and the next one if that fails.
//!
//! ```text
//!   call ──▶ member ──Unavailable, no answer──▶ next member, after a short jittered pause ──▶ … until the deadline
//! ```
//!
//! Every command is idempotent, so it may be sent again. A call goes to the leader if an earlier
//! answer named it, because any other member would only forward it. Sessions and watches go to the
//! member that answered last, and so stay distributed. The quorum sends the list of its members
//! ([`QuorumClient::learn`]); the configured addresses are used if none of those answers. If
//! connections to a member fail, all callers together try it less and less often (`reachability`).
//!
//! Reads of single allocations share requests, which a few tasks send while reads wait
//! (`point_reads`).
//!
//! Functions that other crates await return a [`BoxFuture`]: an `async fn` would be compiled again in
//! each of those crates, together with all of gRPC.

pub mod following;
pub mod wire;

mod attempts;
mod point_reads;
mod reachability;
mod requested_by;
mod sessions;
mod status_text;
mod streams;

pub use attempts::CallError;
pub use requested_by::{TOKEN_HEADER, for_same_caller, with_token};
pub use sessions::MAY_MOVE_HEADER;
pub use status_text::status_text;
pub use streams::{DownStream, MemberStream, WatchStream};

use crate::wire::{Answer, MESSAGE_BYTES_MAX, MemberList, Refusal, Request};
use attempts::{Failures, NO_ANSWER, Rounds, refusal_of};
use futures::FutureExt;
use futures::future::BoxFuture;
use lattice_api::pack::{pack, unpack};
use lattice_api::v1::Packed;
use lattice_api::v1::quorum_client::QuorumClient as Grpc;
use lattice_model::{Allocation, with_causes};
use lattice_pki::credentials::{AskAuthority, Credentials, Used, Wanted};
use lattice_pki::identity::Role;
use lattice_pki::tls::TlsError;
use parking_lot::{Mutex, MutexGuard};
use point_reads::{Outcomes, PointReads, READ_TIMEOUT};
use rand::seq::SliceRandom;
use reachability::Reachability;
use requested_by::request_of;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tonic::transport::Channel;

/// Timeout of one member's answer before the next member is tried. Pings detect a dead member
/// within two seconds, and a leader without a majority says so. The remaining case is a leader with
/// a disk that takes seconds: if callers retried earlier, they would never get its answer.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for opening a stream.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout for a certificate, over all members together.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(5);

/// A client of the quorum's members. Cheap to clone; clones share their connections.
#[derive(Clone, Debug)]
pub struct QuorumClient(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    credentials: Credentials,
    /// The configured addresses of members.
    configured: Vec<String>,
    known: Mutex<Known>,
    point_reads: Arc<PointReads>,
}

#[derive(Debug)]
struct Known {
    /// The latest list from the quorum.
    list: MemberList,
    /// In the order of use: members of the list in random order, then configured ones that are not
    /// in it.
    members: Vec<Arc<Member>>,
    /// The index of the member that answered last.
    present: usize,
    /// The leader's address according to the latest answer.
    leader: Option<String>,
}

/// Header of a member's answer: the leader's address, if another member is the leader.
pub const LEADER_HEADER: &str = "lattice-leader";

#[derive(Debug)]
struct Member {
    address: String,
    calls: Channel,
    sessions: Channel,
    reachability: Reachability,
}

impl Member {
    /// Waits for an answer, and records whether the member could be reached.
    async fn await_answer<T>(&self, answer: impl Future<Output = Result<T, tonic::Status>>) -> Result<T, tonic::Status> {
        let answer = answer.await;
        self.reachability.record_result(&answer, Instant::now());
        answer
    }
}

impl QuorumClient {
    /// Prepares connections to these members (`host:port` each); sends nothing yet. Needs a tokio
    /// runtime.
    pub fn new(endpoints: Vec<String>, credentials: Credentials) -> Result<Self, TlsError> {
        let mut members = endpoints.iter().map(|address| open(&credentials, address)).collect::<Result<Vec<_>, TlsError>>()?;
        // Agents start with different members, and move from a failing one to different others.
        members.shuffle(&mut rand::rng());
        let known = Known { list: MemberList::default(), members, present: 0, leader: None };
        let (known, point_reads) = (Mutex::new(known), Arc::default());
        Ok(Self(Arc::new(Inner { credentials, configured: endpoints, known, point_reads })))
    }

    /// A client of the same members with separate connections, so that an unread stream of that
    /// client blocks nothing in this one.
    pub fn apart(&self) -> Result<Self, TlsError> {
        let apart = Self::new(self.0.configured.clone(), self.0.credentials.clone())?;
        apart.learn(&self.known().list.clone());
        Ok(apart)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.known.lock()
    }

    /// Adopts the quorum's member list unless a newer one is known: a member that lags behind has
    /// an old one. Returns whether it was adopted. The current member stays in use if it is in the
    /// list.
    pub fn learn(&self, list: &MemberList) -> bool {
        let mut known = self.known();
        if list.services.is_empty() || !list.is_newer_than(&known.list) {
            return false;
        }
        let present = known.members.get(known.present).map(|m| m.address.clone());
        let find = |address: &String| match known.members.iter().find(|m| m.address == *address) {
            Some(member) => Some(Arc::clone(member)),
            None => open(&self.0.credentials, address)
                .inspect_err(|error| tracing::warn!(%address, error = %with_causes(error), "a member's address cannot be used"))
                .ok(),
        };
        let mut members: Vec<_> = list.services.iter().filter_map(find).collect();
        members.shuffle(&mut rand::rng());
        members.extend(self.0.configured.iter().filter(|a| !list.services.contains(a)).filter_map(find));
        known.present = members.iter().position(|m| Some(&m.address) == present.as_ref()).unwrap_or(0);
        known.members = members;
        known.list = list.clone();
        true
    }

    /// The role in this client's certificate.
    pub fn role(&self) -> Role {
        self.0.credentials.material().borrow().own.role
    }

    /// Retries until there is an answer or `deadline` has passed. A refusal is an answer.
    pub fn call<'a>(&'a self, request: &'a Request, deadline: Duration) -> BoxFuture<'a, Result<Answer, CallError>> {
        self.retry(request, deadline).boxed()
    }

    async fn retry(&self, request: &Request, deadline: Duration) -> Result<Answer, CallError> {
        let end = Instant::now() + deadline;
        let body = pack(request).map_err(|e| Refusal::Malformed { why: with_causes(&e) })?;
        if body.body.len() > MESSAGE_BYTES_MAX {
            let bytes = body.body.len() as u64;
            return Err(Refusal::TooLarge { what: "the request".to_owned(), bytes, most: MESSAGE_BYTES_MAX as u64 }.into());
        }
        let mut rounds = Rounds::new(end);
        let mut failures = Failures::default();
        loop {
            for _ in 0..self.count() {
                let Some(member) = self.first_member() else { break };
                let left = end.saturating_duration_since(Instant::now()).min(ATTEMPT_TIMEOUT);
                if left.is_zero() {
                    return Err(failures.into());
                }
                if let Err(unreachable) = member.reachability.permit_attempt(Instant::now()) {
                    failures.add(&member.address, unreachable.to_string());
                    self.leave(&member.address);
                    continue;
                }
                let reply = timeout(left, member.await_answer(grpc(&member.calls).call(request_of(body.clone())))).await;
                let why = match reply {
                    Ok(Ok(reply)) => match unpack::<Result<Answer, Refusal>>(reply.get_ref()) {
                        Ok(Err(Refusal::Unavailable { why })) => why,
                        Ok(Err(refusal @ Refusal::NotLeader { .. })) => refusal.to_string(),
                        Ok(answer) => {
                            // The call was forwarded and answered, so the named member is the
                            // leader.
                            self.learn_leader(reply.metadata());
                            return answer.map_err(CallError::from);
                        }
                        Err(error) => with_causes(&error),
                    },
                    Ok(Err(status)) => match refusal_of(&status) {
                        Some(refusal) => return Err(refusal.into()),
                        None => status_text(&status),
                    },
                    Err(_) => NO_ANSWER.to_owned(),
                };
                failures.add(&member.address, why);
                self.leave(&member.address);
            }
            if !rounds.pause().await {
                return Err(failures.into());
            }
        }
    }

    /// One allocation, as by [`Request::GetAllocation`]. Calls at the same time share requests
    /// (`point_reads`).
    ///
    /// # Errors
    /// As [`Self::call`], with a deadline of 3 seconds. A key of more than 64 bytes is unknown, and a
    /// read is refused while 16,384 others wait.
    pub fn find_allocation(&self, key: String) -> BoxFuture<'static, Result<Allocation, CallError>> {
        let client = self.clone();
        async move {
            let reads = Arc::clone(&client.0.point_reads);
            let found = reads.find(key, READ_TIMEOUT, move |keys, deadline| client.clone().get_allocations(keys, deadline)).await;
            found.map(Arc::unwrap_or_clone)
        }
        .boxed()
    }

    async fn get_allocations(self, keys: Vec<String>, deadline: Duration) -> Result<Outcomes, CallError> {
        match self.call(&Request::GetAllocations { keys, node: None }, deadline).await? {
            Answer::Allocations(outcomes) => Ok(outcomes),
            _ => Ok(Vec::new()),
        }
    }

    /// Asks the current member once, with timeout `limit`: for requests that take long and must not
    /// be started twice.
    pub fn call_once<'a>(&'a self, request: &'a Request, limit: Duration) -> BoxFuture<'a, Result<Answer, CallError>> {
        async move {
            let body = pack(request).map_err(|e| Refusal::Malformed { why: with_causes(&e) })?;
            let Some(member) = self.member() else { return Err(Failures::default().into()) };
            Self::ask(&member, &body, limit).await
        }
        .boxed()
    }

    async fn ask(member: &Member, body: &Packed, limit: Duration) -> Result<Answer, CallError> {
        let why = match timeout(limit, member.await_answer(grpc(&member.calls).call(request_of(body.clone())))).await {
            Ok(Ok(reply)) => match unpack::<Result<Answer, Refusal>>(reply.get_ref()) {
                Ok(answer) => return Ok(answer?),
                Err(error) => with_causes(&error),
            },
            Ok(Err(status)) => status_text(&status),
            Err(_) => NO_ANSWER.to_owned(),
        };
        Err(CallError::Unavailable { why: format!("{}: {why}", member.address) })
    }

    /// A function that requests certificates from the quorum's authority through these connections.
    pub fn authority(&self) -> AskAuthority {
        let client = self.clone();
        Box::new(move |request| {
            let client = client.clone();
            async move {
                match client.call(&Request::RenewCertificate { request }, RENEWAL_TIMEOUT).await {
                    Ok(Answer::Certificate { pem }) => Ok(pem),
                    Ok(_) => Err(NoCertificate.into()),
                    Err(error) => Err(error.into()),
                }
            }
            .boxed()
        })
    }

    fn count(&self) -> usize {
        self.known().members.len()
    }

    /// The leader if known, else the member that answered last.
    fn first_member(&self) -> Option<Arc<Member>> {
        let known = self.known();
        let leader = known.leader.as_ref().and_then(|leader| known.members.iter().find(|m| m.address == *leader));
        leader.or_else(|| known.members.get(known.present)).cloned()
    }

    /// Records the leader if the answer names another member.
    fn learn_leader(&self, metadata: &tonic::metadata::MetadataMap) {
        if let Some(leader) = metadata.get(LEADER_HEADER).and_then(|value| value.to_str().ok()) {
            self.known().leader = Some(leader.to_owned());
        }
    }

    /// The member that answered last, or will be tried first.
    fn member(&self) -> Option<Arc<Member>> {
        let known = self.known();
        known.members.get(known.present).cloned()
    }

    /// Switches to the member after this one, unless another caller has already switched.
    pub fn leave(&self, address: &str) {
        let mut known = self.known();
        known.leader.take_if(|leader| leader == address);
        if known.members.get(known.present).is_some_and(|m| m.address == address) {
            known.present = (known.present + 1) % known.members.len();
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the quorum answered something else")]
struct NoCertificate;

fn open(credentials: &Credentials, address: &str) -> Result<Arc<Member>, TlsError> {
    let channel = |used| credentials.channel(address, Wanted::AnyMember, used);
    Ok(Arc::new(Member {
        address: address.to_owned(),
        calls: channel(Used::Calls)?,
        sessions: channel(Used::Session)?,
        reachability: Reachability::default(),
    }))
}

fn grpc(channel: &Channel) -> Grpc<Channel> {
    Grpc::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::Generation;
    use lattice_pki::ca;
    use lattice_pki::tls::TlsFiles;

    #[tokio::test]
    async fn the_newest_list_is_used_and_the_configured_members_come_last() {
        let dir = std::env::temp_dir().join(format!("lattice-client-{}", std::process::id()));
        ca::init(&dir).unwrap();
        let issued = ca::issue(&dir, "n1", Role::Node, &[], &dir, ca::LIFETIME).unwrap();
        let files = TlsFiles { ca: dir.join("ca.crt"), cert: issued.cert, key: issued.key };
        let client = QuorumClient::new(vec!["a:1".into(), "b:1".into()], Credentials::new(files.read().unwrap()).unwrap()).unwrap();
        let list = |generation, since, services: &[&str]| MemberList {
            generation: Generation(generation),
            since,
            services: services.iter().map(|s| (*s).to_owned()).collect(),
        };
        let order = || client.known().members.iter().map(|m| m.address.clone()).collect::<Vec<_>>();
        assert!(client.learn(&list(1, 9, &["b:1", "c:1"])));
        assert_eq!(order()[2], "a:1");
        let first = || client.member().unwrap().address.clone();
        let present = first();
        assert!(!client.learn(&list(1, 5, &["a:1"])), "a member that lags behind said so");
        assert!(!client.learn(&list(1, 9, &["a:1"])) && !client.learn(&list(1, 12, &[])));
        assert_eq!(order().len(), 3);
        client.leave("elsewhere:1");
        assert_eq!(first(), present, "somebody else moved on");
        client.leave(&present);
        assert_ne!(first(), present);
        assert!(client.learn(&list(2, 3, &["d:1"])), "a recovered quorum begins anew");
        assert_eq!(order()[0], "d:1");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
