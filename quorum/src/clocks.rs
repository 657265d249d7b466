//! The leader's clocks: how long each node was silent. In memory only; a new leader starts every clock afresh. Time is given as what has passed since that start.
//!
//! ```text
//!   heard ──degraded_after──▶ Degraded ──down_after──▶ nobody else hears it ──▶ Down
//!                                            └───────▶ others do: Degraded still, for cut_off_after at most
//! ```
//!
//! The second witness is what agents' gossip says of a silent node. Their word can only lengthen a grace, and ends no work: what is
//! to stop at its lapse is fenced at the same moment as without it.

use crate::ledger::{Action, Ledger, NodeStanding};
use crate::node_use::NodeUse;
use crate::wire::{DrainWish, NodeHealth};
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
mod tests {
    use super::*;
    use lattice_model::test_builders::node;
    use lattice_model::{Hold, Timestamp};

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn states(clocks: &mut Clocks, now: u64, nodes: &[Node]) -> Vec<(String, NodeState)> {
        clocks.standings(S(now), nodes.iter(), |_| NodeUse::Own).into_iter().map(|s| (s.node.to_string(), s.state)).collect()
    }

    fn clocks() -> Clocks {
        Clocks::new(LIMITS)
    }

    /// As configured by default.
    const LIMITS: Limits = Limits {
        own: Patience { degraded_after: Duration::from_secs(30), down_after: Duration::from_secs(60) },
        sensitive: Patience { degraded_after: Duration::from_secs(120), down_after: Duration::from_secs(300) },
        borrowed: Patience { degraded_after: Duration::from_secs(30), down_after: Duration::from_secs(30) },
        cut_off_after: Duration::from_secs(300),
    };

    #[test]
    fn patience_is_that_of_what_the_node_is_used_for() {
        // Of each use: when it is Degraded, and when Down.
        let table = [(NodeUse::Own, 30, 90), (NodeUse::Sensitive, 120, 420), (NodeUse::Borrowed, 30, 60)];
        for (used, degraded, down) in table {
            let (mut c, mut n) = (clocks(), [node("n1", NodeState::Ready)]);
            let mut at = |now, n: &[Node]| c.standings(S(now), n.iter(), |_| used).first().map(|s| s.state);
            assert_eq!(at(0, &n), None);
            assert_eq!((at(degraded, &n), at(degraded + 1, &n)), (None, Some(NodeState::Degraded)), "{used:?}");
            n[0].state = NodeState::Degraded;
            assert_eq!((at(down, &n), at(down + 1, &n)), (None, Some(NodeState::Down)), "{used:?}");
        }
    }

    #[test]
    fn one_that_others_hear_stays_degraded_for_so_much_longer_and_no_longer_than_they_say_it() {
        let (mut c, mut n) = (clocks(), [node("n1", NodeState::Degraded)]);
        let (id, by) = (n[0].id.clone(), || "n2".parse::<NodeId>().unwrap());
        assert_eq!(states(&mut c, 0, &n), []);
        c.witnessed(&id, by(), S(1));
        assert_eq!(states(&mut c, 87, &n), []);
        assert!(c.asked().is_empty(), "it is early");
        assert_eq!(states(&mut c, 88, &n), []);
        assert!(c.asked().contains(&id));
        c.witnessed(&id, id.clone(), S(88));
        c.witnessed(&id, by(), S(88));
        let said = c.standings(S(89), n.iter(), |_| NodeUse::Own);
        assert_eq!((said[0].state, said[0].reason.as_str()), (NodeState::Degraded, "its way to the quorum is lost: n2 hears it"));
        n[0].state_reason.clone_from(&said[0].reason);
        assert_eq!(states(&mut c, 91, &n), []);
        assert!(c.cut_off.contains(&id), "its leases lapse as those of others");
        // The witness hears it no more.
        assert_eq!(states(&mut c, 94, &n), [("n1".to_owned(), NodeState::Down)]);
        c.witnessed(&id, by(), S(389));
        assert_eq!(states(&mut c, 390, &n), []);
        c.witnessed(&id, by(), S(390));
        assert_eq!(states(&mut c, 391, &n), [("n1".to_owned(), NodeState::Down)], "not for ever");
    }

