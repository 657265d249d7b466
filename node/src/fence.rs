//! How long the head of a launch lets a PMI fence wait. Times are milliseconds of any clock that
//! does not jump.
//!
//! ```text
//!   Idle ──a fence waits, all nodes connected──▶ Waiting ──timeout──▶ Asking ──answers, or 3 s──▶ launch fails
//!    ▲                                              │                   │
//!    ╰──── it is done, or a node is unreachable ────┴───────────────────╯
//! ```
//!
//! A fence that waits for a node on which a rank has ended would wait for ever, so the launch fails
//! at once. A fence that waits too long while every node is connected fails as well. While a node
//! is unreachable there is no timeout; it begins anew when all nodes are connected. An empty fence
//! has no timeout: `MPI_Finalize` is such a fence in MPICH and in Open MPI, and ranks may enter it
//! hours apart.

use lattice_model::NodeRanks;
use std::collections::{BTreeMap, BTreeSet};

/// How many nodes, and how many ranks of each, a message names at most.
const NAMES_MAX: usize = 16;
/// How long the awaited nodes have to name those of their ranks that have not entered the fence.
const ANSWERS_WAIT_MS: u64 = 3000;

/// The head's watch over its launch's fences. See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceWatch {
    parts: usize,
    timeout_ms: u64,
    /// Parts in which a rank has ended.
    ended: BTreeSet<usize>,
    phase: Phase,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// No fence waits, or a node is unreachable.
    Idle,
    Waiting {
        fence: u32,
        since_ms: u64,
    },
    /// The fence has waited too long, and every part is asked which of its ranks have not entered
    /// it.
    Asking {
        fence: u32,
        asked_ms: u64,
        /// The answers: the ranks that have not entered it, by part.
        absent: BTreeMap<usize, Vec<u32>>,
    },
}

/// A fence that not all parts have entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFence {
    pub number: u32,
    /// Parts that have not entered it.
    pub missing: Vec<u32>,
    /// Whether it is known to carry any data.
    pub carries: bool,
}

/// An event of a launch's fences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FenceEvent {
    /// A rank of this part ended.
    RankEnded { part: usize },
    /// A part names those of its ranks that have not entered the fence.
    Absent { part: usize, ranks: Vec<u32> },
    /// The open fence is done.
    Done,
    /// The present state was checked; `open` is the fence that waits, or `None` if none does or a
    /// node is unreachable.
    Looked { open: Option<OpenFence> },
}

/// What to do about a fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FenceAction {
    /// Ask every part which of its ranks have not entered the fence: [`FenceEvent::Absent`].
    AskWhoIsAbsent,
    /// Bring the launch down.
    Fail(FenceFailure),
}

/// Why a fence failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FenceFailure {
    /// A rank of this part ended without entering the fence.
    RankEnded { fence: u32, part: usize },
    /// The fence waited too long for these parts; the value lists the ranks that each part named.
    TimedOut { fence: u32, timeout_ms: u64, missing: BTreeMap<usize, Vec<u32>> },
}

impl FenceWatch {
    /// The watch of a launch that begins, with `parts` parts. `timeout_ms`: how long a fence that
    /// carries data may wait.
    pub fn new(parts: usize, timeout_ms: u64) -> Self {
        Self { parts, timeout_ms, ended: BTreeSet::new(), phase: Phase::Idle }
    }

    /// Handles an event and appends the actions to `out`. Each check that finds a failure appends
    /// it again.
    pub fn handle(&mut self, now_ms: u64, event: FenceEvent, out: &mut Vec<FenceAction>) {
        match event {
            FenceEvent::RankEnded { part } => {
                if part < self.parts {
                    self.ended.insert(part);
                }
            }
            FenceEvent::Absent { part, ranks } => match &mut self.phase {
                Phase::Asking { absent, .. } => {
                    absent.insert(part, ranks);
                }
                Phase::Idle | Phase::Waiting { .. } => {}
            },
            FenceEvent::Done | FenceEvent::Looked { open: None } => self.phase = Phase::Idle,
            FenceEvent::Looked { open: Some(open) } => self.check(now_ms, open, out),
        }
    }

