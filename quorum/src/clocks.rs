//! The leader's clocks: how long each node was silent. In memory only; a new leader starts every clock afresh. Time is given as what has passed since that start.

use crate::ledger::NodeStanding;
use lattice_model::{Incarnation, Node, NodeId, NodeState};
use std::collections::HashMap;
use std::time::Duration;

/// Nodes that fall silent within this time of each other are counted together.
const TOGETHER: Duration = Duration::from_secs(60);
/// More than this part (in per cent) of all nodes silent at once, and more than [`TOGETHER_NODES`] of them: none goes Down.
const TOGETHER_PERCENT: usize = 20;
const TOGETHER_NODES: usize = 2;

/// How long is too long.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Silence after which a node is Degraded.
    pub degraded_after: Duration,
    /// Further silence after which it is Down.
    pub down_after: Duration,
}

/// When a node was last heard.
#[derive(Clone, Copy, Debug)]
struct Heard {
    incarnation: Incarnation,
    at: Duration,
    /// False for the start of the clock, which nobody heard.
    really: bool,
}

/// The clocks of one term of leadership.
#[derive(Debug)]
pub struct Clocks {
    limits: Limits,
    heard: HashMap<NodeId, Heard>,
    /// Whether the last look found too many silent nodes.
    pub mass_silence: bool,
}

impl Clocks {
    /// Starts.
    pub fn new(limits: Limits) -> Self {
        Self { limits, heard: HashMap::new(), mass_silence: false }
    }

    /// The node was heard at `at`.
    pub fn heard(&mut self, node: NodeId, incarnation: Incarnation, at: Duration) {
        let clock = self.heard.entry(node).or_insert(Heard { incarnation, at, really: true });
        if incarnation >= clock.incarnation {
            *clock = Heard { incarnation, at: clock.at.max(at), really: true };
        }
    }

    /// Which nodes stand elsewhere than the ledger says.
    pub fn standings<'a>(&mut self, now: Duration, nodes: impl Iterator<Item = &'a Node>) -> Vec<NodeStanding> {
        let mut all = 0;
        // Silent nodes: where they stand, and when they were last heard.
        let mut silent: Vec<(&Node, Duration)> = Vec::new();
        let mut standings = Vec::new();
        for node in nodes {
            all += 1;
            let fresh = Heard { incarnation: node.incarnation, at: now, really: false };
            let clock = self.heard.entry(node.id.clone()).or_insert(fresh);
            if clock.incarnation < node.incarnation {
                // It registered anew: that was heard.
                *clock = Heard { incarnation: node.incarnation, at: now, really: true };
            }
            let silence = now.saturating_sub(clock.at);
            if silence > self.limits.degraded_after {
                silent.push((node, clock.at));
            } else if clock.really && clock.incarnation == node.incarnation {
                match node.state {
                    NodeState::Ready => {}
                    NodeState::Booting | NodeState::Degraded | NodeState::Down => {
                        standings.push(standing(node, NodeState::Ready, "heard again".to_owned()));
                    }
                }
            }
        }
        let mut times: Vec<Duration> = silent.iter().map(|(_, at)| *at).collect();
        times.sort_unstable();
        let together = |at: Duration| {
            let upto = times.partition_point(|t| *t <= at + TOGETHER);
            upto - times.partition_point(|t| *t < at.saturating_sub(TOGETHER))
        };
        self.mass_silence = silent.iter().any(|(_, at)| too_many(together(*at), all));
        for (node, at) in &silent {
            let silence = now.saturating_sub(*at);
            let gone = silence > self.limits.degraded_after + self.limits.down_after && !too_many(together(*at), all);
            let reason = format!("silent for {} s", silence.as_secs());
            match node.state {
                NodeState::Booting | NodeState::Ready => standings.push(standing(node, NodeState::Degraded, reason)),
                NodeState::Degraded if gone => standings.push(standing(node, NodeState::Down, reason)),
                NodeState::Degraded | NodeState::Down => {}
            }
        }
        standings
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
    use lattice_model::{Boot, NodeAddresses, Resources, Revision, Timestamp};

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn node(id: &str, state: NodeState) -> Node {
        Node {
            id: id.parse().unwrap(),
            size: Resources { cores: 1, memory_bytes: 1, gpus: 0 },
            addresses: NodeAddresses::default(),
            schedulable: true,
            boot: Boot(uuid::Uuid::nil()),
            incarnation: Incarnation(1),
            state,
            state_reason: String::new(),
            state_since: Timestamp(0),
            unlimited: vec![],
            features: vec![],
            holds: vec![],
            leaving: vec![],
            home: String::new(),
            hold_revision: Revision(1),
            report_seq: 0,
            revision: Revision(1),
        }
    }

    fn states(clocks: &mut Clocks, now: u64, nodes: &[Node]) -> Vec<(String, NodeState)> {
        clocks.standings(S(now), nodes.iter()).into_iter().map(|s| (s.node.to_string(), s.state)).collect()
    }

    fn clocks() -> Clocks {
        Clocks::new(Limits { degraded_after: S(30), down_after: S(60) })
    }

    #[test]
    fn a_silent_node_is_degraded_then_down_then_ready_when_heard() {
        let mut c = clocks();
        let mut n = [node("n1", NodeState::Ready)];
        assert_eq!(states(&mut c, 100, &n), []);
        assert_eq!(states(&mut c, 130, &n), []);
        assert_eq!(states(&mut c, 131, &n), [("n1".to_owned(), NodeState::Degraded)]);
        n[0].state = NodeState::Degraded;
        assert_eq!(states(&mut c, 190, &n), []);
        assert_eq!(states(&mut c, 191, &n), [("n1".to_owned(), NodeState::Down)]);
        n[0].state = NodeState::Down;
        c.heard("n1".parse().unwrap(), Incarnation(1), S(192));
        assert_eq!(states(&mut c, 193, &n), [("n1".to_owned(), NodeState::Ready)]);
    }

    #[test]
    fn a_new_leader_neither_condemns_nor_revives_whom_it_never_heard() {
        let mut c = clocks();
        let n = [node("n1", NodeState::Down), node("n2", NodeState::Ready)];
        assert_eq!(states(&mut c, 0, &n), []);
        assert_eq!(states(&mut c, 29, &n), []);
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
        assert!(c.mass_silence);
        // Two of ten: Down.
        c.heard(many[2].id.clone(), Incarnation(1), S(92));
        let down: Vec<_> = states(&mut c, 92, &many).into_iter().filter(|(_, s)| *s == NodeState::Down).collect();
        assert_eq!(down.len(), 2);
        assert!(!c.mass_silence);
    }
}
