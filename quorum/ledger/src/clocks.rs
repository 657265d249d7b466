//! The leader's clocks: how long each node was silent. In memory only; a new leader starts every clock afresh. Time is given as what has passed since that start.
//!
//! ```text
//!   heard ──degraded_after──▶ Degraded ──down_after──▶ nobody else hears it ──▶ Down
//!                                            └───────▶ others do: Degraded still, for cut_off_after at most
//! ```
//!
//! The second witness is what agents' gossip says of a silent node. Their word can only lengthen a grace, and ends no work: what is
//! to stop at its lapse is fenced at the same moment as without it.
//!
//! A node that is not well drains to its end: Degraded would keep `drain --wait` waiting on the
//! very nodes that should be drained. A drain that a node requests is a hold, granted once for each
//! request time (`Node::drain_asked`): an operator who lifts it is not overruled by the next
//! heartbeat or leader. The table of GPU errors has no default answer `fail`: a node that is Down
//! for one GPU would end the work of the other seven.

use crate::node_use::NodeUse;
use crate::{Action, DrainWish, Ledger, NodeHealth, NodeStanding};
use lattice_model::{CUT_OFF, HoldKind, Incarnation, Node, NodeId, NodeState, UNWELL};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// Nodes that fall silent within this time of each other are counted together.
const TOGETHER: Duration = Duration::from_secs(60);
/// More than this part (in per cent) of all nodes silent at once, and more than [`TOGETHER_NODES`] of them: none goes Down. Nodes that
/// were Down before this leader's time, and were not heard in it, count on neither side.
const TOGETHER_PERCENT: usize = 20;
const TOGETHER_NODES: usize = 2;

/// How long before a node would be Down others are asked of it, again and again.
const ASKED_BEFORE: Duration = Duration::from_secs(3);
/// How long the word of one that hears it counts.
const WORD_COUNTS: Duration = Duration::from_secs(5);
/// Witnesses whose word is kept of one node.
const WITNESSES_MAX: usize = 3;

/// How long is too long.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Of most nodes.
    pub own: Patience,
    /// Of nodes that are claimed for sensitive use.
    pub sensitive: Patience,
    /// Of nodes with work of a vCluster that they are not for.
    pub borrowed: Patience,
    /// How much longer a node stays Degraded that others hear; zero: they are not asked.
    pub cut_off_after: Duration,
}

/// With one node.
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

    /// The shortest silence that means anything.
    pub fn shortest(&self) -> Duration {
        self.own.degraded_after.min(self.sensitive.degraded_after).min(self.borrowed.degraded_after)
    }
}

/// When a node was last heard.
#[derive(Clone, Copy, Debug)]
struct Heard {
    incarnation: Incarnation,
    at: Duration,
    /// False for the start of the clock, which nobody heard.
    really: bool,
    /// Where the node stood when it was last looked at.
    stood: NodeState,
}

/// The checks that a reason names, each before what it says: `not well: disk: full; nic eth0: it is down`.
fn checks(reason: &str) -> BTreeSet<&str> {
    let each = reason.strip_prefix(UNWELL).unwrap_or(reason).split("; ");
    each.map(|part| part.split_once(": ").map_or(part, |(name, _)| name)).collect()
}

/// The clocks of one term of leadership.
#[derive(Debug)]
pub struct Clocks {
    limits: Limits,
    heard: HashMap<NodeId, Heard>,
    /// How agents said that their nodes are, in which life.
    health: HashMap<NodeId, (Incarnation, NodeHealth)>,
    /// How many nodes the last look found that fell silent together, where they are too many: none of them goes Down.
    pub held_back: usize,
    /// Who said of a silent node that they hear it, and when.
    witnessed: BTreeMap<NodeId, BTreeMap<NodeId, Duration>>,
    /// Of whom others are to be asked now.
    asked: BTreeSet<NodeId>,
    /// Nodes that would be Down, were they not heard by others.
    cut_off: BTreeSet<NodeId>,
    /// When the next node may stand elsewhere because of its silence; `None`: none is heard of.
    due: Option<Duration>,
}

