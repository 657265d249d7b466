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
//! once for each request time (`Node::drain_asked`), so the next heartbeat or leader does not
//! override an operator who lifts it. The table of GPU errors does not use `fail` by default: a
//! node that is Down because of one GPU would end the work of the other seven.

use crate::node_use::NodeUse;
use crate::{Action, DrainWish, Ledger, NodeHealth, NodeStanding};
use lattice_model::{CUT_OFF, HoldKind, Incarnation, Node, NodeId, NodeState, UNWELL, millis};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// Nodes that fall silent within this time of each other are counted together.
const TOGETHER: Duration = Duration::from_secs(60);
/// If more than this percentage of all nodes, and more than [`TOGETHER_NODES`] nodes, are silent at
/// once, none of them becomes Down. Nodes that were Down before this leader's term and have sent no
/// heartbeat in it are not counted on either side.
const TOGETHER_PERCENT: usize = 20;
const TOGETHER_NODES: usize = 2;

/// How long before a node would become Down the witnesses are asked about it, repeatedly.
const ASKED_BEFORE: Duration = Duration::from_secs(3);
/// How long a witness's answer is valid.
const ANSWER_VALID_FOR: Duration = Duration::from_secs(5);
/// Largest number of witnesses stored for one node.
const WITNESSES_MAX: usize = 3;

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

/// When a node was last heard.
#[derive(Clone, Copy, Debug)]
struct LastHeartbeat {
    incarnation: Incarnation,
    at: Duration,
    /// False if `at` is only the start of the clock, without a heartbeat.
    really: bool,
    /// The node's state when it was last examined.
    stood: NodeState,
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
    /// Number of nodes found to have fallen silent together, if too many: none of them becomes
    /// Down.
    pub held_back: usize,
    /// The witnesses of each silent node, with the time of their answer.
    witnessed: BTreeMap<NodeId, BTreeMap<NodeId, Duration>>,
    /// The nodes that witnesses must be asked about now.
    asked: BTreeSet<NodeId>,
    /// The nodes that would be Down if witnesses did not reach them.
    cut_off: BTreeSet<NodeId>,
    /// When the next node may change its state because of silence; `None`: no clock is running.
    due: Option<Duration>,
}

