//! What an agent tells the quorum. Journalled before it is sent, sent until acknowledged.

use crate::checkpoint::CheckpointRef;
use crate::end_reason::EndReason;
use crate::ids::{AllocationId, CheckpointId, Epoch, Incarnation, NodeId};
use crate::time::Timestamp;
use crate::work_usage::WorkUsage;
use serde::{Deserialize, Serialize};

/// One report. The quorum takes those of one incarnation in sequence and ignores what it already has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Who reports.
    pub node: NodeId,
    /// In which life.
    pub incarnation: Incarnation,
    /// The report's number within that life, from 1.
    pub seq: u64,
    /// What happened.
    pub item: ReportItem,
}

/// What can be reported: about one allocation's share on the reporting node, of which a stale epoch is
/// acknowledged, refused by name, and changes nothing; or about the node itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReportItem {
    /// Everything it needs is there.
    Prepared { allocation: AllocationId, epoch: Epoch },
    /// Preparing failed: the whole claim is released and this node excluded.
    PrepareFailed { allocation: AllocationId, epoch: Epoch, why: String },
    /// The head's report that the entry point is over (or any node's, for walltime and loss).
    Ended { allocation: AllocationId, epoch: Epoch, reason: EndReason },
    /// Nothing of it is left here. `usage`: what its work used of this node, where that is known.
    Released {
        allocation: AllocationId,
        epoch: Epoch,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<WorkUsage>,
    },
    /// The head's report that a checkpoint of it is whole in the store. Only of work whose specification asks for checkpoints.
    Checkpointed { allocation: AllocationId, epoch: Epoch, checkpoint: CheckpointRef },
    /// The head's report that the work could not save itself when it was to be preempted under this id, and goes on.
    NotPreempted { allocation: AllocationId, epoch: Epoch, id: CheckpointId, why: String },
    /// How the node found itself from this time on, by its own clock, while no heartbeat of it was acknowledged: for its history,
    /// nothing is decided by it.
    Unheard { at: Timestamp, word: String },
}

impl ReportItem {
    /// The allocation and epoch that it speaks of, if any.
    pub fn subject(&self) -> Option<(AllocationId, Epoch)> {
        match self {
            Self::Prepared { allocation, epoch }
            | Self::PrepareFailed { allocation, epoch, .. }
            | Self::Ended { allocation, epoch, .. }
            | Self::Checkpointed { allocation, epoch, .. }
            | Self::NotPreempted { allocation, epoch, .. }
            | Self::Released { allocation, epoch, .. } => Some((*allocation, *epoch)),
            Self::Unheard { .. } => None,
        }
    }
}
