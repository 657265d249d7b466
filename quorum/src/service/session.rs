//! Agents' sessions.
//!
//! ```text
//!   up:   Register ──▶ committed ──▶ Heartbeat … (memory)   Report … (committed in order)
//!   down: Registered, then Revoked, Keyring and Desired, each again when it changes
//!         Acked · HeartbeatAck · Members · QueryGossip · Close · Move
//! ```

mod committing;
mod link;
mod list_digest;
mod registration;
mod sending;

use super::answer::{propose, propose_gathered};
use super::miscounted::Miscounted;
use super::packets::Packets;
use crate::core::Core;
use crate::heartbeats::Heartbeat;
use crate::proposer::unserved;
use crate::raft_counts::count;
use crate::witnesses::Witness;
use lattice_api::v1::Packed;
use lattice_ledger::{Action, Outcome, cut, growth};
use lattice_model::conformance::Components;
use lattice_model::{Backoff, Incarnation, NodeId, NodeReport, Revision};
use lattice_pki::identity::Caller;
use lattice_pki::refused::Cause;
use lattice_quorum_client::wire::{Down, HeldKeys, MayMove, NodeHealth, Refusal, Up};
use lattice_store::roster::Roster;
use link::{DownLink, Ended, MESSAGE_BYTES_MAX, PATIENCE, next};
use list_digest::ListDigest;
use registration::{checked, read_registration};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

/// Largest number of queued messages to the agent.
const DOWN_QUEUE_LEN_MAX: usize = 64;
/// Largest number of reports committed together.
const REPORTS_MAX: usize = 64;
/// Largest number of heartbeats here that the leader does not know yet. Beyond that, the oldest are
/// dropped and never acknowledged.
const BEATS_MAX: usize = 16;
/// Largest size of a failed wipe's reason in the log, in bytes.
const WIPE_WHY_BYTES_MAX: usize = 512;
/// Pauses between attempts to commit reports while the leader does not answer, each up to twice as long
/// as the one before it. A session ends only after a long silence: at an election, thousands of agents
/// would otherwise begin new ones at once.
const UNSERVED_PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
/// How long a session that no other member accepted stays before another attempt to move it.
const MOVE_RETRY_DELAY: Duration = Duration::from_secs(300);
/// How long a session waits until this member has applied the entries that the leader committed for
/// it.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts a session. When this member becomes the leader, it moves its sessions to other members:
/// `may_move` says when this one may move.
pub(super) fn open(core: Arc<Core>, (caller, from): (Arc<Caller>, Option<IpAddr>), may_move: MayMove, up: Streaming<Packed>) -> Packets {
    let (tx, rx) = mpsc::channel(DOWN_QUEUE_LEN_MAX);
    let tasks = core.tasks.clone();
    tasks.spawn(async move {
        let down = DownLink { tx };
        let ended = tokio::select! {
            () = down.tx.closed() => return,
            () = core.stop.cancelled() => Ended::Close("this member is stopping".to_owned()),
            () = core.status.closing.turn() => Ended::Close("this member has no leader".to_owned()),
            ended = serve(&core, (&caller, from), up, &down) => ended,
            () = turn_to_move(&core, may_move) => Ended::Move,
        };
        match ended {
            Ended::Gone => {}
            Ended::Close(why) => {
                tracing::debug!(agent = caller.name, why, "a session is closed");
                // An agent that does not read notices the end of the stream.
                let _sent = tokio::time::timeout(PATIENCE, down.send(&Down::Close { why })).await;
            }
            Ended::Removed(why) => {
                tracing::info!(agent = caller.name, why, "the session of a removed node ends");
                let _sent = tokio::time::timeout(PATIENCE, down.send(&Down::Removed { why })).await;
            }
            Ended::RegisterAgain(incarnation) => {
                let _sent = down.send(&Down::RegisterAgain { incarnation }).await;
            }
            Ended::Move => {
                let _sent = down.send(&Down::Move).await;
            }
            Ended::Refused(status) => {
                let _sent = tokio::time::timeout(PATIENCE, down.tx.send(Err(status))).await;
            }
        }
    });
    Box::pin(ReceiverStream::new(rx))
}

