//! The head of a launch: it knows how every rank ended and when the launch is over. `fence.rs`
//! handles fences.

use lattice_model::launch::MEMORY_KILL_CODE;
use lattice_model::{LaunchSpec, MemoryKill, NodeId, RankOutcome};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The exit code of a launch that lost a part: a failure of Lattice, not of the program.
pub const LOST_CODE: i32 = 125;

/// An event of a part (one node of the launch). Parts repeat events after a reconnect; a repetition
/// changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartEvent {
    /// One of the part's ranks ended.
    RankEnded { rank: u32, outcome: RankOutcome },
    /// The part brought its ranks down: one died after init, called abort, or broke the PMI
    /// protocol.
    Aborted { code: i32, why: String },
    /// The kernel killed ranks of the part for lack of memory.
    OutOfMemory { kill: MemoryKill },
    /// The part is ending its ranks because their walltime is over.
    WalltimeOver,
    /// The part's ranks are certainly gone (new boot id, its shim is dead, it refused to start
    /// them).
    Lost { why: String },
}

/// How a launch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchEnd {
    /// The highest exit code of the ranks, or that of the abort.
    pub code: i32,
    /// Why the launch was brought down, if it was.
    pub aborted: Option<String>,
    /// Whether its walltime was over.
    pub walltime_over: bool,
    /// If it was brought down for lack of memory: where, and what was killed.
    pub out_of_memory: Option<(NodeId, MemoryKill)>,
    /// The ranks that did not end with 0, ascending.
    pub bad: Arc<BTreeMap<u32, RankEnd>>,
}

/// How one rank ended, as far as the launch's head knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankEnd {
    /// As its node reported.
    Ended(RankOutcome),
    /// Its part was lost before the rank's end was reported.
    Lost,
}

/// The head's state of one launch.
#[derive(Clone, Debug)]
pub struct LaunchHead {
    spec: LaunchSpec,
    /// For each rank, the index of its node in the launch's list.
    places: Vec<usize>,
    outcomes: BTreeMap<u32, RankOutcome>,
    /// For each node, how many of its ranks live.
    living: Vec<u32>,
    lost: Vec<bool>,
    aborted: Option<(i32, String)>,
    walltime_over: bool,
    out_of_memory: Option<(NodeId, MemoryKill)>,
}

impl LaunchHead {
    /// A launch that is just beginning.
    pub fn new(spec: LaunchSpec) -> Self {
        let lost = vec![false; spec.nodes.len()];
        let living = spec.nodes.iter().map(|n| n.count).collect();
        let places = spec.runs().iter().flat_map(|run| std::iter::repeat_n(run.node, run.count as usize)).collect();
        Self { spec, places, outcomes: BTreeMap::new(), living, lost, aborted: None, walltime_over: false, out_of_memory: None }
    }

    /// The launch.
    pub fn spec(&self) -> &LaunchSpec {
        &self.spec
    }

    /// Handles an event of part number `part`. Returns, once, the abort to send to all other parts.
    pub fn handle(&mut self, part: usize, event: PartEvent) -> Option<(i32, String)> {
        let ranks = self.spec.nodes.get(part)?;
        match event {
            PartEvent::RankEnded { rank, outcome } => {
                let is_its_own = self.places.get(rank as usize) == Some(&part);
                if !is_its_own || self.outcomes.contains_key(&rank) {
                    return None;
                }
                self.outcomes.insert(rank, outcome);
                self.living[part] -= 1;
                // A launch whose walltime is over ends everywhere by itself.
                let kills = self.spec.kill_on_bad_exit && outcome.code() != 0 && !self.walltime_over;
                let why = || format!("rank {rank} on {} {}", self.spec.nodes[part].node, describe(outcome));
                if kills { self.abort(outcome.code(), why()) } else { None }
            }
            PartEvent::WalltimeOver => {
                self.walltime_over = true;
                None
            }
            PartEvent::Aborted { code, why } => self.abort(code, why),
            PartEvent::OutOfMemory { kill } => {
                let node = ranks.node.clone();
                let abort = self.abort(MEMORY_KILL_CODE, kill.on(&node))?;
                self.out_of_memory = Some((node, kill));
                Some(abort)
            }
            PartEvent::Lost { why } => {
                let why = format!("{}: {why}", self.spec.nodes[part].node);
                // Abort before the part counts as lost: a launch that has lost its last part is over
                // and cannot be brought down.
                let abort = self.abort(LOST_CODE, why);
                self.lost[part] = true;
                abort
            }
        }
    }

