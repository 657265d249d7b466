//! The agent's session with the quorum: registration, heartbeats and reports up, the desired list
//! down.
//!
//! Any member serves. When the session breaks, the agent tries the next member, and the node goes
//! on with the work that it has. While no member can be reached, a peer carries the session
//! ([`lattice_membership::relay`]).

use lattice_agent_common::node_view::NodeView;
use lattice_agent_common::session_state::{SessionState, describe};
use lattice_machine::conformance::ConformanceReport;
use lattice_machine::gpu_statuses::Offer;
use lattice_machine::wipe::Wipes;
use lattice_membership::gossip_keys::GossipKeys;
use lattice_membership::quorum_list::QuorumList;
use lattice_membership::relay::{Relay, RelayError, Through};
use lattice_membership::revocations::Revocations;
use lattice_membership::{Ask, Membership};
use lattice_meshd::context::Shared;
use lattice_model::run_lease::{Heartbeats, Lapsed};
use lattice_model::{
    AllocationId, Backoff, Boot, EndReason, Epoch, Generation, Incarnation, NodeAddresses, NodeId, NodeReport, ReportItem, SharePhase,
};
use lattice_node::{Event, Phase};
use lattice_quorum_client::wire::{Down, HeldKeys, HeldShare, NodeHealth, Refusal, Up};
use lattice_quorum_client::{CallError, DownStream, QuorumClient};
use lattice_runtime::failpoint::{self, Point};
use lattice_runtime::shim::boottime_ms;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

/// How long two reports of an allocation on a single node are held back: that it is prepared, and
/// that its command ended by itself. Very short work has also been released by then, and sending
/// all its reports together saves two commits. Nothing waits for the first report, and the user who
/// launched the work already has the second.
const REPORT_HOLD_MAX: Duration = Duration::from_millis(5);
/// The first pause before another session is tried; it doubles up to `PAUSE_MAX`.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How often the agent of a removed node asks whether the node was admitted again, on average.
const REMOVED_PAUSE: Duration = Duration::from_secs(4);

/// How long registration waits for the first health checks and the first reading of the node's
/// software. After that the node registers as unwell until the checks are done, and in no
/// conformance group until its software is known.
const FIRST_CHECKS_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a heartbeat may stay unacknowledged: after that the member counts as hung, or as cut off
/// from the leader.
const BEAT_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a node whose session is relayed tries to reach a member directly, and the timeout for
/// each member.
const DIRECT_CHECK_INTERVAL: Duration = Duration::from_secs(10);
const DIRECT_CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// How many nodes are looked up for one question of the member.
const NODES_LOOKED_UP_MAX: usize = 256;

/// Why a node whose run leases lapsed gets no work.
const LAPSED: &str = "run leases: they lapsed, and no heartbeat of this node was acknowledged since";

/// What the node reports when it registers.
pub struct Registration {
    pub boot: Boot,
    /// What the node offers to work: it registers anew when this changes.
    pub offer: watch::Receiver<Offer>,
    pub addresses: NodeAddresses,
    pub schedulable: bool,
    /// The part of the network that the node is in, if the site configures it.
    pub topology_group: Option<String>,
    /// The resources that cannot be limited on this node.
    pub unenforced_limits: Vec<String>,
    /// The incarnation of the agent's previous run; 0 for the first.
    pub previous: Incarnation,
    /// What is left of the node's work, if its stored state is lost.
    pub found: Option<Vec<(AllocationId, Epoch)>>,
    /// Whether the site's hook for wiping the node is configured.
    pub has_wipe_hook: bool,
}

