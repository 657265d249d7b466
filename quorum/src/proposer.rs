//! Commands on their way into the log.
//!
//! openraft 0.9 syncs each entry that is written before it takes the next, so what shares a sync must share an entry:
//! commands that arrive while entries are under way are gathered and proposed together. One alone goes at once.
//!
//! ```text
//!   propose ──▶ queue ──▶ gather (up to 256, 1 MiB) ──▶ entry, at most 2 under way ──▶ applied ──▶ each its own reply
//! ```

use crate::raft::{Proposal, Raft, TypeConfig};
use crate::raft_counts::{RaftCounts, count};
use crate::store::machine::Agreed;
use crate::timekeeper::Timekeeper;
use lattice_ledger::{Action, Command, ENTRY_LEAP_MS_MAX, Outcome};
use lattice_model::{MemberId, Revision};
use lattice_quorum_client::wire::Refusal;
use openraft::error::{ClientWriteError, Fatal};
use openraft::raft::ClientWriteResult;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// Commands that wait to be proposed; more are refused.
const WAITING_MAX: usize = 16 * 1024;
/// Commands in one entry.
const BATCH_MAX: usize = 256;
/// Bytes in one entry, about: a command that is larger goes alone.
const BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Entries under way at once: one being synced here, one on its way to the others.
const UNDER_WAY_MAX: usize = 2;

/// Why this member did not take a command or question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// Another member leads, where that is known.
    NotLeader(Option<u64>),
    /// It cannot be said whether it happened, or it did not.
    Unavailable(String),
}

/// A command's outcome and where it was committed.
pub type Reply = Result<(Result<Outcome, Refusal>, Revision), Unserved>;

struct Waiting {
    action: Action,
    reply: oneshot::Sender<Reply>,
}

/// Takes commands.
#[derive(Clone, Debug)]
pub struct Proposer(mpsc::Sender<Waiting>);

impl Proposer {
    /// Starts the task that proposes. While `gate` is false, commands wait.
    pub fn start(
        raft: Raft,
        agreed: Arc<Agreed>,
        timekeeper: Arc<Timekeeper>,
        gate: watch::Receiver<bool>,
        stop: CancellationToken,
    ) -> (Self, tokio::task::JoinHandle<()>) {
        let (tx, rx) = mpsc::channel(WAITING_MAX);
        let under_way = Arc::new(Semaphore::new(UNDER_WAY_MAX));
        let task = tokio::spawn(ProposerTask { raft, agreed, timekeeper, gate, queue: rx, under_way }.run(stop));
        (Self(tx), task)
    }

    /// Proposes a command; its reply comes when it is applied. Commands are committed in the order of these calls.
    pub fn propose(&self, action: Action) -> oneshot::Receiver<Reply> {
        let (tx, rx) = oneshot::channel();
        if let Err(error) = self.0.try_send(Waiting { action, reply: tx }) {
            let why = match &error {
                mpsc::error::TrySendError::Full(_) => "too many commands are waiting",
                mpsc::error::TrySendError::Closed(_) => "this member is stopping",
            };
            answer(error.into_inner().reply, Err(Unserved::Unavailable(why.to_owned())));
        }
        rx
    }
}

fn answer(to: oneshot::Sender<Reply>, reply: Reply) {
    // Whoever asked may be gone.
    let _gone = to.send(reply);
}

/// Waits for a reply of [`Proposer::propose`].
pub async fn reply(receiver: oneshot::Receiver<Reply>) -> Reply {
    receiver.await.unwrap_or_else(|_| Err(Unserved::Unavailable("this member is stopping".to_owned())))
}

struct ProposerTask {
    raft: Raft,
    agreed: Arc<Agreed>,
    timekeeper: Arc<Timekeeper>,
    gate: watch::Receiver<bool>,
    queue: mpsc::Receiver<Waiting>,
    under_way: Arc<Semaphore>,
}