/// Returns when this session should move to another member.
async fn turn_to_move(core: &Core, may_move: MayMove) {
    match may_move {
        MayMove::Later => tokio::time::sleep(MOVE_RETRY_DELAY).await,
        MayMove::Now => {}
    }
    core.leading.moving.turn().await;
}

async fn serve(core: &Arc<Core>, who: (&Caller, Option<IpAddr>), mut up: Streaming<Packed>, down: &DownLink) -> Ended {
    let ended = async {
        let first = tokio::time::timeout(PATIENCE, next(&mut up, MESSAGE_BYTES_MAX)).await;
        let registration = first.map_err(|_| Ended::Close("the agent sent no registration in time".to_owned()))??;
        let mut session = Session::register(core, who, registration, down).await?;
        let result = session.run(&mut up).await;
        let node = session.node.clone();
        drop(session);
        core.agreed.changes.session_over(&node);
        result
    };
    match ended.await {
        Ok(never) => match never {},
        Err(ended) => ended,
    }
}

struct Session<'a> {
    core: &'a Arc<Core>,
    down: &'a DownLink,
    node: NodeId,
    incarnation: Incarnation,
    /// Notified when the node's list changes.
    changed: Arc<Notify>,
    /// The committed membership.
    rosters: watch::Receiver<Arc<Roster>>,
    /// The time up to which the leader knows the heartbeats received here.
    known: watch::Receiver<Instant>,
    /// The latest heartbeats that the leader does not know yet.
    beats: VecDeque<(u64, Instant)>,
    /// The number of the last heartbeat: lower or equal ones are refused.
    beat: u64,
    /// Compares the number of shares that the node reports with the ledger's.
    miscounted: Miscounted,
    /// The last list sent. A digest, because the list of wide work is a megabyte for each session.
    /// A claim that was made and ended between two lists changes only the leaving shares.
    sent: Option<ListDigest>,
    /// The node's components as last reported in this session.
    conformance: Option<Components>,
    /// The revision of the last gossip keys sent.
    sent_keys: Option<Revision>,
    /// The log index of the newest revocation sent.
    sent_revoked: Revision,
    /// The questions for this agent about silent nodes.
    witness: Witness,
    /// Reports that wait for a leader, or for space on its disk.
    waiting: Vec<NodeReport>,
    /// When to retry them.
    again: Instant,
    /// Since when the leader does not answer, and the pauses between attempts.
    unserved_since: Option<Instant>,
    unserved_pauses: Backoff,
}

