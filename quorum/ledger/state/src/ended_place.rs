//! The order in which allocations ended.

use lattice_model::{Allocation, AllocationId, Timestamp};
use serde::{Deserialize, Serialize};

/// An ended allocation's place in the order of the ends. Ends at the same time are ordered by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EndedPlace {
    /// When it ended.
    pub ended_at: Timestamp,
    /// Its id.
    pub id: AllocationId,
}

impl EndedPlace {
    /// The place of an allocation that has ended.
    pub fn of(allocation: &Allocation) -> Self {
        Self { ended_at: allocation.ended_at.unwrap_or_default(), id: allocation.id }
    }
}
