//! The allocations of each user by name, in the order of submission: a singleton waits for earlier
//! ones. Not part of the replicated state: derived from the allocations when a snapshot is read, and
//! then kept up to date.

use imbl::OrdSet;
use lattice_model::AllocationId;
use std::ops::Bound;

/// The place of an allocation among those of its user with its name, in the order of submission.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamePlace {
    /// Its user.
    pub uid: u32,
    /// Its name.
    pub name: String,
    /// See [`lattice_model::Allocation::submission`].
    pub submission: u64,
    /// Its id.
    pub id: AllocationId,
}

impl NamePlace {
    fn has_same_name(&self, other: &Self) -> bool {
        (self.uid, &self.name) == (other.uid, &other.name)
    }
}

/// The places of all allocations that have not ended or may still run. Lanes of task groups and
/// replicas of scaled services have no place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(OrdSet<NamePlace>);

impl Names {
    /// Adds a place.
    pub fn insert(&mut self, place: NamePlace) {
        self.0.insert(place);
    }

    /// Removes a place.
    pub fn remove(&mut self, place: &NamePlace) {
        self.0.remove(place);
    }

    /// The latest allocation of this user and name that was submitted before this place.
    pub fn before(&self, place: &NamePlace) -> Option<AllocationId> {
        let earlier = self.0.range::<_, NamePlace>((Bound::Unbounded, Bound::Excluded(place))).next_back();
        earlier.filter(|earlier| earlier.has_same_name(place)).map(|earlier| earlier.id)
    }

    /// The first allocation of this user and name that was submitted after this place.
    pub fn after(&self, place: &NamePlace) -> Option<AllocationId> {
        let later = self.0.range::<_, NamePlace>((Bound::Excluded(place), Bound::Unbounded)).next();
        later.filter(|later| later.has_same_name(place)).map(|later| later.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_have_the_same_user_and_name() {
        let id = |number: u128| AllocationId(uuid::Uuid::from_u128(number));
        let place = |uid, name: &str, submission: u64| NamePlace { uid, name: name.to_owned(), submission, id: id(submission.into()) };
        let mut names = Names::default();
        for of in [place(1, "a", 5), place(1, "a", 3), place(1, "b", 4), place(2, "a", 1), place(1, "a", 9)] {
            names.insert(of);
        }
        let beside = |names: &Names, of: &NamePlace| (names.before(of), names.after(of));
        assert_eq!(beside(&names, &place(1, "a", 5)), (Some(id(3)), Some(id(9))));
        assert_eq!(beside(&names, &place(1, "a", 7)), (Some(id(5)), Some(id(9))));
        assert_eq!(beside(&names, &place(1, "a", 3)), (None, Some(id(5))));
        assert_eq!(beside(&names, &place(1, "b", 4)), (None, None));
        assert_eq!(beside(&names, &place(2, "a", 1)), (None, None));
        names.remove(&place(1, "a", 5));
        assert_eq!(beside(&names, &place(1, "a", 9)), (Some(id(3)), None));
    }
}
