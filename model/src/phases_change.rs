//! A change of share phases alone. Watchers get it in place of the whole record.

use crate::allocation::Allocation;
use crate::allocation_state::AllocationState;
use crate::ids::{AllocationId, Epoch, Revision};
use crate::shares::PhaseRun;
use crate::work_usage::WorkUsage;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The difference between two versions of an allocation's record that have the same epoch and
/// nodes, and differ only in the phases of shares and the usage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhasesChange {
    /// The allocation.
    pub id: AllocationId,
    /// The epoch of its claim.
    pub epoch: Epoch,
    /// Its state, which has not changed.
    pub state: AllocationState,
    /// The revision of the record before the change. `None`: the receiver gets only changes of its
    /// own share, so its version of the record may be older.
    pub previous_revision: Option<Revision>,
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
    /// The record is of another claim.
    #[error("the record of allocation {id} is of epoch {is}, the change of epoch {wants}")]
    Epoch {
        /// The allocation.
        id: AllocationId,
        /// The epoch of the record.
        is: Epoch,
        /// The epoch of the change.
        wants: Epoch,
    },
    /// An earlier change is missing.
    #[error("the record of allocation {id} is of revision {is}, the change follows revision {wants}")]
    Revision {
        /// The allocation.
        id: AllocationId,
        /// The revision of the record.
        is: Revision,
        /// The revision that the change follows.
        wants: Revision,
    },
    /// The change has ranks that the allocation does not have, or ranks out of order.
    #[error("the change of allocation {id} has ranks that its {shares} shares do not have")]
    Ranks {
        /// The allocation.
        id: AllocationId,
        /// The number of shares in the record.
        shares: usize,
    },
}

impl PhasesChange {
    /// Applies the change to the record. A refused change leaves the record as it was.
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
        if let Some(wants) = self.previous_revision.filter(|wants| *wants != record.revision) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NodeId, Resources, Share, SharePhase, WorkUsage, test_builders};
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use uuid::Uuid;

    const PHASES: [SharePhase; 3] = [SharePhase::Claimed, SharePhase::Prepared, SharePhase::Released];

    fn share(number: u32, phase: SharePhase) -> Share {
        let node: NodeId = format!("n{number}").parse().unwrap();
        Share { node, resources: Resources::default(), phase }
    }

    proptest! {
        #[test]
        fn a_change_of_phases_makes_the_old_record_the_new_one(list in prop::collection::vec(prop::sample::select(&PHASES[..]), 0..100), sets in prop::collection::btree_map(0..100u32, prop::sample::select(&PHASES[..]), 0..40)) {
            let mut before = test_builders::allocation(AllocationId(Uuid::from_u128(1)));
            (before.epoch, before.revision, before.shares) = (Epoch(3), Revision(5), (0..).zip(list).map(|(number, phase)| share(number, phase)).collect());
            let mut after = Allocation { revision: Revision(9), usage: Some(Box::new(WorkUsage { nodes: 1, ..WorkUsage::default() })), ..before.clone() };
            for (rank, phase) in &sets {
                after.shares.set_phase_of_rank(*rank, *phase);
            }
            let change = change(&after, before.revision, &sets.keys().copied().collect());
            prop_assert!(change.phases.len() <= sets.len());
            let mut applied = before.clone();
            prop_assert_eq!(change.apply(&mut applied), Ok(()));
            prop_assert_eq!(applied, after);
        }
    }

    fn change(after: &Allocation, previous_revision: Revision, ranks: &BTreeSet<u32>) -> PhasesChange {
        PhasesChange {
            id: after.id,
            epoch: after.epoch,
            state: after.state,
            previous_revision: Some(previous_revision),
            revision: after.revision,
            phases: after.shares.phase_runs(ranks.iter().copied()),
            usage: after.usage.as_deref().copied(),
        }
    }

    #[test]
    fn a_change_is_refused_where_it_does_not_fit_and_changes_nothing() {
        let mut record = test_builders::allocation(AllocationId(Uuid::from_u128(1)));
        (record.epoch, record.revision) = (Epoch(3), Revision(5));
        record.shares = [1, 2, 3].map(|number| share(number, SharePhase::Claimed)).into();
        let id = record.id;
        let run = |first, len| PhaseRun { first, len, phase: SharePhase::Prepared };
        let fits =
            PhasesChange { revision: Revision(6), phases: vec![run(0, 1), run(2, 1)], ..change(&record, Revision(5), &BTreeSet::new()) };
        let ranks = |phases| (PhasesChange { phases, ..fits.clone() }, NotApplicable::Ranks { id, shares: 3 });
        let other = AllocationId(Uuid::from_u128(2));
        for (change, refused) in [
            (PhasesChange { id: other, ..fits.clone() }, NotApplicable::NoRecord(other)),
            (PhasesChange { epoch: Epoch(4), ..fits.clone() }, NotApplicable::Epoch { id, is: Epoch(3), wants: Epoch(4) }),
            (
                PhasesChange { previous_revision: Some(Revision(4)), ..fits.clone() },
                NotApplicable::Revision { id, is: Revision(5), wants: Revision(4) },
            ),
            ranks(vec![run(0, 4)]),
            ranks(vec![run(1, 2), run(0, 1)]),
            ranks(vec![run(0, 2), run(1, 1)]),
            ranks(vec![run(u32::MAX, u32::MAX)]),
            ranks(vec![run(0, u32::MAX)]),
        ] {
            let before = record.clone();
            assert_eq!(change.apply(&mut record), Err(refused));
            assert_eq!(record, before);
        }
        let own = PhasesChange { previous_revision: None, ..fits.clone() };
        record.revision = Revision(4);
        assert_eq!(own.apply(&mut record), Ok(()), "only the own share");
        assert_eq!((record.revision, record.shares.count(SharePhase::Prepared)), (Revision(6), 2));
    }
}