/// Why there is no session with the quorum.
#[derive(Debug, Error)]
enum NoSession {
    #[error(transparent)]
    Member(#[from] CallError),
    #[error("{member}; through peers: {peers}")]
    Nowhere {
        #[source]
        member: CallError,
        peers: RelayError,
    },
}

/// Runs the session until `stop`.
pub async fn run(
    context: Shared,
    quorum: QuorumClient,
    registration: Registration,
    (keys, revocations, membership, wipes): (GossipKeys, Revocations, Membership, Wipes),
    (reports, view): (watch::Receiver<Arc<Vec<NodeReport>>>, watch::Receiver<Arc<NodeView>>),
    (state, acknowledged, received_health): (watch::Sender<SessionState>, watch::Sender<Option<u64>>, watch::Sender<NodeHealth>),
    stop: CancellationToken,
) {
    let members = QuorumList::open(quorum.clone(), &context.setup.state_dir);
    let relay = Relay::new(context.setup.me.clone(), membership.clone(), context.work.mesh.clone());
    // 0: the agent never had an incarnation, or lost it.
    let replaces = Some(registration.previous).filter(|previous| *previous > Incarnation(0));
    let mut session = Session {
        context,
        quorum,
        members,
        registration,
        keys,
        revocations,
        relay,
        membership,
        wipes,
        reports,
        view,
        state,
        beats: Heartbeats::default(),
        shortest_lease_ms: None,
        acknowledged,
        received_health,
        registered: None,
        replaces,
        is_removed: false,
    };
    // A node that registers before its first checks is unwell and in no conformance group.
    let context = session.context.clone();
    let looked = async { tokio::join!(context.machine.checks.wait_for_first_look(), context.machine.conformance.wait_for_first_look()) };
    let checked = tokio::time::timeout(FIRST_CHECKS_TIMEOUT, looked);
    let _ = stop.run_until_cancelled(checked).await;
    let mut pauses = Backoff::new(PAUSE, PAUSE_MAX);
    while !stop.is_cancelled() {
        let began = Instant::now();
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            ended = session.once() => ended,
        };
        match ended {
            Ended::Moved | Ended::Resized | Ended::Outdated => continue,
            Ended::Lost(why) => session.lost(why),
            Ended::Refused(why) => session.refused(why),
            Ended::Removed(why) => session.removed(why).await,
        }
        if began.elapsed() > Duration::from_secs(5) {
            pauses.reset();
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(session.pause(&mut pauses)) => {}
        }
    }
}

/// Why a session ended.
enum Ended {
    /// Its member has become the leader and sends it to another member, or it was relayed and a
    /// member can be reached directly again.
    Moved,
    /// The node's offer has changed.
    Resized,
    /// The quorum has another incarnation of the node than the registration replaces.
    Outdated,
    /// The session was lost, for this reason.
    Lost(String),
    /// A member closed the session before it registered the node, for this reason.
    Refused(String),
    /// The node was removed from the cluster, for this reason.
    Removed(String),
}

/// An open session.
struct Line {
    /// The peer that relays it, if any.
    relay_node: Option<NodeId>,
    up: mpsc::Sender<Up>,
    /// The member at the other end.
    member: String,
    /// The incarnation that the session gave the node; `None` until the node is registered.
    incarnation: Option<Incarnation>,
    heartbeat: Interval,
    beats: Beats,
    /// The number of the last report that was sent.
    sent: u64,
    /// When held-back reports are sent; `None`: no report is held back.
    linger: Option<Instant>,
}

impl Line {
    fn new(relay_node: Option<NodeId>, up: mpsc::Sender<Up>, member: String) -> Self {
        let beats = Beats { seq: 0, unanswered: None, health: None, conformance: ConformanceReport::default() };
        let heartbeat = tokio::time::interval(Duration::from_secs(10));
        Self { relay_node, up, member, incarnation: None, heartbeat, beats, sent: 0, linger: None }
    }

    async fn send(&self, message: Up) -> Result<(), Ended> {
        self.up.send(message).await.map_err(|_| Ended::Lost("the session's connection broke".to_owned()))
    }
}

struct Session {
    context: Shared,
    quorum: QuorumClient,
    members: QuorumList,
    registration: Registration,
    /// The keys that seal gossip.
    keys: GossipKeys,
    revocations: Revocations,
    membership: Membership,
    relay: Relay,
    /// Which orders to wipe the node were carried out.
    wipes: Wipes,
    reports: watch::Receiver<Arc<Vec<NodeReport>>>,
    /// The allocations on the node.
    view: watch::Receiver<Arc<NodeView>>,
    state: watch::Sender<SessionState>,
    /// Which of this run's heartbeats the leader has acknowledged.
    beats: Heartbeats,
    /// The shortest run lease of the quorum's last list, in milliseconds.
    shortest_lease_ms: Option<u64>,
    /// Publishes when the newest acknowledged heartbeat was sent.
    acknowledged: watch::Sender<Option<u64>>,
    /// Publishes the node's health as the quorum last received it.
    received_health: watch::Sender<NodeHealth>,
    /// The incarnation that the leader gave to this run.
    registered: Option<Incarnation>,
    /// The incarnation that the quorum has of the node, as far as this agent knows.
    replaces: Option<Incarnation>,
    /// Whether the node was removed from the cluster and has not registered since.
    is_removed: bool,
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

