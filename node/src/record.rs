//! What the agent's journal holds: the durable vocabulary of a node.

use lattice_model::{AllocationId, Assignment, DesiredList, DesiredShare, Epoch, Incarnation, ReportItem};
use serde::{Deserialize, Serialize};

/// How far this node is with one allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// Image, mounts, scope and shim are being made.
    Preparing,
    /// They are there; the other nodes may not be ready yet.
    Prepared,
    /// Walltime runs; on the head the entry point was started.
    Running,
    /// Processes are being ended.
    Stopping,
    /// Shim, scope and files are being taken away.
    Undoing,
}

/// One allocation on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Local {
    /// What the quorum said when it began here.
    pub share: DesiredShare,
    /// How far it is.
    pub phase: Phase,
    /// What of the node is its own; `None`: nothing was told apart when it began (see [`crate::Brain::knows`]).
    pub assignment: Option<Assignment>,
}

/// One fact, written before it is acted upon. Replaying all of them in order gives the state again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// The agent lives under this incarnation; reports are numbered from 1 again.
    Registered { incarnation: Incarnation },
    /// A newer list of what this node is to do.
    Listed(DesiredList),
    /// A local allocation entered this phase. The first record of an (allocation, epoch) takes its share from the list, and
    /// says which processors and GPUs of the node are its own from then on.
    Entered {
        allocation: AllocationId,
        epoch: Epoch,
        phase: Phase,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        assignment: Option<Assignment>,
    },
    /// Nothing of it is left here, and it is never begun again under this epoch.
    Gone { allocation: AllocationId, epoch: Epoch },
    /// A report that the quorum is to hear.
    ToReport(ReportItem),
    /// The quorum acknowledged this many of the oldest reports.
    Acknowledged { count: u64 },
}

impl Record {
    /// Whether it is told to others before the quorum has it.
    pub fn outlives_the_machine(&self) -> bool {
        matches!(self, Self::ToReport(ReportItem::Ended { .. }))
    }
}
