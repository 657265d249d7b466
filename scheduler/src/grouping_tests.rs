//! Topology groups and ranges of numbers of nodes, in whole plans.

use crate::tests::{NOW, id, pending, running_on, view, with_plan};
use crate::{Sooner, View, explain};
use lattice_model::test_builders::spec_of;
use lattice_model::{Allocation, AllocationId, Factor, Resources, Tenant, Timestamp, Topology};
use std::time::Duration;

const MINUTE_MS: u64 = 60_000;
const WHOLE: Resources = Resources { cores: 2, memory_bytes: 1 << 30, gpus: 0 };

fn lasting(mut allocation: Allocation, minutes: u64) -> Allocation {
    spec_of(&mut allocation).walltime = Some(Duration::from_secs(minutes * 60));
    allocation
}

fn tight(mut allocation: Allocation) -> Allocation {
    spec_of(&mut allocation).constraints.topology = Topology::Tight;
    allocation
}

fn up_to(mut allocation: Allocation, nodes: u32) -> Allocation {
    spec_of(&mut allocation).nodes_max = Some(nodes);
    allocation
}

/// Work that has a node for this many more minutes.
fn held(n: u64, node: &str, minutes: u64) -> Allocation {
    let mut allocation = lasting(pending(n, 1, 1), minutes);
    allocation.started_at = Some(NOW);
    running_on(allocation, node, WHOLE)
}

/// A view of nodes in these topology groups, one letter for each.
fn in_groups(groups: &str, allocations: Vec<Allocation>) -> View {
    let mut view = view(groups.len() as u64, allocations);
    for (node, group) in view.nodes.values_mut().zip(groups.chars()) {
        node.topology_group = Some(group.to_string());
    }
    view
}

fn placed(view: &View) -> Vec<(AllocationId, Vec<String>)> {
    let claims = with_plan(view, NOW, |plan| plan.claims(|_| Some(1)));
    claims.into_iter().map(|c| (c.allocation, c.shares.iter().map(|s| s.node.to_string()).collect())).collect()
}

/// The minutes from now to each expected start.
fn starts(view: &View) -> Vec<(AllocationId, Option<u64>)> {
    let minutes = |(id, start): (AllocationId, Option<Timestamp>)| (id, start.map(|start| start.since_ms(NOW) / MINUTE_MS));
    with_plan(view, NOW, |plan| plan.expected_starts().map(minutes).collect())
}

fn fitness(view: &View, n: u64) -> Option<f64> {
    let score = explain(view, &view.allocations[&id(n)], NOW).score.unwrap();
    score.terms.iter().find(|term| term.factor == Factor::Topology && term.is_known).map(|term| term.value)
}

#[test]
fn work_gets_nodes_of_the_smallest_group_that_is_large_enough() {
    let of = |nodes| placed(&in_groups("abbabb", vec![pending(1, nodes, 10)])).remove(0).1;
    assert_eq!(of(2), ["n1", "n4"]);
    assert_eq!(of(3), ["n2", "n3", "n5"]);
    assert_eq!(of(5), ["n2", "n3", "n5", "n6", "n1"]);
}

#[test]
fn tight_work_waits_for_one_group_and_other_work_does_not() {
    let held = vec![held(7, "n1", 20), held(8, "n2", 30), held(9, "n4", 30)];
    let v = in_groups("ababb", [held.clone(), vec![tight(lasting(pending(1, 2, 10), 60))]].concat());
    assert_eq!((placed(&v), starts(&v)), (vec![], vec![(id(1), Some(20))]));
    let why = explain(&v, &v.allocations[&id(1)], NOW);
    let until = Timestamp(NOW.0 + 20 * MINUTE_MS);
    let want =
        format!("wants 2 nodes in as few topology groups as possible, 1 is free: it is next; expected to start at {until} on n[1,3]");
    assert_eq!(why.summary, want);
    assert_eq!(why.sooner, [Sooner::Nodes(1), Sooner::AnyTopology]);
    let v = in_groups("ababb", [held, vec![lasting(pending(1, 2, 10), 60)]].concat());
    assert_eq!(placed(&v), [(id(1), vec!["n3".into(), "n5".into()])]);
}

