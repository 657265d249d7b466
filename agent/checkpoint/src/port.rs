//! Calls work at its own port (`--checkpoint-port`) and receives its answers.
//!
//! ```text
//!   who listens there now? ── nobody, or not this work ──▶ the checkpoint fails before anything is asked on any node
//!          │ this work
//!   connect ─▶ whose is the other end of this very connection? ── not this work's ──▶ closed, with nothing sent
//!                    │ this work's
//!              Checkpoint(token) ─▶ progress … ─▶ an answer ─▶ the same file as for answers in calls to the agent
//! ```
//!
//! The agent runs as root and connects to a port that a user chose. Its request must not reach
//! another user's program, and an answer of another program must not count as this work's. Between
//! the check for a listener and the connection another program may begin to listen, so only the
//! check of the connection itself counts. The kernel records for each socket the cgroup in which it
//! was created ([`lattice_runtime::sockets`]); the work's sockets are in the allocation's scope.

use super::app_message::{self, AppMessageError};
use super::blocking::SavingBroke;
use super::callers::Asked;
use super::directory::Answer;
use super::handles::Handles;
use super::{Checkpoints, PutAnswerError};
use lattice_agent_common::config::checkpoint::CheckpointsUnavailable;
use lattice_api::client::checkpoint_endpoint;
use lattice_api::v1;
use lattice_api::v1::save_update::Update;
use lattice_model::{AllocationId, DesiredShare, Epoch};
use lattice_runtime::cgroup::Cgroup;
use lattice_runtime::sockets::{self, Whose};
use std::error::Error as _;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Status};

/// Timeout of the connect: with a full listen queue, connecting would take minutes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval and largest number of searches for the other end of a connection, which may not exist
/// yet.
const LOOKS: (Duration, u32) = (Duration::from_millis(2), 100);
/// Pause before the work is called again after a broken connection.
const CALL_AGAIN_PAUSE: Duration = Duration::from_millis(200);
/// Shortest time between two messages that are read: an application that sends faster is slowed
/// down.
const MESSAGE_INTERVAL_MIN: Duration = Duration::from_millis(1);

