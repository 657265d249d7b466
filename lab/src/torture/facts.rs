//! The recorded facts of a torture: requests and answers, the traces of the work, and the state after all faults were
//! healed.

use super::fault::{Fault, Hit};
use super::job::Job;
use super::traces::Trace;
use crate::demo::Lines;
use serde::Serialize;
use std::collections::BTreeMap;

/// All facts. Times are those of [`super::traces::now_ms`].
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// When the torture began.
    pub began_ms: u64,
    /// The same in milliseconds since 1970.
    pub began_wall_ms: u64,
    pub asked: Vec<Asked>,
    pub broken: Vec<Broken>,
    pub traces: Vec<Trace>,
    /// The quorum's allocations.
    pub allocations: Vec<Allocation>,
    pub audit: Vec<Record>,
    /// The output of failed `lattice audit verify` commands, one for each agent.
    pub audit_failures: Vec<String>,
    /// The output of `lattice logs` for completed allocations, by id.
    pub logs: BTreeMap<String, Log>,
    pub nodes: Vec<Node>,
    /// What work has left on this machine.
    pub leftovers: Vec<String>,
    pub daemons: Vec<Daemon>,
    /// The errors of requests for these facts.
    pub unanswered: Vec<String>,
}

/// A job, and the commands that were run for it.
#[derive(Clone, Debug)]
pub struct Asked {
    pub job: Job,
    /// `None`: the job was left out, because too many allocations were live or too many commands ran.
    pub submission: Option<Call>,
    /// The allocation's id, from the answer.
    pub id: Option<String>,
    /// The cancellation, if there was one.
    pub cancellation: Option<Call>,
    /// The launch from outside, if there was one.
    pub outside: Option<Call>,
}

/// A command that was run, and its result. Code -1: it could not be started.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Call {
    pub called_ms: u64,
    pub returned_ms: u64,
    pub code: i32,
    pub timed_out: bool,
    pub out: String,
    pub err: String,
}

/// A fault that was caused, and what it hit.
#[derive(Clone, Debug)]
pub struct Broken {
    pub fault: Fault,
    pub began_ms: u64,
    pub ended_ms: u64,
    pub hit: Hit,
    /// Why it could not be caused or ended.
    pub error: Option<String>,
}

/// An allocation as `lattice status` shows it.
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

    /// The number of its job, from its name. `None`: it is not of this torture.
    pub fn job(&self) -> Option<u32> {
        self.name.strip_prefix('t')?.parse().ok()
    }
}

/// An audit record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Record {
    pub seq: u64,
    /// Milliseconds since 1970, by the leader's clock.
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
    /// The messages on stderr.
    pub err: String,
}

/// A node after all faults were healed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Node {
    pub id: String,
    pub state: String,
    pub reason: String,
    pub holds: Vec<String>,
    /// Number of claimed cores.
    pub cores_committed: u64,
    /// Allocations with a share of the node, according to the quorum.
    pub allocations: Vec<String>,
    /// Allocations on the node, according to its agent.
    pub local: Vec<String>,
    /// Nodes that its agent's gossip does not consider alive.
    pub doubted: Vec<String>,
}

/// A daemon at the end, compared with the beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Daemon {
    pub name: String,
    /// Whether it ended without a fault as the cause.
    pub ended_by_itself: bool,
    /// Lines of its log that report a panic.
    pub panics: Vec<String>,
    pub memory_bytes: u64,
    pub memory_bytes_at_first: u64,
    pub descriptors: u64,
    pub descriptors_at_first: u64,
}

impl Facts {
    /// The job of an allocation, and its commands.
    pub fn asked_of(&self, allocation: &Allocation) -> Option<&Asked> {
        let number = allocation.job()?;
        self.asked.iter().find(|asked| asked.job.number == number)
    }

    /// Whether a fault killed a shim of an allocation under this epoch.
    pub fn was_killed(&self, allocation: &Allocation, epoch: u64) -> bool {
        let run = format!("{}-{epoch}", allocation.id);
        self.broken.iter().any(|broken| broken.hit.runs.contains(&run))
    }
}
