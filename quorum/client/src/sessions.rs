//! Opening sessions: tries each member once, and the leader last.

use super::attempts::{CallError, Failures, NO_ANSWER, refusal_of};
use super::reachability::Reachability;
use super::streams::DownStream;
use super::{Member, OPEN_TIMEOUT, QuorumClient, grpc};
use crate::status_text;
use crate::wire::{Answer, MayMove, QuorumStatus, Refusal, Request, Up};
use futures::FutureExt;
use futures::future::BoxFuture;
use lattice_api::pack::pack;
use lattice_model::with_causes;
use lattice_pki::credentials::RelayedStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;

/// Request header of a session: when the session may be moved to another member ([`MayMove`]).
pub const MAY_MOVE_HEADER: &str = "lattice-may-move";
/// Largest number of messages queued for sending in a session.
const UP_QUEUE_LEN_MAX: usize = 256;

impl QuorumClient {
    /// Opens a session with `register` (an [`Up::Register`]) as its first message. Tries each
    /// member once, and the leader only when no other member accepts it: thousands of sessions
    /// would be a load for the member that processes all commands. On an error the caller retries
    /// after a pause. When the stream ends, or brings [`Down::Close`], [`Down::Removed`] or
    /// [`Down::Move`], the next session goes to the next member.
    pub fn session(&self, register: Up) -> BoxFuture<'_, Result<(mpsc::Sender<Up>, DownStream), CallError>> {
        self.open_anywhere(register).boxed()
    }

    async fn open_anywhere(&self, register: Up) -> Result<(mpsc::Sender<Up>, DownStream), CallError> {
        let mut failures = Failures::default();
        let mut leads = None;
        for _ in 0..self.count() {
            let Some(member) = self.member() else { break };
            match self.open_session(&member, &register, MayMove::Now).await {
                Ok(session) => return Ok(session),
                Err(NotOpened::Leads) => leads = Some(Arc::clone(&member)),
                Err(NotOpened::Refused(refusal)) => return Err(refusal.into()),
                Err(NotOpened::Failed(why)) => failures.add(&member.address, why),
            }
            self.leave(&member.address);
        }
        let Some(member) = leads else { return Err(failures.into()) };
        match self.open_session(&member, &register, MayMove::Later).await {
            Ok(session) => return Ok(session),
            Err(NotOpened::Refused(refusal)) => return Err(refusal.into()),
            Err(NotOpened::Failed(why)) => failures.add(&member.address, why),
            Err(NotOpened::Leads) => failures.add(&member.address, "it refuses sessions".to_owned()),
        }
        Err(failures.into())
    }

    /// As [`Self::session`], over a byte stream that another agent relays to the member with this
    /// `address`.
    pub fn session_over<'a>(
        &'a self,
        stream: Box<dyn RelayedStream>,
        address: &'a str,
        register: &'a Up,
    ) -> BoxFuture<'a, Result<(mpsc::Sender<Up>, DownStream), CallError>> {
        self.open_over(stream, address, register).boxed()
    }

    async fn open_over(
        &self,
        stream: Box<dyn RelayedStream>,
        address: &str,
        register: &Up,
    ) -> Result<(mpsc::Sender<Up>, DownStream), CallError> {
        let unavailable = |why: String| CallError::Unavailable { why: format!("{address}: {why}") };
        let channel = self.0.credentials.channel_over(stream, address).map_err(|e| unavailable(with_causes(&e)))?;
        match self.open_session_over(&channel, None, address, register, MayMove::Later).await {
            Ok((up, mut down)) => {
                down.carried = Some(channel);
                Ok((up, down))
            }
            Err(NotOpened::Refused(refusal)) => Err(refusal.into()),
            Err(NotOpened::Failed(why)) => Err(unavailable(why)),
            Err(NotOpened::Leads) => Err(unavailable("it refuses sessions".to_owned())),
        }
    }

    /// Whether any member that would accept a session is reachable from here; each is asked for at
    /// most `limit`. A member that accepts connections but hangs or has no leader does not count,
    /// nor does the leader while there are others ([`Self::session`]). The next session starts with
    /// the member found.
    pub fn is_served(&self, limit: Duration) -> BoxFuture<'_, bool> {
        async move {
            let Ok(body) = pack(&Request::Members) else { return false };
            let members: Vec<_> = self.known().members.clone();
            for member in members {
                if matches!(Self::ask(&member, &body, limit).await, Ok(Answer::Status(status)) if takes_sessions(&status, &member.address))
                {
                    let mut known = self.known();
                    known.present = known.members.iter().position(|m| m.address == member.address).unwrap_or(known.present);
                    return true;
                }
            }
            false
        }
        .boxed()
    }

    async fn open_session(&self, member: &Member, register: &Up, may_move: MayMove) -> Result<(mpsc::Sender<Up>, DownStream), NotOpened> {
        member.reachability.permit_attempt(Instant::now()).map_err(|unreachable| NotOpened::Failed(unreachable.to_string()))?;
        self.open_session_over(&member.sessions, Some(&member.reachability), &member.address, register, may_move).await
    }

    async fn open_session_over(
        &self,
        channel: &Channel,
        reachability: Option<&Reachability>,
        address: &str,
        register: &Up,
        may_move: MayMove,
    ) -> Result<(mpsc::Sender<Up>, DownStream), NotOpened> {
        let (tx, rx) = mpsc::channel(UP_QUEUE_LEN_MAX);
        // The queue is empty and its receiver exists.
        let _fits = tx.try_send(register.clone());
        let mut up = tonic::Request::new(ReceiverStream::new(rx).filter_map(|up| match pack(&up) {
            Ok(packed) => Some(packed),
            Err(error) => {
                tracing::error!(error = %with_causes(&error), "a message to the quorum is not sent");
                None
            }
        }));
        up.metadata_mut().insert(MAY_MOVE_HEADER, MetadataValue::from_static(may_move.header()));
        let opened = timeout(OPEN_TIMEOUT, grpc(channel).session(up)).await;
        if let (Some(reachability), Ok(answer)) = (reachability, &opened) {
            reachability.record_result(answer, Instant::now());
        }
        match opened {
            Ok(Ok(stream)) => Ok((tx, self.stream(stream.into_inner(), address))),
            Ok(Err(status)) if status.code() == tonic::Code::FailedPrecondition => Err(NotOpened::Leads),
            Ok(Err(status)) => Err(refusal_of(&status).map_or_else(|| NotOpened::Failed(status_text(&status)), NotOpened::Refused)),
            Err(_) => Err(NotOpened::Failed(NO_ANSWER.to_owned())),
        }
    }
}

/// Why a member did not open a session.
enum NotOpened {
    /// It is the leader: others are tried first.
    Leads,
    /// The refusal would be the same from any other member.
    Refused(Refusal),
    Failed(String),
}

/// Whether the member at `address` accepts sessions before the others are tried. `status` is the
/// leader's answer through this member, or the member's own answer if it knows no leader.
fn takes_sessions(status: &QuorumStatus, address: &str) -> bool {
    let voters = status.members.iter().filter(|m| m.votes).count();
    let leads = |leader| status.members.iter().any(|m| m.id == leader && m.service == address);
    status.leader.is_some_and(|leader| voters == 1 || !leads(leader))
}