/// Why work was not asked at its port, or why its answer did not count. `at`: the port's address.
#[derive(Debug, Error)]
pub enum PortError {
    #[error("without cgroup v2 this machine cannot find out whose work listens at a port")]
    NoCgroups,
    #[error("cannot find the process that listens at {at}: {source}")]
    FindListener { at: SocketAddr, source: io::Error },
    #[error("{why}")]
    Deaf { why: String },
    #[error("{at} accepted no connection within {} s", CONNECT_TIMEOUT.as_secs())]
    ConnectTimeout { at: SocketAddr },
    #[error("cannot connect to {at}: {source}")]
    Connect { at: SocketAddr, source: io::Error },
    #[error("a connection to {at}: {source}")]
    NameEnds { at: SocketAddr, source: io::Error },
    #[error("the connection to {at} does not use IPv4")]
    NoIpv4 { at: SocketAddr },
    #[error("cannot find the process at the other end of a connection to {at}: {source}")]
    FindOtherEnd { at: SocketAddr, source: io::Error },
    #[error(
        "the process at the other end of a connection to {at} is unknown: it has closed the connection, or listens with TCP_DEFER_ACCEPT \
         (listen without it)"
    )]
    NoOtherEnd { at: SocketAddr },
    #[error(transparent)]
    Unavailable(#[from] CheckpointsUnavailable),
    #[error("the call to {at} ended without an answer")]
    NoAnswer { at: SocketAddr },
    #[error("a message from {at}: {source}")]
    Message { at: SocketAddr, source: CallMessageError },
    #[error("{at} answers {code:?}: {what}")]
    Status { at: SocketAddr, code: Code, what: String },
    #[error("too many of its answers wait to be written")]
    AnswersWait,
    #[error("its answer is refused: {0}")]
    PutAnswer(#[source] PutAnswerError),
    #[error(transparent)]
    Broke(#[from] SavingBroke),
}

/// Why a message of the called work is refused.
#[derive(Debug, Error)]
pub enum CallMessageError {
    #[error("an empty message")]
    Empty,
    #[error("it is about request {token:?}, but the current request is {asked}")]
    OfAnother { token: String, asked: String },
    #[error(transparent)]
    Message(#[from] AppMessageError),
}

/// A port of an allocation's work on this node.
#[derive(Clone, Debug)]
pub struct Port {
    port: NonZeroU16,
    allocation: AllocationId,
    /// The cgroup of all its work.
    work: Cgroup,
}

impl Port {
    /// The port of this allocation's work on this node.
    ///
    /// # Errors
    /// Without cgroup v2, the agent cannot find out whose work listens at the port.
    pub fn of(context: &Handles, allocation: AllocationId, port: NonZeroU16) -> Result<Self, PortError> {
        let slice = context.slice.as_ref().ok_or(PortError::NoCgroups)?;
        Ok(Self { port, allocation, work: slice.scope(allocation).work() })
    }

    /// Why the work cannot be asked there now; `None`: it listens. Blocks.
    pub fn deaf(&self) -> Result<Option<String>, PortError> {
        let found = sockets::listener(self.port.get()).map_err(|source| PortError::FindListener { at: self.at(), source })?;
        Ok(match found {
            None => Some(format!(
                "nothing listens at {self}, so no request was made; --checkpoint-port needs a program that serves CheckpointEndpoint there"
            )),
            Some(whose) if self.is_ours(whose) => None,
            Some(Whose { cgroup: None, .. }) => Some(format!(
                "this machine's kernel does not show which process listens at {self}, so no request was made; use --checkpoint=signal or shmem here"
            )),
            Some(whose) => Some(self.foreign(whose)),
        })
    }

    fn at(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port.get()).into()
    }

    fn is_ours(&self, whose: Whose) -> bool {
        whose.cgroup.is_some_and(|id| self.work.has(id))
    }

    fn foreign(&self, whose: Whose) -> String {
        format!(
            "the listener at {self} belongs to uid {} and not to allocation {}, so no request was made; submit with a --checkpoint-port that \
             nothing else uses there",
            whose.uid,
            self.allocation.short()
        )
    }

    /// Connects, and verifies that the other end belongs to this work.
    async fn connect(&self) -> Result<TcpStream, PortError> {
        if let Some(why) = self.run_blocking(|port| port.deaf()).await? {
            return Err(PortError::Deaf { why });
        }
        self.connected().await
    }

    async fn connected(&self) -> Result<TcpStream, PortError> {
        let at = self.at();
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(at)).await;
        let connected = connected.map_err(|_| PortError::ConnectTimeout { at })?;
        let stream = connected.map_err(|source| PortError::Connect { at, source })?;
        let unnamed = |source| PortError::NameEnds { at, source };
        let ends = (stream.local_addr().map_err(unnamed)?, stream.peer_addr().map_err(unnamed)?);
        let (SocketAddr::V4(local), SocketAddr::V4(peer)) = ends else { return Err(PortError::NoIpv4 { at }) };
        let whose = self.run_blocking(move |port| port.other_end(local, peer)).await?;
        if self.is_ours(whose) { Ok(stream) } else { Err(PortError::Deaf { why: self.foreign(whose) }) }
    }

    async fn run_blocking<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Self) -> Result<T, PortError> + Send + 'static,
    ) -> Result<T, PortError> {
        let this = self.clone();
        super::blocking::blocking(move || look(&this)).await
    }

    fn other_end(&self, local: SocketAddrV4, peer: SocketAddrV4) -> Result<Whose, PortError> {
        let (pause, most) = LOOKS;
        for _ in 0..most {
            match sockets::other_end(local, peer) {
                Ok(Some(whose)) => return Ok(whose),
                Ok(None) => std::thread::sleep(pause),
                Err(source) => return Err(PortError::FindOtherEnd { at: self.at(), source }),
            }
        }
        Err(PortError::NoOtherEnd { at: self.at() })
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "127.0.0.1:{}", self.port)
    }
}

/// A call of the agent to the work; dropping it ends the call.
pub struct Calling {
    over: watch::Receiver<Option<String>>,
    _calling: AbortOnDropHandle<()>,
}

impl Calling {
    /// Why no answer can arrive any more; `None`: an answer may still arrive, or has been written.
    pub fn over(&self) -> Option<String> {
        self.over.borrow().clone()
    }

    /// Calls the work of a share, again after each broken connection, until it answers. Must be
    /// called within a tokio runtime.
    pub fn begin(checkpoints: Checkpoints, share: Arc<DesiredShare>, port: Port, asked: Asked) -> Self {
        let (out, over) = watch::channel(None);
        let call = Call { checkpoints, share, port, asked };
        let calling = tokio::spawn(async move {
            if let Err(why) = call.run().await {
                out.send_replace(Some(why.to_string()));
            }
        });
        Self { over, _calling: AbortOnDropHandle::new(calling) }
    }
}

struct Call {
    checkpoints: Checkpoints,
    share: Arc<DesiredShare>,
    port: Port,
    asked: Asked,
}

/// Why one call gave no answer.
enum Ended {
    /// The connection broke: call again.
    Broken(String),
    /// The work sent something invalid, ended the call without an answer, or refused it.
    Failed(PortError),
}

impl Call {
    /// Runs until the answer is written, or the error says why there will be none.
    async fn run(&self) -> Result<(), PortError> {
        loop {
            let stream = self.port.connect().await?;
            match self.once(stream).await {
                Ok(answer) => return self.store_answer(answer).await,
                Err(Ended::Failed(why)) => return Err(why),
                Err(Ended::Broken(why)) => {
                    tracing::debug!(allocation = %self.share.allocation, port = %self.port, %why, "work is called again");
                    tokio::time::sleep(CALL_AGAIN_PAUSE).await;
                }
            }
        }
    }

