//! Reports from an agent to the quorum. The agent writes a report to its journal before it sends
//! it, and sends it until it is acknowledged.

use crate::checkpoint::CheckpointRef;
use crate::end_reason::EndReason;
use crate::ids::{AllocationId, CheckpointId, Epoch, Incarnation, NodeId};
use crate::time::Timestamp;
use crate::work_usage::WorkUsage;
use serde::{Deserialize, Serialize};

/// One report. The quorum applies the reports of one incarnation in sequence and ignores those that
/// it already has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The reporting node.
    pub node: NodeId,
    /// The agent's incarnation.
    pub incarnation: Incarnation,
    /// The report's number within that incarnation, from 1.
    pub seq: u64,
    /// What happened.
    pub item: ReportItem,
}

/// The subjects of reports. Most concern an allocation's share on the reporting node; if the epoch
/// of such a report is stale, the quorum acknowledges the report, refuses its content by name, and
/// changes nothing. The others concern the node itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReportItem {
    /// The share is fully prepared.
    Prepared { allocation: AllocationId, epoch: Epoch },
    /// Preparation failed: the whole claim is released, and this node is excluded for the
    /// allocation.
    PrepareFailed { allocation: AllocationId, epoch: Epoch, why: String },
    /// The entry point has ended (reported by the head), or the walltime or the work was lost
    /// (reported by any node).
    Ended { allocation: AllocationId, epoch: Epoch, reason: EndReason },
    /// Nothing of the share is left here. `usage`: the resource usage of its work on this node, if
    /// known.
    Released {
        allocation: AllocationId,
        epoch: Epoch,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<WorkUsage>,
    },
    /// From the head: a checkpoint is complete in the store. Only for work whose specification
    /// requests checkpoints.
    Checkpointed { allocation: AllocationId, epoch: Epoch, checkpoint: CheckpointRef },
    /// From the head: the work could not save itself for the preemption with this id, and
    /// continues.
    NotPreempted { allocation: AllocationId, epoch: Epoch, id: CheckpointId, why: String },
    /// These exposed ports accept connections on the node: their endpoints are listed from now on.
    /// Sent once for each port, and again after a restart of the agent.
    PortsOpen { allocation: AllocationId, epoch: Epoch, ports: Vec<u16> },
    /// How the node assessed itself from this time on (its own clock) while none of its heartbeats
    /// was acknowledged. For its history only; no decision depends on it.
    UnreportedHealth { at: Timestamp, health: String },
}

impl ReportItem {
    /// The allocation and epoch that it concerns, if any.
    pub fn subject(&self) -> Option<(AllocationId, Epoch)> {
        match self {
            Self::Prepared { allocation, epoch }
            | Self::PrepareFailed { allocation, epoch, .. }
            | Self::Ended { allocation, epoch, .. }
            | Self::Checkpointed { allocation, epoch, .. }
            | Self::NotPreempted { allocation, epoch, .. }
            | Self::PortsOpen { allocation, epoch, .. }
            | Self::Released { allocation, epoch, .. } => Some((*allocation, *epoch)),
            Self::UnreportedHealth { .. } => None,
        }
    }
}
