//! One checkpoint of an allocation, as its head decides it.
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
//! While they save, the documents' states are told of what was heard: *requested*, *acknowledged* once a program of every node that saves has
//! heard it, *writing* once each has said how far it is. A signal has no such answer: work that is asked by one stays *requested* until it has
//! saved itself. Nothing is decided by that.
//!
//! Every answer of a node carries the round that it answers. What a node saved before another one asked for a deferral is of an
//! earlier moment than what is saved after it: it counts for nothing, however late it is heard.
//!
//! Times are milliseconds of a clock that runs on while the agent does not live. The state is written down before its steps are
//! taken, and [`Checkpointing::resume`] gives the steps again: a node that is asked twice for one round does it once. `Asking` need not be: nothing is
//! changed anywhere by it, and whoever wants the checkpoint asks for it again.

use lattice_model::{CheckpointId, CheckpointRef, Epoch, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// By how much all deferrals of one checkpoint may put it off together where the site says nothing else, in milliseconds.
pub const DEFERRAL_MS_MAX: u64 = 5 * 60 * 1000;
/// The shortest deferral, in milliseconds.
const DEFERRAL_MS_MIN: u64 = 1000;
/// Rounds of one checkpoint: as deferrals count in all that they can be, one more is not granted.
const ROUNDS_MAX: u32 = 30;

/// What one node saved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The step that the application told.
    pub step: Option<u64>,
    /// BLAKE3 of the node's own manifest in the store, 64 hexadecimal digits; `None`: nothing of the allocation ran there.
    pub manifest: Option<String>,
}

/// How far a node's application says that it is: for people. That there is one says that it has heard, though it says nothing in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Of 100.
    pub percent: Option<u8>,
    /// How long it will take yet, in milliseconds.
    pub left_ms: Option<u64>,
}

/// How much those say that are to save themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Heard {
    /// Not every one is known to have heard.
    Requested,
    /// Every one has.
    Acknowledged,
    /// Every one has said how far it is, or is done.
    Writing,
}

/// When a round is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadline {
    /// When, in milliseconds.
    pub at_ms: u64,
    /// Whether it was put off already.
    pub extended: bool,
}

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckpointPhase {
    /// Each node is asked whether what runs there would hear. Nothing was sent yet. `able`: who would; `true`: nothing runs there.
    Asking { deadline: Deadline, able: BTreeMap<NodeId, bool> },
    /// The signal may be sent. `saved`: who is done, all that it saved being in the store.
    /// `idle`: where nothing ran; what runs there then is no part of it.
    Saving { deadline: Deadline, saved: BTreeMap<NodeId, Saved>, idle: BTreeSet<NodeId> },
    /// The application asked for a later moment.
    Deferred { until_ms: u64 },
    /// All of it is in the store; the manifest that says so is to be written.
    Verifying { deadline: Deadline, saved: BTreeMap<NodeId, Saved> },
    /// It is whole; the quorum is to hear of it.
    Committing { checkpoint: CheckpointRef },
    /// It is over.
    Ended(CheckpointEnd),
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckpointEnd {
    /// The quorum has it: the allocation begins from it when it runs again.
    Complete { checkpoint: CheckpointRef },
    /// It came to nothing, and why. The one before it stays.
    Failed { why: String },
    /// Nobody was done in time, or too few.
    TimedOut { waited_for: BTreeSet<NodeId> },
}

/// What its head hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckpointEvent {
    /// What runs on the node would hear; `idle`: nothing of the allocation runs there.
    Able { node: NodeId, round: u32, idle: bool },
    /// It would not, or what it began cannot be brought to its end.
    NodeFailed { node: NodeId, round: u32, why: String },
    /// The node's part is in the store.
    NodeSaved { node: NodeId, round: u32, saved: Saved },
    /// The application wants to be asked again after so long.
    Deferred { node: NodeId, round: u32, for_ms: u64 },
    /// It says how far it is.
    Progressed { node: NodeId, round: u32, progress: Progress },
    /// The manifest is in the store.
    Written,
    /// It cannot be.
    NotWritten { why: String },
    /// The quorum has this checkpoint of the allocation.
    Committed { id: CheckpointId },
    /// Time passed.
    Clock,
    /// The allocation is being ended.
    AllocationOver,
    /// The quorum takes nothing of this claim any more.
    Superseded { why: String },
}

