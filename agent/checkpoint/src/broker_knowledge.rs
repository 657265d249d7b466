//! The broker's latest state, for `lattice explain`.

use lattice_model::AllocationId;
use lattice_scheduler::broker::{Known, Storage};
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
        Self { known: BTreeMap::new(), saving: BTreeSet::new(), storage: Storage::Here }
    }
}
