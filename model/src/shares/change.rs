//! A change of share phases alone, as watchers are sent it in place of the whole record.

use crate::allocation::Allocation;
use crate::allocation_state::AllocationState;
use crate::claim::SharePhase;
use crate::ids::{AllocationId, Epoch, Revision};
use crate::work_usage::WorkUsage;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Shares of consecutive ranks in the same phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseRun {
    /// The lowest rank.
    pub first: u32,
    /// The number of shares.
    pub len: u32,
    /// Their phase.
    pub phase: SharePhase,
}

/// What differs between two versions of an allocation's record, of the same epoch and with the same
/// nodes, if nothing but phases of shares and the usage has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhasesChange {
    /// The allocation.
    pub id: AllocationId,
    /// The epoch of its claim.
    pub epoch: Epoch,
    /// Its state, which has not changed.
    pub state: AllocationState,
    /// The revision of the record before the change. `None`: the receiver is sent only changes of
    /// its own share, so its version of the record may be older.
    pub follows: Option<Revision>,
    /// The revision of the record after the change.
    pub revision: Revision,
    /// The changed phases, by ascending ranks.
    pub phases: Vec<PhaseRun>,
    /// The usage after the change.
    pub usage: Option<WorkUsage>,
}

/// Why a change cannot be applied to a record: the receiver must get the whole record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotApplicable {
    /// The receiver does not have the record.
    #[error("the record of allocation {0} is not there")]
    NoRecord(AllocationId),
    /// It is of another claim.
    #[error("the record of allocation {id} is of epoch {is}, the change of epoch {wants}")]
    Epoch {
        /// The allocation.
        id: AllocationId,
        /// The epoch of the record.
        is: Epoch,
        /// The epoch of the change.
        wants: Epoch,
    },
    /// A change before it is missing.
    #[error("the record of allocation {id} is of revision {is}, the change follows revision {wants}")]
    Revision {
        /// The allocation.
        id: AllocationId,
        /// The revision of the record.
        is: Revision,
        /// The revision that the change follows.
        wants: Revision,
    },
    /// It has ranks that the allocation has not, or not in their order.
    #[error("the change of allocation {id} has ranks that its {shares} shares do not have")]
    Ranks {
        /// The allocation.
        id: AllocationId,
        /// The number of shares in the record.
        shares: usize,
    },
}

impl PhasesChange {
    /// Changes the record. If it is refused, the record is as before.
    ///
    /// # Errors
    /// [`NotApplicable`], except `NoRecord`.
    pub fn apply(&self, record: &mut Allocation) -> Result<(), NotApplicable> {
        let id = self.id;
        if record.id != id {
            return Err(NotApplicable::NoRecord(id));
        }
        if record.epoch != self.epoch {
            return Err(NotApplicable::Epoch { id, is: record.epoch, wants: self.epoch });
        }
        if let Some(wants) = self.follows.filter(|wants| *wants != record.revision) {
            return Err(NotApplicable::Revision { id, is: record.revision, wants });
        }
        let shares = record.shares.len();
        let mut end = 0;
        for run in &self.phases {
            let begins_in_order = u64::from(run.first) >= end;
            end = u64::from(run.first) + u64::from(run.len);
            if !begins_in_order || end > shares as u64 {
                return Err(NotApplicable::Ranks { id, shares });
            }
        }
        for PhaseRun { first, len, phase } in &self.phases {
            for rank in *first..first + len {
                record.shares.set_phase_of_rank(rank, *phase);
            }
        }
        record.usage = self.usage.map(Box::new);
        record.revision = self.revision;
        Ok(())
    }
}