impl Clocks {
    /// Starts.
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
        let clock = self.heartbeats.entry(node).or_insert(LastHeartbeat { incarnation, at, really: true, stood: NodeState::Ready });
        if incarnation >= clock.incarnation {
            *clock = LastHeartbeat { incarnation, at: clock.at.max(at), really: true, stood: clock.stood };
        }
    }

    /// The node's agent reported this health in this incarnation.
    pub fn record_health(&mut self, node: NodeId, incarnation: Incarnation, health: NodeHealth) {
        if self.health.get(&node).is_none_or(|(known, _)| incarnation >= *known) {
            self.health.insert(node, (incarnation, health));
        }
    }

    /// Forgets the nodes that were removed.
    pub fn forget_removed(&mut self, ledger: &Ledger) {
        if self.heartbeats.len().max(self.health.len()) > ledger.nodes_len() {
            self.heartbeats.retain(|node, _| ledger.node(node).is_some());
            self.health.retain(|node, _| ledger.node(node).is_some());
        }
    }

    /// The state changes, in order, for a node that sends heartbeats.
    fn live_standings(&self, node: &Node) -> Vec<NodeStanding> {
        let health = self.health.get(&node.id).filter(|(of, _)| *of == node.incarnation).map(|(_, health)| health);
        let unwell = match health {
            // After a hardware failure its hold makes it Down: see [`Self::failures`].
            Some(NodeHealth::Unwell { why, .. } | NodeHealth::Failed { why }) => Some(format!("{UNWELL}{why}")),
            Some(NodeHealth::Well) | None => None,
        };
        let drains = node.hold(HoldKind::Drain).is_some();
        match (node.state, unwell) {
            (NodeState::Ready, Some(why)) => vec![standing(node, NodeState::Degraded, why)],
            // It gets no new work anyway, and its drain must be able to complete: its reason says
            // that it is not well.
            (NodeState::Draining | NodeState::Drained, why) => {
                let why = why.unwrap_or_default();
                let is_news = health.is_some() && node.state_reason != why;
                is_news.then(|| standing(node, node.state, why)).into_iter().collect()
            }
            (NodeState::Degraded, Some(_)) if node.is_unwell() && drains => vec![standing(node, NodeState::Ready, "it drains".to_owned())],
            // A change in the set of failing checks is reported; changes of their details are not,
            // because they happen all the time.
            (NodeState::Degraded, Some(why)) if node.is_unwell() => {
                let is_news = checks(&why) != checks(&node.state_reason);
                is_news.then(|| standing(node, NodeState::Degraded, why)).into_iter().collect()
            }
            // A leader that has not received a health report yet keeps the previous state.
            (NodeState::Degraded, None) if health.is_none() && node.is_unwell() => Vec::new(),
            // First heard again, even if it is unwell: in one command, so that nothing is placed on
            // it in between.
            (NodeState::Degraded | NodeState::Down, unwell) => {
                let again = standing(node, NodeState::Ready, "heard again".to_owned());
                let unwell = unwell.filter(|_| !drains).map(|why| standing(node, NodeState::Degraded, why));
                [Some(again), unwell].into_iter().flatten().collect()
            }
            // Booting nodes return by registering.
            (NodeState::Ready, None) | (NodeState::Booting | NodeState::Failed, _) => Vec::new(),
        }
    }

    /// The nodes whose state must change.
    pub fn standings<'a>(
        &mut self,
        now: Duration,
        nodes: impl Iterator<Item = &'a Node>,
        used: impl Fn(&Node) -> NodeUse,
    ) -> Vec<NodeStanding> {
        let mut all = 0;
        // Silent nodes: when they were last heard, and how long their silence is tolerated.
        let mut silent: Vec<(&Node, Duration, Patience)> = Vec::new();
        let mut standings = Vec::new();
        let shortest = self.limits.shortest();
        let mut due: Option<Duration> = None;
        let mut is_due = |moment: Duration| {
            if moment >= now {
                due = Some(due.map_or(moment, |earlier| earlier.min(moment)));
            }
        };
        for node in nodes {
            let fresh = LastHeartbeat { incarnation: node.incarnation, at: now, really: false, stood: node.state };
            let clock = self.heartbeats.entry(node.id.clone()).or_insert(fresh);
            let in_service = |state| matches!(state, NodeState::Ready | NodeState::Draining | NodeState::Drained);
            let came_back = is_expected(node) && !in_service(clock.stood) && in_service(node.state);
            if clock.incarnation < node.incarnation || came_back {
                // It has registered again, which counts as heard, although its heartbeat may still
                // be on the way.
                *clock = LastHeartbeat { incarnation: node.incarnation, at: now, really: true, stood: node.state };
            }
            if !is_expected(node) {
                // Its silence still counts for the run leases of its work.
                continue;
            }
            clock.stood = node.state;
            if node.state == NodeState::Down && !clock.really {
                // It was Down before this leader's term, so it says nothing about how many nodes
                // fall silent in this term.
                continue;
            }
            all += 1;
            let silence = now.saturating_sub(clock.at);
            // The use of a node is determined only for nodes that have been silent for a while.
            let patience = if silence > shortest { Some(self.limits.of(used(node))) } else { None };
            for after in patience.map_or([shortest; 2], |patience| [patience.degraded_after, patience.all()]) {
                is_due(clock.at + after);
            }
            if let Some(patience) = patience.filter(|patience| silence > patience.degraded_after) {
                silent.push((node, clock.at, patience));
            } else if clock.really && clock.incarnation == node.incarnation {
                standings.extend(self.live_standings(node));
            }
        }
        let mut times: Vec<Duration> = silent.iter().map(|(_, at, _)| *at).collect();
        times.sort_unstable();
        let together = |at: Duration| {
            let upto = times.partition_point(|t| *t <= at + TOGETHER);
            upto - times.partition_point(|t| *t < at.saturating_sub(TOGETHER))
        };
        let is_held_back = |(node, at, _): &&(&Node, Duration, Patience)| node.state != NodeState::Down && too_many(together(*at), all);
        self.held_back = silent.iter().filter(is_held_back).count();
        let mut asked = BTreeSet::new();
        self.cut_off.clear();
        self.witnessed.values_mut().for_each(|answers| answers.retain(|_, at| *at + ANSWER_VALID_FOR >= now));
        self.witnessed.retain(|_, answers| !answers.is_empty());
        for (node, at, patience) in &silent {
            let silence = now.saturating_sub(*at);
            let reason = || format!("silent for {} s", silence.as_secs());
            match node.state {
                NodeState::Ready | NodeState::Draining | NodeState::Drained => {
                    standings.push(standing(node, NodeState::Degraded, reason()));
                }
                // Its own report is no longer the reason: from now on the reason is its silence.
                NodeState::Degraded if node.is_unwell() => standings.push(standing(node, NodeState::Degraded, reason())),
                NodeState::Degraded if !too_many(together(*at), all) && silence + ASKED_BEFORE > patience.all() => {
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
                                standings.push(standing(node, NodeState::Degraded, format!("{CUT_OFF}{} hears it", by.join(", "))));
                            }
                        }
                        None if silence > patience.all() => standings.push(standing(node, NodeState::Down, reason())),
                        None => {}
                    }
                }
                NodeState::Degraded | NodeState::Down | NodeState::Booting | NodeState::Failed => {}
            }
        }
        self.asked = asked;
        self.due = due;
        standings
    }

    /// Whether this incarnation of the node was heard recently.
    pub fn has_recent_heartbeat(&self, now: Duration, node: &Node) -> bool {
        let heartbeat = self.heartbeats.get(&node.id).filter(|clock| clock.really && clock.incarnation == node.incarnation);
        heartbeat.is_some_and(|clock| now.saturating_sub(clock.at) <= self.limits.own.degraded_after)
    }

    /// Hardware failure holds for nodes whose checks report one and that have no such hold yet.
    /// Reports of a node that is silent by now are ignored: it may have been switched off for
    /// repair.
    pub fn failures<'a>(&self, now: Duration, nodes: impl Iterator<Item = &'a Node>) -> Vec<Action> {
        let failed = |node: &Node| match self.health.get(&node.id) {
            Some((incarnation, NodeHealth::Failed { why })) if *incarnation == node.incarnation => Some(why.clone()),
            Some(_) | None => None,
        };
        let new = nodes.filter(|node| node.hold(HoldKind::Failure).is_none() && self.has_recent_heartbeat(now, node));
        let new = new.filter_map(|node| Some((node, failed(node).filter(|why| !why.is_empty())?)));
        let hold = |(node, reason): (&Node, String)| {
            let by = format!("node:{}", node.id);
            Action::SetHold { node: node.id.clone(), kind: HoldKind::Failure, by, reason, until: None, deadline: None }
        };
        new.map(hold).collect()
    }

    /// Drain requests of nodes' checks that were not granted yet. The ledger records granted
    /// requests, so a new leader does not repeat them.
    pub fn drains<'a>(&self, now: Duration, nodes: impl Iterator<Item = &'a Node>) -> Vec<Action> {
        let wishes = |node: &Node| match self.health.get(&node.id) {
            Some((incarnation, NodeHealth::Unwell { drain, .. })) if *incarnation == node.incarnation => drain.clone(),
            Some(_) | None => None,
        };
        let new = nodes.filter(|node| self.has_recent_heartbeat(now, node)).filter_map(|node| Some((node, wishes(node)?)));
        let new = new.filter(|(node, wish)| node.drain_asked != Some(wish.asked) && !wish.why.is_empty());
        new.map(|(node, DrainWish { asked, why })| Action::AskDrain {
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
        let down = ledger.nodes().filter(|n| n.state == NodeState::Down || self.cut_off.contains(&n.id));
        let due = down.filter_map(|n| {
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

fn standing(node: &Node, state: NodeState, reason: String) -> NodeStanding {
    NodeStanding { node: node.id.clone(), incarnation: node.incarnation, state, reason }
}

#[cfg(test)]
mod tests;
