//! What an agent of the version before is told: it could not read what it does not know.
//!
//! An agent says with each call and watch which cluster level its version knows. To one that says none, or a lower one, states and
//! holds of nodes, and reasons of ends, are told in the nearest words that it has. Commands of a level wait for the members
//! (see [`crate::levels`]), not for the agents.

use crate::ledger::LEVEL_KNOWN;
use crate::wire::{Answer, Change, Refusal};
use lattice_model::{Allocation, EndReason, Hold, HoldKind, Node, NodeState};
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};

/// With a call or a watch: the highest cluster level that the agent's version knows.
const KNOWS_HEADER: &str = "lattice-level";
/// The level of the words that are put into others here.
const LEVEL: u32 = 6;

/// Says with a request what this version knows.
pub(crate) fn say(metadata: &mut MetadataMap) {
    metadata.insert(KNOWS_HEADER, MetadataValue::<Ascii>::from(LEVEL_KNOWN));
}

/// Whether the asker's words are those of before.
pub(crate) fn is_older(metadata: &MetadataMap) -> bool {
    let said = metadata.get(KNOWS_HEADER).and_then(|value| value.to_str().ok()).and_then(|text| text.parse::<u32>().ok());
    said.is_none_or(|level| level < LEVEL)
}

/// An answer in those words.
pub(crate) fn answer(mut answer: Result<Answer, Refusal>) -> Result<Answer, Refusal> {
    match &mut answer {
        Ok(Answer::Stale { answer: inner, .. }) => in_older_words(inner),
        Ok(other) => in_older_words(other),
        Err(Refusal::Held { kind, .. }) => *kind = older_kind(*kind),
        Err(_) => {}
    }
    answer
}

fn in_older_words(answer: &mut Answer) {
    match answer {
        Answer::Nodes(nodes) => nodes.iter_mut().for_each(node),
        Answer::Allocation(one) => allocation(one),
        Answer::Allocations(allocations) | Answer::AllocationPage { allocations, .. } => allocations.iter_mut().for_each(allocation),
        Answer::Status(status) => status.nodes.iter_mut().for_each(|(state, _)| *state = older_state(*state)),
        _ => {}
    }
}

/// A change in those words.
pub(crate) fn change(change: &mut Change) {
    match change {
        Change::Start { nodes, allocations, .. } => {
            nodes.iter_mut().for_each(node);
            allocations.iter_mut().for_each(allocation);
        }
        Change::Changes { changes, .. } => changes.iter_mut().for_each(self::change),
        Change::Node(one) => node(one),
        Change::Allocation(one) => allocation(one),
        Change::StartAgain { .. }
        | Change::Tenant(_)
        | Change::TenantDeleted(_)
        | Change::Lease(_)
        | Change::LeaseEnded(_)
        | Change::VCluster(_)
        | Change::VClusterDeleted(_)
        | Change::Domain { .. }
        | Change::DomainReleased { .. }
        | Change::VniPool(_) => {}
    }
}

fn node(node: &mut Node) {
    node.state = older_state(node.state);
    node.holds.iter_mut().for_each(|hold: &mut Hold| hold.kind = older_kind(hold.kind));
}

fn allocation(allocation: &mut Allocation) {
    if let Some(EndReason::DrainDeadline { node }) = &allocation.reason {
        let why = "it still ran when the deadline of the node's drain was past".to_owned();
        allocation.reason = Some(EndReason::NodeLost { node: node.clone(), why });
    }
}

/// New work is kept off by the hold in either case.
fn older_state(state: NodeState) -> NodeState {
    match state {
        NodeState::Draining | NodeState::Drained => NodeState::Ready,
        NodeState::Failed => NodeState::Down,
        NodeState::Booting | NodeState::Ready | NodeState::Degraded | NodeState::Down => state,
    }
}

fn older_kind(kind: HoldKind) -> HoldKind {
    match kind {
        HoldKind::Maintenance | HoldKind::Drain => HoldKind::Cordon,
        HoldKind::Disable | HoldKind::Failure | HoldKind::Wipe => HoldKind::Quarantine,
        HoldKind::Cordon | HoldKind::Quarantine => kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::scenarios::node as id;

    #[test]
    fn an_agent_says_what_it_knows_and_one_that_says_nothing_is_older() {
        let mut metadata = MetadataMap::new();
        assert!(is_older(&metadata));
        say(&mut metadata);
        assert!(!is_older(&metadata));
        metadata.insert(KNOWS_HEADER, MetadataValue::from_static("5"));
        assert!(is_older(&metadata));
    }

    #[test]
    fn no_word_of_this_level_is_left() {
        for state in NodeState::ALL {
            assert!((older_state(state) as u32) < 4, "{state}");
        }
        for kind in HoldKind::ALL {
            assert!((older_kind(kind) as u32) < 2, "{kind}");
        }
        let held = |kind| Err(Refusal::Held { node: id(1), kind, by: "root".into(), reason: "x".into() });
        assert_eq!(answer(held(HoldKind::Drain)), held(HoldKind::Cordon));
        let counts = vec![(NodeState::Ready, 1), (NodeState::Drained, 2)];
        let mut said: Vec<_> = counts;
        said.iter_mut().for_each(|(state, _)| *state = older_state(*state));
        assert_eq!(said, [(NodeState::Ready, 1), (NodeState::Ready, 2)]);
    }
}
