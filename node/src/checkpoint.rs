//! One checkpoint of an allocation: the decisions of the allocation's head.
//!
//! ```text
//!                 every node can       every node saved     manifest written      the quorum has it
//!   Asking ───────────────────▶ Saving ───────────▶ Verifying ──────────▶ Committing ────────▶ Complete
//!     ▲ │ deferred                │ deferred            │
//!     │ ▼                         ▼                     │ the deadline, extended once by half of it, is over: TimedOut
//!   Deferred ◀────────────────────┘                     │ a node cannot, a node failed, the store refuses: Failed
//!     (another round)                                   ▼
//! ```
//!
//! For people, the phase *Saving* is shown as the specification's states: *requested*;
//! *acknowledged* once a program on every saving node has acknowledged the request; *writing* once
//! each has reported progress. A signal is not acknowledged: work that is asked by a signal stays
//! *requested* until it has saved itself. No decision depends on these states.
//!
//! Every answer of a node carries its round. If a node asks for a deferral, a new round begins.
//! Parts that other nodes saved in the earlier round belong to an earlier moment, so they are
//! ignored, however late they arrive.
//!
//! Times are milliseconds of a clock that runs on while the agent is down. The state is written to
//! the disk before its steps are taken, and [`Checkpointing::resume`] gives the steps again: a node
//! that is asked twice for one round saves once. `Asking` need not be written: it changes nothing
//! anywhere, and the requester asks again.

use lattice_model::{CheckpointId, CheckpointRef, Epoch, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// How long all deferrals of one checkpoint may take together unless the site sets it, in
/// milliseconds.
pub const DEFERRAL_MS_MAX: u64 = 5 * 60 * 1000;
/// The shortest deferral, in milliseconds.
const DEFERRAL_MS_MIN: u64 = 1000;
/// How many rounds one checkpoint may have; no deferral is granted in the last.
const ROUNDS_MAX: u32 = 30;

/// What one node saved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// The number of files.
    pub files: u64,
    /// The files' bytes.
    pub bytes: u64,
    /// The step that the application reported.
    pub step: Option<u64>,
    /// BLAKE3 of the node's own manifest in the store, 64 hexadecimal digits; `None`: nothing of
    /// the allocation ran there.
    pub manifest: Option<String>,
}

/// The progress that a node's application reports, for people. Even an empty report proves that the
/// application has received the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Percent done.
    pub percent: Option<u8>,
    /// How long it still takes, in milliseconds.
    pub left_ms: Option<u64>,
}

/// How far the saving nodes have reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SaveStage {
    /// Not every node's application has acknowledged the request.
    Requested,
    /// Every node's application has acknowledged it.
    Acknowledged,
    /// Every node's application has reported progress or is done.
    Writing,
}

/// The deadline of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadline {
    /// The time in milliseconds.
    pub at_ms: u64,
    /// Whether it has been extended.
    pub extended: bool,
}

/// The phase of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckpointPhase {
    /// Each node is asked whether the work there would answer a request. No request has been sent.
    /// `able`: the nodes that can; the value is true if nothing runs there.
    Asking { deadline: Deadline, able: BTreeMap<NodeId, bool> },
    /// The nodes may send the signal. `saved`: the nodes that are done, with everything in the
    /// store. `idle`: the nodes on which nothing ran; if one of them saves something after all, the
    /// checkpoint fails.
    Saving { deadline: Deadline, saved: BTreeMap<NodeId, Saved>, idle: BTreeSet<NodeId> },
    /// The application asked for a later moment.
    Deferred { until_ms: u64 },
    /// Everything is in the store; the manifest is being written.
    Verifying { deadline: Deadline, saved: BTreeMap<NodeId, Saved> },
    /// The checkpoint is whole; the quorum is being notified.
    Committing { checkpoint: CheckpointRef },
    /// The checkpoint has ended.
    Ended(CheckpointEnd),
}

