//! The agent's session with the quorum: registration, heartbeats and reports up, the list of what to do down.
//!
//! Any member will do. When the session breaks the next member is tried, and the node goes on with what it has.

use crate::context::Shared;
use crate::driver::NodeView;
use crate::gossip_keys::GossipKeys;
use crate::membership::Membership;
use crate::quorum_list::QuorumList;
use lattice_model::{AllocationId, Boot, Epoch, Generation, Incarnation, NodeAddresses, NodeReport, ReportItem, Resources, SharePhase};
use lattice_node::{Event, Phase};
use lattice_quorum::client::QuorumClient;
use lattice_quorum::wire::{Down, HeldKeys, HeldShare, Up};
use lattice_runtime::failpoint::{self, Point};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// How long the report that a lone node is prepared waits for company: nobody else waits for it, and short work ends
/// before it was sent, which saves a commit.
const LINGER: Duration = Duration::from_millis(5);
/// Pause between two tries, doubling up to the second.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A heartbeat that is not acknowledged for so long: the member hangs, or does not reach the leader.
const BEAT_TIMEOUT: Duration = Duration::from_secs(5);

/// How the session stands.
#[derive(Clone, Debug)]
pub enum SessionState {
    /// Registered through this member.
    Connected { member: String },
    /// None since then, for this reason.
    Lost { since: Instant, why: String },
}

/// What the node registers with.
pub struct Registration {
    pub boot: Boot,
    pub size: Resources,
    pub addresses: NodeAddresses,
    pub schedulable: bool,
    /// What cannot be limited here.
    pub unlimited: Vec<String>,
    /// What work may ask for of this node.
    pub features: Vec<String>,
    /// The incarnation of the life before this one; 0 for the first.
    pub previous: Incarnation,
    /// What is left of the node's work, where its memory of it is lost.
    pub found: Option<Vec<(AllocationId, Epoch)>>,
}

/// Runs the session until `stop`.
pub async fn run(
    context: Shared,
    quorum: QuorumClient,
    registration: Registration,
    (keys, membership): (GossipKeys, Membership),
    (reports, view): (watch::Receiver<Arc<Vec<NodeReport>>>, watch::Receiver<Arc<NodeView>>),
    state: watch::Sender<SessionState>,
    stop: CancellationToken,
) {
    let members = QuorumList::open(quorum.clone(), &context.state_dir);
    let mut session = Session { context, quorum, members, registration, keys, membership, reports, view, state, registered: None };
    let mut pause = PAUSE;
    while !stop.is_cancelled() {
        let began = Instant::now();
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            ended = session.once() => ended,
        };
        match ended {
            Ended::Moved => continue,
            Ended::Lost(why) => session.lost(why),
        }
        pause = if began.elapsed() > Duration::from_secs(5) { PAUSE } else { (pause * 2).min(PAUSE_MAX) };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))) => {}
        }
    }
}

/// How a session ended.
enum Ended {
    /// Its member leads now: another one takes it.
    Moved,
    /// For this reason.
    Lost(String),
}

struct Session {
    context: Shared,
    quorum: QuorumClient,
    members: QuorumList,
    registration: Registration,
    /// What gossip is sealed with.
    keys: GossipKeys,
    membership: Membership,
    reports: watch::Receiver<Arc<Vec<NodeReport>>>,
    /// What is on the node.
    view: watch::Receiver<Arc<NodeView>>,
    state: watch::Sender<SessionState>,
    /// The incarnation that this life was given.
    registered: Option<Incarnation>,
}

impl Session {
    fn lost(&self, why: String) {
        self.state.send_if_modified(|state| match state {
            SessionState::Lost { why: old, .. } => {
                *old = why;
                false
            }
            SessionState::Connected { .. } => {
                tracing::warn!(%why, "the session with the quorum is lost; work goes on, another member is tried");
                *state = SessionState::Lost { since: Instant::now(), why };
                true
            }
        });
    }

