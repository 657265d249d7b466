//! Who the members are, as Raft's membership says it: the only truth. The configuration's list is the first contact alone.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A log entry's id: term, leader, index.
pub type LogId = openraft::LogId<u64>;
/// Who the members are, and since when.
pub type StoredMembership = openraft::StoredMembership<u64, Peer>;

/// Where a member is reached, as the Raft membership has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// By agents, `host:port`.
    pub service: String,
    /// By members, `host:port`.
    pub raft: String,
}

/// A membership, and where in the log it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// Its log entry; `None` where this member knows of no membership yet.
    pub since: Option<LogId>,
    /// Everybody, those that learn and do not vote as well.
    pub members: BTreeMap<u64, Peer>,
    /// Who votes. More than one set while a change is under way: a majority of each decides.
    pub votes: Vec<BTreeSet<u64>>,
}

impl Roster {
    /// The membership as Raft keeps it.
    pub fn of(stored: &StoredMembership) -> Self {
        let membership = stored.membership();
        Self {
            since: *stored.log_id(),
            members: membership.nodes().map(|(id, peer)| (*id, peer.clone())).collect(),
            votes: membership.get_joint_config().clone(),
        }
    }

    /// Whether `id` votes.
    pub fn has_vote(&self, id: u64) -> bool {
        self.votes.iter().any(|set| set.contains(&id))
    }

    /// Where agents reach those that vote; none where no membership is known.
    pub fn services(&self) -> Vec<String> {
        self.members.iter().filter(|(id, _)| self.has_vote(**id)).map(|(_, peer)| peer.service.clone()).collect()
    }

    /// Its place in the log; 0 where it has none.
    pub fn index(&self) -> u64 {
        self.since.map_or(0, |id| id.index)
    }

    /// Whether this membership, which another member has as committed, tells `id` that it was taken out: it is newer
    /// than what `id` itself knows. An older one says nothing: its owner lags behind.
    pub fn expels(&self, id: u64, known: &Self) -> bool {
        self.since > known.since && known.members.contains_key(&id) && !self.members.contains_key(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openraft::CommittedLeaderId;

    fn roster(index: u64, ids: &[u64]) -> Roster {
        Roster {
            since: Some(LogId::new(CommittedLeaderId::new(1, 1), index)),
            members: ids.iter().map(|id| (*id, Peer::default())).collect(),
            votes: vec![ids.iter().copied().collect()],
        }
    }

    #[test]
    fn only_a_newer_list_takes_a_member_out() {
        let known = roster(10, &[1, 2, 3]);
        assert!(roster(11, &[1, 2]).expels(3, &known));
        assert!(!roster(11, &[1, 2]).expels(2, &known), "it is in it");
        assert!(!roster(9, &[1, 2]).expels(3, &known), "whoever says so lags behind");
        assert!(!roster(11, &[1, 2]).expels(4, &Roster::default()), "who joins knows of no list yet");
        assert!(!Roster::default().expels(3, &known));
    }
}