#[test]
fn tight_work_larger_than_every_group_gets_as_few_as_there_could_be() {
    let held = vec![held(8, "n3", 10), held(9, "n6", 20)];
    let work = |allocation| [held.clone(), vec![lasting(allocation, 60)]].concat();
    // Of two groups four nodes are free, and five when n3 is.
    let v = in_groups("aaabbbcc", work(tight(pending(1, 5, 10))));
    assert_eq!((placed(&v), starts(&v)), (vec![], vec![(id(1), Some(10))]));
    let why = explain(&v, &v.allocations[&id(1)], NOW).summary;
    assert!(why.ends_with("on n[1-5]"), "{why}");
    let v = in_groups("aaabbbcc", work(pending(1, 5, 10)));
    assert_eq!(placed(&v)[0].1.len(), 5);
}

#[test]
fn the_fewer_groups_work_needs_the_higher_is_its_score() {
    let v = in_groups("aabbcc", vec![pending(1, 2, 10), pending(2, 3, 10), pending(3, 6, 10), held(9, "n1", 5)]);
    let third = 1.0 / 3.0;
    for (n, want) in [(1, 2.0 * third), (2, third), (3, 0.0)] {
        assert!((fitness(&v, n).unwrap() - want).abs() < 1e-9, "{n}: {:?}", fitness(&v, n));
    }
    assert_eq!(fitness(&view(2, vec![pending(1, 3, 10)]), 1), None, "all nodes are in one group");
}

#[test]
fn work_with_a_range_gets_as_many_nodes_as_are_free_for_it() {
    let v = |held: Vec<Allocation>| view(4, [held, vec![up_to(lasting(pending(1, 2, 10), 60), 3)]].concat());
    assert_eq!(placed(&v(vec![]))[0].1, ["n1", "n2", "n3"]);
    assert_eq!(placed(&v(vec![held(8, "n1", 20), held(9, "n3", 30)]))[0].1, ["n2", "n4"]);
    // It does not wait for more than the fewest.
    let full = v(vec![held(6, "n1", 20), held(7, "n2", 30), held(8, "n3", 40), held(9, "n4", 50)]);
    assert_eq!((placed(&full), starts(&full)), (vec![], vec![(id(1), Some(30))]));
    let of_tenant = |max_nodes| {
        let mut v = v(vec![]);
        v.tenants.insert("t".into(), Tenant { name: "t".into(), max_nodes: Some(max_nodes), ..Tenant::default() });
        spec_of(v.allocations.get_mut(&id(1)).unwrap()).tenant = "t".into();
        placed(&v)
    };
    assert_eq!(of_tenant(2)[0].1, ["n1", "n2"]);
    assert_eq!(of_tenant(1), []);
}

#[test]
fn a_range_leaves_reserved_nodes_to_those_ahead() {
    let ahead = vec![held(9, "n1", 20), lasting(pending(1, 3, 10), 60)];
    let v = |minutes| view(3, [ahead.clone(), vec![up_to(lasting(pending(2, 1, 20), minutes), 3)]].concat());
    assert_eq!(placed(&v(20))[0], (id(2), vec!["n2".into(), "n3".into()]));
    assert_eq!(placed(&v(21)), []);
}

#[test]
fn tight_work_of_a_range_gets_the_group_with_most_of_it() {
    let work = |least, most| vec![tight(up_to(pending(1, least, 10), most))];
    assert_eq!(placed(&in_groups("abbab", work(1, 9)))[0].1, ["n2", "n3", "n5"]);
    assert_eq!(placed(&in_groups("abbab", work(1, 2)))[0].1, ["n1", "n4"]);
}

#[test]
fn work_waits_for_a_number_of_groups() {
    let at_most = |nodes, groups| {
        let mut allocation = lasting(pending(1, nodes, 10), 60);
        spec_of(&mut allocation).constraints.topology = Topology::AtMost(groups);
        allocation
    };
    let held = || vec![held(7, "n1", 20), held(8, "n2", 30)];
    // Free are a node of a, one of b, and two of c.
    let view = |waits| in_groups("abcabc", [vec![waits], held()].concat());
    assert_eq!(placed(&view(at_most(2, 1))), [(id(1), vec!["n3".to_owned(), "n6".to_owned()])]);
    assert_eq!(placed(&view(at_most(3, 2))).len(), 1);
    assert_eq!(starts(&view(at_most(4, 2))), [(id(1), Some(20))], "both of a, and of c");
    assert_eq!(placed(&view(at_most(4, 3))).len(), 1);
    let impossible = view(at_most(3, 1));
    let why = explain(&impossible, &impossible.allocations[&id(1)], NOW).summary;
    let wants = "wants 3 nodes in at most 1 topology group; this cluster has 2 that could ever serve it";
    assert_eq!(why, format!("{wants}: it waits until there are more"));
}