/// How the checkpoint ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckpointEnd {
    /// The quorum has it: the allocation will begin from it when it runs again.
    Complete { checkpoint: CheckpointRef },
    /// It failed, and why. The checkpoint before it remains.
    Failed { why: String },
    /// These nodes were not done in time; none, if writing the manifest took too long.
    TimedOut { waited_for: BTreeSet<NodeId> },
}

/// An event of a checkpoint on its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckpointEvent {
    /// The work on the node would answer a request; `idle`: nothing of the allocation runs there.
    Able { node: NodeId, round: u32, idle: bool },
    /// The work on the node would not answer, or cannot complete its part.
    NodeFailed { node: NodeId, round: u32, why: String },
    /// The node's part is in the store.
    NodeSaved { node: NodeId, round: u32, saved: Saved },
    /// The application wants to be asked again after this time.
    Deferred { node: NodeId, round: u32, for_ms: u64 },
    /// The node's application reports progress.
    Progressed { node: NodeId, round: u32, progress: Progress },
    /// The manifest is in the store.
    Written,
    /// The manifest cannot be written.
    NotWritten { why: String },
    /// The quorum has this checkpoint of the allocation.
    Committed { id: CheckpointId },
    /// Time has passed.
    Clock,
    /// The allocation is being ended.
    AllocationOver,
    /// The quorum no longer accepts reports of this claim.
    Superseded { why: String },
}

/// What to do once the state is on the disk. A step may be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckpointStep {
    /// Ask every node in this round; answers of other rounds are ignored from now on.
    Ask { round: u32 },
    /// Let the nodes send the signal.
    Go { round: u32 },
    /// Write the manifest of what the nodes saved in this round.
    Write { round: u32 },
    /// Notify the quorum.
    Commit { checkpoint: CheckpointRef },
    /// The head waits for nothing any more: the nodes may forget the checkpoint.
    Forget,
}

/// The state of one checkpoint; see the module's figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpointing {
    /// The checkpoint's id.
    pub id: CheckpointId,
    /// The epoch of the claim under which it is made.
    pub epoch: Epoch,
    /// The checkpoint before it.
    pub parent: Option<CheckpointId>,
    /// How long each round may take, in milliseconds.
    pub length_ms: u64,
    /// The allocation's nodes.
    pub nodes: Vec<NodeId>,
    /// The round, from 1.
    pub round: u32,
    /// The sum of its deferrals so far, in milliseconds.
    pub deferred_ms: u64,
    /// The most that its deferrals may take together, in milliseconds.
    pub deferral_ms_max: u64,
    /// The phase.
    pub phase: CheckpointPhase,
    /// Whether the quorum may have a checkpoint with this id: it was notified of this one, or the
    /// head could not see whether an earlier one exists. If so, this claim alone must not remove the
    /// files that the store has under this id.
    pub may_be_recorded: bool,
    /// The progress of the saving nodes. No decision depends on it, and it is not written to the
    /// disk.
    #[serde(skip)]
    pub progress: BTreeMap<NodeId, Progress>,
}

impl Checkpointing {
    /// A checkpoint that is requested now. [`Self::resume`] gives its first steps.
    pub fn begin(
        id: CheckpointId,
        epoch: Epoch,
        parent: Option<CheckpointId>,
        nodes: Vec<NodeId>,
        length_ms: u64,
        deferral_ms_max: u64,
        now_ms: u64,
    ) -> Self {
        let phase = begin_round(now_ms, length_ms);
        let (round, deferred_ms, progress) = (1, 0, BTreeMap::new());
        Self { id, epoch, parent, length_ms, nodes, round, deferred_ms, deferral_ms_max, phase, may_be_recorded: false, progress }
    }

    /// How it ended; `None` before that.
    pub fn end(&self) -> Option<&CheckpointEnd> {
        match &self.phase {
            CheckpointPhase::Ended(end) => Some(end),
            CheckpointPhase::Asking { .. }
            | CheckpointPhase::Saving { .. }
            | CheckpointPhase::Deferred { .. }
            | CheckpointPhase::Verifying { .. }
            | CheckpointPhase::Committing { .. } => None,
        }
    }