impl<'a> Session<'a> {
    async fn register(core: &'a Arc<Core>, (caller, from): (&Caller, Option<IpAddr>), up: Up, down: &'a DownLink) -> Result<Self, Ended> {
        let (registration, keys, health) = read_registration(core, (caller, from), up)?;
        let (node, size) = (registration.node.clone(), registration.size);
        let growth = core.agreed.ledger().node(&node).and_then(|known| growth(&known.size, &size));
        // At a start of the cluster all agents register at once.
        let registered = propose_gathered(core, vec![Action::Register(registration)]).await;
        let mut results = registered.map_err(|e| Ended::Close(unserved(e).to_string()))?;
        let (outcome, revision) = match results.pop() {
            Some(Ok(done)) => done,
            // The agent registers again.
            Some(Err(refusal @ (Refusal::DiskFull { .. } | Refusal::NotAdmitted { .. } | Refusal::NeedsBoot { .. }))) => {
                return Err(Ended::Close(refusal.to_string()));
            }
            Some(Err(refusal @ Refusal::NodeRemoved { .. })) => return Err(Ended::Removed(refusal.to_string())),
            Some(Err(Refusal::OtherIncarnation { now, .. })) => return Err(Ended::RegisterAgain(now)),
            Some(Err(refusal)) => return Err(Ended::Refused(Status::invalid_argument(refusal.to_string()))),
            None => return Err(Ended::Close("the leader gave no answer".to_owned())),
        };
        if let Some(growth) = growth {
            tracing::error!(%node, growth, "the node's capacity grew when it registered: `lattice node history` shows it");
            count(&core.counts.capacity_grown);
        }
        let Outcome::Registered { incarnation, report_seq } = outcome else {
            return Err(Ended::Close("the leader answered something else".to_owned()));
        };
        if !core.applied(revision, CATCH_UP_TIMEOUT).await {
            return Err(Ended::Close("this member lags too far behind the leader".to_owned()));
        }
        let changed = core.agreed.changes.session(node.clone());
        let rosters = core.agreed.rosters();
        let witness = core.leading.witnesses.register(node.clone());
        core.leading.heartbeats.record(node.clone(), Heartbeat { incarnation, at: Instant::now(), keys: Some(keys), health: Some(health) });
        let mut session = Self {
            core,
            down,
            node,
            incarnation,
            changed,
            rosters,
            known: core.leading.heartbeats.known(),
            beats: VecDeque::new(),
            beat: 0,
            miscounted: Miscounted::default(),
            sent: None,
            conformance: None,
            sent_keys: None,
            sent_revoked: Revision(0),
            witness,
            waiting: Vec::new(),
            again: Instant::now(),
            unserved_since: None,
            unserved_pauses: UNSERVED_PAUSES,
        };
        // A separate statement: if a lock of the ledger lived as long as the message's expression, a
        // second lock would wait for ever as soon as an entry is to be applied in between.
        let members = core.member_list();
        let registered = Down::Registered {
            incarnation,
            generation: members.generation,
            cluster: core.config.cluster.clone(),
            heartbeat_ms: core.config.node_heartbeat_ms,
            report_seq,
            members,
        };
        down.send(&registered).await?;
        // Revocations first: an agent that was offline may still accept certificates that were
        // revoked meanwhile.
        session.send_revoked().await?;
        session.send_keys().await?;
        session.send_desired(revision).await?;
        Ok(session)
    }

    async fn run(&mut self, up: &mut Streaming<Packed>) -> Result<std::convert::Infallible, Ended> {
        // A separate future reads the stream: dropping a read that is not complete would lose a
        // message.
        let (tx, mut messages) = mpsc::channel(REPORTS_MAX);
        let reading = async move {
            let mut bytes_max = usize::MAX;
            loop {
                let message = next(up, std::mem::replace(&mut bytes_max, MESSAGE_BYTES_MAX)).await;
                let last = message.is_err();
                if tx.send(message).await.is_err() || last {
                    return;
                }
            }
        };
        let working = async {
            let mut held: Option<Up> = None;
            loop {
                if let Some(message) = held.take() {
                    held = self.handle(message, &mut messages).await?;
                    continue;
                }
                tokio::select! {
                    message = messages.recv() => match message {
                        Some(message) => held = self.handle(message?, &mut messages).await?,
                        None => return Err(Ended::Gone),
                    },
                    () = self.changed.notified() => {
                        self.send_revoked().await?;
                        self.send_keys().await?;
                        self.send_desired(Revision(0)).await?;
                    }
                    Ok(()) = self.rosters.changed() => self.down.send(&Down::Members(self.core.member_list())).await?,
                    () = tokio::time::sleep_until(self.again.into()), if !self.waiting.is_empty() => self.commit(Vec::new()).await?,
                    nodes = self.witness.question() => self.down.send(&Down::QueryGossip { nodes }).await?,
                    known = self.known.changed(), if !self.beats.is_empty() => {
                        if known.is_ok() {
                            self.acknowledge_beat().await?;
                        }
                    }
                }
            }
        };
        tokio::pin!(reading, working);
        tokio::select! {
            ended = &mut working => ended,
            () = &mut reading => working.await,
        }
    }