    #[test]
    fn where_many_are_silent_nobody_is_asked_and_none_is_fenced() {
        let many: Vec<Node> = (0..10).map(|i| node(&format!("n{i}"), NodeState::Degraded)).collect();
        let mut c = clocks();
        assert_eq!(states(&mut c, 0, &many), []);
        assert_eq!(states(&mut c, 91, &many), []);
        assert!(c.held_back > 0 && c.asked().is_empty() && c.cut_off.is_empty());
    }

    proptest::proptest! {
        /// The same history with witnesses and without: whatever they say, nobody is Down earlier, and leases are over at the same time.
        #[test]
        fn a_witness_lengthens_and_never_shortens(history in proptest::collection::vec((0u64..40, 0usize..5, 0usize..5, 0u8..4), 1..80)) {
            let ids: Vec<NodeId> = (0..5).map(|i| format!("n{i}").parse().unwrap()).collect();
            let mut sides = [(clocks(), false), (clocks(), true)].map(|(c, asks)| {
                (c, asks, (0..5).map(|i| node(&format!("n{i}"), NodeState::Ready)).collect::<Vec<_>>())
            });
            let mut now = 0;
            for (pause, who, by, what) in history {
                now += pause;
                for (c, asks, nodes) in &mut sides {
                    match what {
                        0 => c.heard(ids[who].clone(), Incarnation(1), S(now)),
                        1 if *asks => c.witnessed(&ids[who], ids[by].clone(), S(now)),
                        _ => {}
                    }
                    let all: Vec<_> = c.standings(S(now), nodes.iter(), |_| NodeUse::Own);
                    for said in all {
                        let node = nodes.iter_mut().find(|n| n.id == said.node).unwrap();
                        (node.state, node.state_reason) = (said.state, said.reason);
                    }
                }
                let [(_, _, without), (c, _, with)] = &sides;
                for (without, with) in without.iter().zip(with) {
                    let (gone, stays) = (without.state == NodeState::Down, with.state == NodeState::Down);
                    assert!(gone || !stays, "{} is Down because of a witness", with.id);
                    // Leases: who is Down on one side may be fenced on the other, unless many fell silent since.
                    let fenced = stays || c.cut_off.contains(&with.id);
                    assert!(gone || !fenced, "{} is fenced because of a witness", with.id);
                    assert!(!gone || fenced || c.held_back > 0, "{} is not fenced because of a witness", with.id);
                }
            }
        }
    }

    #[test]
    fn nodes_that_a_new_leader_found_down_hold_no_other_back() {
        let mut n: Vec<Node> = (0..10).map(|i| node(&format!("n{i}"), NodeState::Ready)).collect();
        n[..3].iter_mut().for_each(|dead| dead.state = NodeState::Down);
        let mut c = clocks();
        assert_eq!(states(&mut c, 0, &n), []);
        for now in [5, 40, 97] {
            // One more dies after five seconds; the others live on.
            n[3..].iter().filter(|n| now == 5 || n.id.as_str() != "n3").for_each(|n| c.heard(n.id.clone(), Incarnation(1), S(now)));
            for (id, state) in states(&mut c, now, &n) {
                assert_eq!(id, "n3");
                n[3].state = state;
            }
            assert_eq!(c.held_back, 0);
        }
        assert_eq!(n[3].state, NodeState::Down);
    }

    proptest::proptest! {
        /// The same history with nodes that were Down before this leader's time and without them: nobody else stands elsewhere.
        #[test]
        fn nodes_that_were_down_before_change_nothing_for_the_others(
            dead in 1usize..8,
            history in proptest::collection::vec((0u64..40, 0usize..5, proptest::bool::ANY), 1..80),
        ) {
            let mut sides = [0, dead].map(|dead| {
                let live = (0..5).map(|i| node(&format!("n{i}"), NodeState::Ready));
                let dead = (0..dead).map(|i| node(&format!("dead{i}"), NodeState::Down));
                (clocks(), live.chain(dead).collect::<Vec<_>>())
            });
            let mut now = 0;
            for (pause, who, is_heard) in history {
                now += pause;
                for (c, nodes) in &mut sides {
                    if is_heard {
                        c.heard(nodes[who].id.clone(), Incarnation(1), S(now));
                    }
                    for said in c.standings(S(now), nodes.iter(), |_| NodeUse::Own) {
                        nodes.iter_mut().find(|n| n.id == said.node).unwrap().state = said.state;
                    }
                }
                let [(without, nodes), (with, more)] = &sides;
                let states = |nodes: &[Node]| nodes[..5].iter().map(|n| n.state).collect::<Vec<_>>();
                assert_eq!((states(nodes), without.held_back), (states(more), with.held_back));
                assert!(more[5..].iter().all(|n| n.state == NodeState::Down));
            }
        }
    }