    /// One session, from registration to its end.
    async fn once(&mut self) -> Ended {
        let register = Up::Register {
            node: self.context.me.clone(),
            boot: self.registration.boot,
            size: self.registration.size,
            addresses: self.registration.addresses.clone(),
            schedulable: self.registration.schedulable,
            unlimited: self.registration.unlimited.clone(),
            features: self.registration.features.clone(),
            incarnation: self.registered.unwrap_or(self.registration.previous),
            new_life: self.registered.is_none(),
            found: self.registration.found.clone().filter(|_| self.registered.is_none()),
            keys: Some(self.keys.held()),
        };
        let (up, mut down) = match self.quorum.session(register).await {
            Ok(session) => session,
            Err(error) => return Ended::Lost(error.to_string()),
        };
        let mut incarnation = None;
        let mut heartbeat = tokio::time::interval(Duration::from_secs(10));
        let mut beats = Beats { seq: 0, unanswered: None };
        let mut sent = 0;
        // Until when reports that may wait do wait.
        let mut linger: Option<Instant> = None;
        loop {
            tokio::select! {
                message = down.next() => match message {
                    Err(error) => return Ended::Lost(error.to_string()),
                    Ok(Down::Close { why }) => {
                        self.quorum.leave(down.member());
                        return Ended::Lost(why);
                    }
                    Ok(Down::Move) => {
                        self.quorum.leave(down.member());
                        return Ended::Moved;
                    }
                    Ok(Down::HeartbeatAck { .. }) => beats.unanswered = None,
                    Ok(Down::Members(list)) => self.members.learn(&list),
                    Ok(Down::Keyring { generation, ring }) => {
                        self.keys.take(generation, &ring, &self.membership).await;
                        // Not with the next heartbeat: a rotation waits for the last node to say this.
                        if let Some(incarnation) = incarnation
                            && !beats.send(&up, incarnation, self.keys.held()).await
                        {
                            return Ended::Lost("the session's line broke".to_owned());
                        }
                    }
                    Ok(Down::Registered { incarnation: issued, heartbeat_ms, report_seq, generation, members, .. }) => {
                        self.members.learn(&members);
                        incarnation = Some(issued);
                        self.registered = Some(issued);
                        // Before any report: it may be of what the quorum does not know yet.
                        if let Some(holds) = self.unknown_to(generation, issued)
                            && up.send(holds).await.is_err()
                        {
                            return Ended::Lost("the session's line broke".to_owned());
                        }
                        heartbeat = tokio::time::interval(Duration::from_millis(heartbeat_ms.clamp(50, 60_000)));
                        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
                        sent = report_seq;
                        self.context.tell(Event::Registered { incarnation: issued, report_seq }).await;
                        self.reports.mark_changed();
                        let member = down.member().to_owned();
                        tracing::info!(%member, incarnation = issued.0, "registered");
                        self.state.send_replace(SessionState::Connected { member });
                    }
                    Ok(Down::Desired(list)) => self.context.tell(Event::Listed(list)).await,
                    Ok(Down::Acked { incarnation, seq, superseded }) => {
                        self.context.tell(Event::Acknowledged { incarnation, seq }).await;
                        for (allocation, epoch) in superseded {
                            tracing::info!(%allocation, %epoch, "what was reported of this claim is refused: another one followed it");
                            self.context.tell(Event::Superseded { allocation, epoch }).await;
                        }
                    }
                },
                _ = heartbeat.tick() => {
                    self.keys.keep();
                    if let Some(incarnation) = incarnation
                        && !beats.send(&up, incarnation, self.keys.held()).await
                    {
                        return Ended::Lost("the session's line broke".to_owned());
                    }
                }
                changed = self.reports.changed() => {
                    if changed.is_err() {
                        return Ended::Lost("the agent stops".to_owned());
                    }
                    let pending = Arc::clone(&self.reports.borrow_and_update());
                    let unsent = || pending.iter().filter(|r| Some(r.incarnation) == incarnation && r.seq > sent);
                    if unsent().next().is_none() {
                        // A time that has passed and that nothing waits for would wake this loop for ever.
                        linger = None;
                        continue;
                    }
                    if unsent().all(|r| self.may_linger(&r.item)) && Instant::now() < *linger.get_or_insert_with(|| Instant::now() + LINGER) {
                        continue;
                    }
                    linger = None;
                    for report in unsent() {
                        let [unsent, on_its_way] = points_of(&report.item);
                        failpoint::pass(unsent);
                        if up.send(Up::Report(report.clone())).await.is_err() {
                            return Ended::Lost("the session's line broke".to_owned());
                        }
                        failpoint::pass(on_its_way);
                    }
                    sent = unsent().next_back().map_or(sent, |r| r.seq);
                }
                () = passed(linger) => self.reports.mark_changed(),
                () = passed(beats.unanswered.map(|since| since + BEAT_TIMEOUT)) => {
                    self.quorum.leave(down.member());
                    return Ended::Lost(format!("{} does not acknowledge heartbeats", down.member()));
                }
            }
        }
    }

    /// All that is on the node, for a quorum of a later generation than the one that the node's last list is of: it was
    /// recovered from a backup since.
    fn unknown_to(&self, generation: Generation, incarnation: Incarnation) -> Option<Up> {
        let view = Arc::clone(&self.view.borrow());
        if generation <= view.generation.max(Generation(1)) {
            return None;
        }
        tracing::warn!(generation = generation.0, shares = view.locals.len(), "the quorum was recovered: it is told what is on this node");
        let held = view.locals.iter().map(|local| HeldShare {
            share: local.share.clone(),
            phase: match local.phase {
                Phase::Preparing => Some(SharePhase::Claimed),
                Phase::Prepared | Phase::Running => Some(SharePhase::Prepared),
                Phase::Stopping | Phase::Undoing => None,
            },
        });
        let unreported = self.reports.borrow().iter().map(|r| r.item.clone()).collect();
        Some(Up::Holds { incarnation, held: held.collect(), unreported })
    }

    fn may_linger(&self, item: &ReportItem) -> bool {
        let (allocation, epoch) = item.subject();
        let alone = || self.context.workers.of_epoch(allocation, epoch).is_some_and(|w| w.share.nodes.len() == 1);
        matches!(item, ReportItem::Prepared { .. }) && alone()
    }
}

/// The heartbeats of one session.
struct Beats {
    seq: u64,
    /// Since when the oldest one without an acknowledgement is under way.
    unanswered: Option<Instant>,
}

impl Beats {
    /// Sends one. False: the line broke.
    async fn send(&mut self, up: &mpsc::Sender<Up>, incarnation: Incarnation, keys: HeldKeys) -> bool {
        self.seq += 1;
        self.unanswered.get_or_insert_with(Instant::now);
        up.send(Up::Heartbeat { incarnation, seq: self.seq, keys: Some(keys) }).await.is_ok()
    }
}

async fn passed(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}

/// Where a test may kill the agent: before a report is sent, and before its acknowledgement can come.
fn points_of(item: &ReportItem) -> [Point; 2] {
    match item {
        ReportItem::Prepared { .. } | ReportItem::PrepareFailed { .. } => [Point::PreparedReportUnsent, Point::PreparedReportSent],
        ReportItem::Ended { .. } => [Point::EndedReportUnsent, Point::EndedReportSent],
        ReportItem::Released { .. } => [Point::ReleasedReportUnsent, Point::ReleasedReportSent],
    }
}
