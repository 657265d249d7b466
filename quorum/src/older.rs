//! What an agent of the version before is told: it could not read what it does not know.
//!
//! An agent says with each call and watch which cluster level its version knows. To one that says none, or a lower one, states and
//! holds of nodes, and reasons of ends, are told in the nearest words that it has. Commands of a level wait for the members
//! (see [`crate::levels`]), not for the agents.

use crate::ledger::{LEVEL_KNOWN, SUSPENDS_LEVEL};
use crate::wire::{Answer, Change, Refusal};
use lattice_model::{Allocation, AllocationState, EndReason, Hold, HoldKind, Node, NodeState};
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};

/// With a call or a watch: the highest cluster level that the agent's version knows.
const KNOWS_HEADER: &str = "lattice-level";
/// The level from which on an agent knows all states and holds of nodes.
const NODES_LEVEL: u32 = 6;

/// Says with a request what this version knows.
pub(crate) fn say(metadata: &mut MetadataMap) {
    metadata.insert(KNOWS_HEADER, MetadataValue::<Ascii>::from(LEVEL_KNOWN));
}

/// What of the words here the asker's version knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Knows {
    nodes: bool,
    suspended: bool,
}

impl Knows {
    /// As the asker says with its request.
    pub(crate) fn of(metadata: &MetadataMap) -> Self {
        let said = metadata.get(KNOWS_HEADER).and_then(|value| value.to_str().ok()).and_then(|text| text.parse::<u32>().ok());
        let level = said.unwrap_or(0);
        Self { nodes: level >= NODES_LEVEL, suspended: level >= SUSPENDS_LEVEL }
    }

    /// Whether nothing need be put into other words.
    pub(crate) fn all(self) -> bool {
        self.nodes && self.suspended
    }
}

/// An answer in those words.
pub(crate) fn answer(mut answer: Result<Answer, Refusal>, knows: Knows) -> Result<Answer, Refusal> {
    match &mut answer {
        Ok(Answer::Stale { answer: inner, .. }) => in_older_words(inner, knows),
        Ok(other) => in_older_words(other, knows),
        Err(Refusal::Held { kind, .. }) if !knows.nodes => *kind = older_kind(*kind),
        Err(Refusal::NotPending { state, .. } | Refusal::NotRunning { state, .. }) => *state = of_allocation(*state, false, knows),
        Err(_) => {}
    }
    answer
}

fn in_older_words(answer: &mut Answer, knows: Knows) {
    match answer {
        Answer::Nodes(nodes) => nodes.iter_mut().for_each(|one| node(one, knows)),
        Answer::Allocation(one) => allocation(one, knows),
        Answer::Allocations(allocations) | Answer::AllocationPage { allocations, .. } => {
            allocations.iter_mut().for_each(|one| allocation(one, knows));
        }
        Answer::Status(status) => {
            status.nodes.iter_mut().filter(|_| !knows.nodes).for_each(|(state, _)| *state = older_state(*state));
            status.allocations.iter_mut().for_each(|(state, _)| *state = of_allocation(*state, false, knows));
        }
        _ => {}
    }
}

/// A change in those words.
pub(crate) fn change(change: &mut Change, knows: Knows) {
    match change {
        Change::Start { nodes, allocations, .. } => {
            nodes.iter_mut().for_each(|one| node(one, knows));
            allocations.iter_mut().for_each(|one| allocation(one, knows));
        }
        Change::Changes { changes, .. } => changes.iter_mut().for_each(|one| self::change(one, knows)),
        Change::Node(one) => node(one, knows),
        Change::Allocation(one) => allocation(one, knows),
        Change::StartAgain { .. }
        | Change::Tenant(_)
        | Change::TenantDeleted(_)
        | Change::Lease(_)
        | Change::LeaseEnded(_)
        | Change::VCluster(_)
        | Change::VClusterDeleted(_)
        | Change::Domain { .. }
        | Change::DomainReleased { .. }
        | Change::VniPool(_)
        | Change::Limits(_) => {}
    }
}

fn node(node: &mut Node, knows: Knows) {
    if knows.nodes {
        return;
    }
    node.state = older_state(node.state);
    node.holds.iter_mut().for_each(|hold: &mut Hold| hold.kind = older_kind(hold.kind));
}

fn allocation(allocation: &mut Allocation, knows: Knows) {
    allocation.state = of_allocation(allocation.state, allocation.held, knows);
    match &allocation.reason {
        Some(EndReason::DrainDeadline { node }) if !knows.nodes => {
            let why = "it still ran when the deadline of the node's drain was past".to_owned();
            allocation.reason = Some(EndReason::NodeLost { node: node.clone(), why });
        }
        Some(EndReason::WalltimeSaved { .. }) if !knows.suspended => allocation.reason = Some(EndReason::WalltimeExceeded),
        Some(EndReason::Preempted { by, .. }) if !knows.suspended => {
            allocation.reason = Some(EndReason::Cancelled { by: format!("{by}, who preempted it") });
        }
        Some(_) | None => {}
    }
}

/// What waits for nodes is Pending to those who do not know that it has run. What is held waits for nobody: told as Staging, which
/// no scheduler places.
fn of_allocation(state: AllocationState, held: bool, knows: Knows) -> AllocationState {
    match state {
        AllocationState::Suspended if knows.suspended => state,
        AllocationState::Suspended if held => AllocationState::Staging,
        AllocationState::Suspended => AllocationState::Pending,
        AllocationState::Pending
        | AllocationState::Staging
        | AllocationState::Running
        | AllocationState::Completed
        | AllocationState::Failed
        | AllocationState::Cancelled => state,
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
        assert_eq!(Knows::of(&metadata), Knows { nodes: false, suspended: false });
        say(&mut metadata);
        assert!(Knows::of(&metadata).all());
        for (level, nodes) in [("5", false), ("7", true)] {
            metadata.insert(KNOWS_HEADER, MetadataValue::from_static(level));
            assert_eq!(Knows::of(&metadata), Knows { nodes, suspended: false });
        }
    }

    #[test]
    fn suspended_work_is_placed_by_older_schedulers_unless_it_is_held() {
        let (before, now) = (Knows { nodes: true, suspended: false }, Knows { nodes: true, suspended: true });
        assert_eq!(of_allocation(AllocationState::Suspended, false, before), AllocationState::Pending);
        assert_eq!(of_allocation(AllocationState::Suspended, true, before), AllocationState::Staging);
        assert_eq!(of_allocation(AllocationState::Suspended, true, now), AllocationState::Suspended);
        assert_eq!(of_allocation(AllocationState::Failed, false, before), AllocationState::Failed);
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
        assert_eq!(answer(held(HoldKind::Drain), Knows { nodes: false, suspended: false }), held(HoldKind::Cordon));
        let counts = vec![(NodeState::Ready, 1), (NodeState::Drained, 2)];
        let mut said: Vec<_> = counts;
        said.iter_mut().for_each(|(state, _)| *state = older_state(*state));
        assert_eq!(said, [(NodeState::Ready, 1), (NodeState::Ready, 2)]);
    }
}
