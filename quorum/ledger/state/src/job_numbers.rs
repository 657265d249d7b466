//! Which allocation has which job number. Derived from the allocations.

use imbl::OrdMap;
use lattice_model::{Allocation, AllocationId};

/// The first number of each allocation that has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobNumbers(OrdMap<u64, AllocationId>);

impl JobNumbers {
    /// Adds the first number of this allocation, if it has one.
    pub fn add(&mut self, allocation: &Allocation) {
        if allocation.number > 0 {
            self.0.insert(allocation.number, allocation.id);
        }
    }

    /// The record of this allocation is dropped.
    pub fn remove(&mut self, allocation: &Allocation) {
        if self.0.get(&allocation.number) == Some(&allocation.id) {
            self.0.remove(&allocation.number);
        }
    }

    /// The allocation with the largest first number that is not above this one. Its record says whether
    /// this number is one of its numbers.
    pub fn last_until(&self, number: u64) -> Option<AllocationId> {
        self.0.get_prev(&number).map(|(_, id)| *id)
    }
}
