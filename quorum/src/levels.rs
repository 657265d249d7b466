//! The cluster level that each member supports, as reported to the leader. In memory: collected
//! again in every term.

use lattice_ledger::Action;
use parking_lot::Mutex;
use std::collections::HashMap;

/// The members' reports.
#[derive(Debug, Default)]
pub struct Levels(Mutex<HashMap<u64, u32>>);

impl Levels {
    /// A member reports the level that it supports.
    pub fn record(&self, member: u64, level: u32) {
        self.0.lock().insert(member, level);
    }

    /// Discards all reports: every member must report again.
    pub fn forget(&self) {
        self.0.lock().clear();
    }

    /// The level that this member supports, if known.
    pub fn of(&self, member: u64) -> Option<u32> {
        self.0.lock().get(&member).copied()
    }

    /// The command to raise the level, if all of `members` support a higher one than the committed
    /// level.
    pub fn raise(&self, members: impl IntoIterator<Item = u64>, committed: u32) -> Option<Action> {
        let can = self.0.lock();
        let all: Option<Vec<u32>> = members.into_iter().map(|id| can.get(&id).copied()).collect();
        let level = all?.into_iter().min()?;
        (level > committed).then_some(Action::RaiseLevel { level })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_rises_when_the_last_member_can_follow() {
        let levels = Levels::default();
        assert_eq!(levels.raise([], 1), None);
        levels.record(1, 3);
        levels.record(2, 1);
        assert_eq!(levels.raise([1, 2, 3], 1), None, "nobody has heard of 3");
        levels.record(3, 2);
        assert_eq!(levels.raise([1, 2, 3], 1), None, "2 cannot follow more");
        levels.record(2, 2);
        assert_eq!(levels.raise([1, 2, 3], 1), Some(Action::RaiseLevel { level: 2 }));
        assert_eq!(levels.raise([1, 2, 3], 2), None);
        levels.forget();
        assert_eq!(levels.raise([1, 2, 3], 1), None, "a new term asks anew");
    }
}
