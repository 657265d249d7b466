//! The finished attempts of an allocation: claims that ended while the allocation did not.

use crate::end_reason::EndReason;
use crate::hostlist::{self, HostlistError};
use crate::ids::{Epoch, NodeId};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Limit of the finished attempts in an allocation's record.
pub const ATTEMPTS_KEPT_MAX: usize = 8;

/// A finished claim of an allocation. The current or last claim is in the allocation itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Counted from 1.
    pub number: u32,
    /// The epoch of its claim.
    pub epoch: Epoch,
    /// The node where its script ran and its launches were coordinated.
    pub head: NodeId,
    /// Its nodes as a hostlist, including the head.
    pub nodes: String,
    /// When its nodes were claimed. `None`: the quorum was recovered from a backup made before that.
    pub claimed_at: Option<Timestamp>,
    /// When all of its nodes were prepared. `None`: the quorum never received all of these reports.
    pub started_at: Option<Timestamp>,
    /// When its claim ended.
    pub ended_at: Timestamp,
    /// Why it ended.
    pub reason: EndReason,
    /// Who ended it: a user, `quorum`, or `node:NAME`.
    pub by: String,
}

impl Attempt {
    /// Whether its work may have run. On a single node, the work starts before the quorum learns that
    /// the node is prepared: so a missing `started_at` does not prove that nothing ran.
    pub fn may_have_run(&self) -> bool {
        !matches!(self.reason, EndReason::PrologueFailed { .. })
    }

    /// The names of its nodes.
    ///
    /// # Errors
    /// [`HostlistError`] if the record is damaged.
    pub fn node_ids(&self) -> Result<Vec<NodeId>, HostlistError> {
        hostlist::in_order(&self.nodes)
    }
}

/// Adds an attempt. If there are more than [`ATTEMPTS_KEPT_MAX`], removes the oldest that cannot have
/// run, or else the oldest.
pub fn keep(attempts: &mut Vec<Attempt>, attempt: Attempt) {
    attempts.push(attempt);
    while attempts.len() > ATTEMPTS_KEPT_MAX {
        let oldest = attempts.iter().position(|a| !a.may_have_run()).unwrap_or(0);
        attempts.remove(oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(number: u32, reason: EndReason) -> Attempt {
        Attempt {
            number,
            epoch: Epoch(u64::from(number)),
            head: "n2".parse().unwrap(),
            nodes: "n[1-2]".into(),
            claimed_at: None,
            started_at: None,
            ended_at: Timestamp(1),
            reason,
            by: "quorum".into(),
        }
    }

    #[test]
    fn attempts_that_never_ran_are_removed_first_and_then_the_oldest() {
        let unprepared = || EndReason::PrologueFailed { node: "n1".parse().unwrap(), why: "x".into() };
        let mut attempts = Vec::new();
        for number in 1..=6 {
            keep(&mut attempts, attempt(number, EndReason::Exited { code: 1 }));
        }
        for number in 7..=10 {
            keep(&mut attempts, attempt(number, unprepared()));
        }
        let numbers = |attempts: &[Attempt]| attempts.iter().map(|a| a.number).collect::<Vec<_>>();
        assert_eq!(numbers(&attempts), [1, 2, 3, 4, 5, 6, 9, 10]);
        for number in 11..=13 {
            keep(&mut attempts, attempt(number, EndReason::Exited { code: 1 }));
        }
        assert_eq!(numbers(&attempts), [2, 3, 4, 5, 6, 11, 12, 13]);
        assert_eq!(attempts[0].node_ids().unwrap().len(), 2);
    }
}
