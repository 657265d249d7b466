//! The state that a member's tasks and services share, and their common operations: who is the
//! leader, whether there is disk space, proposing.

use crate::audit::signer::Signer;
use crate::audit::user_queries::UserQueries;
use crate::certificate_ends::CertificateEnds;
use crate::chain::ChainFetch;
use crate::config::{NodeAdmission, QuorumConfig};
use crate::gathered::Gathered;
use crate::heartbeats::Heartbeats;
use crate::lease_clocks::LeaseClocks;
use crate::levels::Levels;
use crate::network::Peers;
use crate::notify_state::Notify;
use crate::pace::Pace;
use crate::proposer::{Proposer, Unserved, reply};
use crate::reads::ReadGate;
use crate::refused_claims::RefusedClaims;
use crate::rotation::KeysHeld;
use crate::shortages::{Shortages, is_majority_without};
use crate::timekeeper::Timekeeper;
use crate::waiting_nodes::WaitingNodes;
use crate::witnesses::Witnesses;
use futures::future::BoxFuture;
use lattice_ledger::shortage::{RefusedCommands, Shortage};
use lattice_ledger::{Action, Outcome, Registration, Urgency};
use lattice_model::{MemberId, NodeId, Revision};
use lattice_pki::ca::Authority;
use lattice_pki::credentials::Credentials;
use lattice_quorum_client::wire::{Answer, MemberList, Refusal, Request};
use lattice_store::disk_reserve::DiskReserve;
use lattice_store::machine::Agreed;
use lattice_store::raft::{Peer, Raft};
use lattice_store::roster::Roster;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::metadata::{Ascii, MetadataValue};

/// A function that sends a request to the leader.
pub(crate) type AskLeader = fn(Arc<Core>, Request) -> BoxFuture<'static, Result<Answer, Refusal>>;

/// The leader's state that is not replicated: it is in memory, and lost with the leadership.
pub(crate) struct Leading {
    pub heartbeats: Heartbeats,
    /// Agents' reports about nodes whose heartbeats are missing.
    pub witnesses: Arc<Witnesses>,
    /// While this member is the leader: the silent nodes about which agents are asked.
    pub silent: watch::Sender<Vec<NodeId>>,
    /// While this member is the leader: the nodes that wait for admission.
    pub waiting_nodes: WaitingNodes,
    /// How many sessions may move to other members now.
    pub moving: Pace,
    /// While this member is the leader: when the other members' certificates expire.
    pub certificate_ends: CertificateEnds,
    /// While this member is the leader: why claims were refused.
    pub refused_claims: RefusedClaims,
    /// While this member is the leader: when each lease expires.
    pub lease_clocks: Mutex<Option<LeaseClocks>>,
    pub levels: Levels,
    /// While this member is the leader: the gossip keys that each agent has.
    pub keys_held: KeysHeld,
}

/// Counts for metrics.
pub(crate) struct Counts {
    /// While this member is the leader: the number of nodes that are not declared Down, because too
    /// many fell silent together.
    pub held_back: AtomicU64,
    /// Number of heartbeats at this member whose number of shares differed from the ledger's.
    pub miscounted: AtomicU64,
    /// Number of registrations at this member with more capacity than in the ledger.
    pub capacity_grown: AtomicU64,
}

/// The member's certificate and keys.
pub(crate) struct Identity {
    /// The member's certificate, and counts of refused peers.
    pub credentials: Credentials,
    /// The certificate authority, if this member has its key.
    pub authority: Option<Authority>,
    /// The signing key for the audit log.
    pub signer: Signer,
}

/// The space on the members' disks.
pub(crate) struct Disks {
    /// The free space on this member's disk, and the reserve there.
    pub reserve: DiskReserve,
    /// The shortages of all members' disks.
    pub shortages: Arc<Shortages>,
}

/// Whether there is a leader, and whether this member takes part.
pub(crate) struct Status {
    /// False while the leadership is being transferred: commands and queries wait.
    pub gate: watch::Sender<bool>,
    /// Held during a step of a membership change.
    pub changing: Arc<tokio::sync::Mutex<()>>,
    /// Whether this member was removed from the cluster.
    pub removed: watch::Sender<bool>,
    /// When the last message from the leader was accepted.
    pub contact: Mutex<Instant>,
    /// Whether this member had a leader within the last two seconds.
    pub led: watch::Receiver<bool>,
    /// While it had none: how many sessions are closed now.
    pub closing: Pace,
}