    #[test]
    fn a_silent_node_is_degraded_then_down_then_ready_when_heard() {
        let mut c = clocks();
        let mut n = [node("n1", NodeState::Ready)];
        assert_eq!(states(&mut c, 100, &n), []);
        assert_eq!(c.due(), Some(S(130)));
        assert_eq!(states(&mut c, 130, &n), []);
        assert_eq!(states(&mut c, 131, &n), [("n1".to_owned(), NodeState::Degraded)]);
        n[0].state = NodeState::Degraded;
        assert_eq!(c.due(), Some(S(190)));
        assert_eq!(states(&mut c, 190, &n), []);
        assert_eq!(states(&mut c, 191, &n), [("n1".to_owned(), NodeState::Down)]);
        n[0].state = NodeState::Down;
        c.heard("n1".parse().unwrap(), Incarnation(1), S(192));
        assert_eq!(states(&mut c, 193, &n), [("n1".to_owned(), NodeState::Ready)]);
    }

    #[test]
    fn a_node_that_is_not_well_gets_no_work_until_it_is_and_a_new_leader_waits_for_its_word() {
        let (mut c, mut n) = (clocks(), [node("n1", NodeState::Ready)]);
        let id = || "n1".parse::<NodeId>().unwrap();
        let unwell = || NodeHealth::Unwell { why: "disk: full".into(), drain: None };
        c.heard(id(), Incarnation(1), S(1));
        c.said(id(), Incarnation(1), unwell());
        let said = c.standings(S(2), n.iter(), |_| NodeUse::Own);
        assert_eq!((said[0].state, said[0].reason.as_str()), (NodeState::Degraded, "not well: disk: full"));
        (n[0].state, n[0].state_reason) = (NodeState::Degraded, said[0].reason.clone());
        assert_eq!(states(&mut c, 3, &n), []);
        // Another check that says so is told, and another number of the same one is not.
        for (why, told) in
            [("disk: 3 % are free", None), ("disk: full; nic eth0: it is down", Some("not well: disk: full; nic eth0: it is down"))]
        {
            c.said(id(), Incarnation(1), NodeHealth::Unwell { why: why.into(), drain: None });
            let again = c.standings(S(3), n.iter(), |_| NodeUse::Own);
            assert_eq!(again.first().map(|standing| standing.reason.as_str()), told);
            assert!(again.iter().all(|standing| standing.state == NodeState::Degraded));
        }
        c.said(id(), Incarnation(1), unwell());
        let mut next = clocks();
        next.heard(id(), Incarnation(1), S(1));
        assert_eq!(states(&mut next, 2, &n), [], "something was heard, and nothing of its health");
        next.said(id(), Incarnation(1), NodeHealth::Well);
        assert_eq!(states(&mut next, 3, &n), [("n1".to_owned(), NodeState::Ready)]);
        // Silence counts all the same, and is the reason from then on; whoever comes back from it is heard first.
        let silent = c.standings(S(32), n.iter(), |_| NodeUse::Own);
        assert_eq!((silent[0].state, silent[0].reason.as_str()), (NodeState::Degraded, "silent for 31 s"));
        n[0].state_reason.clone_from(&silent[0].reason);
        assert!(!n[0].is_unwell());
        assert_eq!(states(&mut c, 33, &n), []);
        assert_eq!(states(&mut c, 92, &n), [("n1".to_owned(), NodeState::Down)]);
        n[0].state = NodeState::Down;
        c.heard(id(), Incarnation(1), S(93));
        assert_eq!(states(&mut c, 93, &n), [NodeState::Ready, NodeState::Degraded].map(|state| ("n1".to_owned(), state)));
        (n[0].state, n[0].state_reason) = (NodeState::Degraded, said[0].reason.clone());
        // Another life says it anew.
        n[0].incarnation = Incarnation(2);
        assert_eq!(states(&mut c, 95, &n), []);
    }

