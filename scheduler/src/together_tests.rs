//! Tests of whole plans: features that an allocation's nodes must have together, and excluded
//! nodes.

use crate::tests::{NOW, id, pending, placed, running_on, view, with_plan};
use crate::{View, WhyNot, explain, misfit};
use lattice_model::feature_expression::parse;
use lattice_model::test_builders::spec_of;
use lattice_model::{Allocation, AllocationId, Resources, Tenant, Timestamp};
use proptest::prelude::*;
use std::time::Duration;

const MINUTE_MS: u64 = 60_000;
const WHOLE: Resources = Resources { cores: 2, memory_bytes: 1 << 30, gpus: 0 };

/// The allocation with a request for these features.
fn asking(mut allocation: Allocation, expression: &str) -> Allocation {
    let parsed = parse(expression).unwrap();
    let constraints = &mut spec_of(&mut allocation).constraints;
    (constraints.features, constraints.choice) = (parsed.features, parsed.choice.map(Box::new));
    allocation
}

/// An allocation that has a node for this many more minutes.
fn held(n: u64, node: &str, minutes: u64) -> Allocation {
    let mut allocation = pending(n, 1, 1);
    spec_of(&mut allocation).walltime = Some(Duration::from_secs(minutes * 60));
    allocation.started_at = Some(NOW);
    running_on(allocation, node, WHOLE)
}

/// A view of nodes with these features.
fn with_features(nodes: &[&str], allocations: Vec<Allocation>) -> View {
    let mut view = view(nodes.len() as u64, allocations);
    for (node, features) in view.nodes.values_mut().zip(nodes) {
        node.features = features.split_whitespace().map(str::to_owned).collect();
    }
    view
}

/// The nodes that the first allocation gets now, if it begins.
fn begins(view: &View) -> Option<Vec<String>> {
    placed(view).into_iter().find(|(placed, _)| *placed == id(1)).map(|(_, nodes)| nodes)
}

/// The minutes from now to each expected start, and the nodes that are reserved.
fn starts(view: &View) -> Vec<(AllocationId, Option<u64>)> {
    let minutes = |(id, start): (AllocationId, Option<Timestamp>)| (id, start.map(|start| start.since_ms(NOW) / MINUTE_MS));
    with_plan(view, NOW, |plan| plan.expected_starts().map(minutes).collect())
}

fn nodes(names: &[&str]) -> Option<Vec<String>> {
    Some(names.iter().map(|name| (*name).to_owned()).collect())
}

#[test]
fn each_node_has_one_of_the_alternatives() {
    let of = |expression, count| begins(&with_features(&["a", "b", "c", "a c"], vec![asking(pending(1, count, 10), expression)]));
    assert_eq!(of("a|b", 3), nodes(&["n1", "n2", "n4"]));
    assert_eq!(of("(a|b)&c", 1), nodes(&["n4"]));
    assert_eq!(of("a|b", 4), None);
}

#[test]
fn all_nodes_have_the_same_alternative() {
    let of = |count, others| {
        let waits = asking(pending(1, count, 10), "[a|b]");
        begins(&with_features(&["a", "b", "a", "b", "b"], [vec![waits], others].concat()))
    };
    assert_eq!(of(2, vec![]), nodes(&["n1", "n3"]));
    assert_eq!(of(3, vec![]), nodes(&["n2", "n4", "n5"]));
    assert_eq!(of(2, vec![held(9, "n1", 10)]), nodes(&["n2", "n4"]));
    assert_eq!(of(1, vec![held(9, "n1", 10)]), nodes(&["n2"]));
    assert_eq!(of(4, vec![]), None);
}

#[test]
fn numbers_of_nodes_have_features() {
    let of = |expression, count, others| {
        let waits = asking(pending(1, count, 10), expression);
        begins(&with_features(&["c", "a b", "a", "b"], [vec![waits], others].concat()))
    };
    assert_eq!(of("a*1&b*2", 3, vec![]), nodes(&["n2", "n3", "n4"]));
    assert_eq!(of("a*1&b*2", 4, vec![]), nodes(&["n2", "n3", "n4", "n1"]));
    assert_eq!(of("b*1", 1, vec![]), nodes(&["n2"]));
    assert_eq!(of("a*2", 3, vec![]), nodes(&["n2", "n3", "n1"]));
    assert_eq!(of("a*1&b*2", 3, vec![held(9, "n4", 10)]), None);
    assert_eq!(of("a*1&b*1", 2, vec![held(9, "n4", 10)]), nodes(&["n2", "n3"]));
}

#[test]
fn a_reservation_is_of_nodes_that_serve_together() {
    let others = || vec![held(6, "n1", 30), held(7, "n2", 10), held(8, "n4", 20)];
    let of = |expression, count| {
        let waits = asking(pending(1, count, 10), expression);
        starts(&with_features(&["a", "b", "a", "b", "c"], [vec![waits], others()].concat()))
    };
    assert_eq!(of("[a|b]", 2), [(id(1), Some(20))]);
    assert_eq!(of("a|b", 2), [(id(1), Some(10))]);
    assert_eq!(of("b*1&a*1", 3), [(id(1), Some(10))], "with the two that are free");
    assert_eq!(of("b*2", 2), [(id(1), Some(20))]);
    assert_eq!(of("a*2&b*1", 3), [(id(1), Some(30))]);
}