    /// The member closed the session before it registered the node. This is logged here, because
    /// `lost` logs nothing for an agent that never had a session.
    fn refused(&self, why: String) {
        let is_new = match &*self.state.borrow() {
            SessionState::Lost { why: known, .. } => *known != why,
            SessionState::Connected { .. } => true,
        };
        if is_new {
            tracing::warn!(%why, "the quorum does not register this node; it tries again");
        }
        self.lost(why);
    }

    /// The node was removed from the cluster: it leaves gossip until it registers again.
    async fn removed(&mut self, why: String) {
        if !self.is_removed {
            self.is_removed = true;
            tracing::error!(%why, "this node was removed from the cluster: it leaves gossip, and registers when it is admitted again");
            self.membership.ask(Ask::Leave).await;
        }
        self.state.send_modify(|state| match state {
            SessionState::Lost { why: known, .. } => *known = why,
            SessionState::Connected { .. } => *state = SessionState::Lost { since: Instant::now(), why },
        });
    }

    /// How long to wait before the next session.
    fn pause(&self, pauses: &mut Backoff) -> Duration {
        let spread = rand::random_range(0.5..1.0);
        if self.is_removed { REMOVED_PAUSE.mul_f64(0.5 + spread) } else { pauses.next_pause().mul_f64(spread) }
    }

    /// One session, from registration to its end.
    async fn once(&mut self) -> Ended {
        let Err(ended) = self.follow().await;
        ended
    }

