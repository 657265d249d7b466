//! Streams of messages from one member, for sessions and watches.

use super::attempts::{CallError, Failures, NO_ANSWER, refusal_of};
use super::{OPEN_TIMEOUT, QuorumClient, grpc};
use crate::status_text;
use crate::wire::{Down, Refusal, WatchMessage, WatchRequest};
use futures::FutureExt;
use futures::future::BoxFuture;
use lattice_api::pack::{pack, unpack};
use lattice_api::v1::Packed;
use lattice_model::with_causes;
use std::marker::PhantomData;
use tokio::time::{Instant, timeout};
use tonic::Streaming;
use tonic::transport::Channel;

/// The messages of a session from the member.
pub type DownStream = MemberStream<Down>;
/// The messages of a watch.
pub type WatchStream = MemberStream<WatchMessage>;

/// Messages from one member, until the stream ends.
#[derive(Debug)]
pub struct MemberStream<T> {
    stream: Streaming<Packed>,
    client: QuorumClient,
    member: String,
    /// Bytes of the messages received so far.
    received_bytes: u64,
    /// The connection, if it belongs to this stream alone.
    pub(super) carried: Option<Channel>,
    what: PhantomData<fn() -> T>,
}

impl<T: serde::de::DeserializeOwned> MemberStream<T> {
    /// The address of the member at the other end, `host:port`.
    pub fn member(&self) -> &str {
        &self.member
    }

    /// Bytes of the messages received so far, as encoded: without the framing of gRPC, HTTP/2 and
    /// TLS.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// The next message; an error when the stream has ended, for whatever reason. Cancel-safe.
    /// After [`CallError::Unavailable`] the client's next call or stream starts with another
    /// member.
    pub async fn next(&mut self) -> Result<T, CallError> {
        let why = match message(&mut self.stream).await {
            Ok(Some(packed)) => {
                self.received_bytes += packed.body.len() as u64;
                match unpack(&packed) {
                    Ok(message) => return Ok(message),
                    Err(error) => with_causes(&error),
                }
            }
            Ok(None) => "it ended the stream".to_owned(),
            Err(status) => match refusal_of(&status) {
                Some(refusal) => return Err(refusal.into()),
                None => status_text(&status),
            },
        };
        self.client.leave(&self.member);
        Err(CallError::Unavailable { why: format!("{}: {why}", self.member) })
    }
}

/// Boxed, so that gRPC's decoder is compiled here alone.
fn message(stream: &mut Streaming<Packed>) -> BoxFuture<'_, Result<Option<Packed>, tonic::Status>> {
    stream.message().boxed()
}

impl QuorumClient {
    /// Opens a watch. Tries each member once. [`crate::following::Following`] continues after the
    /// end of a stream.
    pub fn watch<'a>(&'a self, request: &'a WatchRequest) -> BoxFuture<'a, Result<WatchStream, CallError>> {
        self.watch_as(request).boxed()
    }

    /// As [`Self::watch`], for a watcher that needs only parts of each [`WatchMessage`]: `T` has the
    /// same variants and leaves out the fields to be skipped.
    pub async fn watch_as<T>(&self, request: &WatchRequest) -> Result<MemberStream<T>, CallError> {
        let body = pack(request).map_err(|e| Refusal::Malformed { why: with_causes(&e) })?;
        let mut failures = Failures::default();
        for _ in 0..self.count() {
            let Some(member) = self.member() else { break };
            if let Err(unreachable) = member.reachability.permit_attempt(Instant::now()) {
                failures.add(&member.address, unreachable.to_string());
                self.leave(&member.address);
                continue;
            }
            match timeout(OPEN_TIMEOUT, member.await_answer(grpc(&member.calls).watch(body.clone()))).await {
                Ok(Ok(stream)) => return Ok(self.stream(stream.into_inner(), &member.address)),
                Ok(Err(status)) => match refusal_of(&status) {
                    Some(refusal) => return Err(refusal.into()),
                    None => failures.add(&member.address, status_text(&status)),
                },
                Err(_) => failures.add(&member.address, NO_ANSWER.to_owned()),
            }
            self.leave(&member.address);
        }
        Err(failures.into())
    }

    pub(super) fn stream<T>(&self, stream: Streaming<Packed>, address: &str) -> MemberStream<T> {
        MemberStream { stream, client: self.clone(), member: address.to_owned(), received_bytes: 0, carried: None, what: PhantomData }
    }
}
