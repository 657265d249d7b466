//! Cycles of a graph.

use std::collections::{BTreeMap, BTreeSet};

/// The sets of at least two nodes that can all reach each other, the largest first.
pub fn circles<Node: Clone + Ord>(edges: &BTreeMap<Node, BTreeSet<Node>>) -> Vec<BTreeSet<Node>> {
    let reached: BTreeMap<&Node, BTreeSet<&Node>> = edges.keys().map(|node| (node, reached_from(edges, node))).collect();
    let mut circles: Vec<BTreeSet<Node>> = Vec::new();
    for (&node, reaches) in &reached {
        if circles.iter().any(|circle| circle.contains(node)) {
            continue;
        }
        let leads_back = |other: &&&Node| reached.get(*other).is_some_and(|back| back.contains(node));
        let circle: BTreeSet<Node> = reaches.iter().filter(leads_back).map(|&other| other.clone()).collect();
        if circle.len() > 1 {
            circles.push(circle);
        }
    }
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

fn reached_from<'a, Node: Ord>(edges: &'a BTreeMap<Node, BTreeSet<Node>>, first: &'a Node) -> BTreeSet<&'a Node> {
    let mut reached = BTreeSet::new();
    let mut unseen = vec![first];
    while let Some(node) = unseen.pop() {
        for next in edges.get(node).into_iter().flatten() {
            if reached.insert(next) {
                unseen.push(next);
            }
        }
    }
    reached
}
