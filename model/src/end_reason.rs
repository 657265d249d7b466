//! Why work ended.

use crate::allocation_state::AllocationState;
use crate::dependency::DependencyCondition;
use crate::ids::{AllocationId, CheckpointId, NodeId};
use crate::launch::{MEMORY_KILL_CODE, MemoryKill};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

/// Why work ended, as reported by the node where its entry point ran, or by the quorum if no node
/// can know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndReason {
    /// The program ended by itself with this status (128 + signal if a signal ended it).
    Exited { code: i32 },
    /// Its walltime ran out.
    WalltimeExceeded,
    /// Cancelled by this user.
    Cancelled { by: String },
    /// Preparation failed on `node` and no retry is left.
    PrologueFailed { node: NodeId, why: String },
    /// There is evidence that `node` lost the work (a new boot id, a missing shim, an operator's
    /// confirmation).
    NodeLost { node: NodeId, why: String },
    /// A launch was aborted: a rank died after PMI init, sent invalid PMI messages, or a fence
    /// timed out.
    LaunchAborted { code: i32, why: String },
    /// The kernel killed its script or its launch on `node` for lack of memory.
    OutOfMemory { node: NodeId, kill: MemoryKill },
    /// Its liveness probe on `node` failed too many times in a row.
    ProbeFailed { node: NodeId, why: String },
    /// It was still running on `node` at the deadline of that node's drain.
    DrainDeadline { node: NodeId },
    /// Its run lease on `node` lapsed: no heartbeat of the node was acknowledged for the length of
    /// the lease, so its shim ended it.
    RunLeaseLapsed { node: NodeId },
    /// It had to release its nodes. `saved`: the checkpoint made before, or why none was made.
    Preempted { by: String, why: String, saved: Result<CheckpointId, NotSaved> },
    /// Its walltime ran out, and the checkpoint in progress became complete before the grace period
    /// ended.
    WalltimeSaved { checkpoint: CheckpointId },
    /// This user put it back into the queue; it starts again.
    Requeued { by: String, why: String },
    /// It waited for the allocation `on`, of this name, which ended in this state: so the condition can
    /// never be met.
    DependencyUnmet { on: AllocationId, name: String, condition: DependencyCondition, state: AllocationState },
    /// It waited until it could not end by its deadline any more.
    DeadlineMissed { deadline: Timestamp },
    /// A task group: this many of its tasks failed.
    TasksFailed { failed: u32, tasks: u32 },
}

/// Why work that had to release its nodes has no checkpoint, as the node of its head reported it.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(transparent)]
#[error("{0}")]
pub struct NotSaved(pub String);

impl EndReason {
    /// The allocation's state after this end.
    pub fn state(&self) -> AllocationState {
        match self {
            Self::Exited { code: 0 } => AllocationState::Completed,
            Self::Cancelled { .. } | Self::DependencyUnmet { .. } | Self::DeadlineMissed { .. } => AllocationState::Cancelled,
            Self::Preempted { saved: Ok(_), .. } | Self::WalltimeSaved { .. } => AllocationState::Suspended,
            Self::Requeued { .. } => AllocationState::Pending,
            Self::Preempted { saved: Err(_), .. }
            | Self::Exited { .. }
            | Self::WalltimeExceeded
            | Self::PrologueFailed { .. }
            | Self::NodeLost { .. }
            | Self::LaunchAborted { .. }
            | Self::OutOfMemory { .. }
            | Self::ProbeFailed { .. }
            | Self::DrainDeadline { .. }
            | Self::TasksFailed { .. }
            | Self::RunLeaseLapsed { .. } => AllocationState::Failed,
        }
    }

    /// Why its launch was aborted, in the words of the launch's head; `None`: it was not aborted.
    pub fn abort_reason(&self) -> Option<String> {
        match self {
            Self::LaunchAborted { why, .. } => Some(why.clone()),
            Self::OutOfMemory { node, kill } if kill.launch > 0 => Some(kill.on(node)),
            Self::OutOfMemory { .. }
            | Self::Exited { .. }
            | Self::WalltimeExceeded
            | Self::Cancelled { .. }
            | Self::PrologueFailed { .. }
            | Self::NodeLost { .. }
            | Self::ProbeFailed { .. }
            | Self::DrainDeadline { .. }
            | Self::Preempted { .. }
            | Self::WalltimeSaved { .. }
            | Self::Requeued { .. }
            | Self::DependencyUnmet { .. }
            | Self::DeadlineMissed { .. }
            | Self::TasksFailed { .. }
            | Self::RunLeaseLapsed { .. } => None,
        }
    }

    /// The program's exit code, if known.
    pub fn exit_code(&self) -> Option<i32> {
        match self {
            Self::Exited { code } | Self::LaunchAborted { code, .. } => Some(*code),
            Self::OutOfMemory { .. } => Some(MEMORY_KILL_CODE),
            Self::WalltimeExceeded
            | Self::Cancelled { .. }
            | Self::PrologueFailed { .. }
            | Self::NodeLost { .. }
            | Self::ProbeFailed { .. }
            | Self::DrainDeadline { .. }
            | Self::Preempted { .. }
            | Self::WalltimeSaved { .. }
            | Self::Requeued { .. }
            | Self::DependencyUnmet { .. }
            | Self::DeadlineMissed { .. }
            | Self::TasksFailed { .. }
            | Self::RunLeaseLapsed { .. } => None,
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited { code: 0 } => f.write_str("completed"),
            Self::Exited { code } => write!(f, "exit_code {code}"),
            Self::WalltimeExceeded => f.write_str("walltime_exceeded"),
            Self::Cancelled { by } => write!(f, "cancelled by {by}"),
            Self::PrologueFailed { node, why } => write!(f, "prologue_failed on {node}: {why}"),
            Self::NodeLost { node, why } => write!(f, "node_lost {node}: {why}"),
            Self::LaunchAborted { why, .. } => write!(f, "launch_aborted: {why}"),
            Self::OutOfMemory { node, kill } => write!(f, "out_of_memory on {node}: {kill}"),
            Self::ProbeFailed { node, why } => write!(f, "liveness probe on {node}: {why}"),
            Self::DrainDeadline { node } => write!(f, "drain_deadline on {node}: it still ran when the drain's deadline was past"),
            Self::RunLeaseLapsed { node } => write!(f, "run_lease_lapsed on {node}"),
            Self::Preempted { by, why, saved: Ok(id) } => write!(f, "preempted by {by}: {why}; saved as checkpoint {}", id.short()),
            Self::Preempted { by, why, saved: Err(unsaved) } => write!(f, "preempted by {by}: {why}; not saved: {unsaved}"),
            Self::Requeued { by, why } => write!(f, "requeued by {by}: {why}"),
            Self::DependencyUnmet { on, name, condition, state } => {
                write!(f, "dependency_unmet: {condition} of {} ({name}), which is {state}", on.short())
            }
            Self::DeadlineMissed { deadline } => write!(f, "deadline_missed: it could not end by {deadline} any more"),
            Self::TasksFailed { failed, tasks } => write!(f, "tasks_failed: {failed} of {tasks}"),
            Self::WalltimeSaved { checkpoint } => write!(f, "walltime_exceeded; saved as checkpoint {}", checkpoint.short()),
        }
    }
}
