//! The states of an allocation.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The state of an allocation.
///
/// ```text
///   Pending ──claim──▶ Staging ──every node prepared──▶ Running ──▶ Completed
///      ▲                  │                                │   └──▶ Failed
///      └──failed prologue─┴───────── lost, requeue ────────┘
///   Suspended ──claim──▶ Staging                             │
///      ▲                                                     │
///      └────────────── saved itself, and was ended ──────────┘
///
///   Cancelled from any of these that has not ended
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AllocationState {
    /// Submitted and committed; has no nodes yet.
    Pending,
    /// Nodes are claimed and are being prepared.
    Staging,
    /// Every prologue has finished; the walltime counts.
    Running,
    /// Ended by itself with exit code 0.
    Completed,
    /// Ended with an error.
    Failed,
    /// Ended by its owner or an operator.
    Cancelled,
    /// It saved itself and released its nodes. It waits for new nodes and continues from the
    /// checkpoint, or, if it is held, waits until somebody resumes it
    /// ([`Allocation::held`](crate::Allocation::held)).
    Suspended,
}

impl AllocationState {
    /// Whether this state is final.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Pending | Self::Staging | Self::Running | Self::Suspended => false,
            Self::Completed | Self::Failed | Self::Cancelled => true,
        }
    }

    /// Whether it has no nodes now but will get some later.
    pub fn is_without_nodes(self) -> bool {
        match self {
            Self::Pending | Self::Suspended => true,
            Self::Staging | Self::Running | Self::Completed | Self::Failed | Self::Cancelled => false,
        }
    }

    /// Its name, such as `Running`: the text that it is displayed as.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Staging => "Staging",
            Self::Running => "Running",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
            Self::Cancelled => "Cancelled",
            Self::Suspended => "Suspended",
        }
    }
}

impl fmt::Display for AllocationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