    async fn once(&self, stream: TcpStream) -> Result<Answer, Ended> {
        let Asked { token, deadline_ms } = self.asked.clone();
        let directory = self.checkpoints.directory_of(self.share.allocation).map_err(|e| Ended::Failed(e.into()))?;
        let directory = directory.join(&token).display().to_string();
        let client = checkpoint_endpoint(stream, app_message::MESSAGE_BYTES_MAX).await;
        let mut client = client.map_err(|e| Ended::Broken(e.to_string()))?;
        let (ended, at) = (|status: &Status| self.ended(status), self.port.at());
        let called = client.checkpoint(v1::SaveRequest { token, directory, deadline_ms }).await;
        let mut messages = called.map_err(|status| ended(&status))?.into_inner();
        loop {
            let message = messages.message().await.map_err(|status| ended(&status))?;
            let message = message.ok_or(Ended::Failed(PortError::NoAnswer { at }))?;
            if let Some(answer) = self.handle(message).map_err(|source| Ended::Failed(PortError::Message { at, source }))? {
                return Ok(answer);
            }
            tokio::time::sleep(MESSAGE_INTERVAL_MIN).await;
        }
    }

    /// Handles a message. Returns the answer; `None`: it was progress.
    fn handle(&self, message: v1::SaveUpdate) -> Result<Option<Answer>, CallMessageError> {
        let message = message.update.ok_or(CallMessageError::Empty)?;
        let (Update::Progress(v1::SaveProgress { token, .. })
        | Update::Deferral(v1::SaveDeferral { token, .. })
        | Update::Failure(v1::SaveFailure { token, .. })
        | Update::Done(v1::SaveDone { token, .. })) = &message;
        if *token != self.asked.token {
            return Err(CallMessageError::OfAnother { token: token.chars().take(80).collect(), asked: self.asked.token.clone() });
        }
        match message {
            Update::Progress(now) => {
                let key: (AllocationId, Epoch) = (self.share.allocation, self.share.epoch);
                // An error means that the request is no longer current: the call will be dropped.
                let _ = self.checkpoints.callers().progresses(key, &self.asked.token, app_message::progress(&now)?);
                Ok(None)
            }
            Update::Deferral(now) => Ok(Some(app_message::deferral(&now))),
            Update::Failure(now) => Ok(Some(app_message::failure(&now))),
            Update::Done(now) => Ok(Some(app_message::done(now)?)),
        }
    }

    /// Distinguishes an application's error from a broken connection: only the status of the latter has a source.
    fn ended(&self, status: &Status) -> Ended {
        if status.source().is_some() {
            return Ended::Broken(status.to_string());
        }
        let what = super::directory::reason(status.message());
        Ended::Failed(PortError::Status { at: self.port.at(), code: status.code(), what })
    }

    /// Writes the answer to the file that also receives answers in calls to the agent.
    async fn store_answer(&self, answer: Answer) -> Result<(), PortError> {
        let turn = self.checkpoints.callers().lock_answers((self.share.allocation, self.share.epoch)).await;
        let turn = turn.ok_or(PortError::AnswersWait)?;
        let (checkpoints, share, token) = (self.checkpoints.clone(), Arc::clone(&self.share), self.asked.token.clone());
        super::blocking::blocking(move || {
            let _turn = turn;
            checkpoints.put_answer(&share, &token, &answer).map_err(PortError::PutAnswer)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_runtime::cgroup::Scope;
    use std::io::Read as _;
    use std::net::TcpListener;

    /// A port at which this process listens, for an allocation without processes.
    fn foreign() -> (Port, TcpListener) {
        let listens = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = NonZeroU16::new(listens.local_addr().unwrap().port()).unwrap();
        let allocation = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap();
        (Port { port, allocation, work: Scope::at("/nonexistent".into()).work() }, listens)
    }

    #[tokio::test]
    async fn a_connection_to_a_foreign_process_is_closed_with_nothing_sent() {
        let (port, listens) = foreign();
        assert!(port.deaf().unwrap().unwrap().contains("belongs to uid"), "no connection is made");
        // Connects without the first check, as if another listener had appeared after it.
        let why = port.connected().await.unwrap_err().to_string();
        assert!(why.contains(&format!("{port} belongs to uid")) && why.contains("not to allocation 1f0c9a4e"), "{why}");
        let mut got = Vec::new();
        listens.accept().unwrap().0.read_to_end(&mut got).unwrap();
        assert!(got.is_empty(), "{got:?}");
        drop(listens);
        assert!(port.deaf().unwrap().unwrap().contains("nothing listens"));
        assert!(port.connected().await.unwrap_err().to_string().contains("cannot connect to"));
    }
}
