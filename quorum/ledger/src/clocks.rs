//! The leader's clocks: how long each node has been silent. They are only in memory; a new leader
//! starts every clock again. Times are durations since that start.
//!
//! ```text
//!   heartbeat ──degraded_after──▶ Degraded ──down_after──▶ no other node reaches it ──▶ Down
//!                                                └───────▶ others do: stays Degraded, at most for cut_off_after
//! ```
//!
//! Other agents act as witnesses: their gossip shows whether they reach a silent node. Their
//! answers can only lengthen the grace period, and never end work: work with a run lease is fenced
//! at the same moment as without witnesses.
//!
//! An unwell node under a drain does not become Degraded: otherwise `drain --wait` would wait for
//! ever for the very nodes that should be drained. A drain that a node requests is a hold, granted
//! once for each request time (`Node::drain_requested_at`), so the next heartbeat or leader does not
//! override an operator who lifts it. The table of GPU errors does not use `fail` by default: a
//! node that is Down because of one GPU would end the work of the other seven.
//!
//! An evaluation examines only nodes for which something may have changed: their record, their
//! health, a first heartbeat, a proposal that may not have been committed, or a time that has
//! passed. A heartbeat moves no entry of the queue: an entry that comes due is put back with the
//! time that follows from the latest heartbeat.

use crate::node_use::NodeUse;
use crate::{Action, DrainRequest, Ledger, NodeHealth, NodeStateChange};
use lattice_model::{CUT_OFF, HoldKind, Incarnation, Node, NodeId, NodeState, Revision, UNWELL, millis};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// Nodes that fall silent within this time of each other are counted together.
const TOGETHER_TIME: Duration = Duration::from_secs(60);
/// If more than this percentage of all nodes, and more than [`TOGETHER_NODES`] nodes, are silent at
/// once, none of them becomes Down. Nodes that were Down before this leader's term and have sent no
/// heartbeat in it count neither as silent nor among all nodes.
const TOGETHER_PERCENT: usize = 20;
const TOGETHER_NODES: usize = 2;

/// How long before a node would become Down the witnesses are asked about it, repeatedly.
const WITNESS_LEAD_TIME: Duration = Duration::from_secs(3);
/// How long a witness's answer is valid.
const ANSWER_AGE_MAX: Duration = Duration::from_secs(5);
/// Largest number of witnesses stored for one node.
const WITNESSES_MAX: usize = 3;

/// Entries of the queue that are due within this time are brought up to date, so that
/// [`Clocks::due`] is exact until the next evaluation: members evaluate at least once a second, and
/// four times within the shortest time limit.
const LOOK_AHEAD_MAX: Duration = Duration::from_secs(2);

/// The time limits for silence.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For most nodes.
    pub own: Patience,
    /// For nodes claimed for sensitive work.
    pub sensitive: Patience,
    /// For nodes with work of a vCluster that they do not belong to.
    pub borrowed: Patience,
    /// How much longer a node stays Degraded if witnesses reach it; zero: witnesses are not asked.
    pub cut_off_after: Duration,
}

/// The time limits for one kind of node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Silence after which it is Degraded.
    pub degraded_after: Duration,
    /// Further silence after which it is Down.
    pub down_after: Duration,
}

impl Patience {
    fn all(self) -> Duration {
        self.degraded_after + self.down_after
    }
}

impl Limits {
    fn of(&self, used: NodeUse) -> Patience {
        match used {
            NodeUse::Own => self.own,
            NodeUse::Sensitive => self.sensitive,
            NodeUse::Borrowed => self.borrowed,
        }
    }

    /// The shortest silence that has an effect.
    pub fn shortest(&self) -> Duration {
        self.own.degraded_after.min(self.sensitive.degraded_after).min(self.borrowed.degraded_after)
    }
}

/// The registered nodes, as the clocks read them.
pub trait ClockedNodes {
    /// The node of this name.
    fn get(&self, id: &NodeId) -> Option<&Node>;
    /// How many there are.
    fn count(&self) -> usize;
    /// The revision of this state.
    fn revision(&self) -> Revision;
    /// The nodes that changed at this revision or later.
    fn changed_since(&self, revision: Revision) -> impl Iterator<Item = &Node>;
    /// The node's use: it decides how long silence is tolerated.
    fn use_of(&self, node: &Node) -> NodeUse;
}