    fn check(&mut self, now_ms: u64, open: OpenFence, out: &mut Vec<FenceAction>) {
        let OpenFence { number, missing, carries } = open;
        match &self.phase {
            Phase::Waiting { fence, .. } | Phase::Asking { fence, .. } if *fence == number => {}
            Phase::Idle | Phase::Waiting { .. } | Phase::Asking { .. } => self.phase = Phase::Waiting { fence: number, since_ms: now_ms },
        }
        let missing: Vec<usize> = missing.into_iter().map(|part| part as usize).filter(|part| *part < self.parts).collect();
        if let Some(part) = missing.iter().find(|part| self.ended.contains(part)) {
            out.push(FenceAction::Fail(FenceFailure::RankEnded { fence: number, part: *part }));
            return;
        }
        match &self.phase {
            Phase::Idle => {}
            Phase::Waiting { since_ms, .. } => {
                if carries && now_ms.saturating_sub(*since_ms) > self.timeout_ms {
                    self.phase = Phase::Asking { fence: number, asked_ms: now_ms, absent: BTreeMap::new() };
                    out.push(FenceAction::AskWhoIsAbsent);
                }
            }
            Phase::Asking { asked_ms, absent, .. } => {
                let all_answered = missing.iter().all(|part| absent.contains_key(part));
                if carries && (all_answered || now_ms.saturating_sub(*asked_ms) >= ANSWERS_WAIT_MS) {
                    let named = |part| (part, absent.get(&part).cloned().unwrap_or_default());
                    let missing = missing.into_iter().map(named).collect();
                    out.push(FenceAction::Fail(FenceFailure::TimedOut { fence: number, timeout_ms: self.timeout_ms, missing }));
                }
            }
        }
    }
}

impl FenceFailure {
    /// The failure, for people. `nodes`: the launch's nodes.
    pub fn describe(&self, nodes: &[NodeRanks]) -> String {
        match self {
            Self::RankEnded { fence, part } => {
                let node = nodes.get(*part).map(|ranks| ranks.node.to_string()).unwrap_or_default();
                format!("fence {fence} waits for node {node}, where a rank ended without entering it")
            }
            Self::TimedOut { fence, timeout_ms, missing } => {
                let named = missing.iter().filter_map(|(part, ranks)| Some(absent_on(nodes.get(*part)?, ranks)));
                let missing = first_of(named, missing.len(), " nodes");
                format!("PMI fence timeout: after {} s fence {fence} still waits for {missing}", timeout_ms / 1000)
            }
        }
    }
}

/// Names the ranks of one node that have not entered the fence.
fn absent_on(NodeRanks { node, count, .. }: &NodeRanks, ranks: &[u32]) -> String {
    match ranks {
        [] => format!("node {node} (it does not name which of its {count} ranks)"),
        [rank] => format!("rank {rank} on node {node}"),
        ranks => format!("ranks {} on node {node}", first_of(ranks.iter().map(u32::to_string), ranks.len(), "")),
    }
}