    /// Brings the launch down for a reason of the head's own, such as a fence that timed out.
    pub fn abort(&mut self, code: i32, why: String) -> Option<(i32, String)> {
        if self.aborted.is_some() || self.end().is_some() {
            return None;
        }
        self.aborted = Some((code, why));
        self.aborted.clone()
    }

    /// The abort, if there was one, for a part that reconnects.
    pub fn aborted(&self) -> Option<&(i32, String)> {
        self.aborted.as_ref()
    }

    /// How the launch ended; `None` while a rank lives.
    pub fn end(&self) -> Option<LaunchEnd> {
        let over = self.living.iter().zip(&self.lost).all(|(living, lost)| *lost || *living == 0);
        over.then(|| {
            let highest = self.outcomes.values().map(|o| o.code()).max().unwrap_or(0);
            let (code, aborted) = match &self.aborted {
                Some((code, why)) => (if *code == 0 { 1 } else { *code }, Some(why.clone())),
                None => (highest, None),
            };
            let bad = Arc::new(self.bad());
            LaunchEnd { code, aborted, walltime_over: self.walltime_over, out_of_memory: self.out_of_memory.clone(), bad }
        })
    }

    fn bad(&self) -> BTreeMap<u32, RankEnd> {
        let end = |rank| match self.outcomes.get(&rank) {
            Some(RankOutcome::Exited { code: 0 }) => None,
            Some(outcome) => Some((rank, RankEnd::Ended(*outcome))),
            None => Some((rank, RankEnd::Lost)),
        };
        (0..self.spec.size()).filter_map(end).collect()
    }
}

