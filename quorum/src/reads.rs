//! Linearizable reads: the leader confirms its leadership, once for all waiting queries.
//!
//! openraft 0.9 treats a leader that was restarted within its term like one that was not: it only
//! requires that the *first* entry of the term is applied, while entries acknowledged before the
//! restart may not be applied yet. Therefore a member answers nothing before it has applied
//! everything that was in its log when it started.

use crate::proposer::Unserved;
use lattice_store::raft::Raft;
use openraft::error::{CheckIsLeaderError, RaftError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// Largest number of waiting queries; more are refused.
const WAITING_MAX: usize = 16 * 1024;
/// Number of attempts before the members are considered unreachable. Each lasts at most one Raft
/// heartbeat.
const ATTEMPTS_MAX: usize = 5;

/// How long a restarted member may take to apply its log before callers are asked to retry.
const CATCH_UP_MAX: Duration = Duration::from_secs(1);

type Waiting = oneshot::Sender<Result<(), Unserved>>;

/// Confirms leadership for reads.
#[derive(Clone, Debug)]
pub struct ReadGate(mpsc::Sender<Waiting>);

impl ReadGate {
    /// Starts the task that confirms the leadership with the members.
    ///
    /// `held`: the index of the last entry in the log when the member started; it must be applied
    /// before the first answer. While `gate` is false, queries wait.
    pub fn start(raft: Raft, held: u64, mut gate: watch::Receiver<bool>, stop: CancellationToken) -> (Self, tokio::task::JoinHandle<()>) {
        let (tx, mut rx) = mpsc::channel::<Waiting>(WAITING_MAX);
        let task = tokio::spawn(async move {
            let mut caught_up = held == 0;
            loop {
                let first = tokio::select! {
                    () = stop.cancelled() => return,
                    first = rx.recv() => first,
                };
                let Some(first) = first else { return };
                tokio::select! {
                    () = stop.cancelled() => return,
                    // The sender lives as long as the member.
                    _open = gate.wait_for(|open| *open) => {}
                }
                let mut waiting = vec![first];
                while let Ok(next) = rx.try_recv() {
                    waiting.push(next);
                }
                let result = tokio::select! {
                    () = stop.cancelled() => return,
                    result = async {
                        confirm(&raft).await?;
                        if !caught_up {
                            catch_up(&raft, held).await?;
                            caught_up = true;
                        }
                        Ok(())
                    } => result,
                };
                for to in waiting {
                    // The caller may be gone.
                    let _gone = to.send(result.clone());
                }
            }
        });
        (Self(tx), task)
    }

    /// Returns when everything committed before this call is applied here and this member is the
    /// leader.
    pub async fn pass(&self) -> Result<(), Unserved> {
        let (tx, rx) = oneshot::channel();
        let stopping = || Unserved::Unavailable("this member is stopping".to_owned());
        match self.0.try_send(tx) {
            Ok(()) => rx.await.unwrap_or_else(|_| Err(stopping())),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Unserved::Unavailable("too many queries are waiting".to_owned())),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(stopping()),
        }
    }
}

/// Waits until everything that was in the log at the start is applied. Entries that another leader
/// has removed since do not count.
async fn catch_up(raft: &Raft, held: u64) -> Result<(), Unserved> {
    let wait = raft.wait(Some(CATCH_UP_MAX));
    let applied = wait.metrics(
        |m| m.last_applied.map_or(0, |id| id.index) >= held.min(m.last_log_index.unwrap_or(held)),
        "what was acknowledged before the restart is applied",
    );
    applied.await.map(|_| ()).map_err(|_| Unserved::Unavailable("this member is still applying its log".to_owned()))
}

async fn confirm(raft: &Raft) -> Result<(), Unserved> {
    let mut why = String::new();
    for _ in 0..ATTEMPTS_MAX {
        match raft.ensure_linearizable().await {
            Ok(_) => return Ok(()),
            Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(forward))) => {
                return Err(Unserved::NotLeader(forward.leader_id));
            }
            Err(RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(error))) => {
                why = format!("no majority of the members answers ({} of them do)", error.got.len());
            }
            Err(RaftError::Fatal(error)) => return Err(Unserved::Unavailable(format!("this member has stopped: {error}"))),
        }
    }
    Err(Unserved::Unavailable(why))
}