#[test]
fn a_range_of_nodes_is_filled_with_nodes_of_one_alternative() {
    let mut waits = asking(pending(1, 2, 10), "[a|b]");
    spec_of(&mut waits).nodes_max = Some(3);
    assert_eq!(begins(&with_features(&["a", "b", "a", "b", "b"], vec![waits])), nodes(&["n2", "n4", "n5"]));
}

#[test]
fn a_quota_does_not_prevent_a_reservation_of_the_nodes_that_have_the_features() {
    let mut waits = asking(pending(1, 2, 10), "a*1&b*1");
    let spec = spec_of(&mut waits);
    (spec.nodes_max, spec.tenant) = (Some(4), "t".to_owned());
    let all = vec![waits, held(6, "n1", 10), held(7, "n2", 20), held(8, "n3", 30)];
    let mut view = with_features(&["a", "a", "b"], all);
    view.tenants.insert("t".to_owned(), Tenant { name: "t".to_owned(), max_nodes: Some(2), ..Tenant::default() });
    assert_eq!(starts(&view), [(id(1), Some(30))], "the two that end first are both of a");
}

#[test]
fn too_few_nodes_are_explained() {
    let of = |expression, count| {
        let view = with_features(&["a", "b", "a", "a b"], vec![asking(pending(1, count, 10), expression)]);
        let allocation = &view.allocations[&id(1)];
        let found = misfit(view.nodes.values(), &view.vclusters, &allocation.spec).map(|misfit| misfit.to_string());
        (explain(&view, allocation, NOW).summary, found.unwrap_or_default())
    };
    let (summary, misfit) = of("[a|b]", 4);
    assert_eq!(misfit, "wants 4 nodes, all with the same of a|b; this cluster has 3 that could ever serve it");
    assert_eq!(summary, format!("{misfit}: it waits until there are more"));
    let (summary, misfit) = of("a*2&b*2", 4);
    assert_eq!((summary.contains("it is next") || summary.contains("will place it"), misfit.as_str()), (true, ""));
    let (_, misfit) = of("a*1&b*3", 4);
    assert_eq!(misfit, "wants 4 nodes, 1 with a and 3 with b; this cluster has 3 that could ever serve it");
    let (_, misfit) = of("c|d", 1);
    assert_eq!(misfit, "wants 1 node; this cluster has 0 that could ever serve it; n[1-4] has none of the alternatives c|d");
}

#[test]
fn excluded_nodes_are_left_out() {
    let mut waits = pending(1, 2, 10);
    spec_of(&mut waits).constraints.excluded = ["n1", "n3"].map(|name| name.parse().unwrap()).into();
    let view = view(4, vec![waits]);
    assert_eq!(begins(&view), nodes(&["n2", "n4"]));
    let explanation = explain(&view, &view.allocations[&id(1)], NOW);
    let lacks = WhyNot::Lacks("is excluded by --exclude".to_owned());
    assert_eq!(explanation.nodes, [("n1".parse().unwrap(), lacks.clone()), ("n3".parse().unwrap(), lacks)]);
}

proptest! {
    #[test]
    fn work_begins_if_free_nodes_serve_it_together(
        features in prop::collection::vec(0_u8..8, 1..9),
        busy in prop::collection::vec(any::<bool>(), 9),
        count in 2_u32..6,
        expression in prop::sample::select(vec!["[a|b]", "[(a&b)|c]", "a*1", "a*1&b*1", "a*2&c*1", "[(a&b)*1&c*1]"]),
        max_nodes in prop::option::of(2_u32..9),
    ) {
        let texts: Vec<String> = features.iter().map(|bits| {
            ["a", "b", "c"].iter().enumerate().filter(|(at, _)| (bits >> at) & 1 == 1).map(|(_, name)| *name).collect::<Vec<_>>().join(" ")
        }).collect();
        let mut waits = asking(pending(1, count, 10), expression);
        spec_of(&mut waits).tenant = "t".to_owned();
        let Some(together) = waits.spec.constraints.together().cloned() else { return Ok(()) };
        prop_assume!(together.counted_nodes() <= count);
        let is_busy = |at: usize| busy[at];
        let others = (0..features.len()).filter(|at| is_busy(*at)).map(|at| held(10 + at as u64, &format!("n{}", at + 1), 10));
        let names: Vec<&str> = texts.iter().map(String::as_str).collect();
        let mut view = with_features(&names, std::iter::once(waits).chain(others).collect());
        view.tenants.insert("t".to_owned(), Tenant { name: "t".to_owned(), max_nodes, ..Tenant::default() });
        let free = || view.nodes.values().enumerate().filter(|(at, _)| !is_busy(*at)).map(|(_, node)| node.features.as_slice());
        let is_possible = together.serving(free()) >= count as usize && max_nodes.is_none_or(|most| most >= count);
        let begun = begins(&view);
        prop_assert_eq!(begun.is_some(), is_possible, "{:?} of {:?}", begun, texts);
        if let Some(begun) = begun {
            prop_assert_eq!(begun.len(), count as usize);
            let chosen = view.nodes.values().filter(|node| begun.iter().any(|name| name == node.id.as_str()));
            prop_assert_eq!(together.unmet_by(chosen.map(|node| node.features.as_slice())), None);
        }
    }
}