impl ProposerTask {
    async fn run(mut self, stop: CancellationToken) {
        loop {
            let first = tokio::select! {
                () = stop.cancelled() => return,
                first = self.queue.recv() => first,
            };
            let Some(first) = first else { return };
            tokio::select! {
                () = stop.cancelled() => return,
                // Its other end lives as long as the member.
                _open = self.gate.wait_for(|open| *open) => {}
            }
            let permit = tokio::select! {
                () = stop.cancelled() => return,
                permit = Arc::clone(&self.under_way).acquire_owned() => permit,
            };
            let Ok(permit) = permit else { return };
            let (at, since_ms) = self.timekeeper.stamp();
            let mut bytes = first.action.bytes_about();
            let (mut commands, mut replies) = (Vec::new(), Vec::new());
            // The leader vouches for what has passed since the last entry; without that, an entry moves the time by a little at most.
            if since_ms > ENTRY_LEAP_MS_MAX / 2 {
                commands.push(Command { at, action: Action::AdvanceTime });
                replies.push(oneshot::channel().0);
            }
            commands.push(Command { at, action: first.action });
            replies.push(first.reply);
            while commands.len() < BATCH_MAX
                && bytes < BATCH_BYTES_MAX
                && let Ok(next) = self.queue.try_recv()
            {
                bytes += next.action.bytes_about();
                commands.push(Command { at, action: next.action });
                replies.push(next.reply);
            }
            let proposal = match Proposal::new(commands) {
                Ok(proposal) => proposal,
                Err(error) => {
                    fail_all(replies, &Unserved::Unavailable(lattice_model::with_causes(&error)));
                    continue;
                }
            };
            let (counts, began) = (Arc::clone(&self.agreed.counts), Instant::now());
            count(&counts.entries);
            // Handed over here, so that entries keep the order of their commands; waited for elsewhere.
            match self.raft.client_write_ff(proposal).await {
                Ok(receiver) => {
                    tokio::spawn(async move {
                        let result = receiver.await.ok();
                        drop(permit);
                        settled(&counts, result.as_ref(), replies.len(), began);
                        settle(result, replies);
                    });
                }
                Err(error) => fail_all(replies, &stopped(&error)),
            }
        }
    }
}

fn settled(counts: &RaftCounts, result: Option<&ClientWriteResult<TypeConfig>>, commands: usize, began: Instant) {
    let add = |counter: &AtomicU64, more: usize| {
        counter.fetch_add(more as u64, Ordering::Relaxed);
    };
    let Some(Ok(response)) = result else { return add(&counts.unserved, commands) };
    counts.commit.observe(began.elapsed());
    let refused = response.data.0.iter().filter(|result| result.is_err()).count();
    add(&counts.refused, refused);
    add(&counts.accepted, commands.saturating_sub(refused));
}

fn settle(result: Option<ClientWriteResult<TypeConfig>>, waiting: Vec<oneshot::Sender<Reply>>) {
    match result {
        Some(Ok(response)) => {
            let revision = Revision(response.log_id.index);
            for (to, result) in waiting.into_iter().zip(response.data.0) {
                answer(to, Ok((result, revision)));
            }
        }
        Some(Err(ClientWriteError::ForwardToLeader(forward))) => fail_all(waiting, &Unserved::NotLeader(forward.leader_id)),
        Some(Err(error @ ClientWriteError::ChangeMembershipError(_))) => {
            fail_all(waiting, &Unserved::Unavailable(error.to_string()));
        }
        None => fail_all(waiting, &Unserved::Unavailable("leadership was lost on the way; it may have been committed".to_owned())),
    }
}

fn stopped(error: &Fatal<u64>) -> Unserved {
    Unserved::Unavailable(format!("this member has stopped: {error}"))
}

fn fail_all(waiting: Vec<oneshot::Sender<Reply>>, why: &Unserved) {
    for to in waiting {
        answer(to, Err(why.clone()));
    }
}

/// As a refusal, for those who asked for an answer.
pub(crate) fn unserved(why: Unserved) -> Refusal {
    match why {
        Unserved::NotLeader(leader) => Refusal::NotLeader { leader: leader.map(MemberId) },
        Unserved::Unavailable(why) => Refusal::Unavailable { why },
    }
}
