//! The explanation for one waiting allocation.

use crate::holdings::Holdings;
use crate::outlook::node_list;
use crate::plan::{Decision, Plan, Planned, plan};
use crate::score::Score;
use crate::sooner::{Sooner, sooner};
use crate::span::duration_ms;
use crate::state::State;
use crate::view::View;
use crate::why_not::{WhyNot, why_not};
use lattice_model::{Allocation, AllocationId, NodeId, Timestamp, VCluster};
use std::collections::BTreeSet;

/// Why a pending allocation waits.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The reason in one sentence.
    pub summary: String,
    /// When it is expected to begin; `None`: that is not known.
    pub start: Option<Timestamp>,
    /// For each node that is not free for it, the reason.
    pub nodes: Vec<(NodeId, WhyNot)>,
    /// Its score among work of its class; `None`: its queue is served in the order of submission.
    pub score: Option<Score>,
    /// Changes with which it would begin now.
    pub sooner: Vec<Sooner>,
}

/// Explains why `allocation` is not placed: what the plan of this view at this time decides for it.
pub fn explain(view: &View, allocation: &Allocation, now: Timestamp) -> Explanation {
    let updated;
    let view = if view.allocations.get(&allocation.id).is_some_and(Allocation::waits) {
        view
    } else {
        // The view does not show yet that it waits.
        let mut view = view.clone();
        view.allocations.insert(allocation.id, allocation.clone());
        updated = view;
        &updated
    };
    let state = State::from(view.clone());
    let plan = plan(&state, now);
    let Some(at) = plan.planned.iter().position(|planned| planned.allocation.id == allocation.id) else {
        let summary = "does not wait for nodes".to_owned();
        return Explanation { summary, start: None, nodes: Vec::new(), score: None, sooner: Vec::new() };
    };
    let (planned, ahead) = (&plan.planned[at], &plan.planned[..at]);
    let ahead: BTreeSet<AllocationId> = ahead.iter().map(|other| other.allocation.id).collect();
    let held = Holdings::of(view.nodes.values(), view.allocations.values());
    let reason = |at: usize| {
        let node = plan.state.nodes[at];
        let why = why_not(view, &held, node, planned.allocation);
        let why = why.or_else(|| of_reservation(&plan, planned, at)).or_else(|| reserved(&plan, planned, &ahead, at))?;
        Some((node.id.clone(), why))
    };
    let nodes = (0..plan.state.nodes.len()).filter_map(reason).collect();
    let summary = which_queue(view, planned.allocation) + &plan.sentence(planned);
    let sooner = match planned.decision {
        Decision::Begins(_) | Decision::Blocked { .. } => Vec::new(),
        Decision::Reserved(_)
        | Decision::OutOfService
        | Decision::Behind
        | Decision::NotReached
        | Decision::NoOtherNode
        | Decision::TooFewNodes => sooner(view, allocation.id, now),
    };
    Explanation { summary, start: plan.expected(planned).start, nodes, score: plan.score(planned), sooner }
}

/// Why a reservation denies this node to the work: it sets the node aside for others before the work would have ended, or
/// the work names a reservation to which the node does not belong.
fn of_reservation(plan: &Plan<'_>, planned: &Planned<'_>, node: usize) -> Option<WhyNot> {
    let own = planned.allocation.spec.reservation.as_deref();
    if let Some(name) = own
        && !plan.state.view.reservations.get(name).is_some_and(|own| own.nodes.contains(&plan.state.nodes[node].id))
    {
        return Some(WhyNot::Lacks(format!("is not a node of reservation {name}")));
    }
    let until_ms = plan.state.now_ms.saturating_add(duration_ms(&planned.allocation.spec));
    let in_way = plan.state.windows.first(node, own, plan.state.now_ms, until_ms)?;
    Some(WhyNot::SetAside { reservation: in_way.name.clone(), from: in_way.start, until: in_way.end })
}

/// The allocation ahead of this one that gets the node now, or has reserved it before this one would
/// have ended.
fn reserved(plan: &Plan<'_>, planned: &Planned<'_>, ahead: &BTreeSet<AllocationId>, node: usize) -> Option<WhyNot> {
    match planned.decision {
        Decision::Reserved(_) | Decision::OutOfService | Decision::Behind => {}
        Decision::Begins(_) | Decision::NotReached | Decision::NoOtherNode | Decision::TooFewNodes | Decision::Blocked { .. } => {
            return None;
        }
    }
    let until_ms = plan.state.now_ms.saturating_add(duration_ms(&planned.allocation.spec));
    let part = plan.classes.all[planned.class].part(plan.state.columns, node);
    if plan.state.is_free_beside(node, part.as_ref(), until_ms, |span| !span.is_planned || ahead.contains(&span.by)) {
        return None;
    }
    let of_plan = plan.state.spans[node].iter().filter(|span| span.is_planned && ahead.contains(&span.by));
    let first = of_plan.min_by_key(|span| span.start_ms)?;
    let is_now = first.start_ms <= plan.state.now_ms;
    let from = plan.state.is_known_start(first.start_ms).then_some(Timestamp(first.start_ms));
    Some(if is_now { WhyNot::Taken(first.by) } else { WhyNot::Reserved { by: first.by, from } })
}

/// Names the queue and its nodes, if there are several queues.
fn which_queue(view: &View, allocation: &Allocation) -> String {
    if view.queues().len() == 1 {
        return String::new();
    }
    let named = view.named(allocation);
    let nodes = view.nodes.values().filter(|n| VCluster::may_use(named, n)).map(|n| &n.id);
    format!("in the queue of vCluster {} ({}): ", VCluster::queue(named), node_list(nodes))
}