impl ClockedNodes for Ledger {
    fn get(&self, id: &NodeId) -> Option<&Node> {
        self.node(id).map(|node| -> &Node { node })
    }

    fn count(&self) -> usize {
        self.node_count()
    }

    fn revision(&self) -> Revision {
        Self::revision(self)
    }

    fn changed_since(&self, revision: Revision) -> impl Iterator<Item = &Node> {
        self.nodes_changed_since(revision).map(|node| -> &Node { node })
    }

    fn use_of(&self, node: &Node) -> NodeUse {
        Self::use_of(self, node)
    }
}

/// When a node was last heard.
#[derive(Clone, Copy, Debug)]
struct LastHeartbeat {
    incarnation: Incarnation,
    at: Duration,
    /// False if `at` is only the start of the clock, without a heartbeat.
    has_heartbeat: bool,
    /// The node's state when it was last examined.
    last_state: NodeState,
    /// Whether it was registered when it was last examined, and whether its silence then counted.
    is_known: bool,
    is_counted: bool,
    /// Whether it has an entry in the queue.
    is_queued: bool,
}

impl LastHeartbeat {
    fn new(incarnation: Incarnation, at: Duration, has_heartbeat: bool, last_state: NodeState) -> Self {
        Self { incarnation, at, has_heartbeat, last_state, is_known: false, is_counted: false, is_queued: false }
    }
}

/// The names of the checks in a reason; each precedes its message: `not well: disk: full; nic eth0:
/// it is down`.
fn checks(reason: &str) -> BTreeSet<&str> {
    let each = reason.strip_prefix(UNWELL).unwrap_or(reason).split("; ");
    each.map(|part| part.split_once(": ").map_or(part, |(name, _)| name)).collect()
}

/// The clocks of one term of a leader.
#[derive(Debug)]
pub struct Clocks {
    limits: Limits,
    heartbeats: HashMap<NodeId, LastHeartbeat>,
    /// The health that agents reported, with their incarnation.
    health: HashMap<NodeId, (Incarnation, NodeHealth)>,
    /// Number of silent nodes that do not become Down, because too many fell silent together.
    pub held_back: usize,
    /// The witnesses of each silent node, with the time of their answer.
    witnessed: BTreeMap<NodeId, BTreeMap<NodeId, Duration>>,
    /// The nodes that witnesses must be asked about now.
    asked: BTreeSet<NodeId>,
    /// The nodes that would be Down if witnesses did not reach them.
    cut_off: BTreeSet<NodeId>,
    /// When the next node may change its state because of silence; `None`: no clock is running.
    due: Option<Duration>,
    /// The revision of the nodes at the last evaluation.
    seen: Revision,
    /// Nodes to examine because of a heartbeat, a health report or a proposal.
    pending: BTreeSet<NodeId>,
    /// Nodes with the time at which silence may have an effect; later if they were heard since.
    queue: BTreeSet<(Duration, NodeId)>,
    /// Nodes that have been silent for longer than [`Limits::shortest`]: examined each time.
    silent: BTreeSet<NodeId>,
    /// Nodes whose latest health report is not a good one.
    unwell: BTreeSet<NodeId>,
    /// Numbers of nodes at the last evaluation: registered ones, and those whose silence counts.
    known: usize,
    counted: usize,
}