    /// The state as one word, for people.
    pub fn text(&self) -> &'static str {
        match &self.phase {
            CheckpointPhase::Asking { .. } => "asking",
            CheckpointPhase::Saving { saved, idle, .. } => match self.save_stage(saved, idle) {
                SaveStage::Requested => "requested",
                SaveStage::Acknowledged => "acknowledged",
                SaveStage::Writing => "writing",
            },
            CheckpointPhase::Deferred { .. } => "deferred",
            CheckpointPhase::Verifying { .. } => "verifying",
            CheckpointPhase::Committing { .. } => "committing",
            CheckpointPhase::Ended(CheckpointEnd::Complete { .. }) => "complete",
            CheckpointPhase::Ended(CheckpointEnd::Failed { .. }) => "failed",
            CheckpointPhase::Ended(CheckpointEnd::TimedOut { .. }) => "timed out",
        }
    }

    /// The stage of the saving node that has reported least.
    fn save_stage(&self, saved: &BTreeMap<NodeId, Saved>, idle: &BTreeSet<NodeId>) -> SaveStage {
        let stage_of = |node: &NodeId| match self.progress.get(node) {
            None => SaveStage::Requested,
            Some(Progress { percent: None, left_ms: None }) => SaveStage::Acknowledged,
            Some(Progress { .. }) => SaveStage::Writing,
        };
        let awaited = self.nodes.iter().filter(|node| !saved.contains_key(node) && !idle.contains(node));
        awaited.map(stage_of).min().unwrap_or(SaveStage::Writing)
    }

    /// Whether the node's part is still awaited.
    pub fn awaits(&self, node: &NodeId) -> bool {
        match &self.phase {
            CheckpointPhase::Asking { .. } => true,
            CheckpointPhase::Saving { saved, .. } => !saved.contains_key(node),
            CheckpointPhase::Deferred { .. }
            | CheckpointPhase::Verifying { .. }
            | CheckpointPhase::Committing { .. }
            | CheckpointPhase::Ended(_) => false,
        }
    }

    /// When [`CheckpointEvent::Clock`] is due next.
    pub fn wakes_ms(&self) -> Option<u64> {
        match &self.phase {
            CheckpointPhase::Asking { deadline, .. }
            | CheckpointPhase::Saving { deadline, .. }
            | CheckpointPhase::Verifying { deadline, .. } => Some(deadline.at_ms),
            CheckpointPhase::Deferred { until_ms } => Some(*until_ms),
            CheckpointPhase::Committing { .. } | CheckpointPhase::Ended(_) => None,
        }
    }

    /// How long the present round has taken so far, in milliseconds; `None`: no round is under way.
    pub fn round_ms(&self, now_ms: u64) -> Option<u64> {
        match &self.phase {
            CheckpointPhase::Asking { deadline, .. }
            | CheckpointPhase::Saving { deadline, .. }
            | CheckpointPhase::Verifying { deadline, .. } => {
                let given = self.length_ms.saturating_add(if deadline.extended { self.length_ms / 2 } else { 0 });
                Some(now_ms.saturating_sub(deadline.at_ms.saturating_sub(given)))
            }
            CheckpointPhase::Deferred { .. } | CheckpointPhase::Committing { .. } | CheckpointPhase::Ended(_) => None,
        }
    }

    /// The steps to take in the present state, for the first time or again.
    pub fn resume(&self) -> Vec<CheckpointStep> {
        let round = self.round;
        match &self.phase {
            CheckpointPhase::Asking { .. } => vec![CheckpointStep::Ask { round }],
            CheckpointPhase::Saving { .. } => vec![CheckpointStep::Ask { round }, CheckpointStep::Go { round }],
            CheckpointPhase::Deferred { .. } => Vec::new(),
            CheckpointPhase::Verifying { .. } => vec![CheckpointStep::Write { round }],
            CheckpointPhase::Committing { checkpoint } => vec![CheckpointStep::Commit { checkpoint: checkpoint.clone() }],
            CheckpointPhase::Ended(_) => vec![CheckpointStep::Forget],
        }
    }

    /// Handles an event: changes the state, and gives the steps to take after that.
    pub fn handle(&mut self, now_ms: u64, event: CheckpointEvent) -> Vec<CheckpointStep> {
        match event {
            CheckpointEvent::Able { node, round, idle } if self.is_current(&node, round) => self.handle_able(node, idle),
            CheckpointEvent::NodeFailed { node, round, why } if self.is_current(&node, round) && self.awaits(&node) => {
                self.fail(format!("{node}: {why}"))
            }
            CheckpointEvent::NodeSaved { node, round, saved } if self.is_current(&node, round) => self.handle_saved(node, saved),
            CheckpointEvent::Deferred { node, round, for_ms } if self.is_current(&node, round) && self.awaits(&node) => {
                self.handle_deferred(now_ms, for_ms)
            }
            CheckpointEvent::Progressed { node, round, progress } if self.is_current(&node, round) && self.is_saving(&node) => {
                self.progress.insert(node, progress);
                Vec::new()
            }
            CheckpointEvent::Able { .. }
            | CheckpointEvent::Progressed { .. }
            | CheckpointEvent::NodeFailed { .. }
            | CheckpointEvent::NodeSaved { .. }
            | CheckpointEvent::Deferred { .. } => Vec::new(),
            CheckpointEvent::Written => self.handle_written(),
            CheckpointEvent::NotWritten { why } => match &self.phase {
                CheckpointPhase::Verifying { .. } => self.fail(why),
                _ => Vec::new(),
            },
            CheckpointEvent::Committed { id } => match &self.phase {
                CheckpointPhase::Committing { checkpoint } if checkpoint.id == id => {
                    let checkpoint = checkpoint.clone();
                    self.end_as(CheckpointEnd::Complete { checkpoint })
                }
                _ => Vec::new(),
            },
            CheckpointEvent::Clock => self.handle_clock(now_ms),
            CheckpointEvent::AllocationOver if self.end().is_none() => self.fail("the allocation ended before it was complete".to_owned()),
            CheckpointEvent::Superseded { why } if self.end().is_none() => self.fail(why),
            CheckpointEvent::AllocationOver | CheckpointEvent::Superseded { .. } => Vec::new(),
        }
    }

    fn is_current(&self, node: &NodeId, round: u32) -> bool {
        round == self.round && self.nodes.contains(node)
    }

    fn is_saving(&self, node: &NodeId) -> bool {
        matches!(self.phase, CheckpointPhase::Saving { .. }) && self.awaits(node)
    }

    fn end_as(&mut self, end: CheckpointEnd) -> Vec<CheckpointStep> {
        self.phase = CheckpointPhase::Ended(end);
        self.progress.clear();
        vec![CheckpointStep::Forget]
    }

    fn fail(&mut self, why: String) -> Vec<CheckpointStep> {
        self.end_as(CheckpointEnd::Failed { why })
    }

    fn handle_able(&mut self, node: NodeId, idle: bool) -> Vec<CheckpointStep> {
        let CheckpointPhase::Asking { deadline, able } = &mut self.phase else { return Vec::new() };
        able.insert(node, idle);
        if able.len() < self.nodes.len() {
            return Vec::new();
        }
        if able.values().all(|idle| *idle) {
            return self.fail("nothing of the allocation runs that could save itself".to_owned());
        }
        // Idle nodes check again when the others are asked to save, and report.
        let idle = able.iter().filter(|(_, idle)| **idle).map(|(node, _)| node.clone()).collect();
        self.phase = CheckpointPhase::Saving { deadline: *deadline, saved: BTreeMap::new(), idle };
        vec![CheckpointStep::Go { round: self.round }]
    }

    fn handle_saved(&mut self, node: NodeId, part: Saved) -> Vec<CheckpointStep> {
        let CheckpointPhase::Saving { deadline, saved, idle } = &mut self.phase else { return Vec::new() };
        if part.manifest.is_none() != idle.contains(&node) {
            let why =
                if part.manifest.is_none() { "what ran there has ended and saved nothing" } else { "something was begun there meanwhile" };
            return self.fail(format!("{node}: {why}"));
        }
        saved.entry(node).or_insert(part);
        if saved.len() < self.nodes.len() {
            return Vec::new();
        }
        let (deadline, saved) = (*deadline, std::mem::take(saved));
        let mut steps = saved.iter().filter_map(|(node, saved)| saved.step.map(|step| (node, step)));
        if let Some((first, step)) = steps.next()
            && let Some((other, another)) = steps.find(|(_, other)| *other != step)
        {
            return self.fail(format!("{first} saved step {step}, {other} saved step {another}: these are different moments"));
        }
        self.phase = CheckpointPhase::Verifying { deadline, saved };
        vec![CheckpointStep::Write { round: self.round }]
    }

    fn handle_deferred(&mut self, now_ms: u64, for_ms: u64) -> Vec<CheckpointStep> {
        let left = self.deferral_ms_max.saturating_sub(self.deferred_ms);
        // No more deferral is possible: the head waits until the deadline.
        if left < DEFERRAL_MS_MIN || self.round >= ROUNDS_MAX {
            return Vec::new();
        }
        let granted = for_ms.clamp(DEFERRAL_MS_MIN, left);
        self.deferred_ms += granted;
        self.progress.clear();
        self.phase = CheckpointPhase::Deferred { until_ms: now_ms.saturating_add(granted) };
        vec![CheckpointStep::Forget]
    }

    fn handle_written(&mut self) -> Vec<CheckpointStep> {
        let CheckpointPhase::Verifying { saved, .. } = &self.phase else { return Vec::new() };
        let checkpoint = CheckpointRef {
            id: self.id,
            epoch: self.epoch,
            step: saved.values().find_map(|saved| saved.step),
            bytes: saved.values().map(|saved| saved.bytes).fold(0, u64::saturating_add),
        };
        self.phase = CheckpointPhase::Committing { checkpoint: checkpoint.clone() };
        self.may_be_recorded = true;
        vec![CheckpointStep::Commit { checkpoint }]
    }

    fn handle_clock(&mut self, now_ms: u64) -> Vec<CheckpointStep> {
        if self.wakes_ms().is_none_or(|at| now_ms < at) {
            return Vec::new();
        }
        let half = self.length_ms / 2;
        match &mut self.phase {
            CheckpointPhase::Asking { deadline, .. }
            | CheckpointPhase::Saving { deadline, .. }
            | CheckpointPhase::Verifying { deadline, .. }
                if !deadline.extended =>
            {
                // Counted from the old deadline, not from now: time in which the agent was down is
                // not added.
                *deadline = Deadline { at_ms: deadline.at_ms.saturating_add(half), extended: true };
                self.handle_clock(now_ms)
            }
            CheckpointPhase::Asking { able, .. } => {
                let waited_for = self.nodes.iter().filter(|node| !able.contains_key(node)).cloned().collect();
                self.end_as(CheckpointEnd::TimedOut { waited_for })
            }
            CheckpointPhase::Saving { saved, .. } => {
                let waited_for = self.nodes.iter().filter(|node| !saved.contains_key(node)).cloned().collect();
                self.end_as(CheckpointEnd::TimedOut { waited_for })
            }
            CheckpointPhase::Verifying { .. } => self.end_as(CheckpointEnd::TimedOut { waited_for: BTreeSet::new() }),
            CheckpointPhase::Deferred { .. } => {
                self.round += 1;
                self.phase = begin_round(now_ms, self.length_ms);
                vec![CheckpointStep::Ask { round: self.round }]
            }
            CheckpointPhase::Committing { .. } | CheckpointPhase::Ended(_) => Vec::new(),
        }
    }
}

fn begin_round(now_ms: u64, length_ms: u64) -> CheckpointPhase {
    let deadline = Deadline { at_ms: now_ms.saturating_add(length_ms), extended: false };
    CheckpointPhase::Asking { deadline, able: BTreeMap::new() }
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
