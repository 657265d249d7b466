//! Conformance groups: nodes with the same software and firmware, which should work together.

use crate::state::State;
use lattice_model::AllocationSpec;
use std::cmp::Reverse;

/// Sorts these nodes by their conformance groups, the largest first, and otherwise as they are. A
/// node without a recent fingerprint is a group of its own.
fn sort_by_group(state: &State<'_>, nodes: &mut [usize]) {
    // The number of nodes of each group, and where its first one is.
    let mut groups = vec![(0_usize, usize::MAX); state.groups];
    for (at, node) in nodes.iter().enumerate() {
        let (count, first) = &mut groups[state.group[*node]];
        *count += 1;
        *first = at.min(*first);
    }
    let key = |node: &usize| {
        let (count, first) = groups[state.group[*node]];
        (Reverse(count), first)
    };
    nodes.sort_by_key(key);
}

/// The sets of free nodes of which an allocation may get one, each in the order in which it gets the
/// nodes: those of the largest group first, so that it spans as few groups as possible. A single
/// node may be of any group, but drifted ones come last. If the allocation requires one group, each
/// group is a set; otherwise there is one set.
pub fn sets(state: &State<'_>, mut free: Vec<usize>, spec: &AllocationSpec) -> Vec<Vec<usize>> {
    if spec.nodes == 1 {
        free.sort_by_key(|node| state.has_drifted[*node]);
        return vec![free];
    }
    sort_by_group(state, &mut free);
    if spec.constraints.conformance {
        free.chunk_by(|one, next| state.group[*one] == state.group[*next]).map(<[usize]>::to_vec).collect()
    } else {
        vec![free]
    }
}

/// How many of these nodes could serve the allocation together.
pub fn together(state: &State<'_>, nodes: impl Iterator<Item = usize>, spec: &AllocationSpec) -> usize {
    if !spec.constraints.conformance {
        return nodes.count();
    }
    let mut counts = vec![0; state.groups];
    nodes.for_each(|node| counts[state.group[node]] += 1);
    counts.into_iter().max().unwrap_or_default()
}