impl Clocks {
    /// Starts without any heartbeat.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            heartbeats: HashMap::new(),
            health: HashMap::new(),
            held_back: 0,
            witnessed: BTreeMap::new(),
            asked: BTreeSet::new(),
            cut_off: BTreeSet::new(),
            due: None,
            seen: Revision(0),
            pending: BTreeSet::new(),
            queue: BTreeSet::new(),
            silent: BTreeSet::new(),
            unwell: BTreeSet::new(),
            known: 0,
            counted: 0,
        }
    }

    /// When to evaluate the clocks again at the latest, if nothing else arrives.
    pub fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Witness `by` reported at `at` that it reaches the node. Ignored if nobody asked about the
    /// node.
    pub fn witnessed(&mut self, node: &NodeId, by: NodeId, at: Duration) {
        if *node == by || !self.asked.contains(node) {
            return;
        }
        let answers = self.witnessed.entry(node.clone()).or_default();
        answers.insert(by, at);
        if answers.len() > WITNESSES_MAX
            && let Some(oldest) = answers.iter().min_by_key(|(_, at)| **at).map(|(by, _)| by.clone())
        {
            answers.remove(&oldest);
        }
    }

    /// Silent nodes about which witnesses must be asked now: those that are about to become Down,
    /// or would be Down by now.
    pub fn asked(&self) -> &BTreeSet<NodeId> {
        &self.asked
    }

    /// A heartbeat of the node arrived at `at`.
    pub fn record_heartbeat(&mut self, node: NodeId, incarnation: Incarnation, at: Duration) {
        match self.heartbeats.entry(node) {
            Entry::Vacant(new) => {
                self.pending.insert(new.key().clone());
                new.insert(LastHeartbeat::new(incarnation, at, true, NodeState::Ready));
            }
            Entry::Occupied(mut known) => {
                let clock = *known.get();
                if incarnation < clock.incarnation {
                    return;
                }
                if !clock.has_heartbeat || incarnation > clock.incarnation {
                    self.pending.insert(known.key().clone());
                }
                known.insert(LastHeartbeat { incarnation, at: clock.at.max(at), has_heartbeat: true, ..clock });
            }
        }
    }

    /// The node's agent reported this health in this incarnation.
    pub fn record_health(&mut self, node: NodeId, incarnation: Incarnation, health: NodeHealth) {
        if self.health.get(&node).is_none_or(|(known, _)| incarnation >= *known) {
            self.pending.insert(node.clone());
            match &health {
                NodeHealth::Well => drop(self.unwell.remove(&node)),
                NodeHealth::Unwell { .. } | NodeHealth::Failed { .. } => drop(self.unwell.insert(node.clone())),
            }
            self.health.insert(node, (incarnation, health));
        }
    }

    /// The state changes, in order, for a node that sends heartbeats.
    fn live_state_changes(&self, node: &Node) -> Vec<NodeStateChange> {
        let health = self.health.get(&node.id).filter(|(of, _)| *of == node.incarnation).map(|(_, health)| health);
        let unwell = match health {
            // After a hardware failure, a hold makes the node Down: see [`Self::failures`].
            Some(NodeHealth::Unwell { why, .. } | NodeHealth::Failed { why }) => Some(format!("{UNWELL}{why}")),
            Some(NodeHealth::Well) | None => None,
        };
        let drains = node.hold(HoldKind::Drain).is_some();
        match (node.state, unwell) {
            (NodeState::Ready, Some(why)) => vec![state_change(node, NodeState::Degraded, why)],
            // Only the reason changes: the node gets no new work anyway, and its drain must
            // complete.
            (NodeState::Draining | NodeState::Drained, why) => {
                let why = why.unwrap_or_default();
                let is_news = health.is_some() && node.state_reason != why;
                is_news.then(|| state_change(node, node.state, why)).into_iter().collect()
            }
            (NodeState::Degraded, Some(_)) if node.is_unwell() && drains => {
                vec![state_change(node, NodeState::Ready, "it drains".to_owned())]
            }
            // A change in the set of failing checks is reported; changes of their details are not,
            // because they happen all the time.
            (NodeState::Degraded, Some(why)) if node.is_unwell() => {
                let is_news = checks(&why) != checks(&node.state_reason);
                is_news.then(|| state_change(node, NodeState::Degraded, why)).into_iter().collect()
            }
            // A leader that has not received a health report yet keeps the previous state.
            (NodeState::Degraded, None) if health.is_none() && node.is_unwell() => Vec::new(),
            // An unwell node becomes Ready, then Degraded: both in one command, so that nothing is
            // placed on it in between.
            (NodeState::Degraded | NodeState::Down, unwell) => {
                let again = state_change(node, NodeState::Ready, "heard again".to_owned());
                let unwell = unwell.filter(|_| !drains).map(|why| state_change(node, NodeState::Degraded, why));
                [Some(again), unwell].into_iter().flatten().collect()
            }
            // Booting nodes return by registering.
            (NodeState::Ready, None) | (NodeState::Booting | NodeState::Failed, _) => Vec::new(),
        }
    }

    /// Follows the node's record. Returns when it was last heard, if its silence counts.
    fn follow(&mut self, now: Duration, node: &Node) -> Option<Duration> {
        let clock = match self.heartbeats.entry(node.id.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(LastHeartbeat::new(node.incarnation, now, false, node.state)),
        };
        self.known += usize::from(!std::mem::replace(&mut clock.is_known, true));
        let in_service = |state| matches!(state, NodeState::Ready | NodeState::Draining | NodeState::Drained);
        let came_back = is_expected(node) && !in_service(clock.last_state) && in_service(node.state);
        if clock.incarnation < node.incarnation || came_back {
            // The node has registered again. That counts as a heartbeat: its first one may still be
            // on the way.
            (clock.incarnation, clock.at, clock.has_heartbeat, clock.last_state) = (node.incarnation, now, true, node.state);
        }
        // The silence of a node that is not expected still counts for the run leases of its work.
        if is_expected(node) {
            clock.last_state = node.state;
        }
        // A node that was Down before this leader's term says nothing about how many nodes fall
        // silent in this term.
        let counts = is_expected(node) && (node.state != NodeState::Down || clock.has_heartbeat);
        let counted_before = std::mem::replace(&mut clock.is_counted, counts);
        self.counted = self.counted + usize::from(counts) - usize::from(counted_before);
        counts.then_some(clock.at)
    }

    /// Removes the entries that may be due soon from the queue. Puts an entry back if its node was
    /// heard since; returns the other nodes.
    fn overdue(&mut self, now: Duration) -> Vec<NodeId> {
        let shortest = self.limits.shortest();
        let (mut overdue, mut again) = (Vec::new(), Vec::new());
        while let Some((at, id)) = self.queue.pop_first() {
            if at > now + LOOK_AHEAD_MAX.min(shortest / 2) {
                self.queue.insert((at, id));
                break;
            }
            let Some(clock) = self.heartbeats.get_mut(&id) else { continue };
            clock.is_queued = clock.at + shortest >= now;
            if clock.is_queued { again.push((clock.at + shortest, id)) } else { overdue.push(id) }
        }
        self.queue.extend(again);
        overdue
    }

    /// Forgets nodes that are not registered any more.
    fn forget_removed(&mut self, nodes: &impl ClockedNodes) {
        if self.known == nodes.count() {
            return;
        }
        let is_removed = |(id, clock): &(&NodeId, &LastHeartbeat)| clock.is_known && nodes.get(id).is_none();
        let removed: Vec<NodeId> = self.heartbeats.iter().filter(is_removed).map(|(id, _)| id.clone()).collect();
        for id in removed {
            let counted = self.heartbeats.remove(&id).is_some_and(|clock| clock.is_counted);
            (self.known, self.counted) = (self.known - 1, self.counted - usize::from(counted));
            self.silent.remove(&id);
            self.unwell.remove(&id);
            self.health.remove(&id);
        }
    }

    /// Examines the nodes for which something may have changed. Returns the state changes of nodes
    /// that are not silent, and the silent nodes, each with the time of its last heartbeat and its
    /// time limits.
    fn examine<'a>(&mut self, now: Duration, nodes: &'a impl ClockedNodes) -> (Vec<NodeStateChange>, Vec<(&'a Node, Duration, Patience)>) {
        let mut ids = std::mem::take(&mut self.pending);
        ids.extend(nodes.changed_since(self.seen).map(|node| node.id.clone()));
        self.seen = nodes.revision();
        ids.extend(self.silent.iter().cloned());
        ids.extend(self.overdue(now));
        let shortest = self.limits.shortest();
        let (mut state_changes, mut silent) = (Vec::new(), Vec::new());
        let mut due: Option<Duration> = None;
        for id in ids {
            let Some((node, at)) = nodes.get(&id).and_then(|node| Some((node, self.follow(now, node)?))) else {
                self.silent.remove(&id);
                continue;
            };
            let silence = now.saturating_sub(at);
            // The use of a node is determined only for nodes that have been silent for a while.
            let patience = (silence > shortest).then(|| self.limits.of(nodes.use_of(node)));
            match patience {
                None => {
                    self.silent.remove(&id);
                    if let Some(clock) = self.heartbeats.get_mut(&id).filter(|clock| !clock.is_queued) {
                        clock.is_queued = true;
                        self.queue.insert((at + shortest, id.clone()));
                    }
                }
                Some(patience) => {
                    self.silent.insert(id.clone());
                    let moments = [patience.degraded_after, patience.all()].map(|after| at + after);
                    due = moments.into_iter().filter(|moment| *moment >= now).chain(due).min();
                }
            }
            if let Some(patience) = patience.filter(|patience| silence > patience.degraded_after) {
                silent.push((node, at, patience));
            } else if self.heartbeats.get(&id).is_some_and(|clock| clock.has_heartbeat && clock.incarnation == node.incarnation) {
                let live = self.live_state_changes(node);
                if !live.is_empty() {
                    // Proposed again until it is committed.
                    self.pending.insert(id);
                }
                state_changes.extend(live);
            }
        }
        let queued = self.queue.first().map(|(at, _)| *at).filter(|at| *at >= now);
        self.due = queued.into_iter().chain(due).min();
        (state_changes, silent)
    }

    /// The nodes whose state must change.
    pub fn state_changes(&mut self, now: Duration, nodes: &impl ClockedNodes) -> Vec<NodeStateChange> {
        let (mut state_changes, silent) = self.examine(now, nodes);
        self.forget_removed(nodes);
        let all = self.counted;
        let mut times: Vec<Duration> = silent.iter().map(|(_, at, _)| *at).collect();
        times.sort_unstable();
        let together = |at: Duration| {
            let upto = times.partition_point(|t| *t <= at + TOGETHER_TIME);
            upto - times.partition_point(|t| *t < at.saturating_sub(TOGETHER_TIME))
        };
        let is_held_back = |(node, at, _): &&(&Node, Duration, Patience)| node.state != NodeState::Down && too_many(together(*at), all);
        self.held_back = silent.iter().filter(is_held_back).count();
        let mut asked = BTreeSet::new();
        self.cut_off.clear();
        self.witnessed.values_mut().for_each(|answers| answers.retain(|_, at| *at + ANSWER_AGE_MAX >= now));
        self.witnessed.retain(|_, answers| !answers.is_empty());
        for (node, at, patience) in &silent {
            let silence = now.saturating_sub(*at);
            let reason = || format!("silent for {} s", silence.as_secs());
            match node.state {
                NodeState::Ready | NodeState::Draining | NodeState::Drained => {
                    state_changes.push(state_change(node, NodeState::Degraded, reason()));
                }
                // From now on the reason is its silence, and no longer its own report.
                NodeState::Degraded if node.is_unwell() => state_changes.push(state_change(node, NodeState::Degraded, reason())),
                NodeState::Degraded if !too_many(together(*at), all) && silence + WITNESS_LEAD_TIME > patience.all() => {
                    let ends = patience.all() + self.limits.cut_off_after;
                    let by = self.witnessed.get(&node.id).filter(|_| silence <= ends);
                    if silence <= ends && ends > patience.all() {
                        asked.insert(node.id.clone());
                    }
                    match by {
                        Some(by) => {
                            if silence > patience.all() {
                                self.cut_off.insert(node.id.clone());
                            }
                            if !node.is_cut_off() {
                                let by: Vec<&str> = by.keys().map(NodeId::as_str).collect();
                                state_changes.push(state_change(node, NodeState::Degraded, format!("{CUT_OFF}{} hears it", by.join(", "))));
                            }
                        }
                        None if silence > patience.all() => state_changes.push(state_change(node, NodeState::Down, reason())),
                        None => {}
                    }
                }
                NodeState::Degraded | NodeState::Down | NodeState::Booting | NodeState::Failed => {}
            }
        }
        self.asked = asked;
        state_changes
    }

    /// Whether this incarnation of the node was heard recently.
    pub fn has_recent_heartbeat(&self, now: Duration, node: &Node) -> bool {
        let heartbeat = self.heartbeats.get(&node.id).filter(|clock| clock.has_heartbeat && clock.incarnation == node.incarnation);
        heartbeat.is_some_and(|clock| now.saturating_sub(clock.at) <= self.limits.own.degraded_after)
    }

    /// Hardware failure holds for nodes whose checks report one and that have no such hold yet.
    /// Reports of a node that is silent by now are ignored: it may have been switched off for
    /// repair.
    pub fn failures(&self, now: Duration, nodes: &impl ClockedNodes) -> Vec<Action> {
        let failed = |node: &Node| match self.health.get(&node.id) {
            Some((incarnation, NodeHealth::Failed { why })) if *incarnation == node.incarnation => Some(why.clone()),
            Some(_) | None => None,
        };
        let new = self.unwell.iter().filter_map(|id| nodes.get(id));
        let new = new.filter(|node| node.hold(HoldKind::Failure).is_none() && self.has_recent_heartbeat(now, node));
        let new = new.filter_map(|node| Some((node, failed(node).filter(|why| !why.is_empty())?)));
        let hold = |(node, reason): (&Node, String)| {
            let by = format!("node:{}", node.id);
            Action::SetHold { node: node.id.clone(), kind: HoldKind::Failure, by, reason, until: None, deadline: None }
        };
        new.map(hold).collect()
    }

    /// Drain requests of nodes' checks that were not granted yet. The ledger records granted
    /// requests, so a new leader does not repeat them.
    pub fn drains(&self, now: Duration, nodes: &impl ClockedNodes) -> Vec<Action> {
        let wishes = |node: &Node| match self.health.get(&node.id) {
            Some((incarnation, NodeHealth::Unwell { drain, .. })) if *incarnation == node.incarnation => drain.clone(),
            Some(_) | None => None,
        };
        let new = self.unwell.iter().filter_map(|id| nodes.get(id));
        let new = new.filter(|node| self.has_recent_heartbeat(now, node)).filter_map(|node| Some((node, wishes(node)?)));
        let new = new.filter(|(node, wish)| node.drain_requested_at != Some(wish.asked) && !wish.why.is_empty());
        new.map(|(node, DrainRequest { asked, why })| Action::AskDrain {
            node: node.id.clone(),
            incarnation: node.incarnation,
            asked,
            reason: why,
        })
        .collect()
    }

    /// How long this incarnation of the node has been silent; `None`: its clock has not started.
    pub fn silence(&self, now: Duration, node: &NodeId, incarnation: Incarnation) -> Option<Duration> {
        let clock = self.heartbeats.get(node).filter(|clock| clock.incarnation == incarnation)?;
        Some(now.saturating_sub(clock.at))
    }

    /// Nodes whose work is known to have ended by itself: they are Down, or would be if witnesses
    /// did not reach them, and have been silent for longer than the run leases there.
    pub fn fences(&self, now: Duration, ledger: &Ledger) -> Vec<Action> {
        let ids: BTreeSet<&NodeId> = ledger.nodes_down().map(|node| &node.id).chain(&self.cut_off).collect();
        let away = ids.into_iter().filter(|id| !ledger.holdings(id).is_empty()).filter_map(|id| ledger.node(id));
        let due = away.filter_map(|n| {
            let silent_ms = millis(self.silence(now, &n.id, n.incarnation)?);
            let due = ledger.fenced_after_ms(&n.id)? <= silent_ms;
            due.then(|| Action::Fence { node: n.id.clone(), incarnation: n.incarnation, silent_ms })
        });
        due.collect()
    }
}

/// Whether silence of this node matters. A booting node returns by registering; a disabled one, or
/// one with a hardware failure, stays Down until an operator acts.
fn is_expected(node: &Node) -> bool {
    match node.state {
        NodeState::Booting | NodeState::Failed => false,
        NodeState::Down => node.out_of_service().is_none(),
        NodeState::Ready | NodeState::Draining | NodeState::Drained | NodeState::Degraded => true,
    }
}

fn too_many(together: usize, all: usize) -> bool {
    together > TOGETHER_NODES && together * 100 > all * TOGETHER_PERCENT
}

fn state_change(node: &Node, state: NodeState, reason: String) -> NodeStateChange {
    NodeStateChange { node: node.id.clone(), incarnation: node.incarnation, state, reason }
}

#[cfg(test)]
mod tests;