    /// Handles a message and the reports queued after it. Returns a queued message that is not a
    /// report.
    async fn handle(&mut self, up: Up, messages: &mut mpsc::Receiver<Result<Up, Ended>>) -> Result<Option<Up>, Ended> {
        match up {
            Up::Register { .. } => Err(Ended::Refused(Status::invalid_argument("a session has one registration"))),
            // Unless a recovery waits for this node, there is nothing to adopt.
            Up::Holds { .. } if !self.core.agreed.ledger().awaits(&self.node) => {
                self.send_desired(Revision(0)).await?;
                Ok(None)
            }
            Up::Holds { incarnation, held, unreported } => {
                let action = Action::Adopt { node: self.node.clone(), incarnation, held, unreported };
                let results = propose(self.core, vec![action]).await.map_err(|e| Ended::Close(unserved(e).to_string()))?;
                let revision = match results.into_iter().next() {
                    Some(Ok((_, revision))) => revision,
                    Some(Err(refusal)) => return Err(Ended::Close(refusal.to_string())),
                    None => return Err(Ended::Close("the leader gave no answer".to_owned())),
                };
                if !self.core.applied(revision, CATCH_UP_TIMEOUT).await {
                    return Err(Ended::Close("this member lags too far behind the leader".to_owned()));
                }
                self.send_desired(revision).await?;
                Ok(None)
            }
            Up::Heartbeat { incarnation, seq, keys, health, conformance, stale, running } => {
                if incarnation == self.incarnation && seq <= self.beat {
                    let why = format!("heartbeat {seq} of {} behind its heartbeat {}", self.node, self.beat);
                    self.core.identity.credentials.refused().count(Cause::Replayed, &why);
                } else if incarnation == self.incarnation {
                    self.beat = seq;
                    let now = Instant::now();
                    let (keys, health) = (keys.map(HeldKeys::bounded), health.map(NodeHealth::bounded));
                    self.core.leading.heartbeats.record(self.node.clone(), Heartbeat { incarnation, at: now, keys, health });
                    if self.beats.len() == BEATS_MAX {
                        self.beats.pop_front();
                    }
                    // Later than the recording: a summary taken between `now` and the recording lacks it.
                    self.beats.push_back((seq, Instant::now()));
                    self.count_running(running);
                    self.conformance =
                        conformance.and_then(|components| checked(self.node.as_str(), components)).or(self.conformance.take());
                    self.commit_conformance().await?;
                    self.commit_stale(stale).await?;
                }
                Ok(None)
            }
            Up::Wiped { order, failed } => {
                let failed = failed.map(|why| cut(why, WIPE_WHY_BYTES_MAX));
                let action = Action::Wiped { node: self.node.clone(), order, failed };
                let result = propose(self.core, vec![action]).await.map_err(|e| Ended::Close(unserved(e).to_string()))?.pop();
                match result {
                    Some(Ok(_)) => {}
                    // The agent sends the list again in another session.
                    Some(Err(refusal)) => return Err(Ended::Close(refusal.to_string())),
                    None => return Err(Ended::Close("the leader gave no answer".to_owned())),
                }
                Ok(None)
            }
            Up::AliveInGossip { alive } => {
                self.core.leading.witnesses.record(&self.node, alive);
                Ok(None)
            }
            Up::Report(report) => {
                let mut reports = vec![report];
                let mut other = None;
                while reports.len() < REPORTS_MAX
                    && let Ok(message) = messages.try_recv()
                {
                    match message? {
                        Up::Report(report) => reports.push(report),
                        up @ (Up::Register { .. }
                        | Up::Holds { .. }
                        | Up::Heartbeat { .. }
                        | Up::AliveInGossip { .. }
                        | Up::Wiped { .. }) => {
                            other = Some(up);
                            break;
                        }
                    }
                }
                self.commit(reports).await?;
                Ok(other)
            }
        }
    }
}
