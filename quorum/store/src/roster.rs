//! The members according to the Raft membership, which alone decides. The list in the configuration
//! creates or recovers a cluster, and has the addresses for the first contact.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A log entry's id: term, leader, index.
pub type LogId = openraft::LogId<u64>;
/// The members, and the log entry of that membership.
pub type StoredMembership = openraft::StoredMembership<u64, Peer>;

/// A member's addresses in the Raft membership.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// For agents, `host:port`.
    pub service: String,
    /// For members, `host:port`.
    pub raft: String,
}

/// A membership and its log entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// Its log entry; `None`: this member knows no membership yet.
    pub since: Option<LogId>,
    /// All members, including learners, which do not vote.
    pub members: BTreeMap<u64, Peer>,
    /// The voters. More than one set during a membership change: a majority of each set decides.
    pub votes: Vec<BTreeSet<u64>>,
}

impl Roster {
    /// The membership in Raft's state.
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

    /// The agent addresses of the voters; empty if no membership is known.
    pub fn services(&self) -> Vec<String> {
        self.members.iter().filter(|(id, _)| self.has_vote(**id)).map(|(_, peer)| peer.service.clone()).collect()
    }

    /// Its log index; 0 if it has none.
    pub fn index(&self) -> u64 {
        self.since.map_or(0, |id| id.index)
    }

    /// Whether this membership, which another member has committed, shows that `id` was removed. It
    /// must be newer than `known`, the membership that `id` itself has, and `known` must contain `id`.
    /// An older membership proves nothing: the other member lags behind.
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
    fn only_a_newer_list_shows_a_removal() {
        let known = roster(10, &[1, 2, 3]);
        assert!(roster(11, &[1, 2]).expels(3, &known));
        assert!(!roster(11, &[1, 2]).expels(2, &known), "it is in it");
        assert!(!roster(9, &[1, 2]).expels(3, &known), "whoever says so lags behind");
        assert!(!roster(11, &[1, 2]).expels(4, &Roster::default()), "who joins knows of no list yet");
        assert!(!Roster::default().expels(3, &known));
    }
}
