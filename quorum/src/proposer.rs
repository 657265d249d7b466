//! Proposes commands to the log.
//!
//! openraft 0.9 appends each proposal as an entry of its own. So commands that arrive while entries
//! are in flight are collected into one entry: they share its append, its sync and its replication.
//! If no entry is in flight, a single command is proposed at once.
//!
//! ```text
//!   propose ──▶ queue ──▶ batch (up to 1024, 1 MiB) ──▶ entry, at most 2 in flight ──▶ applied ──▶ a reply for each
//! ```

use crate::raft_counts::{RaftCounts, count};
use crate::timekeeper::Timekeeper;
use lattice_ledger::{Action, Command, ENTRY_LEAP_MS_MAX, Outcome};
use lattice_model::{MemberId, Revision};
use lattice_quorum_client::wire::Refusal;
use lattice_store::raft::{Proposal, Raft, TypeConfig};
use openraft::error::{ClientWriteError, Fatal};
use openraft::raft::ClientWriteResult;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Largest number of queued commands; more are refused.
const WAITING_MAX: usize = 16 * 1024;
/// Largest number of commands in one entry: 10,000 nodes that report together are ten entries, each
/// of which holds the ledger's lock for some ten milliseconds.
const BATCH_MAX: usize = 1024;
/// An entry gets no further command once its commands have about this size, in bytes.
const BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Largest number of entries in flight, from the proposal until the entry is applied: so the next
/// entry is written while the one before it is replicated.
const IN_FLIGHT_MAX: usize = 2;
/// How long an entry may still get its result after the term in which it was proposed.
const RESULT_AFTER_LOSS: Duration = Duration::from_secs(10);

/// Why this member did not handle a command or query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// This member is not the leader; the leader, if known.
    NotLeader(Option<u64>),
    /// The command was not executed, or may have been; the reason is text for people.
    Unavailable(String),
}

/// A command's result and the revision of its commit.
pub type Reply = Result<(Result<Outcome, Refusal>, Revision), Unserved>;

struct Waiting {
    action: Action,
    reply: oneshot::Sender<Reply>,
}

/// Accepts commands for the log.
#[derive(Clone, Debug)]
pub struct Proposer {
    queue: mpsc::Sender<Waiting>,
    counts: Arc<RaftCounts>,
}

impl Proposer {
    /// Starts the task that proposes. While `gate` is false, commands wait. `awaiting` gets one
    /// task for each entry in flight, which ends when the entry has a result or Raft ends.
    pub fn start(
        raft: Raft,
        timekeeper: Arc<Timekeeper>,
        gate: watch::Receiver<bool>,
        stop: CancellationToken,
        awaiting: TaskTracker,
    ) -> (Self, tokio::task::JoinHandle<()>) {
        let (tx, rx) = mpsc::channel(WAITING_MAX);
        let counts = Arc::new(RaftCounts::default());
        let in_flight = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
        let task = ProposerTask { raft, counts: Arc::clone(&counts), timekeeper, gate, queue: rx, in_flight, awaiting };
        (Self { queue: tx, counts }, tokio::spawn(task.run(stop)))
    }

    /// The counters for metrics.
    pub fn counts(&self) -> &RaftCounts {
        &self.counts
    }

    /// Proposes a command; the reply arrives when it is applied, or is refused because too many
    /// commands wait. Commands are committed in the order of these calls.
    pub fn propose(&self, action: Action) -> oneshot::Receiver<Reply> {
        let (tx, rx) = oneshot::channel();
        if let Err(error) = self.queue.try_send(Waiting { action, reply: tx }) {
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
    // The caller may be gone.
    let _gone = to.send(reply);
}

/// Waits for a reply of [`Proposer::propose`].
pub async fn reply(receiver: oneshot::Receiver<Reply>) -> Reply {
    receiver.await.unwrap_or_else(|_| Err(Unserved::Unavailable("this member is stopping".to_owned())))
}

struct ProposerTask {
    raft: Raft,
    counts: Arc<RaftCounts>,
    timekeeper: Arc<Timekeeper>,
    gate: watch::Receiver<bool>,
    queue: mpsc::Receiver<Waiting>,
    in_flight: Arc<Semaphore>,
    /// Tasks that wait for the entries in flight.
    awaiting: TaskTracker,
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
                // The sender lives as long as the member.
                _open = self.gate.wait_for(|open| *open) => {}
            }
            let permit = tokio::select! {
                () = stop.cancelled() => return,
                permit = Arc::clone(&self.in_flight).acquire_owned() => permit,
            };
            let Ok(permit) = permit else { return };
            let (at, since_ms) = self.timekeeper.stamp();
            let mut bytes = first.action.bytes_about();
            let (mut commands, mut replies) = (Vec::new(), Vec::new());
            // With `AdvanceTime` the leader confirms how much time has passed since the last entry;
            // any other command advances the ledger's time by at most `ENTRY_LEAP_MS_MAX`.
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
            let (counts, began) = (Arc::clone(&self.counts), Instant::now());
            count(&counts.entries);
            // Submitted by this task, so that entries keep the order of their commands. Other tasks
            // await the results.
            let lost = until_result_lost(&self.raft);
            match self.raft.client_write_ff(proposal).await {
                Ok(receiver) => {
                    self.awaiting.spawn(async move {
                        let result = tokio::select! {
                            result = receiver => result.ok(),
                            () = lost => None,
                        };
                        drop(permit);
                        count_results(&counts, result.as_ref(), replies.len(), began);
                        send_results(result, replies);
                    });
                }
                Err(error) => fail_all(replies, &stopped(&error)),
            }
        }
    }
}

/// Returns when an entry that is proposed now may be lost without a result: a member that lost the
/// leadership, and then installed a snapshot that contains the entry, never answers for it.
pub fn until_result_lost(raft: &Raft) -> impl Future<Output = ()> + use<> {
    let mut metrics = raft.metrics();
    let term = metrics.borrow().current_term;
    async move {
        if metrics.wait_for(|now| now.current_term != term).await.is_err() {
            // The member stops, which is reported elsewhere.
            return std::future::pending().await;
        }
        tokio::time::sleep(RESULT_AFTER_LOSS).await;
    }
}

fn count_results(counts: &RaftCounts, result: Option<&ClientWriteResult<TypeConfig>>, commands: usize, began: Instant) {
    let add = |counter: &AtomicU64, more: usize| {
        counter.fetch_add(more as u64, Ordering::Relaxed);
    };
    let Some(Ok(response)) = result else { return add(&counts.unserved, commands) };
    counts.commit.observe(began.elapsed());
    let refused = response.data.0.iter().filter(|result| result.is_err()).count();
    add(&counts.refused, refused);
    add(&counts.accepted, commands.saturating_sub(refused));
}

fn send_results(result: Option<ClientWriteResult<TypeConfig>>, waiting: Vec<oneshot::Sender<Reply>>) {
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
        None => {
            fail_all(
                waiting,
                &Unserved::Unavailable("this member is no longer the leader; the command may have been committed".to_owned()),
            );
        }
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

/// The error as a refusal, for callers that expect an answer.
pub(crate) fn unserved(why: Unserved) -> Refusal {
    match why {
        Unserved::NotLeader(leader) => Refusal::NotLeader { leader: leader.map(MemberId) },
        Unserved::Unavailable(why) => Refusal::Unavailable { why },
    }
}
