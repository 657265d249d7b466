//! The quorum as an agent reaches it: any member, the next one when it fails.
//!
//! ```text
//!   call ──▶ member ──Unavailable, no answer──▶ next member, after a short jittered pause ──▶ … until the deadline
//! ```
//!
//! Every command is idempotent, so sending it again is right. The member that answered last is asked first.

use crate::pack::{pack, unpack, with_causes};
use crate::tls::{ClientTls, TlsError};
use crate::wire::{Answer, Change, Down, MESSAGE_BYTES_MAX, Refusal, Request, Up, WatchRequest};
use lattice_api::v1::Packed;
use lattice_api::v1::quorum_client::QuorumClient as Grpc;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

/// Messages that wait to go up a session, at most.
const UP_QUEUE: usize = 256;
/// How long one member may take for one answer before the next one is asked.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long opening a stream may take.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);
/// Pauses between rounds over all members: from this, doubling, each halved at random.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// The quorum refused; asking again changes nothing.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No member could answer in time. A command may nevertheless have been committed.
    #[error("the quorum cannot be reached: {why}")]
    Unavailable {
        /// What the last member said or why it could not be reached.
        why: String,
    },
}

/// The quorum's members. Cheap to clone; clones share their connections.
#[derive(Clone, Debug)]
pub struct QuorumClient {
    members: Arc<[Member]>,
    /// The member that answered last.
    present: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Member {
    address: String,
    channel: Channel,
}

impl QuorumClient {
    /// Prepares connections to these members (`host:port` each); nothing is sent yet. Needs a tokio runtime.
    pub fn new(endpoints: Vec<String>, tls: ClientTls) -> Result<Self, TlsError> {
        let open = |address: String| {
            let channel = tls.quorum_channel(&address)?;
            Ok(Member { address, channel })
        };
        let members: Arc<[Member]> = endpoints.into_iter().map(open).collect::<Result<_, TlsError>>()?;
        // Agents begin at different members.
        let first = if members.is_empty() { 0 } else { rand::random_range(0..members.len()) };
        Ok(Self { members, present: Arc::new(AtomicUsize::new(first)) })
    }

    /// The member that answered last, or will be asked first: `host:port`.
    pub fn present_member(&self) -> &str {
        self.members.get(self.present.load(Ordering::Relaxed)).map_or("", |m| &m.address)
    }

    /// Asks until there is an answer or `deadline` has passed. A refusal is an answer.
    pub async fn call(&self, request: &Request, deadline: Duration) -> Result<Answer, CallError> {
        let end = Instant::now() + deadline;
        let body = pack(request).map_err(|e| Refusal::Malformed { why: with_causes(&e) })?;
        if body.body.len() > MESSAGE_BYTES_MAX {
            let bytes = body.body.len() as u64;
            return Err(Refusal::TooLarge { what: "the request".to_owned(), bytes, most: MESSAGE_BYTES_MAX as u64 }.into());
        }
        let mut rounds = Rounds::new(end);
        let mut why = "no members are configured".to_owned();
        loop {
            for _ in 0..self.members.len() {
                let (at, member) = self.member();
                let left = end.saturating_duration_since(Instant::now()).min(ATTEMPT_TIMEOUT);
                if left.is_zero() {
                    return Err(CallError::Unavailable { why });
                }
                let mut grpc = grpc(&member.channel);
                let reply = timeout(left, grpc.call(body.clone())).await;
                why = match reply {
                    Ok(Ok(reply)) => match unpack::<Result<Answer, Refusal>>(reply.get_ref()) {
                        Ok(Ok(answer)) => return Ok(answer),
                        Ok(Err(Refusal::Unavailable { why })) => why,
                        Ok(Err(refusal)) => return Err(refusal.into()),
                        Err(error) => with_causes(&error),
                    },
                    Ok(Err(status)) => match refusal_of(&status) {
                        Some(refusal) => return Err(refusal.into()),
                        None => status_text(&status),
                    },
                    Err(_) => "no answer in time".to_owned(),
                };
                why = format!("{}: {why}", member.address);
                self.leave(at);
            }
            if !rounds.pause().await {
                return Err(CallError::Unavailable { why });
            }
        }
    }

    /// Opens a session with `register` (an [`Up::Register`]) as its first message. Tries each member once; the caller
    /// tries again after a pause. When the stream ends or says [`Down::Close`], the next session goes to the next member.
    pub async fn session(&self, register: Up) -> Result<(mpsc::Sender<Up>, DownStream), CallError> {
        let mut why = "no members are configured".to_owned();
        for _ in 0..self.members.len() {
            let (at, member) = self.member();
            let (tx, rx) = mpsc::channel(UP_QUEUE);
            // The queue is empty and its receiver is here.
            let _fits = tx.try_send(register.clone());
            let up = ReceiverStream::new(rx).filter_map(|up| match pack(&up) {
                Ok(packed) => Some(packed),
                Err(error) => {
                    tracing::error!(error = %with_causes(&error), "a message to the quorum is left out");
                    None
                }
            });
            let mut grpc = grpc(&member.channel);
            match timeout(OPEN_TIMEOUT, grpc.session(up)).await {
                Ok(Ok(stream)) => return Ok((tx, self.stream(stream.into_inner(), at))),
                Ok(Err(status)) => why = self.not_opened(at, &status)?,
                Err(_) => why = self.too_slow(at),
            }
        }
        Err(CallError::Unavailable { why })
    }