    #[test]
    fn a_node_that_drains_and_is_not_well_says_so_beside_its_state() {
        let (mut c, mut n) = (clocks(), [node("n1", NodeState::Draining)]);
        let id = || "n1".parse::<NodeId>().unwrap();
        n[0].holds = vec![Hold {
            kind: HoldKind::Drain,
            by: "root".into(),
            reason: "x".into(),
            also: Vec::new(),
            since: Timestamp(0),
            until: None,
            deadline: None,
        }];
        c.heard(id(), Incarnation(1), S(1));
        assert_eq!(states(&mut c, 1, &n), []);
        c.said(id(), Incarnation(1), NodeHealth::Unwell { why: "disk: full".into(), drain: None });
        let said = c.standings(S(2), n.iter(), |_| NodeUse::Own);
        assert_eq!((said[0].state, said[0].reason.as_str()), (NodeState::Draining, "not well: disk: full"));
        n[0].state_reason.clone_from(&said[0].reason);
        assert_eq!(states(&mut c, 3, &n), [], "said once");
        // It was Degraded before it was drained: from now on its drain says where it stands.
        n[0].state = NodeState::Degraded;
        assert_eq!(states(&mut c, 3, &n), [("n1".to_owned(), NodeState::Ready)]);
        // A leader that was told nothing leaves what was said, and one that hears that it is well takes it back.
        n[0].state = NodeState::Drained;
        let mut next = clocks();
        next.heard(id(), Incarnation(1), S(1));
        assert_eq!(states(&mut next, 2, &n), []);
        next.said(id(), Incarnation(1), NodeHealth::Well);
        assert_eq!(next.standings(S(2), n.iter(), |_| NodeUse::Own)[0].reason, "");
    }

    #[test]
    fn failed_hardware_is_a_hold_once_in_the_life_that_said_it() {
        let (mut c, mut n) = (clocks(), [node("n1", NodeState::Ready), node("n2", NodeState::Ready)]);
        c.said("n1".parse().unwrap(), Incarnation(1), NodeHealth::Failed { why: "ecc: uncorrectable".into() });
        c.heard("n1".parse().unwrap(), Incarnation(1), S(1));
        assert_eq!(c.failures(S(32), n.iter()), [], "it is switched off by now");
        let holds = c.failures(S(1), n.iter());
        assert!(
            matches!(&holds[..], [Action::SetHold { kind: HoldKind::Failure, by, reason, .. }] if by == "node:n1" && reason == "ecc: uncorrectable"),
            "{holds:?}"
        );
        n[0].incarnation = Incarnation(2);
        assert_eq!(c.failures(S(1), n.iter()), []);
        c.said("n1".parse().unwrap(), Incarnation(2), NodeHealth::Failed { why: "ecc: uncorrectable".into() });
        c.heard("n1".parse().unwrap(), Incarnation(2), S(1));
        assert_eq!(c.failures(S(1), n.iter()).len(), 1);
        let (by, reason) = ("root".to_owned(), "x".to_owned());
        n[0].holds = vec![Hold { kind: HoldKind::Failure, by, reason, also: Vec::new(), since: Timestamp(0), until: None, deadline: None }];
        assert_eq!(c.failures(S(1), n.iter()), [], "it is under one");
        // A leader that never heard it knows for how long that is: run leases there are over some day.
        n[0].state = NodeState::Down;
        let mut next = clocks();
        assert_eq!(states(&mut next, 5, &n[..1]), []);
        assert_eq!(next.silence(S(105), &n[0].id, n[0].incarnation), Some(S(100)));
    }