/// The state shared by a member's tasks and services.
pub(crate) struct Core {
    pub config: QuorumConfig,
    pub raft: Raft,
    pub agreed: Arc<Agreed>,
    pub proposer: Proposer,
    /// While another member is the leader: the commands of this member's sessions.
    pub gathered: Gathered,
    /// The time of commands, and the comparison of the members' clocks.
    pub timekeeper: Arc<Timekeeper>,
    pub reads: ReadGate,
    /// While this member is the leader: the users' queries of the audit log.
    pub user_queries: UserQueries,
    pub peers: Peers,
    pub chain: Arc<ChainFetch>,
    /// While this member is the leader: why notifications fail.
    pub notify: Notify,
    pub stop: CancellationToken,
    /// Tasks of single calls: sessions, watches, steps of a membership change, proposed entries. They
    /// end by themselves after `stop` is cancelled and Raft is shut down.
    pub tasks: TaskTracker,
    pub leading: Leading,
    pub counts: Counts,
    pub identity: Identity,
    pub disk: Disks,
    pub status: Status,
}

impl Core {
    /// Whether this member is the leader, as far as it knows.
    pub fn leads(&self) -> bool {
        self.leader() == Some(self.config.id)
    }

    /// The leader, as far as this member knows.
    pub fn leader(&self) -> Option<u64> {
        self.raft.metrics().borrow().current_leader
    }

    /// The latest membership in this member's log, committed or not.
    pub fn roster(&self) -> Roster {
        Roster::of(&self.raft.metrics().borrow().membership_config)
    }

    /// The committed member list, for agents.
    pub fn member_list(&self) -> MemberList {
        let roster = self.agreed.roster();
        MemberList { generation: self.agreed.ledger().generation(), since: roster.index(), services: roster.services() }
    }

    /// Records that a message from the leader was accepted.
    pub fn record_leader_contact(&self) {
        *self.status.contact.lock() = Instant::now();
    }

    /// Whether there is a leader now: this member, if a majority answers it, or another one whose
    /// messages arrive.
    pub fn has_leader(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        metrics.current_leader.is_some() && self.silence_by(&metrics) < Duration::from_millis(self.config.election_ms)
    }

    /// How long this member has had no contact: as the leader with a majority, else with a leader.
    pub fn silence(&self) -> Duration {
        self.silence_by(&self.raft.metrics().borrow())
    }

    fn silence_by(&self, metrics: &openraft::RaftMetrics<u64, Peer>) -> Duration {
        if metrics.current_leader == Some(self.config.id) {
            metrics.millis_since_quorum_ack.map_or(Duration::ZERO, Duration::from_millis)
        } else {
            self.status.contact.lock().elapsed()
        }
    }

    /// A member's service address as a header value.
    pub fn service_of(&self, id: u64) -> Option<MetadataValue<Ascii>> {
        self.roster().members.get(&id)?.service.parse().ok()
    }

    /// The shortages of the members' disks, as far as this member knows.
    pub fn shortages(&self) -> BTreeMap<u64, Shortage> {
        let mut all = self.disk.shortages.all();
        all.remove(&self.config.id);
        all.extend(self.disk.reserve.check_shortage().map(|shortage| (self.config.id, shortage)));
        all
    }

    /// Why a leader does not propose a command of this urgency now: its own disk is full, or the disks
    /// of so many others that the remaining members are no majority.
    pub fn disk_full_refusal(&self, urgency: Urgency) -> Option<Refusal> {
        let mut short = self.shortages();
        short.retain(|_, shortage| match urgency {
            Urgency::New => true,
            Urgency::Keeps => shortage.refuses == RefusedCommands::All,
            Urgency::Mends => false,
        });
        let here = short.contains_key(&self.config.id);
        if short.is_empty() || !here && is_majority_without(&self.roster(), &short.keys().copied().collect()) {
            return None;
        }
        Some(Refusal::DiskFull { short: short.into_iter().map(|(id, shortage)| (MemberId(id), shortage)).collect() })
    }