impl Clocks {
    /// Starts.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            heard: HashMap::new(),
            health: HashMap::new(),
            held_back: 0,
            witnessed: BTreeMap::new(),
            asked: BTreeSet::new(),
            cut_off: BTreeSet::new(),
            due: None,
        }
    }

    /// When it is to be looked again at the latest, if nothing more is heard.
    pub fn due(&self) -> Option<Duration> {
        self.due
    }

    /// `by` hears the node, and said so at `at`. Of nodes of which nobody was asked, nothing is kept.
    pub fn witnessed(&mut self, node: &NodeId, by: NodeId, at: Duration) {
        if *node == by || !self.asked.contains(node) {
            return;
        }
        let words = self.witnessed.entry(node.clone()).or_default();
        words.insert(by, at);
        if words.len() > WITNESSES_MAX
            && let Some(oldest) = words.iter().min_by_key(|(_, at)| **at).map(|(by, _)| by.clone())
        {
            words.remove(&oldest);
        }
    }

    /// Silent nodes of which others are to be asked now: those that would be Down soon, or would be by now.
    pub fn asked(&self) -> &BTreeSet<NodeId> {
        &self.asked
    }

    /// The node was heard at `at`.
    pub fn heard(&mut self, node: NodeId, incarnation: Incarnation, at: Duration) {
        let clock = self.heard.entry(node).or_insert(Heard { incarnation, at, really: true, stood: NodeState::Ready });
        if incarnation >= clock.incarnation {
            *clock = Heard { incarnation, at: clock.at.max(at), really: true, stood: clock.stood };
        }
    }

    /// Its agent said so of the node, in this life.
    pub fn said(&mut self, node: NodeId, incarnation: Incarnation, health: NodeHealth) {
        if self.health.get(&node).is_none_or(|(known, _)| incarnation >= *known) {
            self.health.insert(node, (incarnation, health));
        }
    }

    /// Where a node that is heard is to stand instead, one behind the other.
    fn heard_of(&self, node: &Node) -> Vec<NodeStanding> {
        let said = self.health.get(&node.id).filter(|(of, _)| *of == node.incarnation).map(|(_, health)| health);
        let unwell = match said {
            // One whose hardware failed is Down by its hold: see [`Self::failures`].
            Some(NodeHealth::Unwell { why, .. } | NodeHealth::Failed { why }) => Some(format!("{UNWELL}{why}")),
            Some(NodeHealth::Well) | None => None,
        };
        let drains = node.hold(HoldKind::Drain).is_some();
        match (node.state, unwell) {
            (NodeState::Ready, Some(why)) => vec![standing(node, NodeState::Degraded, why)],
            // It gets nothing new anyway, and its drain is to come to an end: that it is not well is said beside its state.
            (NodeState::Draining | NodeState::Drained, why) => {
                let why = why.unwrap_or_default();
                let is_news = said.is_some() && node.state_reason != why;
                is_news.then(|| standing(node, node.state, why)).into_iter().collect()
            }
            (NodeState::Degraded, Some(_)) if node.is_unwell() && drains => vec![standing(node, NodeState::Ready, "it drains".to_owned())],
            // Which checks say so is news; what each of them counts is not, time and again.
            (NodeState::Degraded, Some(why)) if node.is_unwell() => {
                let is_news = checks(&why) != checks(&node.state_reason);
                is_news.then(|| standing(node, NodeState::Degraded, why)).into_iter().collect()
            }
            // A leader that was not told yet leaves it as the one before had it.
            (NodeState::Degraded, None) if said.is_none() && node.is_unwell() => Vec::new(),
            // Heard again first, even where it is not well: in one command, nothing is placed on it in between.
            (NodeState::Degraded | NodeState::Down, unwell) => {
                let again = standing(node, NodeState::Ready, "heard again".to_owned());
                let unwell = unwell.filter(|_| !drains).map(|why| standing(node, NodeState::Degraded, why));
                [Some(again), unwell].into_iter().flatten().collect()
            }
            // Those that are booted come back by registering.
            (NodeState::Ready, None) | (NodeState::Booting | NodeState::Failed, _) => Vec::new(),
        }
    }

    /// Which nodes stand elsewhere than the ledger says.
    pub fn standings<'a>(
        &mut self,
        now: Duration,
        nodes: impl Iterator<Item = &'a Node>,
        used: impl Fn(&Node) -> NodeUse,
    ) -> Vec<NodeStanding> {
        let mut all = 0;
        // Silent nodes: where they stand, when they were last heard, and how long that is borne.
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
            let fresh = Heard { incarnation: node.incarnation, at: now, really: false, stood: node.state };
            let clock = self.heard.entry(node.id.clone()).or_insert(fresh);
            let in_service = |state| matches!(state, NodeState::Ready | NodeState::Draining | NodeState::Drained);
            let came_back = is_expected(node) && !in_service(clock.stood) && in_service(node.state);
            if clock.incarnation < node.incarnation || came_back {
                // It registered anew: that was heard, though its heartbeat may still be on the way here.
                *clock = Heard { incarnation: node.incarnation, at: now, really: true, stood: node.state };
            }
            if !is_expected(node) {
                // Its silence counts all the same for the run leases of what it has.
                continue;
            }
            clock.stood = node.state;
            if node.state == NodeState::Down && !clock.really {
                // It was Down before this leader's time: it says nothing of how many fall silent in it.
                continue;
            }
            all += 1;
            let silence = now.saturating_sub(clock.at);
            // What a node is used for is asked of those alone that were silent for a while.
            let patience = if silence > shortest { Some(self.limits.of(used(node))) } else { None };
            for after in patience.map_or([shortest; 2], |patience| [patience.degraded_after, patience.all()]) {
                is_due(clock.at + after);
            }
            if let Some(patience) = patience.filter(|patience| silence > patience.degraded_after) {
                silent.push((node, clock.at, patience));
            } else if clock.really && clock.incarnation == node.incarnation {
                standings.extend(self.heard_of(node));
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
        self.witnessed.values_mut().for_each(|words| words.retain(|_, at| *at + WORD_COUNTS >= now));
        self.witnessed.retain(|_, words| !words.is_empty());
        for (node, at, patience) in &silent {
            let silence = now.saturating_sub(*at);
            let reason = || format!("silent for {} s", silence.as_secs());
            match node.state {
                NodeState::Ready | NodeState::Draining | NodeState::Drained => {
                    standings.push(standing(node, NodeState::Degraded, reason()));
                }
                // What it said of itself is no reason any more: from now on it is one that is not heard.
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

    /// Whether this life of the node was heard lately.
    pub fn is_heard(&self, now: Duration, node: &Node) -> bool {
        let heard = self.heard.get(&node.id).filter(|clock| clock.really && clock.incarnation == node.incarnation);
        heard.is_some_and(|clock| now.saturating_sub(clock.at) <= self.limits.own.degraded_after)
    }

    /// Nodes whose own checks say that their hardware failed, and that are not under a hold for it yet. What one said that is switched
    /// off by now was said before it was mended.
    pub fn failures<'a>(&self, now: Duration, nodes: impl Iterator<Item = &'a Node>) -> Vec<Action> {
        let failed = |node: &Node| match self.health.get(&node.id) {
            Some((incarnation, NodeHealth::Failed { why })) if *incarnation == node.incarnation => Some(why.clone()),
            Some(_) | None => None,
        };
        let new = nodes.filter(|node| node.hold(HoldKind::Failure).is_none() && self.is_heard(now, node));
        let new = new.filter_map(|node| Some((node, failed(node).filter(|why| !why.is_empty())?)));
        let hold = |(node, reason): (&Node, String)| {
            let by = format!("node:{}", node.id);
            Action::SetHold { node: node.id.clone(), kind: HoldKind::Failure, by, reason, until: None, deadline: None }
        };
        new.map(hold).collect()
    }

    /// Nodes whose own checks ask for a drain, and that were not drained for that yet. A new leader does not ask again for what the one
    /// before it was granted: the ledger has it.
    pub fn drains<'a>(&self, now: Duration, nodes: impl Iterator<Item = &'a Node>) -> Vec<Action> {
        let wishes = |node: &Node| match self.health.get(&node.id) {
            Some((incarnation, NodeHealth::Unwell { drain, .. })) if *incarnation == node.incarnation => drain.clone(),
            Some(_) | None => None,
        };
        let new = nodes.filter(|node| self.is_heard(now, node)).filter_map(|node| Some((node, wishes(node)?)));
        let new = new.filter(|(node, wish)| node.drain_asked != Some(wish.asked) && !wish.why.is_empty());
        new.map(|(node, DrainWish { asked, why })| Action::AskDrain {
            node: node.id.clone(),
            incarnation: node.incarnation,
            asked,
            reason: why,
        })
        .collect()
    }

    /// For how long this life of the node was not heard; `None`: its clock has not begun.
    pub fn silence(&self, now: Duration, node: &NodeId, incarnation: Incarnation) -> Option<Duration> {
        let clock = self.heard.get(node).filter(|clock| clock.incarnation == incarnation)?;
        Some(now.saturating_sub(clock.at))
    }

    /// Nodes whose work is known to have ended by itself: they are Down, or would be if others did not hear them, and were silent for
    /// longer than run leases there last.
    pub fn fences(&self, now: Duration, ledger: &Ledger) -> Vec<Action> {
        let down = ledger.nodes().filter(|n| n.state == NodeState::Down || self.cut_off.contains(&n.id));
        let due = down.filter_map(|n| {
            let silent_ms = u64::try_from(self.silence(now, &n.id, n.incarnation)?.as_millis()).unwrap_or(u64::MAX);
            let due = ledger.fenced_after_ms(&n.id)? <= silent_ms;
            due.then(|| Action::Fence { node: n.id.clone(), incarnation: n.incarnation, silent_ms })
        });
        due.collect()
    }
}

/// Whether it makes a difference that the node is heard, or is not. One that is being booted comes back by registering; one
/// that was disabled, or whose hardware failed, is Down until an operator says otherwise.
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