fn describe(outcome: RankOutcome) -> String {
    match outcome {
        RankOutcome::Exited { code } => format!("exited with code {code}"),
        RankOutcome::Signalled { signal } => format!("was killed by signal {signal}"),
        RankOutcome::NotStarted { code: 127 } => "could not be started: there is no such program".to_owned(),
        RankOutcome::NotStarted { .. } => "could not be started".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{AllocationId, Distribution, Epoch, LaunchId, LaunchShape, NodeRanks, RankBinding};

    fn head(counts: &[u32]) -> LaunchHead {
        let mut first = 0;
        let nodes = counts
            .iter()
            .enumerate()
            .map(|(i, count)| {
                let ranks = NodeRanks { node: format!("n{i}").parse().unwrap(), first, count: *count };
                first += count;
                ranks
            })
            .collect();
        LaunchHead::new(LaunchSpec {
            id: "00000000-0000-4000-8000-000000000001".parse::<LaunchId>().unwrap(),
            number: 1,
            allocation: "00000000-0000-4000-8000-000000000002".parse::<AllocationId>().unwrap(),
            epoch: Epoch(1),
            argv: vec!["a".into()],
            env: BTreeMap::new(),
            working_dir: "/".into(),
            nodes,
            pty: None,
            binding: RankBinding::default(),
            shape: LaunchShape::default(),
            kill_on_bad_exit: false,
        })
    }

    fn shaped(counts: &[u32], distribution: Distribution) -> LaunchHead {
        let spec = LaunchSpec { kill_on_bad_exit: true, ..head(counts).spec };
        LaunchHead::new(spec.shaped(LaunchShape { distribution, ..LaunchShape::default() }).unwrap())
    }

    fn exited(rank: u32, code: u8) -> PartEvent {
        PartEvent::RankEnded { rank, outcome: RankOutcome::Exited { code } }
    }

    #[test]
    fn a_launch_ends_with_the_highest_code_when_every_rank_did() {
        let mut h = head(&[2, 1]);
        assert_eq!(h.handle(0, exited(0, 0)), None);
        assert_eq!(h.handle(1, exited(2, 3)), None);
        assert_eq!(h.end(), None);
        h.handle(0, PartEvent::RankEnded { rank: 1, outcome: RankOutcome::Signalled { signal: 9 } });
        let end = h.end().unwrap();
        assert_eq!((end.code, &end.aborted, end.walltime_over), (137, &None, false));
        let bad = [(1, RankEnd::Ended(RankOutcome::Signalled { signal: 9 })), (2, RankEnd::Ended(RankOutcome::Exited { code: 3 }))];
        assert_eq!(*end.bad, BTreeMap::from(bad));
    }

    #[test]
    fn a_bad_end_brings_the_others_down_if_requested() {
        let mut h = shaped(&[2, 2], Distribution::Cyclic);
        assert_eq!(h.handle(1, exited(1, 0)), None);
        assert_eq!(h.handle(1, exited(2, 5)), None, "rank 2 is the first node's");
        let abort = Some((5, "rank 2 on n0 exited with code 5".to_owned()));
        assert_eq!(h.handle(0, exited(2, 5)), abort);
        assert_eq!(h.handle(0, exited(2, 5)), None, "repeated after a reconnect");
        let terminated = |rank| PartEvent::RankEnded { rank, outcome: RankOutcome::Signalled { signal: 15 } };
        assert_eq!(h.handle(1, terminated(3)), None);
        assert_eq!(h.end(), None);
        h.handle(0, terminated(0));
        assert_eq!(h.end().map(|e| (e.code, e.aborted)), Some((5, abort.map(|(_, why)| why))));
        // The end of the last rank brings nothing down, nor does the end of ranks whose walltime is
        // over.
        let mut h = shaped(&[1], Distribution::Block);
        assert_eq!(h.handle(0, exited(0, 1)), None);
        let mut h = shaped(&[2], Distribution::Block);
        h.handle(0, PartEvent::WalltimeOver);
        assert_eq!(h.handle(0, terminated(0)), None);
    }

    #[test]
    fn an_abort_is_sent_once_and_decides_the_code() {
        let mut h = head(&[1, 1]);
        assert!(h.handle(1, PartEvent::Aborted { code: 7, why: "rank 1".into() }).is_some());
        assert_eq!(h.handle(1, PartEvent::Aborted { code: 7, why: "rank 1".into() }), None);
        assert_eq!(h.handle(0, PartEvent::RankEnded { rank: 0, outcome: RankOutcome::Signalled { signal: 15 } }), None);
        h.handle(1, exited(1, 7));
        assert_eq!(h.end().map(|e| (e.code, e.aborted)), Some((7, Some("rank 1".into()))));
    }

    #[test]
    fn a_launch_whose_only_part_refused_it_did_not_end_well() {
        let mut h = head(&[2]);
        assert!(h.handle(0, PartEvent::Lost { why: "too few GPUs".into() }).is_some_and(|(code, _)| code == LOST_CODE));
        assert_eq!(h.end().map(|e| (e.code, e.aborted)), Some((LOST_CODE, Some("n0: too few GPUs".into()))));
    }

    #[test]
    fn a_node_out_of_memory_ends_the_launch_and_is_its_reason() {
        let kill = MemoryKill { launch: 1, whole: true, had_bytes: None, limit_bytes: Some(1 << 20) };
        let killed = |rank| PartEvent::RankEnded { rank, outcome: RankOutcome::Signalled { signal: 9 } };
        let mut h = head(&[1, 1]);
        let abort = h.handle(1, PartEvent::OutOfMemory { kill });
        assert!(abort.is_some_and(|(code, why)| code == 137 && why.contains("out of memory on n1")));
        assert_eq!(h.handle(1, PartEvent::OutOfMemory { kill }), None, "repeated after a reconnect");
        h.handle(1, killed(1));
        h.handle(0, PartEvent::RankEnded { rank: 0, outcome: RankOutcome::Signalled { signal: 15 } });
        let end = h.end().unwrap();
        assert_eq!((end.code, end.out_of_memory), (137, Some(("n1".parse().unwrap(), kill))));
        // The first reason for bringing it down stays.
        let mut h = head(&[1, 1]);
        h.handle(0, PartEvent::Aborted { code: 7, why: "rank 0".into() });
        assert_eq!(h.handle(1, PartEvent::OutOfMemory { kill }), None);
        h.handle(0, exited(0, 7));
        h.handle(1, killed(1));
        assert_eq!(h.end().map(|e| (e.code, e.out_of_memory)), Some((7, None)));
    }

    #[test]
    fn ranks_of_another_part_are_ignored() {
        let mut h = head(&[1, 1]);
        h.handle(0, exited(1, 0));
        h.handle(0, exited(0, 0));
        assert_eq!(h.end(), None);
    }

    #[test]
    fn a_lost_part_aborts_and_is_not_waited_for() {
        let mut h = head(&[1, 1]);
        assert!(h.handle(1, PartEvent::Lost { why: "rebooted".into() }).is_some());
        assert_eq!(h.end(), None);
        h.handle(0, exited(0, 0));
        assert_eq!(h.end().map(|e| e.code), Some(LOST_CODE));
    }
}
