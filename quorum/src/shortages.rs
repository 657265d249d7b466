//! Shortages of disk space as last reported by the members. In memory: the leader learns them from
//! heartbeat summaries and sends them to all members.

use lattice_ledger::shortage::{RefusedCommands, Shortage};
use lattice_store::roster::Roster;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};

/// The members' reports.
#[derive(Debug, Default)]
pub struct Shortages(Mutex<BTreeMap<u64, Shortage>>);

impl Shortages {
    fn known(&self) -> MutexGuard<'_, BTreeMap<u64, Shortage>> {
        self.0.lock()
    }

    /// A member reports its shortage, or that there is none.
    pub fn record(&self, member: u64, shortage: Option<Shortage>) {
        match shortage {
            Some(shortage) => self.known().insert(member, shortage),
            None => self.known().remove(&member),
        };
    }

    /// Replaces all reports by those that the leader sent.
    pub fn are(&self, shortages: BTreeMap<u64, Shortage>) {
        *self.known() = shortages;
    }

    /// Discards all reports: every member must report again.
    pub fn forget(&self) {
        self.known().clear();
    }

    /// The commands for which this member's disk has no space, if any.
    pub fn of(&self, member: u64) -> Option<RefusedCommands> {
        self.known().get(&member).map(|shortage| shortage.refuses)
    }

    /// All known shortages.
    pub fn all(&self) -> BTreeMap<u64, Shortage> {
        self.known().clone()
    }
}

/// Whether the other voters form a majority without the members in `short`.
pub fn is_majority_without(roster: &Roster, short: &BTreeSet<u64>) -> bool {
    roster.votes.iter().all(|votes| votes.difference(short).count() > votes.len() / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_of_each_set_is_needed() {
        let of = |votes: &[&[u64]], short: &[u64]| {
            let votes = votes.iter().map(|set| set.iter().copied().collect()).collect();
            is_majority_without(&Roster { votes, ..Roster::default() }, &short.iter().copied().collect())
        };
        assert!(of(&[&[1, 2, 3]], &[]) && of(&[&[1, 2, 3]], &[2]) && of(&[&[1, 2, 3]], &[2, 4]));
        assert!(!of(&[&[1, 2, 3]], &[2, 3]) && !of(&[&[1]], &[1]));
        assert!(!of(&[&[1, 2, 3], &[1, 2, 3, 4]], &[3, 4]));
    }
}
