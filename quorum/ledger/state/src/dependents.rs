//! Which allocations wait for others. Not part of the replicated state: derived from the records of
//! those that wait when a snapshot is read, and then kept up to date with them.

use imbl::OrdSet;
use lattice_model::{Allocation, AllocationId};
use std::ops::Bound;
use uuid::Uuid;

/// Pairs of a parent and a child: the child has not ended, and the parent's state in its record is not
/// final.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependents(OrdSet<(AllocationId, AllocationId)>);

impl Dependents {
    /// The child waits for changes of the parent.
    pub fn insert(&mut self, parent: AllocationId, child: AllocationId) {
        self.0.insert((parent, child));
    }

    /// The child no longer waits for changes of the parent.
    pub fn remove(&mut self, parent: AllocationId, child: AllocationId) {
        self.0.remove(&(parent, child));
    }

    /// Adds all pairs of this child.
    pub fn add_child(&mut self, child: &Allocation) {
        for parent in followed_by(child) {
            self.insert(parent, child.id);
        }
    }

    /// Whether the parent has any children.
    pub fn has_any_of(&self, parent: AllocationId) -> bool {
        self.of(parent, None).next().is_some()
    }

    /// The children of a parent, by id, after this one.
    pub fn of(&self, parent: AllocationId, after: Option<AllocationId>) -> impl Iterator<Item = AllocationId> {
        let begin = match after {
            Some(child) => Bound::Excluded((parent, child)),
            None => Bound::Included((parent, AllocationId(Uuid::nil()))),
        };
        let pairs = self.0.range((begin, Bound::Unbounded));
        pairs.take_while(move |(of, _)| *of == parent).map(|(_, child)| *child)
    }
}

/// The parents that an allocation follows: those whose state in its record is not final.
pub fn followed_by(child: &Allocation) -> impl Iterator<Item = AllocationId> {
    let all = child.dependencies.iter().filter(move |_| !child.state.is_terminal()).flat_map(|all| &all.parents);
    all.filter(|parent| !parent.state.is_final()).map(|parent| parent.on)
}
