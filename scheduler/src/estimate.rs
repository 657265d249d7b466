//! When and where work that is not submitted would begin: the plan's decision about it, beside all waiting work.

use crate::plan::{Decision, plan};
use crate::state::State;
use crate::view::View;
use lattice_model::{Allocation, NodeId, Timestamp};

/// When work would begin.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// `None`: that is not known.
    pub start: Option<Timestamp>,
    /// The nodes that it would get, in rank order; empty: not known.
    pub nodes: Vec<NodeId>,
    /// How many cores of these nodes it would get.
    pub cores: u64,
    /// The reason in one sentence.
    pub reason: String,
}

/// The estimate for `allocation` as if it came into its queue now.
pub fn estimate(view: &View, allocation: &Allocation, now: Timestamp) -> Estimate {
    let mut view = view.clone();
    view.allocations.insert(allocation.id, allocation.clone());
    let state = State::from(view);
    let plan = plan(&state, now);
    let Some(planned) = plan.planned.iter().find(|planned| planned.allocation.id == allocation.id) else {
        return Estimate { start: None, nodes: Vec::new(), cores: 0, reason: "it does not wait for nodes".to_owned() };
    };
    let nodes: &[usize] = match &planned.decision {
        Decision::Begins(nodes) => nodes,
        Decision::Reserved(reservation) => &reservation.nodes,
        Decision::OutOfService
        | Decision::Behind
        | Decision::NotReached
        | Decision::NoOtherNode
        | Decision::TooFewNodes
        | Decision::Blocked { .. } => &[],
    };
    let nodes = nodes.iter().map(|node| plan.state.nodes[*node]);
    Estimate {
        start: plan.expected(planned).start,
        cores: nodes.clone().map(|node| u64::from(planned.allocation.spec.amount_of(&node.size).cores)).sum(),
        nodes: nodes.map(|node| node.id.clone()).collect(),
        reason: plan.sentence(planned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backfill_tests::{began, lasting};
    use crate::tests::{NOW, id, pending, view};

    #[test]
    fn waiting_work_is_served_first() {
        let held = began(lasting(pending(9, 1, 1), 30), "n1", 10);
        let asked = lasting(pending(2, 2, NOW.0), 60);
        let minutes = |view: &View| {
            let Estimate { start, nodes, cores, .. } = estimate(view, &asked, NOW);
            (start.map(|start| start.since_ms(NOW) / 60_000), nodes.len(), cores)
        };
        assert_eq!(minutes(&view(2, vec![])), (Some(0), 2, 4));
        assert_eq!(minutes(&view(2, vec![held.clone()])), (Some(20), 2, 4));
        let ahead = lasting(pending(1, 2, 5), 15);
        let v = view(2, vec![held, ahead]);
        assert_eq!(minutes(&v), (Some(35), 2, 4));
        assert!(v.allocations.get(&id(2)).is_none(), "nothing is submitted");
        assert_eq!(minutes(&view(1, vec![])), (None, 0, 0));
    }
}
