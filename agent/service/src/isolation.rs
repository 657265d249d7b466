//! Texts about work on silent nodes.

use lattice_model::{Allocation, AllocationState, Node, NodeId, NodeState, OnIsolation, RequeuePolicy, SharePhase, hostlist};
use lattice_scheduler::Table;

/// The longest list of nodes in a short text, in bytes; instead of a longer one, their number is
/// given.
const NAMES_BYTES_MAX: usize = 14;

/// In a few words: which of its nodes are Down and what resolves that, or which are silent; empty
/// if none are.
pub(super) fn brief(allocation: &Allocation, nodes: &Table<NodeId, Node>) -> String {
    let silent = silent(allocation, nodes);
    let down: Vec<&NodeId> = silent.iter().copied().filter(|id| is_down(nodes, id)).collect();
    let named = |ids: &[&NodeId]| {
        let (noun, verb) = if ids.len() == 1 { ("node", "is") } else { ("nodes", "are") };
        let folded = hostlist::fold(ids.iter().copied());
        let which = if folded.len() > NAMES_BYTES_MAX { ids.len().to_string() } else { folded };
        if which.starts_with(|c: char| c.is_ascii_digit()) { format!("{which} {noun} {verb}") } else { format!("{noun} {which} {verb}") }
    };
    match allocation.spec.on_isolation {
        _ if silent.is_empty() => String::new(),
        OnIsolation::Continue if !down.is_empty() => format!("{} Down: confirm-dead", named(&down)),
        OnIsolation::Stop if !down.is_empty() => format!("{} Down: it ends there", named(&down)),
        OnIsolation::Continue | OnIsolation::Stop => format!("{} silent", named(&silent)),
    }
}

/// Its silent nodes that have not released it.
fn silent<'a>(allocation: &'a Allocation, nodes: &Table<NodeId, Node>) -> Vec<&'a NodeId> {
    let live = matches!(allocation.state, AllocationState::Staging | AllocationState::Running);
    let is_silent = |n: &Node| matches!(n.state, NodeState::Degraded | NodeState::Down) && !n.is_unwell();
    let there = allocation.shares.iter().filter(|s| live && s.phase != SharePhase::Released).map(|s| s.node);
    there.filter(|id| nodes.get(*id).is_some_and(is_silent)).collect()
}

fn is_down(nodes: &Table<NodeId, Node>, id: &NodeId) -> bool {
    nodes.get(id).is_some_and(|n| n.state == NodeState::Down)
}

/// Which of its nodes are silent, what the allocation waits for, and which command resolves it;
/// empty if none are.
pub(super) fn note(allocation: &Allocation, nodes: &Table<NodeId, Node>) -> String {
    let silent = silent(allocation, nodes);
    if silent.is_empty() {
        return String::new();
    }
    let names = hostlist::fold(silent.iter().copied());
    let down: Vec<&NodeId> = silent.into_iter().filter(|id| is_down(nodes, id)).collect();
    let ends = if allocation.spec.requeue == RequeuePolicy::Never || allocation.requeue_count >= allocation.spec.requeues_max {
        "it is ended"
    } else {
        "it goes back into the queue"
    };
    match allocation.spec.on_isolation {
        OnIsolation::Stop => {
            format!("{names} is silent: its work there ends when its run lease expires, and {ends} once that is certain")
        }
        OnIsolation::Continue if down.is_empty() => format!("{names} is silent: its work there continues"),
        OnIsolation::Continue => format!(
            "{names} is silent: its work there continues, and starts nowhere else until the node comes back or is known to be dead; \
             {ends} when an operator confirms that: `lattice node confirm-dead {} --yes --reason TEXT`",
            hostlist::fold(down.into_iter())
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::test_builders::{allocation, node, spec_of};
    use lattice_model::{Epoch, Resources, Share, UNWELL};

    #[test]
    fn the_awaited_nodes_and_the_remedy_are_named() {
        let mut a = allocation("1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap());
        let spec = spec_of(&mut a);
        (spec.requeue, spec.requeues_max) = (RequeuePolicy::OnNodeFailure, 3);
        (a.state, a.epoch) = (AllocationState::Running, Epoch(1));
        let share = |node: &str| Share { node: node.parse().unwrap(), resources: Resources::default(), phase: SharePhase::Prepared };
        a.shares = [share("n1"), share("n2")].into();
        let nodes = |second| Table::from([node("n1", NodeState::Ready), node("n2", second)].map(|n| (n.id.clone(), n)));
        assert_eq!(note(&a, &nodes(NodeState::Ready)), "");
        assert_eq!(brief(&a, &nodes(NodeState::Ready)), "");
        assert_eq!(brief(&a, &nodes(NodeState::Degraded)), "node n2 is silent");
        assert_eq!(brief(&a, &nodes(NodeState::Down)), "node n2 is Down: confirm-dead");
        let both = Table::from([node("n1", NodeState::Down), node("n2", NodeState::Down)].map(|n| (n.id.clone(), n)));
        assert_eq!(brief(&a, &both), "nodes n[1-2] are Down: confirm-dead");
        let far = ["x1000c0s0b0n0", "y2000c1s1b1n1"];
        let mut wide = a.clone();
        wide.shares = far.iter().map(|name| share(name)).collect();
        let far = Table::from(far.map(|name| node(name, NodeState::Down)).map(|n| (n.id.clone(), n)));
        assert_eq!(brief(&wide, &far), "2 nodes are Down: confirm-dead");
        assert_eq!(note(&a, &nodes(NodeState::Degraded)), "n2 is silent: its work there continues");
        let mut unwell = nodes(NodeState::Degraded);
        unwell.values_mut().for_each(|n| n.state_reason = format!("{UNWELL}disk: full"));
        assert_eq!(note(&a, &unwell), "", "it is heard");
        let down = note(&a, &nodes(NodeState::Down));
        assert!(down.contains("lattice node confirm-dead n2 --yes") && down.contains("back into the queue"), "{down}");
        a.requeue_count = 3;
        assert!(note(&a, &nodes(NodeState::Down)).contains("it is ended"));
        spec_of(&mut a).on_isolation = OnIsolation::Stop;
        assert!(note(&a, &nodes(NodeState::Down)).contains("run lease expires"));
        assert_eq!(brief(&a, &nodes(NodeState::Down)), "node n2 is Down: it ends there");
        a.state = AllocationState::Completed;
        assert_eq!(note(&a, &nodes(NodeState::Down)), "");
    }
}
