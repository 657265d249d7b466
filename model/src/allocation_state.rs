//! Where an allocation stands.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Where an allocation stands.
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
    /// Committed, no nodes yet.
    Pending,
    /// Nodes are claimed and preparing.
    Staging,
    /// Every prologue is done; walltime runs.
    Running,
    /// Ended by itself with exit code 0.
    Completed,
    /// Ended otherwise.
    Failed,
    /// Ended because its owner or an operator said so.
    Cancelled,
    /// It saved itself and gave its nodes back. It waits for others, to go on from there; or until somebody resumes it
    /// ([`Allocation::held`](crate::Allocation::held)).
    Suspended,
}

impl AllocationState {
    /// Whether nothing more will happen to it.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Pending | Self::Staging | Self::Running | Self::Suspended => false,
            Self::Completed | Self::Failed | Self::Cancelled => true,
        }
    }

    /// Whether it has no nodes now and is to have some later.
    pub fn is_without_nodes(self) -> bool {
        match self {
            Self::Pending | Self::Suspended => true,
            Self::Staging | Self::Running | Self::Completed | Self::Failed | Self::Cancelled => false,
        }
    }
}

impl fmt::Display for AllocationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pending => "Pending",
            Self::Staging => "Staging",
            Self::Running => "Running",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
            Self::Cancelled => "Cancelled",
            Self::Suspended => "Suspended",
        })
    }
}
