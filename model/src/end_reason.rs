//! Why work ended.

use crate::allocation_state::AllocationState;
use crate::ids::{CheckpointId, NodeId};
use crate::launch::{MEMORY_KILL_CODE, MemoryKill};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Why work ended, told by the node where its entry point ran (or by the quorum, for what no node can tell).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndReason {
    /// The program ended by itself with this status (128 + signal for one that a signal ended).
    Exited { code: i32 },
    /// Its walltime was over.
    WalltimeExceeded,
    /// Cancelled by this user.
    Cancelled { by: String },
    /// Preparing failed on `node` and no try is left.
    PrologueFailed { node: NodeId, why: String },
    /// Evidence says that `node` lost it (new boot id, the shim is gone, an operator).
    NodeLost { node: NodeId, why: String },
    /// A launch was brought down: a rank died after PMI init, PMI garbage, a fence that timed out.
    LaunchAborted { code: i32, why: String },
    /// The kernel killed its script or its launch on `node` because memory was over.
    OutOfMemory { node: NodeId, kill: MemoryKill },
    /// Its liveness probe on `node` failed too often in a row.
    ProbeFailed { node: NodeId, why: String },
    /// It still ran on `node` when the deadline of that node's drain was past.
    DrainDeadline { node: NodeId },
    /// Its run lease on `node` lapsed: no heartbeat of the node was acknowledged for so long, and its shim ended it.
    RunLeaseLapsed { node: NodeId },
    /// It was to give its nodes back. `saved`: the checkpoint that it made first, or why it made none.
    Preempted { by: String, why: String, saved: Result<CheckpointId, String> },
    /// Its walltime was over, and the checkpoint that was under way was whole before its grace was.
    WalltimeSaved { checkpoint: CheckpointId },
    /// This user put it back into the queue: it begins again.
    Requeued { by: String, why: String },
}

impl EndReason {
    /// The state that this end leads to.
    pub fn state(&self) -> AllocationState {
        match self {
            Self::Exited { code: 0 } => AllocationState::Completed,
            Self::Cancelled { .. } => AllocationState::Cancelled,
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
            | Self::RunLeaseLapsed { .. } => AllocationState::Failed,
        }
    }

    /// Why its launch was brought down, in the words of the launch's head; `None`: it was not.
    pub fn brought_down(&self) -> Option<String> {
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
            | Self::RunLeaseLapsed { .. } => None,
        }
    }

    /// The program's exit code, where one is known.
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
            Self::WalltimeSaved { checkpoint } => write!(f, "walltime_exceeded; saved as checkpoint {}", checkpoint.short()),
        }
    }
}