    async fn follow(&mut self) -> Result<Infallible, Ended> {
        let offer = self.registration.offer.borrow_and_update().clone();
        self.begin_beats();
        let register = self.register(&offer);
        let (relay_node, up, mut down) = self.open(register).await.map_err(|error| match &error {
            NoSession::Member(CallError::Refused(refusal)) | NoSession::Nowhere { member: CallError::Refused(refusal), .. }
                if !matches!(refusal, Refusal::Unavailable { .. }) =>
            {
                Ended::Refused(refusal.to_string())
            }
            NoSession::Member(_) | NoSession::Nowhere { .. } => Ended::Lost(error.to_string()),
        })?;
        // A relayed session ends when a member can be reached directly: a peer relays only a limited
        // number of sessions.
        let direct = relay_node.is_some().then(|| served_directly(self.quorum.clone()));
        let direct = async {
            match direct {
                Some(served) => served.await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(direct);
        let mut checks = self.context.machine.checks.watch();
        let mut conformance = self.context.machine.conformance.watch();
        let mut wiped = self.wipes.watch();
        let mut line = Line::new(relay_node, up, down.member().to_owned());
        // Opening may have taken long, so leases may have lapsed meanwhile.
        self.begin_beats();
        loop {
            tokio::select! {
                message = down.next() => {
                    let message = message.map_err(|error| Ended::Lost(error.to_string()))?;
                    let is_list = matches!(message, Down::Desired(_));
                    self.handle(message, &mut line).await?;
                    if is_list {
                        // The list may repeat an order to wipe that was carried out before this
                        // session: the result is reported again.
                        wiped.mark_changed();
                    }
                }
                Ok(()) = self.registration.offer.changed() => {
                    if *self.registration.offer.borrow_and_update() != offer {
                        return Err(Ended::Resized);
                    }
                }
                _ = line.heartbeat.tick() => {
                    self.keys.store();
                    self.revocations.store();
                    self.beat(&mut line).await?;
                }
                Ok(()) = checks.changed() => {
                    checks.mark_unchanged();
                    // At once, because work may be placed before the next heartbeat.
                    if line.beats.health.as_ref() != Some(&self.health()) {
                        self.beat(&mut line).await?;
                    }
                }
                Ok(()) = conformance.changed() => {
                    conformance.mark_unchanged();
                    // At once, because work that requires conformance may be placed before the next
                    // heartbeat.
                    if line.beats.conformance != self.context.machine.conformance.report() {
                        self.beat(&mut line).await?;
                    }
                }
                Ok(()) = wiped.changed() => {
                    let done = wiped.borrow_and_update().clone();
                    if let Some(done) = done.filter(|_| line.incarnation.is_some()) {
                        line.send(Up::Wiped { order: done.order, failed: done.failed }).await?;
                    }
                }
                changed = self.reports.changed() => {
                    changed.map_err(|_| Ended::Lost("the agent stops".to_owned()))?;
                    self.report(&mut line).await?;
                }
                () = passed(line.linger) => self.reports.mark_changed(),
                () = &mut direct => return Err(Ended::Moved),
                () = passed(line.beats.unanswered.map(|since| since + BEAT_TIMEOUT)) => {
                    self.quorum.leave(&line.member);
                    return Err(Ended::Lost(format!("{} does not acknowledge heartbeats", line.member)));
                }
            }
        }
    }

    /// The registration as of now.
    fn register(&self, offer: &Offer) -> Up {
        Up::Register {
            node: self.context.setup.me.clone(),
            boot: self.registration.boot,
            size: offer.size,
            addresses: self.registration.addresses.clone(),
            schedulable: self.registration.schedulable,
            unenforced_limits: self.registration.unenforced_limits.clone(),
            features: offer.features.clone(),
            topology_group: self.registration.topology_group.clone(),
            locality: offer.locality.clone(),
            incarnation: self.registered.unwrap_or(self.registration.previous),
            new_life: self.registered.is_none(),
            replaces: self.replaces,
            found: self.registration.found.clone().filter(|_| self.registered.is_none()),
            keys: self.keys.held(),
            relay_node: None,
            has_wipe_hook: self.registration.has_wipe_hook,
            health: self.health(),
            conformance: self.context.machine.conformance.report().components,
        }
    }

    /// Handles a message from the member.
    async fn handle(&mut self, message: Down, line: &mut Line) -> Result<(), Ended> {
        match message {
            Down::Close { why } => {
                self.quorum.leave(&line.member);
                return Err(if line.incarnation.is_none() { Ended::Refused(why) } else { Ended::Lost(why) });
            }
            Down::Removed { why } => return Err(Ended::Removed(why)),
            Down::RegisterAgain { incarnation } => {
                tracing::info!(incarnation = incarnation.0, "the quorum has another incarnation of this node: it registers in its place");
                self.replaces = Some(incarnation);
                return Err(Ended::Outdated);
            }
            Down::Move => {
                self.quorum.leave(&line.member);
                return Err(Ended::Moved);
            }
            Down::HeartbeatAck { seq } => self.heartbeat_is_acknowledged(seq, line).await?,
            Down::QueryGossip { nodes } => line.send(Up::AliveInGossip { alive: self.alive_among(&nodes) }).await?,
            Down::Members(list) => self.members.learn(&list),
            Down::Revoked { names } => self.revocations.learn(names),
            Down::Keyring { generation, ring } => {
                self.keys.accept_ring(generation, &ring, &self.membership).await;
                // At once, because a rotation waits until the last node has reported the new keys.
                self.beat(line).await?;
            }
            Down::Registered { incarnation, heartbeat_ms, report_seq, generation, members, .. } => {
                self.members.learn(&members);
                line.incarnation = Some(incarnation);
                (self.registered, self.replaces) = (Some(incarnation), Some(incarnation));
                if std::mem::take(&mut self.is_removed) {
                    self.membership.ask(Ask::Return).await;
                }
                // Before any report, which may be about work that the quorum does not know yet.
                if let Some(holds) = self.holds_after_recovery(generation, incarnation) {
                    line.send(holds).await?;
                }
                line.heartbeat = tokio::time::interval(Duration::from_millis(heartbeat_ms.clamp(50, 60_000)));
                line.heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
                line.sent = report_seq;
                self.context.work.driver.send(Event::Registered { incarnation, report_seq }).await;
                self.reports.mark_changed();
                let (member, relay_node) = (line.member.clone(), line.relay_node.clone());
                let session = describe(&member, relay_node.as_ref());
                tracing::info!(session, incarnation = incarnation.0, "registered");
                self.state.send_replace(SessionState::Connected { member, relay_node });
            }
            Down::Desired(list) => {
                self.shortest_lease_ms = list.shares.iter().filter_map(|share| share.run_lease_ms).min();
                self.wipes.ask(list.wipe);
                self.context.work.driver.send(Event::Listed(list)).await;
            }
            Down::Acked { incarnation, seq, superseded } => {
                self.context.work.driver.send(Event::Acknowledged { incarnation, seq }).await;
                for (allocation, epoch) in superseded {
                    tracing::info!(%allocation, %epoch, "the reports about this claim are refused: a later claim replaced it");
                    self.context.work.driver.send(Event::Superseded { allocation, epoch }).await;
                }
            }
        }
        Ok(())
    }

    async fn heartbeat_is_acknowledged(&mut self, seq: u64, line: &mut Line) -> Result<(), Ended> {
        line.beats.unanswered = None;
        if let Some(health) = line.beats.health.as_ref().filter(|_| seq == line.beats.seq) {
            self.received_health.send_if_modified(|received| {
                *received != *health && {
                    received.clone_from(health);
                    true
                }
            });
        }
        let waited = self.beats.is_lapsed();
        if let Err(Lapsed) = self.acknowledged(seq) {
            return Err(Ended::Lost("run leases lapsed while the leader did not answer: the node registers anew".to_owned()));
        }
        // At once, because the node gets no work before the leader has this heartbeat.
        if waited && !self.beats.is_lapsed() { self.beat(line).await } else { Ok(()) }
    }

    /// Sends a heartbeat, once the session has registered the node.
    async fn beat(&mut self, line: &mut Line) -> Result<(), Ended> {
        let Some(incarnation) = line.incarnation else { return Ok(()) };
        let message = line.beats.next(incarnation, self.heartbeat_contents(), &mut self.beats);
        line.send(message).await
    }

    /// Sends the reports that this session has not sent yet, unless all of them may be held back.
    async fn report(&mut self, line: &mut Line) -> Result<(), Ended> {
        let pending = Arc::clone(&self.reports.borrow_and_update());
        let (incarnation, sent) = (line.incarnation, line.sent);
        let unsent = || pending.iter().filter(|r| Some(r.incarnation) == incarnation && r.seq > sent);
        if unsent().next().is_none() {
            // A deadline in the past would wake the session again and again.
            line.linger = None;
            return Ok(());
        }
        let may_linger = unsent().all(|r| self.may_linger(&r.item));
        if may_linger && Instant::now() < *line.linger.get_or_insert_with(|| Instant::now() + REPORT_HOLD_MAX) {
            return Ok(());
        }
        line.linger = None;
        for report in unsent() {
            let [unsent, just_sent] = points_of(&report.item);
            failpoint::pass(unsent);
            line.send(Up::Report(report.clone())).await?;
            failpoint::pass(just_sent);
        }
        line.sent = unsent().next_back().map_or(sent, |r| r.seq);
        Ok(())
    }

    /// Opens a session with a member: directly, or relayed by a peer if that takes too long. Members
    /// are tried again while peers are asked, because the peers may be cut off as well.
    async fn open(&mut self, register: Up) -> Result<(Option<NodeId>, mpsc::Sender<Up>, DownStream), NoSession> {
        let (context, quorum) = (Arc::clone(&self.context), self.quorum.clone());
        let (beats, shortest_ms) = (&self.beats, self.shortest_ms());
        let relay = &mut self.relay;
        let peers_are_done = AtomicBool::new(false);
        let direct = async {
            loop {
                let mut register = register.clone();
                if let Up::Register { health, .. } = &mut register {
                    // The present health, because the first attempt may be long ago.
                    *health = health_under(&context, beats.is_lapsed_at(boottime_ms(), shortest_ms));
                }
                match quorum.session(register).await {
                    Err(CallError::Unavailable { .. }) if !peers_are_done.load(Ordering::Relaxed) => {
                        tokio::time::sleep(PAUSE_MAX.mul_f64(rand::random_range(0.5..1.0))).await;
                    }
                    opened => return opened,
                }
            }
        };
        let relayed = relay.open(&quorum, &register);
        tokio::pin!(direct, relayed);
        let through = |Through { peer, up, down }| (Some(peer), up, down);
        tokio::select! {
            biased;
            // A refusal is final: the answer would be the same through a peer.
            opened = &mut direct => Ok(opened.map(|(up, down)| (None, up, down))?),
            opened = &mut relayed => match opened {
                Ok(opened) => Ok(through(opened)),
                Err(peers) => {
                    peers_are_done.store(true, Ordering::Relaxed);
                    let opened = direct.await.map(|(up, down)| (None, up, down));
                    opened.map_err(|member| NoSession::Nowhere { member, peers })
                }
            },
        }
    }

    /// Which of these nodes are alive in gossip.
    fn alive_among(&self, nodes: &[NodeId]) -> Vec<NodeId> {
        let alive = self.membership.alive();
        nodes.iter().take(NODES_LOOKED_UP_MAX).filter(|node| alive.contains(*node)).cloned().collect()
    }

    /// If the quorum's generation is later than that of the node's last list, it was recovered from
    /// a backup: then everything on the node is reported.
    fn holds_after_recovery(&self, generation: Generation, incarnation: Incarnation) -> Option<Up> {
        let view = Arc::clone(&self.view.borrow());
        if generation <= view.generation.max(Generation(1)) {
            return None;
        }
        tracing::warn!(generation = generation.0, shares = view.locals.len(), "the quorum was recovered: this node reports what it has");
        let held = view.locals.iter().map(|local| HeldShare {
            share: local.share.clone(),
            phase: match local.phase {
                Phase::Preparing => Some(SharePhase::Claimed),
                Phase::Prepared | Phase::Running => Some(SharePhase::Prepared),
                Phase::Stopping | Phase::Undoing => None,
            },
        });
        // Only reports about allocations: a member of a lower level may not know the other kinds.
        let unreported = self.reports.borrow().iter().filter(|r| r.item.subject().is_some()).map(|r| r.item.clone()).collect();
        Some(Up::Holds { incarnation, held: held.collect(), unreported })
    }

    /// The shortest run lease, in milliseconds, of the quorum's last list and the allocations here.
    fn shortest_ms(&self) -> Option<u64> {
        let here = self.view.borrow().locals.iter().filter_map(|local| local.share.run_lease_ms).min();
        self.shortest_lease_ms.into_iter().chain(here).min()
    }

    /// Begins a session: leases that lapsed before it stay lapsed.
    fn begin_beats(&mut self) {
        self.beats.begin(boottime_ms(), self.shortest_ms());
        self.publish_acknowledged();
    }

    /// The leader has this session's heartbeat `seq`: run leases are extended.
    fn acknowledged(&mut self, seq: u64) -> Result<(), Lapsed> {
        let result = self.beats.acknowledged(seq, boottime_ms(), self.shortest_ms());
        if let Some(sent_ms) = self.publish_acknowledged() {
            self.context.work.latencies.heartbeat.observe(Duration::from_millis(boottime_ms().saturating_sub(sent_ms)));
        }
        result
    }

    /// Publishes when the newest acknowledged heartbeat was sent, for extending run leases. Returns
    /// that time if it has changed.
    fn publish_acknowledged(&self) -> Option<u64> {
        let now = self.beats.newest_acknowledged();
        let is_new = self.acknowledged.send_if_modified(|known| std::mem::replace(known, now) != now);
        now.filter(|_| is_new)
    }

    /// The node's health as reported to the quorum.
    fn health(&self) -> NodeHealth {
        health_under(&self.context, self.beats.is_lapsed())
    }

    /// The contents of the next heartbeat.
    fn heartbeat_contents(&self) -> HeartbeatContents {
        let running = {
            let view = self.view.borrow();
            (view.reports_pending == 0).then(|| u32::try_from(view.locals.len()).unwrap_or(u32::MAX))
        };
        HeartbeatContents { keys: self.keys.held(), health: self.health(), made_of: self.context.machine.conformance.report(), running }
    }

    fn may_linger(&self, item: &ReportItem) -> bool {
        let allocations = &self.context.work.allocations;
        let alone = |(allocation, epoch)| allocations.of_epoch(allocation, epoch).is_some_and(|w| w.share.nodes.len() == 1);
        let nobody_waits = match item {
            ReportItem::Prepared { .. } | ReportItem::Ended { reason: EndReason::Exited { .. }, .. } => true,
            ReportItem::Ended { .. }
            | ReportItem::PrepareFailed { .. }
            | ReportItem::Released { .. }
            | ReportItem::NotPreempted { .. }
            | ReportItem::Checkpointed { .. }
            | ReportItem::PortsOpen { .. }
            | ReportItem::UnreportedHealth { .. } => false,
        };
        nobody_waits && item.subject().is_some_and(alone)
    }
}

/// The node's health; if its run leases lapsed, it gets no work before the leader has acknowledged
/// a heartbeat again.
fn health_under(context: &Shared, is_lapsed: bool) -> NodeHealth {
    match context.machine.checks.report() {
        NodeHealth::Well if is_lapsed => NodeHealth::Unwell { why: LAPSED.to_owned(), drain: None },
        health @ (NodeHealth::Well | NodeHealth::Unwell { .. } | NodeHealth::Failed { .. }) => health,
    }
}

/// The contents of a heartbeat.
struct HeartbeatContents {
    keys: HeldKeys,
    health: NodeHealth,
    made_of: ConformanceReport,
    running: Option<u32>,
}

/// The heartbeats of one session.
struct Beats {
    seq: u64,
    /// When the first heartbeat after the last acknowledgement was sent; `None`: none was sent
    /// since.
    unanswered: Option<Instant>,
    /// The node's health as last reported.
    health: Option<NodeHealth>,
    /// The node's software and firmware as last reported in this session.
    conformance: ConformanceReport,
}

impl Beats {
    /// The next heartbeat.
    fn next(&mut self, incarnation: Incarnation, contents: HeartbeatContents, beats: &mut Heartbeats) -> Up {
        let HeartbeatContents { keys, health, made_of: ConformanceReport { components, stale }, running } = contents;
        self.seq += 1;
        beats.sent(self.seq, boottime_ms());
        self.unanswered.get_or_insert_with(Instant::now);
        self.health = Some(health.clone());
        // Sent only when it has changed, which is rare.
        let conformance = components.filter(|news| self.conformance.components.as_ref() != Some(news));
        self.conformance = ConformanceReport { components: conformance.clone().or(self.conformance.components.take()), stale };
        Up::Heartbeat { incarnation, seq: self.seq, keys: Some(keys), health: Some(health), conformance, stale, running }
    }
}

/// Returns once a member can be reached directly.
async fn served_directly(quorum: QuorumClient) {
    loop {
        tokio::time::sleep(DIRECT_CHECK_INTERVAL.mul_f64(rand::random_range(0.5..1.0))).await;
        if quorum.is_served(DIRECT_CHECK_TIMEOUT).await {
            return;
        }
    }
}

async fn passed(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}

/// The points at which a test may kill the agent: before a report is sent, and directly after.
fn points_of(item: &ReportItem) -> [Point; 2] {
    match item {
        ReportItem::Prepared { .. } | ReportItem::PrepareFailed { .. } => [Point::PreparedReportUnsent, Point::PreparedReportSent],
        ReportItem::PortsOpen { .. } => [Point::PortsReportUnsent, Point::PortsReportSent],
        ReportItem::Ended { .. } => [Point::EndedReportUnsent, Point::EndedReportSent],
        ReportItem::Released { .. } => [Point::ReleasedReportUnsent, Point::ReleasedReportSent],
        ReportItem::Checkpointed { .. } => [Point::SaveReportUnsent, Point::SaveReportSent],
        ReportItem::NotPreempted { .. } => [Point::PreemptFailedUnsent, Point::PreemptFailedSent],
        ReportItem::UnreportedHealth { .. } => [Point::UnreportedHealthUnsent, Point::UnreportedHealthSent],
    }
}