    /// Proposes commands on this member, in this order, and waits for their results. Only the leader
    /// can do that. If one command lacks disk space or needs a higher cluster level, none is proposed:
    /// members of an older version could not read such an entry. A registration that is not admitted
    /// is refused alone.
    pub async fn propose_here(&self, mut actions: Vec<Action>) -> Result<Vec<Result<(Outcome, Revision), Refusal>>, Unserved> {
        if !*self.status.led.borrow() {
            // It may have lost its majority, and another member may be the leader: callers must not
            // wait here.
            return Err(Unserved::NotLeader(None));
        }
        let needed = actions.iter().map(Action::level).max().unwrap_or_default();
        if self.agreed.ledger().level() < needed {
            // A new leader may not have applied the raised level yet.
            self.reads.pass().await?;
            if let Err(refusal) = self.agreed.ledger().admits(needed) {
                return Ok(vec![Err(refusal); actions.len()]);
            }
        }
        if self.leads()
            && let Some(refusal) = actions.iter().map(Action::urgency).min().and_then(|least| self.disk_full_refusal(least))
        {
            return Ok(vec![Err(refusal); actions.len()]);
        }
        // A submission above its owner's rate limit must not be written to the log.
        if self.leads()
            && let [action] = &actions[..]
            && let Action::Submit { id, owner, .. } = action.submission()
        {
            // `time` locks the ledger too, so it is called before that lock is taken.
            let now = self.timekeeper.time();
            let ledger = self.agreed.ledger();
            if let Some(wait_ms) = ledger.submission_wait_ms(*id, owner, now) {
                return Ok(vec![Err(ledger.too_soon(owner, wait_ms))]);
            }
        }
        if self.leads()
            && let [action] = &actions[..]
            && let Action::SubmitDag { id, owner, .. } = action.submission()
        {
            let now = self.timekeeper.time();
            let ledger = self.agreed.ledger();
            if let Some(wait_ms) = ledger.dag_wait_ms(*id, owner, now) {
                return Ok(vec![Err(ledger.too_soon(owner, wait_ms))]);
            }
        }
        let refused = self.refused_registrations(&mut actions).await?;
        let propose = |(action, refused): (Action, Option<Refusal>)| match refused {
            Some(refusal) => Err(refusal),
            None => Ok((RefusedClaims::claimed(&action), self.proposer.propose(action))),
        };
        let proposed: Vec<_> = actions.into_iter().zip(refused).map(propose).collect();
        let mut results = Vec::with_capacity(proposed.len());
        let mut led = self.status.led.clone();
        for proposed in proposed {
            let (claimed, receiver) = match proposed {
                Ok(proposed) => proposed,
                Err(refusal) => {
                    results.push(Err(refusal));
                    continue;
                }
            };
            let (result, revision) = tokio::select! {
                replied = reply(receiver) => replied?,
                Ok(_) = led.wait_for(|led| !led) => {
                    return Err(Unserved::Unavailable("this member has lost its majority; the command may have been committed".to_owned()));
                }
            };
            if let Some(allocation) = claimed {
                self.leading.refused_claims.record(allocation, &result, self.timekeeper.time());
            }
            results.push(result.map(|outcome| (outcome, revision)));
        }
        Ok(results)
    }

    /// For each of these commands: the refusal if it registers a node that may not register. Nothing
    /// has been written to the log yet.
    async fn refused_registrations(&self, actions: &mut [Action]) -> Result<Vec<Option<Refusal>>, Unserved> {
        let mut is_current = false;
        let mut refused = Vec::with_capacity(actions.len());
        for action in actions {
            let Action::Register(registration) = action else {
                refused.push(None);
                continue;
            };
            // Overwrites any value from the member that forwarded it.
            registration.automatic = self.config.node_admission == NodeAdmission::Automatic;
            let from = registration.from.take();
            refused.push(self.check_admission(registration, from, &mut is_current).await?.err());
        }
        Ok(refused)
    }

    /// Refuses a node without admission, or a removed one, and records that it waits. `is_current`: whether
    /// the ledger has everything committed before these commands arrived; this function sets it.
    async fn check_admission(
        &self,
        registration: &Registration,
        from: Option<String>,
        is_current: &mut bool,
    ) -> Result<Result<(), Refusal>, Unserved> {
        let may_register = || self.agreed.ledger().may_register(registration);
        if !self.leads() || may_register().is_ok() {
            return Ok(Ok(()));
        }
        // A new leader may not have applied the admission yet.
        if !*is_current {
            self.reads.pass().await?;
            *is_current = true;
        }
        let checked = may_register();
        if checked.is_err() {
            self.leading.waiting_nodes.record_attempt(registration, from, self.timekeeper.time());
        }
        Ok(checked)
    }

    /// Waits until this member has applied that revision, at most for `limit`. Returns whether it has.
    pub async fn applied(&self, revision: Revision, limit: Duration) -> bool {
        self.raft.wait(Some(limit)).applied_index_at_least(Some(revision.0), "a forwarded command").await.is_ok()
    }
}