/// What is to be done once the state is written down. May be asked for again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckpointStep {
    /// Ask every node of this round; answers of any other are not heard any more.
    Ask { round: u32 },
    /// Let the nodes send the signal.
    Go { round: u32 },
    /// Write the manifest of what the nodes saved in this round.
    Write { round: u32 },
    /// Tell the quorum.
    Commit { checkpoint: CheckpointRef },
    /// Nothing is waited for any more: the nodes may forget it.
    Forget,
}

/// See the module's figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpointing {
    /// Which.
    pub id: CheckpointId,
    /// Under which claim of its allocation.
    pub epoch: Epoch,
    /// The checkpoint before it.
    pub parent: Option<CheckpointId>,
    /// How long each round may take, in milliseconds.
    pub length_ms: u64,
    /// The allocation's nodes.
    pub nodes: Vec<NodeId>,
    /// From 1.
    pub round: u32,
    /// By how much it was deferred so far, in milliseconds.
    pub deferred_ms: u64,
    /// By how much it may be in all, in milliseconds.
    pub deferral_ms_max: u64,
    /// How far it is.
    pub phase: CheckpointPhase,
    /// The quorum may have a checkpoint by this id: it was told of this one, or whether one was made before could not be seen. What is
    /// in the store by this id is then not this claim's alone to remove.
    pub told: bool,
    /// What the nodes that save say of it. Nothing is decided by it, and it is not written down.
    #[serde(skip)]
    pub progress: BTreeMap<NodeId, Progress>,
}

impl Checkpointing {
    /// One that is asked for now. What is to be done first is [`Self::resume`]'s to say.
    pub fn begin(
        id: CheckpointId,
        epoch: Epoch,
        parent: Option<CheckpointId>,
        nodes: Vec<NodeId>,
        length_ms: u64,
        deferral_ms_max: u64,
        now_ms: u64,
    ) -> Self {
        let phase = asking(now_ms, length_ms);
        let (round, deferred_ms, progress) = (1, 0, BTreeMap::new());
        Self { id, epoch, parent, length_ms, nodes, round, deferred_ms, deferral_ms_max, phase, told: false, progress }
    }

    /// How it ended, once it has.
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