    /// Opens a watch. Tries each member once. A stream that ends must be opened again: it starts again from a list.
    pub async fn watch(&self, request: &WatchRequest) -> Result<ChangeStream, CallError> {
        let body = pack(request).map_err(|e| Refusal::Malformed { why: with_causes(&e) })?;
        let mut why = "no members are configured".to_owned();
        for _ in 0..self.members.len() {
            let (at, member) = self.member();
            let mut grpc = grpc(&member.channel);
            match timeout(OPEN_TIMEOUT, grpc.watch(body.clone())).await {
                Ok(Ok(stream)) => return Ok(self.stream(stream.into_inner(), at)),
                Ok(Err(status)) => why = self.not_opened(at, &status)?,
                Err(_) => why = self.too_slow(at),
            }
        }
        Err(CallError::Unavailable { why })
    }

    fn member(&self) -> (usize, &Member) {
        let at = self.present.load(Ordering::Relaxed) % self.members.len().max(1);
        (at, &self.members[at])
    }

    /// From now on the member after `at`, unless somebody has moved on already.
    fn leave(&self, at: usize) {
        let next = (at + 1) % self.members.len().max(1);
        // Lost to another task: it moved on, which is what was wanted.
        let _moved = self.present.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn not_opened(&self, at: usize, status: &tonic::Status) -> Result<String, CallError> {
        if let Some(refusal) = refusal_of(status) {
            return Err(refusal.into());
        }
        let why = format!("{}: {}", self.members[at].address, status_text(status));
        self.leave(at);
        Ok(why)
    }

    fn too_slow(&self, at: usize) -> String {
        self.leave(at);
        format!("{}: no answer in time", self.members[at].address)
    }

    fn stream<T>(&self, stream: Streaming<Packed>, at: usize) -> MemberStream<T> {
        let member = self.members[at].address.clone();
        MemberStream { stream, client: self.clone(), at, member, what: PhantomData }
    }
}

/// What comes down a session.
pub type DownStream = MemberStream<Down>;
/// What a watch says.
pub type ChangeStream = MemberStream<Change>;

/// Messages from one member, until it ends them.
#[derive(Debug)]
pub struct MemberStream<T> {
    stream: Streaming<Packed>,
    client: QuorumClient,
    at: usize,
    member: String,
    what: PhantomData<fn() -> T>,
}

impl<T: serde::de::DeserializeOwned> MemberStream<T> {
    /// The member at the other end, `host:port`.
    pub fn member(&self) -> &str {
        &self.member
    }

    /// The next message; an error when the stream is over, for whatever reason. Cancel-safe. After an error the
    /// client's next call or stream begins with another member.
    pub async fn next(&mut self) -> Result<T, CallError> {
        let why = match self.stream.message().await {
            Ok(Some(packed)) => match unpack(&packed) {
                Ok(message) => return Ok(message),
                Err(error) => with_causes(&error),
            },
            Ok(None) => "it ended the stream".to_owned(),
            Err(status) => match refusal_of(&status) {
                Some(refusal) => return Err(refusal.into()),
                None => status_text(&status),
            },
        };
        self.client.leave(self.at);
        Err(CallError::Unavailable { why: format!("{}: {why}", self.member) })
    }
}

/// Growing, jittered pauses that end with the deadline.
struct Rounds {
    end: Instant,
    pause: Duration,
}

impl Rounds {
    fn new(end: Instant) -> Self {
        Self { end, pause: PAUSE_FIRST }
    }

    /// Waits a little; false when the deadline has come.
    async fn pause(&mut self) -> bool {
        let pause = self.pause.mul_f64(rand::random_range(0.5..1.0));
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        if Instant::now() + pause >= self.end {
            return false;
        }
        sleep(pause).await;
        true
    }
}

fn grpc(channel: &Channel) -> Grpc<Channel> {
    Grpc::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// Transport-level refusals that no other member would answer differently.
fn refusal_of(status: &tonic::Status) -> Option<Refusal> {
    match status.code() {
        tonic::Code::InvalidArgument | tonic::Code::OutOfRange | tonic::Code::PermissionDenied | tonic::Code::Unauthenticated => {
            Some(Refusal::Malformed { why: status.message().to_owned() })
        }
        _ => None,
    }
}

fn status_text(status: &tonic::Status) -> String {
    match std::error::Error::source(status) {
        Some(source) => with_causes(source),
        None => status.message().to_owned(),
    }
}
