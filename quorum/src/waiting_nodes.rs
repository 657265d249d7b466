//! Nodes whose registration was refused because nobody has admitted them, or because they were
//! removed. In memory while this member is the leader: their agents retry every few seconds, so the
//! next leader soon knows them.

use lattice_ledger::{Ledger, Registration};
use lattice_model::{NodeId, Timestamp};
use lattice_quorum_client::wire::{AdmissionsStatus, AdmittedNode, WaitingNode};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Largest number of nodes remembered; beyond that, the node that has not tried for longest is
/// dropped.
const WAITING_LEN_MAX: usize = 1000;
/// Largest size of an address, in bytes.
const FROM_BYTES_MAX: usize = 64;

/// Nodes that wait for admission.
#[derive(Debug, Default)]
pub struct WaitingNodes(Mutex<BTreeMap<NodeId, WaitingNode>>);

impl WaitingNodes {
    /// Records that a node without admission tried to register.
    pub fn record_attempt(&self, refused: &Registration, from: Option<String>, now: Timestamp) {
        let mut waiting = self.0.lock();
        let known = waiting.get(&refused.node).map(|known| known.since);
        if known.is_none() && waiting.len() >= WAITING_LEN_MAX {
            let oldest = waiting.values().min_by_key(|node| node.last_attempt).map(|node| node.node.clone());
            oldest.map(|oldest| waiting.remove(&oldest));
        }
        let asking = WaitingNode {
            node: refused.node.clone(),
            from: from.map(|from| from.chars().take(FROM_BYTES_MAX).collect()),
            relay_node: refused.relay_node.clone(),
            size: refused.size,
            since: known.unwrap_or(now),
            last_attempt: now,
        };
        waiting.insert(refused.node.clone(), asking);
    }

    /// The nodes that still wait, and the unused admissions.
    pub fn status(&self, ledger: &Ledger) -> AdmissionsStatus {
        let mut waiting: Vec<WaitingNode> = {
            let mut waiting = self.0.lock();
            waiting.retain(|node, _| !ledger.is_admitted(node));
            waiting.values().cloned().collect()
        };
        waiting.sort_by(|a, b| b.last_attempt.cmp(&a.last_attempt).then_with(|| a.node.cmp(&b.node)));
        let admitted = ledger.admitted().map(|(node, admission)| AdmittedNode {
            node: node.clone(),
            by: admission.by.clone(),
            at: admission.at,
            reason: admission.reason.clone(),
        });
        AdmissionsStatus { waiting, admitted: admitted.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_ledger::test_builders::{node, registration};
    use lattice_ledger::{Action, Command};
    use lattice_model::Revision;

    #[test]
    fn the_newest_is_shown_first_until_it_is_admitted_and_the_oldest_is_forgotten() {
        let (waiting, mut ledger) = (WaitingNodes::default(), Ledger::default());
        let ask = |number, at| waiting.record_attempt(&registration(number, 1, 0, true), Some("10.0.0.7".to_owned()), Timestamp(at));
        ask(1, 10);
        ask(2, 20);
        ask(1, 30);
        let shown = waiting.status(&ledger).waiting;
        let shown: Vec<_> = shown.iter().map(|n| (n.node.as_str(), n.since.0, n.last_attempt.0, n.from.as_deref())).collect();
        assert_eq!(shown, [("n1", 10, 30, Some("10.0.0.7")), ("n2", 20, 20, Some("10.0.0.7"))]);
        let action = Action::Admit { node: node(1), by: "anna".into(), reason: "rack 4".into() };
        ledger.apply(Revision(1), &Command { at: Timestamp(40), action }).result.unwrap();
        let status = waiting.status(&ledger);
        assert_eq!(status.waiting.iter().map(|n| n.node.clone()).collect::<Vec<_>>(), [node(2)]);
        assert_eq!(status.admitted.iter().map(|n| (n.node.clone(), n.by.as_str())).collect::<Vec<_>>(), [(node(1), "anna")]);
        for number in 0..WAITING_LEN_MAX {
            let named = Registration { node: format!("m{number}").parse().unwrap(), ..registration(1, 1, 0, true) };
            waiting.record_attempt(&named, None, Timestamp(50));
        }
        let shown = waiting.status(&ledger).waiting;
        assert!(shown.len() == WAITING_LEN_MAX && shown.iter().all(|n| n.node != node(2)), "{}", shown.len());
    }
}