    /// In a word, for people.
    pub fn word(&self) -> &'static str {
        match &self.phase {
            CheckpointPhase::Asking { .. } => "asking",
            CheckpointPhase::Saving { saved, idle, .. } => match self.heard(saved, idle) {
                Heard::Requested => "requested",
                Heard::Acknowledged => "acknowledged",
                Heard::Writing => "writing",
            },
            CheckpointPhase::Deferred { .. } => "deferred",
            CheckpointPhase::Verifying { .. } => "verifying",
            CheckpointPhase::Committing { .. } => "committing",
            CheckpointPhase::Ended(CheckpointEnd::Complete { .. }) => "complete",
            CheckpointPhase::Ended(CheckpointEnd::Failed { .. }) => "failed",
            CheckpointPhase::Ended(CheckpointEnd::TimedOut { .. }) => "timed out",
        }
    }

    /// The least that one of the nodes says.
    fn heard(&self, saved: &BTreeMap<NodeId, Saved>, idle: &BTreeSet<NodeId>) -> Heard {
        let said = |node: &NodeId| match self.progress.get(node) {
            None => Heard::Requested,
            Some(Progress { percent: None, left_ms: None }) => Heard::Acknowledged,
            Some(Progress { .. }) => Heard::Writing,
        };
        let awaited = self.nodes.iter().filter(|node| !saved.contains_key(node) && !idle.contains(node));
        awaited.map(said).min().unwrap_or(Heard::Writing)
    }

    /// The node's part is awaited yet.
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

    /// When [`CheckpointEvent::Clock`] is wanted.
    pub fn wakes_ms(&self) -> Option<u64> {
        match &self.phase {
            CheckpointPhase::Asking { deadline, .. }
            | CheckpointPhase::Saving { deadline, .. }
            | CheckpointPhase::Verifying { deadline, .. } => Some(deadline.at_ms),
            CheckpointPhase::Deferred { until_ms } => Some(*until_ms),
            CheckpointPhase::Committing { .. } | CheckpointPhase::Ended(_) => None,
        }
    }

    /// How long the present round has taken so far, in milliseconds; `None`: none is under way.
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

    /// What is to be done, again or for the first time, from the state alone.
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

    /// Takes what was heard: changes the state, and gives what is then to be done.
    pub fn handle(&mut self, now_ms: u64, event: CheckpointEvent) -> Vec<CheckpointStep> {
        match event {
            CheckpointEvent::Able { node, round, idle } if self.is_heard(&node, round) => self.able(node, idle),
            CheckpointEvent::NodeFailed { node, round, why } if self.is_heard(&node, round) && self.awaits(&node) => {
                self.fail(format!("{node}: {why}"))
            }
            CheckpointEvent::NodeSaved { node, round, saved } if self.is_heard(&node, round) => self.saved(node, saved),
            CheckpointEvent::Deferred { node, round, for_ms } if self.is_heard(&node, round) && self.awaits(&node) => {
                self.deferred(now_ms, for_ms)
            }
            CheckpointEvent::Progressed { node, round, progress } if self.is_heard(&node, round) && self.is_saving(&node) => {
                self.progress.insert(node, progress);
                Vec::new()
            }
            CheckpointEvent::Able { .. }
            | CheckpointEvent::Progressed { .. }
            | CheckpointEvent::NodeFailed { .. }
            | CheckpointEvent::NodeSaved { .. }
            | CheckpointEvent::Deferred { .. } => Vec::new(),
            CheckpointEvent::Written => self.written(),
            CheckpointEvent::NotWritten { why } => match &self.phase {
                CheckpointPhase::Verifying { .. } => self.fail(why),
                _ => Vec::new(),
            },
            CheckpointEvent::Committed { id } => match &self.phase {
                CheckpointPhase::Committing { checkpoint } if checkpoint.id == id => {
                    let checkpoint = checkpoint.clone();
                    self.over(CheckpointEnd::Complete { checkpoint })
                }
                _ => Vec::new(),
            },
            CheckpointEvent::Clock => self.clock(now_ms),
            CheckpointEvent::AllocationOver if self.end().is_none() => self.fail("the allocation ended before it was complete".to_owned()),
            CheckpointEvent::Superseded { why } if self.end().is_none() => self.fail(why),
            CheckpointEvent::AllocationOver | CheckpointEvent::Superseded { .. } => Vec::new(),
        }
    }

    fn is_heard(&self, node: &NodeId, round: u32) -> bool {
        round == self.round && self.nodes.contains(node)
    }

    fn is_saving(&self, node: &NodeId) -> bool {
        matches!(self.phase, CheckpointPhase::Saving { .. }) && self.awaits(node)
    }

    fn over(&mut self, end: CheckpointEnd) -> Vec<CheckpointStep> {
        self.phase = CheckpointPhase::Ended(end);
        self.progress.clear();
        vec![CheckpointStep::Forget]
    }

    fn fail(&mut self, why: String) -> Vec<CheckpointStep> {
        self.over(CheckpointEnd::Failed { why })
    }

    fn able(&mut self, node: NodeId, idle: bool) -> Vec<CheckpointStep> {
        let CheckpointPhase::Asking { deadline, able } = &mut self.phase else { return Vec::new() };
        able.insert(node, idle);
        if able.len() < self.nodes.len() {
            return Vec::new();
        }
        if able.values().all(|idle| *idle) {
            return self.fail("nothing of the allocation runs that could save itself".to_owned());
        }
        // They look again when the others are asked, and say so.
        let idle = able.iter().filter(|(_, idle)| **idle).map(|(node, _)| node.clone()).collect();
        self.phase = CheckpointPhase::Saving { deadline: *deadline, saved: BTreeMap::new(), idle };
        vec![CheckpointStep::Go { round: self.round }]
    }

    fn saved(&mut self, node: NodeId, now: Saved) -> Vec<CheckpointStep> {
        let CheckpointPhase::Saving { deadline, saved, idle } = &mut self.phase else { return Vec::new() };
        if now.manifest.is_none() != idle.contains(&node) {
            let why =
                if now.manifest.is_none() { "what ran there has ended and saved nothing" } else { "something was begun there meanwhile" };
            return self.fail(format!("{node}: {why}"));
        }
        saved.entry(node).or_insert(now);
        if saved.len() < self.nodes.len() {
            return Vec::new();
        }
        let (deadline, saved) = (*deadline, std::mem::take(saved));
        let mut told = saved.iter().filter_map(|(node, saved)| saved.step.map(|step| (node, step)));
        if let Some((first, step)) = told.next()
            && let Some((other, another)) = told.find(|(_, other)| *other != step)
        {
            return self.fail(format!("{first} saved step {step}, {other} step {another}: they are of different moments"));
        }
        self.phase = CheckpointPhase::Verifying { deadline, saved };
        vec![CheckpointStep::Write { round: self.round }]
    }

    fn deferred(&mut self, now_ms: u64, for_ms: u64) -> Vec<CheckpointStep> {
        let left = self.deferral_ms_max.saturating_sub(self.deferred_ms);
        // Deferred as long as may be: it is waited for until the deadline.
        if left < DEFERRAL_MS_MIN || self.round >= ROUNDS_MAX {
            return Vec::new();
        }
        let granted = for_ms.clamp(DEFERRAL_MS_MIN, left);
        self.deferred_ms += granted;
        self.progress.clear();
        self.phase = CheckpointPhase::Deferred { until_ms: now_ms.saturating_add(granted) };
        vec![CheckpointStep::Forget]
    }

    fn written(&mut self) -> Vec<CheckpointStep> {
        let CheckpointPhase::Verifying { saved, .. } = &self.phase else { return Vec::new() };
        let checkpoint = CheckpointRef {
            id: self.id,
            epoch: self.epoch,
            step: saved.values().find_map(|saved| saved.step),
            bytes: saved.values().map(|saved| saved.bytes).fold(0, u64::saturating_add),
        };
        self.phase = CheckpointPhase::Committing { checkpoint: checkpoint.clone() };
        self.told = true;
        vec![CheckpointStep::Commit { checkpoint }]
    }

    fn clock(&mut self, now_ms: u64) -> Vec<CheckpointStep> {
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
                // From where it was, not from now: who was away meanwhile gets no more than others.
                *deadline = Deadline { at_ms: deadline.at_ms.saturating_add(half), extended: true };
                self.clock(now_ms)
            }
            CheckpointPhase::Asking { able, .. } => {
                let waited_for = self.nodes.iter().filter(|node| !able.contains_key(node)).cloned().collect();
                self.over(CheckpointEnd::TimedOut { waited_for })
            }
            CheckpointPhase::Saving { saved, .. } => {
                let waited_for = self.nodes.iter().filter(|node| !saved.contains_key(node)).cloned().collect();
                self.over(CheckpointEnd::TimedOut { waited_for })
            }
            CheckpointPhase::Verifying { .. } => self.over(CheckpointEnd::TimedOut { waited_for: BTreeSet::new() }),
            CheckpointPhase::Deferred { .. } => {
                self.round += 1;
                self.phase = asking(now_ms, self.length_ms);
                vec![CheckpointStep::Ask { round: self.round }]
            }
            CheckpointPhase::Committing { .. } | CheckpointPhase::Ended(_) => Vec::new(),
        }
    }
}

fn asking(now_ms: u64, length_ms: u64) -> CheckpointPhase {
    let deadline = Deadline { at_ms: now_ms.saturating_add(length_ms), extended: false };
    CheckpointPhase::Asking { deadline, able: BTreeMap::new() }
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
