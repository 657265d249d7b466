//! Work whose ranks are spread over nodes. A node has two cores.

use crate::backfill_tests::{HALF, began, lasting, placed, reason, starts, summary};
use crate::misfit::misfit;
use crate::tests::{NOW, id, node, pending, shared, view, with_plan};
use lattice_model::test_builders::spec_of;
use lattice_model::{Allocation, NodeState, Resources};

/// Work with this many ranks of one core each, for an hour.
pub(crate) fn spread(n: u64, ranks: u32, is_shared: bool) -> Allocation {
    let mut allocation = lasting(pending(n, 1, n), 60);
    let spec = spec_of(&mut allocation);
    (spec.nodes_max, spec.tasks_per_node, spec.launch.ranks) = (Some(ranks), ranks, ranks);
    spec.spread = Some(Resources { cores: 1, ..Resources::default() });
    spec.share = is_shared.then_some(Resources { cores: ranks, ..Resources::default() });
    allocation
}

fn names(numbers: &[u64]) -> Vec<String> {
    numbers.iter().map(|n| format!("n{n}")).collect()
}

#[test]
fn work_begins_on_the_fewest_nodes_that_hold_its_ranks_now() {
    for is_shared in [true, false] {
        assert_eq!(placed(&view(4, vec![spread(1, 2, is_shared)])), [(id(1), names(&[1]))]);
        assert_eq!(placed(&view(4, vec![spread(1, 4, is_shared)])), [(id(1), names(&[1, 2]))]);
    }
    let v = view(4, vec![spread(1, 3, true)]);
    let claims = with_plan(&v, NOW, |plan| plan.claims(|_| Some(1)));
    assert_eq!(claims[0].shares.iter().map(|share| share.resources.cores).collect::<Vec<u32>>(), [2, 2], "equal parts");
    // A core of each node is held, and no node has two.
    let held = |n: u64| began(lasting(shared(10 + n, 1, n, 1), 30), &format!("n{n}"), 10);
    let v = view(3, [vec![spread(1, 3, true)], (1..=3).map(held).collect()].concat());
    assert_eq!(placed(&v), [(id(1), names(&[1, 2, 3]))]);
    assert_eq!(with_plan(&v, NOW, |plan| plan.claims(|_| Some(1)))[0].shares[0].resources, HALF);
}

#[test]
fn work_waits_for_the_fewest_nodes_and_its_reason_has_their_number() {
    let held = |n: u64| began(lasting(pending(10 + n, 1, n), 30), &format!("n{n}"), 10);
    let v = view(2, [vec![spread(1, 4, true)], (1..=2).map(held).collect()].concat());
    assert_eq!((placed(&v), starts(&v)), (vec![], vec![(id(1), Some(20))]));
    assert_eq!(reason(&v, 1), "starts ~01:20Z: next, 0 of 2 free");
    assert!(summary(&v, 1).starts_with("wants 2 cores of each of 2 nodes for 4 ranks, 0 are free: it is next"), "{}", summary(&v, 1));
}

#[test]
fn work_waits_for_more_nodes_while_the_larger_node_is_down() {
    let held = |n: u64| began(lasting(pending(10 + n, 1, n), 30), &format!("n{n}"), 10);
    let mut v = view(2, [vec![spread(1, 4, true)], (1..=2).map(held).collect()].concat());
    let mut large = node(3, NodeState::Down);
    large.size = Resources { cores: 4, memory_bytes: 2 << 30, gpus: 0 };
    v.nodes.insert(large.id.clone(), large);
    assert_eq!((placed(&v), starts(&v)), (vec![], vec![(id(1), Some(20))]));
}

#[test]
fn work_that_fits_on_no_number_of_nodes_is_refused() {
    let v = view(3, vec![]);
    let text = |ranks: u32, is_shared: bool| {
        misfit(v.nodes.values(), &v.vclusters, &spread(1, ranks, is_shared).spec).map(|misfit| misfit.to_string())
    };
    assert_eq!((text(6, true), text(6, false)), (None, None));
    let want = "wants 1 core for each of 7 ranks, in equal parts on 1 to 7 nodes; this cluster has 3 that could ever serve it";
    assert_eq!((text(7, true).as_deref(), text(7, false).as_deref()), (Some(want), Some(want)));
    let v = view(3, vec![spread(1, 7, true)]);
    assert_eq!(placed(&v), []);
    assert_eq!(summary(&v, 1), format!("{want}: it waits until there are more"));
}
