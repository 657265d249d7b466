//! What was recorded of a torture: what was asked and answered, what the work said of its runs, and what was found once all was healed.

use super::fault::{Fault, Hit};
use super::job::Job;
use super::traces::Trace;
use crate::demo::Lines;
use serde::Serialize;
use std::collections::BTreeMap;

/// All of it. Times are those of [`super::traces::now_ms`].
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// When it began.
    pub began_ms: u64,
    /// Milliseconds since 1970 when it began.
    pub began_wall_ms: u64,
    pub asked: Vec<Asked>,
    pub broken: Vec<Broken>,
    pub traces: Vec<Trace>,
    /// What the quorum has at the end.
    pub allocations: Vec<Allocation>,
    pub audit: Vec<Record>,
    /// `lattice audit verify`, by each agent: what it said where it failed.
    pub audit_failures: Vec<String>,
    /// What `lattice logs` showed of those that completed, by their id.
    pub logs: BTreeMap<String, Log>,
    pub nodes: Vec<Node>,
    /// What is left of work on this machine.
    pub leftovers: Vec<String>,
    pub daemons: Vec<Daemon>,
    /// Questions that nobody answered.
    pub unanswered: Vec<String>,
}

/// A job and what became of its submission.
#[derive(Clone, Debug)]
pub struct Asked {
    pub job: Job,
    /// `None`: it was left out, because too much waited.
    pub submission: Option<Call>,
    /// The id that was answered.
    pub id: Option<String>,
    /// The cancellation, where one was sent.
    pub cancellation: Option<Call>,
    /// The launch from outside, where one was begun.
    pub outside: Option<Call>,
}

/// A command that was run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Call {
    pub called_ms: u64,
    pub returned_ms: u64,
    pub code: i32,
    pub timed_out: bool,
    pub out: String,
    pub err: String,
}

/// A fault as it went.
#[derive(Clone, Debug)]
pub struct Broken {
    pub fault: Fault,
    pub began_ms: u64,
    pub ended_ms: u64,
    pub hit: Hit,
    /// Why it could not be brought about or ended.
    pub trouble: Option<String>,
}

/// An allocation as `lattice status` has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Allocation {
    pub id: String,
    pub name: String,
    pub state: String,
    pub reason: String,
    pub nodes: Vec<String>,
    pub exit_code: Option<i64>,
    pub requeue_count: u64,
    pub epoch: u64,
}

impl Allocation {
    /// Whether nothing more will happen to it.
    pub fn has_ended(&self) -> bool {
        matches!(self.state.as_str(), "Completed" | "Failed" | "Cancelled")
    }

    /// The number of its job, where it is one of ours.
    pub fn job(&self) -> Option<u32> {
        self.name.strip_prefix('t')?.parse().ok()
    }
}

/// An audit record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Record {
    pub seq: u64,
    /// Milliseconds since 1970, by the clock of whoever led.
    pub at_wall_ms: u64,
    pub actor: String,
    pub action: String,
    pub allocation: Option<String>,
    pub node: Option<String>,
    pub detail: String,
}

/// The lines of a log.
#[derive(Clone, Debug, Default)]
pub struct Log {
    pub lines: Lines,
    /// What was said besides, on stderr.
    pub err: String,
}

/// A node once all was healed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Node {
    pub id: String,
    pub state: String,
    pub reason: String,
    pub holds: Vec<String>,
    /// Cores that are claimed.
    pub cores_committed: u64,
    /// Allocations that have a share of it, as the quorum has it.
    pub allocations: Vec<String>,
    /// What its agent has, as its own agent says it.
    pub local: Vec<String>,
    /// Whom the gossip of its agent does not have alive.
    pub doubted: Vec<String>,
}

/// A daemon at the end, against its begin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Daemon {
    pub name: String,
    /// Whether it had ended although no fault had ended it.
    pub ended_by_itself: bool,
    /// Lines of its log with a panic.
    pub panics: Vec<String>,
    pub memory_bytes: u64,
    pub memory_bytes_at_first: u64,
    pub descriptors: u64,
    pub descriptors_at_first: u64,
}

impl Facts {
    /// The submission of an allocation's job.
    pub fn asked_of(&self, allocation: &Allocation) -> Option<&Asked> {
        let number = allocation.job()?;
        self.asked.iter().find(|asked| asked.job.number == number)
    }

    /// Whether a fault killed a shim of this run.
    pub fn was_killed(&self, allocation: &Allocation) -> bool {
        let run = format!("{}-{}", allocation.id, allocation.epoch);
        self.broken.iter().any(|broken| broken.hit.runs.contains(&run))
    }
}
