//! The records of the agent's journal: the durable vocabulary of a node.

use lattice_model::{AllocationId, Assignment, DesiredList, DesiredShare, Epoch, Incarnation, ReportItem};
use serde::{Deserialize, Serialize};

/// The phase of one allocation on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// Image, mounts, scope and shim are being made.
    Preparing,
    /// All of them are made; the other nodes may not be ready yet.
    Prepared,
    /// Walltime runs; on the head the entry point was started.
    Running,
    /// Processes are being ended.
    Stopping,
    /// Shim, scope and files are being removed.
    Undoing,
}

/// One allocation on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Local {
    /// The share as the quorum's list had it when the allocation began here.
    pub share: DesiredShare,
    /// Its phase.
    pub phase: Phase,
    /// Its own processors and GPUs; `None`: the topology was not known when it began (see
    /// [`crate::Brain::knows`]).
    pub assignment: Option<Assignment>,
}

/// One fact, written before it is acted upon. Replaying all records in order gives the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// The agent has this incarnation from now on; reports are numbered from 1 again.
    Registered { incarnation: Incarnation },
    /// A newer list of everything that this node must do.
    ListReceived(DesiredList),
    /// A local allocation entered this phase. The first record of an (allocation, epoch) takes its
    /// share from the list, and has the processors and GPUs that are its own from then on.
    PhaseEntered {
        allocation: AllocationId,
        epoch: Epoch,
        phase: Phase,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        assignment: Option<Assignment>,
    },
    /// Nothing of the allocation is left here, and it never begins again under this epoch.
    Removed { allocation: AllocationId, epoch: Epoch },
    /// A report to send to the quorum.
    ReportQueued(ReportItem),
    /// The quorum acknowledged this many of the oldest reports.
    Acknowledged { count: u64 },
}

impl Record {
    /// Whether the record must survive a crash of the machine: others are notified of it before the
    /// quorum has it.
    pub fn outlives_the_machine(&self) -> bool {
        matches!(self, Self::ReportQueued(ReportItem::Ended { .. }))
    }
}
