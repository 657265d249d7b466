//! What the broker knows of each allocation, and its latest state, for `lattice explain`.

use lattice_model::{AllocationId, CheckpointId, Timestamp};
use lattice_scheduler::broker::{Known, LastSaved, Storage};
use std::collections::{BTreeMap, BTreeSet};

/// What the broker knew in its last round.
#[derive(Clone, Debug)]
pub struct Latest {
    pub(super) known: BTreeMap<AllocationId, Known>,
    pub(super) saving: BTreeSet<AllocationId>,
    pub(super) storage: Storage,
}

impl Default for Latest {
    fn default() -> Self {
        Self { known: BTreeMap::new(), saving: BTreeSet::new(), storage: Storage::Reachable }
    }
}

/// One allocation that the broker follows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Followed {
    pub(super) known: Known,
    /// Its last checkpoint in the ledger, and when the broker noticed it. Without a time: it existed
    /// when the broker began to follow the allocation.
    noticed: Option<(CheckpointId, Option<Timestamp>)>,
    /// The checkpoint that `known.last` describes.
    read: Option<CheckpointId>,
}

impl Followed {
    /// Begins to follow an allocation.
    pub fn new(last: Option<CheckpointId>) -> Self {
        Self { noticed: last.map(|id| (id, None)), ..Self::default() }
    }

    /// Notices the last checkpoint in the ledger. Returns it if its manifest must be read.
    pub fn notice(&mut self, last: Option<CheckpointId>, now: Timestamp) -> Option<CheckpointId> {
        let last = last?;
        if self.noticed.is_none_or(|(id, _)| id != last) {
            self.noticed = Some((last, Some(now)));
        }
        self.known.last_is_unread = self.read != Some(last);
        self.known.last_is_unread.then_some(last)
    }

    /// Stores what the manifest says; `None`: it is unreadable, so work cannot start from it. The
    /// stored time is when the broker noticed the checkpoint, because the clock of the node that
    /// wrote the manifest may be wrong.
    pub fn take_manifest(&mut self, id: CheckpointId, last: Option<LastSaved>, now: Timestamp) {
        let noticed = self.noticed.filter(|(noticed, _)| *noticed == id).and_then(|(_, at)| at);
        self.known.last = last.map(|last| LastSaved { at: noticed.unwrap_or(last.at), ..last }.not_after(now));
        self.known.last_is_unread = false;
        self.read = Some(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const NOW: Timestamp = Timestamp(1_000_000);

    fn id(n: u128) -> CheckpointId {
        CheckpointId(Uuid::from_u128(n))
    }

    fn saved(at: u64) -> LastSaved {
        LastSaved { at: Timestamp(at), bytes: 7, took_ms: Some(1) }
    }

    #[test]
    fn a_checkpoint_has_the_time_at_which_the_broker_noticed_it() {
        let mut followed = Followed::new(Some(id(1)));
        assert_eq!(followed.notice(Some(id(1)), NOW), Some(id(1)));
        followed.take_manifest(id(1), Some(saved(400_000)), NOW);
        assert_eq!(followed.known.last, Some(saved(400_000)), "an earlier one is as old as its manifest says");
        assert_eq!(followed.notice(Some(id(1)), NOW), None);
        for wrong in [5, 9_000_000_000] {
            let next = id(u128::from(wrong));
            assert_eq!(followed.notice(Some(next), NOW), Some(next));
            assert!(followed.known.last_is_unread);
            // The store answers later.
            assert_eq!(followed.notice(Some(next), Timestamp(NOW.0 + 30_000)), Some(next));
            followed.take_manifest(next, Some(saved(wrong)), Timestamp(NOW.0 + 30_000));
            assert_eq!((followed.known.last, followed.known.last_is_unread), (Some(saved(NOW.0)), false));
        }
    }

    #[test]
    fn an_earlier_checkpoint_is_not_from_the_future() {
        let mut followed = Followed::new(Some(id(1)));
        followed.notice(Some(id(1)), NOW);
        followed.take_manifest(id(1), Some(saved(9_000_000_000)), NOW);
        assert_eq!(followed.known.last, Some(saved(NOW.0)));
        followed.take_manifest(id(1), None, NOW);
        assert_eq!(followed.known.last, None);
        assert_eq!(Followed::new(None).notice(None, NOW), None);
    }
}