    #[test]
    fn a_drain_that_a_node_asks_for_is_asked_of_the_ledger_until_it_has_it() {
        let (mut c, mut n) = (clocks(), [node("n1", NodeState::Ready), node("n2", NodeState::Ready)]);
        let id = || "n1".parse::<NodeId>().unwrap();
        let wish = |asked, why: &str| {
            let drain = Some(DrainWish { asked: Timestamp(asked), why: why.into() });
            NodeHealth::Unwell { why: "gpu 0: XID 79".into(), drain }
        };
        c.heard(id(), Incarnation(1), S(1));
        c.said(id(), Incarnation(1), wish(5, "gpu 0: XID 79"));
        let asked =
            |asked| Action::AskDrain { node: id(), incarnation: Incarnation(1), asked: Timestamp(asked), reason: "gpu 0: XID 79".into() };
        assert_eq!(c.drains(S(1), n.iter()), [asked(5)]);
        assert_eq!(c.drains(S(32), n.iter()), [], "it is not heard by now");
        n[0].drain_asked = Some(Timestamp(5));
        assert_eq!(c.drains(S(1), n.iter()), [], "granted, whether it stands or not");
        c.said(id(), Incarnation(1), wish(9, "gpu 0: XID 79"));
        assert_eq!(c.drains(S(1), n.iter()), [asked(9)], "another request");
        c.said(id(), Incarnation(1), wish(10, ""));
        assert_eq!(c.drains(S(1), n.iter()), []);
        c.said(id(), Incarnation(1), wish(9, "gpu 0: XID 79"));
        n[0].incarnation = Incarnation(2);
        assert_eq!(c.drains(S(1), n.iter()), [], "of another life");
    }

    #[test]
    fn a_new_leader_neither_condemns_nor_revives_whom_it_never_heard() {
        let mut c = clocks();
        let n = [node("n1", NodeState::Down), node("n2", NodeState::Ready)];
        assert_eq!(states(&mut c, 0, &n), []);
        assert_eq!(states(&mut c, 29, &n), []);
    }

    #[test]
    fn a_node_that_drains_falls_silent_as_others_and_one_that_is_disabled_or_booted_is_not_expected() {
        let mut c = clocks();
        let mut n =
            [node("n1", NodeState::Draining), node("n2", NodeState::Drained), node("n3", NodeState::Booting), node("n4", NodeState::Down)];
        let hold =
            |kind| Hold { kind, by: "root".into(), reason: "x".into(), also: Vec::new(), since: Timestamp(0), until: None, deadline: None };
        n[3].holds = vec![hold(HoldKind::Disable)];
        assert_eq!(states(&mut c, 0, &n), []);
        for silent in ["n3", "n4"] {
            c.heard(silent.parse().unwrap(), Incarnation(1), S(31));
        }
        let degraded = |name: &str| (name.to_owned(), NodeState::Degraded);
        assert_eq!(states(&mut c, 31, &n), [degraded("n1"), degraded("n2")]);
        // Heard all the while: at work as soon as it may be.
        n[3].holds.clear();
        assert_eq!(states(&mut c, 32, &n[3..]), [("n4".to_owned(), NodeState::Ready)]);
    }

    #[test]
    fn an_older_life_does_not_count_as_heard() {
        let mut c = clocks();
        let mut n = [node("n1", NodeState::Down)];
        n[0].incarnation = Incarnation(2);
        assert_eq!(states(&mut c, 0, &n), []);
        c.heard("n1".parse().unwrap(), Incarnation(1), S(5));
        assert_eq!(states(&mut c, 6, &n), []);
    }

    #[test]
    fn when_many_fall_silent_together_none_goes_down() {
        let many: Vec<Node> = (0..10).map(|i| node(&format!("n{i}"), NodeState::Degraded)).collect();
        let mut c = clocks();
        assert_eq!(states(&mut c, 0, &many), []);
        for n in &many[3..] {
            c.heard(n.id.clone(), Incarnation(1), S(91));
        }
        // Three of ten: held back.
        let back: Vec<_> = states(&mut c, 91, &many);
        assert!(back.iter().all(|(_, s)| *s == NodeState::Ready) && back.len() == 7, "{back:?}");
        assert!(c.held_back > 0);
        // Two of ten: Down.
        c.heard(many[2].id.clone(), Incarnation(1), S(92));
        let down: Vec<_> = states(&mut c, 92, &many).into_iter().filter(|(_, s)| *s == NodeState::Down).collect();
        assert_eq!(down.len(), 2);
        assert!(c.held_back == 0);
    }
}
