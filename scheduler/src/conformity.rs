//! Conformance groups: nodes with the same software and firmware, which should work together.

use lattice_model::{AllocationSpec, Conformance, Node};
use std::collections::BTreeMap;

/// The conformance groups among these nodes, the largest first, with the nodes of each in the given
/// order. A node without a recent fingerprint is a group of its own.
fn groups<'a>(nodes: &[&'a Node]) -> Vec<Vec<&'a Node>> {
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let mut groups: Vec<Vec<&Node>> = Vec::new();
    for node in nodes {
        let known = node.conformance.as_ref().and_then(Conformance::group);
        match known.and_then(|fingerprint| places.get(fingerprint).copied()) {
            Some(place) => groups[place].push(node),
            None => {
                places.extend(known.map(|fingerprint| (fingerprint, groups.len())));
                groups.push(vec![node]);
            }
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
    groups
}

/// The sets of free nodes of which an allocation may get one, each in the order in which it gets the
/// nodes: those of the largest group first, so that it spans as few groups as possible. A single
/// node may be of any group, but drifted ones come last. If the allocation requires one group, each
/// group is a set; otherwise there is one set.
pub fn sets<'a>(mut free: Vec<&'a Node>, spec: &AllocationSpec) -> Vec<Vec<&'a Node>> {
    if spec.nodes == 1 {
        free.sort_by_key(|node| node.conformance.as_ref().is_some_and(|c| c.drift.is_some()));
        return vec![free];
    }
    let groups = groups(&free);
    if spec.constraints.conformance { groups } else { vec![groups.concat()] }
}

/// How many of these nodes could serve the allocation together.
pub fn together(nodes: &[&Node], spec: &AllocationSpec) -> usize {
    if spec.constraints.conformance { groups(nodes).first().map_or(0, Vec::len) } else { nodes.len() }
}