/// The first `NAMES_MAX` names, and the number of the others.
fn first_of(all: impl Iterator<Item = String>, count: usize, of: &str) -> String {
    let more = (count > NAMES_MAX).then(|| format!("{} more{of}", count - NAMES_MAX));
    all.take(NAMES_MAX).chain(more).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use FenceAction::{AskWhoIsAbsent, Fail};

    const TIMEOUT_MS: u64 = 10_000;

    fn open(number: u32, missing: &[u32]) -> FenceEvent {
        FenceEvent::Looked { open: Some(OpenFence { number, missing: missing.to_vec(), carries: true }) }
    }

    fn step(watch: &mut FenceWatch, now_ms: u64, event: FenceEvent) -> Vec<FenceAction> {
        let mut out = Vec::new();
        watch.handle(now_ms, event, &mut out);
        out
    }

    fn timed_out(fence: u32, missing: &[(usize, &[u32])]) -> Vec<FenceAction> {
        let missing = missing.iter().map(|(part, ranks)| (*part, ranks.to_vec())).collect();
        vec![Fail(FenceFailure::TimedOut { fence, timeout_ms: TIMEOUT_MS, missing })]
    }

    /// A watch of four parts: fence 1 has waited since 0 for parts 1 and 2, which are being asked.
    fn asking() -> FenceWatch {
        let mut watch = FenceWatch::new(4, TIMEOUT_MS);
        assert_eq!(step(&mut watch, 0, open(1, &[1, 2])), []);
        assert_eq!(step(&mut watch, 10_000, open(1, &[1, 2])), []);
        assert_eq!(step(&mut watch, 10_001, open(1, &[1, 2])), [AskWhoIsAbsent]);
        watch
    }

    #[test]
    fn a_fence_that_waits_too_long_fails_once_all_have_named_who_is_absent() {
        let mut watch = asking();
        assert_eq!(step(&mut watch, 10_100, FenceEvent::Absent { part: 1, ranks: vec![4, 5] }), []);
        assert_eq!(step(&mut watch, 10_200, open(1, &[1, 2])), []);
        assert_eq!(step(&mut watch, 10_300, FenceEvent::Absent { part: 2, ranks: vec![] }), []);
        assert_eq!(step(&mut watch, 10_400, open(1, &[1, 2])), timed_out(1, &[(1, &[4, 5]), (2, &[])]));
    }

    #[test]
    fn answers_are_awaited_for_three_seconds() {
        let mut watch = asking();
        assert_eq!(step(&mut watch, 13_000, open(1, &[1, 2])), []);
        assert_eq!(step(&mut watch, 13_001, open(1, &[2])), timed_out(1, &[(2, &[])]));
    }

    #[test]
    fn the_timeout_stops_while_a_node_is_away_and_begins_anew_with_each_fence() {
        for reset in [FenceEvent::Looked { open: None }, FenceEvent::Done] {
            let mut watch = asking();
            assert_eq!(step(&mut watch, 12_000, reset), []);
            assert_eq!(step(&mut watch, 12_100, FenceEvent::Absent { part: 1, ranks: vec![4] }), [], "late");
            assert_eq!(step(&mut watch, 20_000, open(1, &[1])), []);
            assert_eq!(step(&mut watch, 30_000, open(1, &[1])), []);
            assert_eq!(step(&mut watch, 30_001, open(1, &[1])), [AskWhoIsAbsent]);
        }
        let mut watch = asking();
        assert_eq!(step(&mut watch, 20_000, open(2, &[1])), []);
        assert_eq!(step(&mut watch, 30_000, open(2, &[1])), []);
        assert_eq!(step(&mut watch, 30_001, open(2, &[1])), [AskWhoIsAbsent]);
    }

    #[test]
    fn a_fence_that_carries_nothing_may_wait_for_hours() {
        let mut watch = FenceWatch::new(4, TIMEOUT_MS);
        for now_ms in [0, 10_001, 1 << 40] {
            let open = OpenFence { number: 1, missing: vec![1], carries: false };
            assert_eq!(step(&mut watch, now_ms, FenceEvent::Looked { open: Some(open) }), []);
        }
        // Its time counts from when it began, even if it carries data only later.
        assert_eq!(step(&mut watch, 1 << 40, open(1, &[1])), [AskWhoIsAbsent]);
    }

    #[test]
    fn a_fence_does_not_wait_for_a_node_where_a_rank_ended() {
        let mut watch = FenceWatch::new(4, TIMEOUT_MS);
        step(&mut watch, 0, FenceEvent::RankEnded { part: 3 });
        assert_eq!(step(&mut watch, 1, open(1, &[1, 2])), []);
        let failure = FenceFailure::RankEnded { fence: 1, part: 3 };
        assert_eq!(step(&mut watch, 2, open(1, &[2, 3])), [Fail(failure)]);
        assert_eq!(step(&mut watch, 3, open(2, &[9])), [], "no part of the launch");
    }

    #[test]
    fn a_failure_names_ranks_and_nodes_and_not_too_many_of_them() {
        let nodes: Vec<NodeRanks> =
            (0..40).map(|i| NodeRanks { node: format!("n{i}").parse().unwrap(), first: i * 20, count: 20 }).collect();
        let missing = BTreeMap::from([(1, vec![21]), (2, (40..60).collect()), (3, vec![])]);
        let failure = FenceFailure::TimedOut { fence: 7, timeout_ms: 60_000, missing };
        let expected = "PMI fence timeout: after 60 s fence 7 still waits for rank 21 on node n1, \
                        ranks 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 4 more on node n2, \
                        node n3 (it does not name which of its 20 ranks)";
        assert_eq!(failure.describe(&nodes), expected);
        let missing = (0..40).map(|part| (part, vec![])).collect();
        let failure = FenceFailure::TimedOut { fence: 7, timeout_ms: 60_000, missing };
        assert!(failure.describe(&nodes).ends_with(", 24 more nodes"));
        let failure = FenceFailure::RankEnded { fence: 7, part: 2 };
        assert_eq!(failure.describe(&nodes), "fence 7 waits for node n2, where a rank ended without entering it");
    }
}
