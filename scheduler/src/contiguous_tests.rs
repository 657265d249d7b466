//! Work whose nodes follow each other by their names, and work that waits for topology groups for a limited time.

use crate::backfill_tests::{began, lasting, placed, starts, summary};
use crate::misfit::misfit;
use crate::tests::{id, pending, view};
use lattice_model::test_builders::spec_of;
use lattice_model::{Allocation, Topology};
use std::time::Duration;

fn contiguous(n: u64, nodes: u32) -> Allocation {
    let mut allocation = lasting(pending(n, nodes, n), 60);
    spec_of(&mut allocation).constraints.topology = Topology::Contiguous;
    allocation
}

/// Work that holds a node for this many more minutes.
fn held(node: u64, minutes: u64) -> Allocation {
    began(lasting(pending(100 + node, 1, node), minutes), &format!("n{node}"), 0)
}

fn names(numbers: &[u64]) -> Vec<String> {
    numbers.iter().map(|n| format!("n{n}")).collect()
}

#[test]
fn it_gets_the_shortest_run_that_is_long_enough_in_the_order_of_names() {
    // n10 follows n9, and not n1.
    let v = view(12, vec![contiguous(1, 3), held(4, 30), held(8, 30)]);
    assert_eq!(placed(&v), [(id(1), names(&[1, 2, 3]))]);
    let v = view(12, vec![contiguous(1, 4), held(4, 30), held(8, 30)]);
    assert_eq!(placed(&v), [(id(1), names(&[9, 10, 11, 12]))]);
}

#[test]
fn one_node_and_several_that_follow_each_other_are_chosen_in_different_ways() {
    // The first three of n2, n4, n5, n7, n8 and n9 do not follow each other.
    let v = view(9, vec![contiguous(1, 1), contiguous(2, 3), held(3, 30), held(6, 30)]);
    assert_eq!(placed(&v), [(id(1), names(&[1])), (id(2), names(&[7, 8, 9]))]);
}

#[test]
fn it_waits_for_a_run_although_enough_nodes_are_free() {
    let v = view(5, vec![contiguous(1, 3), held(2, 30), held(4, 20)]);
    assert_eq!((placed(&v), starts(&v)), (vec![], vec![(id(1), Some(20))]));
    let why = summary(&v, 1);
    assert!(why.starts_with("wants 3 nodes that follow each other by name, 1 is free: it is next"), "{why}");
    assert!(why.contains("on n[3-5]"), "{why}");
}

#[test]
fn a_cluster_without_such_a_run_never_serves_it() {
    let mut v = view(5, vec![]);
    v.nodes.get_mut(&"n3".parse::<lattice_model::NodeId>().unwrap()).unwrap().schedulable = false;
    let text = |nodes: u32| misfit(v.nodes.values(), &v.vclusters, &contiguous(1, nodes).spec).map(|misfit| misfit.summary());
    assert_eq!(text(2), None);
    let want = "wants 3 nodes that follow each other by name; this cluster has 2 that could ever serve it";
    assert_eq!(text(3).as_deref(), Some(want));
}

#[test]
fn a_limited_wait_for_topology_groups_ends() {
    let wanting = |wait_s: u64| {
        let mut allocation = lasting(pending(1, 2, 10), 60);
        let spec = spec_of(&mut allocation);
        (spec.constraints.topology, spec.topology_wait) = (Topology::AtMost(1), Some(Duration::from_secs(wait_s)));
        let mut v = view(2, vec![allocation]);
        v.nodes.values_mut().zip(["row-1", "row-2"]).for_each(|(node, row)| node.topology_group = Some(row.to_owned()));
        v
    };
    // It was submitted 3,599,990 ms ago.
    let v = wanting(3600);
    assert_eq!(placed(&v), []);
    let why = summary(&v, 1);
    assert!(why.starts_with("wants 2 nodes in at most 1 topology group (until 1970-01-01T01:00:00.010Z, then in any)"), "{why}");
    assert_eq!(misfit(v.nodes.values(), &v.vclusters, &v.allocations[&id(1)].spec), None);
    assert!(why.ends_with("; 1 could ever serve it before that"), "{why}");
    assert_eq!(placed(&wanting(3599)), [(id(1), names(&[1, 2]))]);
}
