//! Which nodes work gets together: of as few conformance groups (nodes with the same software and
//! firmware) and as few topology groups (parts of the network) as possible.
//!
//! ```text
//!   free nodes ─▶ by conformance group, the largest first ─▶ by topology group ─▶ sets in order of preference
//!                 (its own set each, if one is required)     (at most groups_max)
//! ```
//!
//! A node without a recent fingerprint is a conformance group of its own. Nodes without a configured
//! topology group are one group together. If all nodes must have the same one of several features, each
//! alternative has sets of its own.

use crate::columns::Columns;
use crate::together::Meeting;
use crate::untouched::{Count, More};
use lattice_model::feature_choice::Together;
use lattice_model::{AllocationSpec, Topology};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The limit of topology groups for work that may have nodes of any number of groups.
pub const ANY: usize = usize::MAX;

/// The sets of free nodes, the best first; an allocation gets the first nodes of one set. Work on a
/// single node may get any, but drifted nodes come last. `free` has the first nodes of each likeness, as
/// many as the work can use; `more` counts the rest. `groups_max`: how many topology groups the nodes
/// may be of.
pub fn sets(columns: &Columns, free: Vec<usize>, more: &[More], spec: &AllocationSpec, groups_max: usize) -> Vec<Vec<usize>> {
    if is_contiguous(spec) {
        let (mut runs, most) = (runs(columns, free), spec.nodes_most() as usize);
        // The shortest run that is long enough comes first: longer runs are left to work that needs them.
        runs.sort_by_key(|run| if run.len() < most { (true, most - run.len()) } else { (false, run.len()) });
        return runs;
    }
    let Some(together) = spec.constraints.together() else { return sets_of_any(columns, free, more, spec, groups_max) };
    let mut meeting = Meeting::of(columns, together);
    match together {
        Together::Same(alternatives) => {
            let sets_of = |alternative: usize| {
                let have: Vec<usize> = free.iter().copied().filter(|node| meeting.has(*node, alternative)).collect();
                let more: Vec<More> = more.iter().copied().filter(|more| meeting.kind_has(more.likeness.kind, alternative)).collect();
                sets_of_any(columns, have, &more, spec, groups_max)
            };
            let mut sets: Vec<Vec<usize>> = (0..alternatives.len()).flat_map(sets_of).collect();
            // Work that accepts a range of node counts gets the alternative with the most nodes.
            sets.sort_by_key(|set| Reverse(set.len().min(spec.nodes_most() as usize)));
            sets
        }
        Together::Counted(_) => {
            let sets = sets_of_any(columns, free, more, spec, groups_max);
            sets.into_iter().map(|set| meeting.needed_first(set, spec.nodes_most())).collect()
        }
    }
}

/// Whether its nodes must follow each other by their names.
pub fn is_contiguous(spec: &AllocationSpec) -> bool {
    spec.constraints.topology == Topology::Contiguous && spec.nodes_most() > 1
}

/// Splits these nodes into runs that follow each other in the list of all nodes by their names.
pub fn runs(columns: &Columns, mut nodes: Vec<usize>) -> Vec<Vec<usize>> {
    nodes.sort_unstable_by_key(|node| columns.place[*node]);
    nodes.chunk_by(|one, next| columns.place[*one] + 1 == columns.place[*next]).map(<[usize]>::to_vec).collect()
}

/// Restores the order of [`sets`] after nodes were removed: if the work asks for numbers of nodes with features, the nodes
/// that count come first, and only they remain if they are too few.
pub fn arranged(columns: &Columns, spec: &AllocationSpec, nodes: Vec<usize>) -> Vec<usize> {
    match spec.constraints.together() {
        Some(together @ Together::Counted(_)) => Meeting::of(columns, together).needed_first(nodes, spec.nodes_most()),
        Some(Together::Same(_)) | None => nodes,
    }
}

/// Whether the work asks for numbers of nodes with features.
pub fn is_counted(spec: &AllocationSpec) -> bool {
    spec.constraints.together().is_some_and(|together| together.counted_nodes() > 0)
}

/// [`sets`] of nodes with any features.
fn sets_of_any(columns: &Columns, mut free: Vec<usize>, more: &[More], spec: &AllocationSpec, groups_max: usize) -> Vec<Vec<usize>> {
    if spec.nodes_most() == 1 {
        free.sort_by_key(|node| columns.has_drifted[*node]);
        return vec![free];
    }
    sort_by_conformance_group(columns, &mut free, more);
    let most = spec.nodes_most() as usize;
    if !spec.constraints.conformance {
        return within_topology_groups(columns, free, more, most, groups_max);
    }
    let is_one_group = |one: &usize, next: &usize| columns.conformance_group[*one] == columns.conformance_group[*next];
    let pools = free.chunk_by(is_one_group).map(|pool| (pool.to_vec(), of_conformance_group(columns, more, pool[0])));
    pools.flat_map(|(pool, more)| within_topology_groups(columns, pool, &more, most, groups_max)).collect()
}

/// The groups from which work gets all of its nodes: other nodes need not be looked at.
pub struct Enough {
    /// `None`: no two nodes are of one conformance group, so nodes of any may be needed.
    conformance_group: Option<usize>,
    topology_groups: Vec<bool>,
}

impl Enough {
    /// Whether nodes of these groups are needed.
    pub fn has(&self, conformance_group: Option<usize>, topology_group: usize) -> bool {
        let is_conforming = self.conformance_group.is_none() || conformance_group == self.conformance_group;
        is_conforming && self.topology_groups[topology_group]
    }
}

/// The groups from which work gets the first `most` of these nodes, if nodes of any groups are allowed:
/// the largest conformance group, if that is enough, and in it the topology groups as [`sets`] takes
/// them. `is_ordered`: the nodes are taken in another order than that of their ids. `None`: no
/// conformance group is enough, or two are the largest and `is_ordered` is set.
pub fn enough(
    columns: &Columns,
    touched: &[usize],
    untouched: impl Iterator<Item = Count> + Clone,
    most: usize,
    is_ordered: bool,
) -> Option<Enough> {
    // The number of nodes of each conformance group, and its first node.
    let mut groups = vec![(0, usize::MAX); columns.conformance_groups];
    let mut add = |group: usize, count: usize, first: usize| groups[group] = (groups[group].0 + count, first.min(groups[group].1));
    touched.iter().for_each(|node| add(columns.conformance_group[*node], 1, *node));
    for Count { likeness, count, first } in untouched.clone() {
        likeness.conformance_group.iter().for_each(|group| add(*group, count, first));
    }
    let largest = groups.iter().map(|(count, _)| *count).max().unwrap_or(0);
    let mut of_largest = (0..groups.len()).filter(|group| groups[*group].0 == largest);
    let conformance_group = if largest >= most {
        let group = of_largest.clone().min_by_key(|group| groups[*group].1)?;
        if is_ordered && of_largest.nth(1).is_some() {
            return None;
        }
        Some(group)
    } else if largest <= 1 {
        None
    } else {
        return None;
    };
    let mut counts = vec![0; columns.topology_groups];
    let is_of_group = |of: Option<usize>| conformance_group.is_none() || of == conformance_group;
    let touched = touched.iter().filter(|node| is_of_group(Some(columns.conformance_group[**node])));
    touched.for_each(|node| counts[columns.topology_group[*node]] += 1);
    let untouched = untouched.filter(|of| is_of_group(of.likeness.conformance_group));
    untouched.for_each(|of| counts[of.likeness.topology_group] += of.count);
    let (mut topology_groups, mut found) = (vec![false; counts.len()], 0);
    for group in order(&counts, most) {
        if found >= most {
            break;
        }
        topology_groups[group] = true;
        found += counts[group];
    }
    Some(Enough { conformance_group, topology_groups })
}

/// The likenesses in the conformance group of this node.
fn of_conformance_group(columns: &Columns, more: &[More], node: usize) -> Vec<More> {
    let group = Some(columns.conformance_group[node]);
    more.iter().copied().filter(|more| more.likeness.conformance_group == group).collect()
}

/// Sorts these nodes stably by their conformance groups, the largest first.
fn sort_by_conformance_group(columns: &Columns, nodes: &mut [usize], more: &[More]) {
    // The number of nodes of each group, and the position of its first node.
    let mut groups = vec![(0_usize, usize::MAX); columns.conformance_groups];
    for (at, node) in nodes.iter().enumerate() {
        let (count, first) = &mut groups[columns.conformance_group[*node]];
        *count += 1;
        *first = at.min(*first);
    }
    for More { likeness, count } in more {
        if let Some(group) = likeness.conformance_group {
            groups[group].0 += count;
        }
    }
    if nodes.iter().all(|node| groups[columns.conformance_group[*node]].0 == 1) {
        return;
    }
    let key = |node: &usize| {
        let (count, first) = groups[columns.conformance_group[*node]];
        (Reverse(count), first)
    };
    nodes.sort_by_key(key);
}

/// The sets of these nodes, which are sorted by conformance groups, with at most `groups_max`
/// topology groups each. `most`: how many nodes the work gets at most.
fn within_topology_groups(columns: &Columns, mut nodes: Vec<usize>, more: &[More], most: usize, groups_max: usize) -> Vec<Vec<usize>> {
    if columns.topology_groups < 2 {
        return vec![nodes];
    }
    if groups_max == 1 {
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        nodes.iter().for_each(|node| groups.entry(columns.topology_group[*node]).or_default().push(*node));
        let counts = count(columns, nodes.iter().copied(), more);
        let mut sets: Vec<(usize, Vec<usize>)> = groups.into_iter().map(|(group, set)| (counts[group], set)).collect();
        // The smallest group that is large enough comes first: larger ones are left to work that needs them.
        sets.sort_by_key(|(count, _)| if *count < most { (true, most - count) } else { (false, *count) });
        return sets.into_iter().map(|(_, set)| set).collect();
    }
    let Some(first) = nodes.first().copied() else { return Vec::new() };
    let largest = nodes.iter().take_while(|node| columns.conformance_group[**node] == columns.conformance_group[first]).count();
    if largest >= most && groups_max == ANY {
        // One conformance group is enough.
        arrange(columns, &mut nodes[..largest], &of_conformance_group(columns, more, first), most);
        return vec![nodes];
    }
    let order = arrange(columns, &mut nodes, more, most);
    let first: Vec<usize> = order.into_iter().take(groups_max).collect();
    nodes.retain(|node| first.contains(&columns.topology_group[*node]));
    vec![nodes]
}

/// Sorts these nodes stably by their topology groups, so that the first `wanted` are of as few groups as
/// possible. Returns the groups in that order.
fn arrange(columns: &Columns, nodes: &mut [usize], more: &[More], wanted: usize) -> Vec<usize> {
    let counts = count(columns, nodes.iter().copied(), more);
    let order = order(&counts, wanted);
    let mut place = vec![0; counts.len()];
    order.iter().enumerate().for_each(|(at, group)| place[*group] = at);
    nodes.sort_by_key(|node| place[columns.topology_group[*node]]);
    order
}

/// Orders the topology groups, of which `counts` has the numbers of nodes, so that the first `wanted`
/// nodes are of as few groups as possible.
fn order(counts: &[usize], wanted: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..counts.len()).filter(|group| counts[*group] > 0).collect();
    left.sort_by_key(|group| counts[*group]);
    let (mut order, mut missing) = (Vec::new(), wanted);
    while missing > 0
        && let Some(largest) = left.last()
    {
        // The smallest group that has all missing nodes, or else the largest group.
        let enough = counts[*largest].min(missing);
        let group = left.remove(left.partition_point(|group| counts[*group] < enough));
        missing = missing.saturating_sub(counts[group]);
        order.push(group);
    }
    order.extend(left.into_iter().rev());
    order
}

/// The number of all these nodes in each topology group.
fn count(columns: &Columns, nodes: impl Iterator<Item = usize>, more: &[More]) -> Vec<usize> {
    let mut counts = vec![0; columns.topology_groups];
    more.iter().for_each(|more| counts[more.likeness.topology_group] += more.count);
    nodes.for_each(|node| counts[columns.topology_group[node]] += 1);
    counts
}

/// How many of these nodes could serve the allocation together, on at most 1, 2, … topology groups.
pub fn reach(columns: &Columns, nodes: impl Iterator<Item = usize>, spec: &AllocationSpec) -> Vec<usize> {
    if is_contiguous(spec) {
        return runs(columns, nodes.collect()).iter().map(Vec::len).max().into_iter().collect();
    }
    let Some(together) = spec.constraints.together() else { return reach_of_any(columns, nodes, spec) };
    let (mut meeting, nodes) = (Meeting::of(columns, together), nodes.collect::<Vec<usize>>());
    match together {
        Together::Same(alternatives) => {
            let mut most = Vec::new();
            for alternative in 0..alternatives.len() {
                let have: Vec<usize> = nodes.iter().copied().filter(|node| meeting.has(*node, alternative)).collect();
                raise(&mut most, reach_of_any(columns, have.into_iter(), spec));
            }
            most
        }
        // No work asks for both numbers of nodes with features and a limit of topology groups.
        Together::Counted(_) => {
            let mut pools: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            let pool = |node: usize| if spec.constraints.conformance { columns.conformance_group[node] } else { 0 };
            nodes.into_iter().for_each(|node| pools.entry(pool(node)).or_default().push(node));
            pools.into_values().map(|pool| meeting.needed_first(pool, u32::MAX).len()).max().into_iter().collect()
        }
    }
}

/// [`reach`] of nodes with any features.
fn reach_of_any(columns: &Columns, nodes: impl Iterator<Item = usize>, spec: &AllocationSpec) -> Vec<usize> {
    if !spec.constraints.conformance {
        return if columns.topology_groups < 2 { vec![nodes.count()] } else { sums_of_largest(count(columns, nodes, &[])) };
    }
    let mut counts: BTreeMap<usize, BTreeMap<usize, usize>> = BTreeMap::new();
    for node in nodes {
        *counts.entry(columns.conformance_group[node]).or_default().entry(columns.topology_group[node]).or_default() += 1;
    }
    let mut most: Vec<usize> = Vec::new();
    for counts in counts.into_values() {
        raise(&mut most, sums_of_largest(counts.into_values().collect()));
    }
    most
}

/// Raises `most` to the larger of both for each number of groups. More groups never have fewer nodes.
fn raise(most: &mut Vec<usize>, mut sums: Vec<usize>) {
    let (longer, all) = (most.len().max(sums.len()), [most.last().copied(), sums.last().copied()]);
    most.resize(longer, all[0].unwrap_or(0));
    sums.resize(longer, all[1].unwrap_or(0));
    most.iter_mut().zip(sums).for_each(|(most, sum)| *most = sum.max(*most));
}

fn sums_of_largest(mut counts: Vec<usize>) -> Vec<usize> {
    counts.sort_unstable_by_key(|count| Reverse(*count));
    counts.retain(|count| *count > 0);
    let mut sum = 0;
    let add = |count: usize| {
        sum += count;
        sum
    };
    counts.into_iter().map(add).collect()
}

/// How many of these nodes could serve the allocation together.
pub fn together(columns: &Columns, nodes: impl Iterator<Item = usize>, spec: &AllocationSpec, groups_max: usize) -> usize {
    if !spec.constraints.conformance && groups_max == ANY && spec.constraints.together().is_none() && !is_contiguous(spec) {
        return nodes.count();
    }
    let reach = reach(columns, nodes, spec);
    reach.get(groups_max.min(reach.len()).saturating_sub(1)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::State;
    use crate::view::View;
    use lattice_model::NodeState;
    use lattice_model::test_builders::{node, spec};
    use proptest::prelude::*;

    /// A view of nodes in these topology groups.
    fn view(groups: &[u8]) -> View {
        let mut view = View::default();
        for (number, group) in groups.iter().enumerate() {
            let mut one = node(&format!("n{number:02}"), NodeState::Ready);
            one.topology_group = Some(format!("g{group}"));
            view.nodes.insert(one.id.clone(), one);
        }
        view
    }

    fn spec_of(nodes: u32, topology: Topology) -> AllocationSpec {
        let mut spec = spec();
        (spec.nodes, spec.constraints.topology) = (nodes, topology);
        spec
    }

    fn groups_of(columns: &Columns, nodes: &[usize]) -> usize {
        nodes.iter().map(|node| columns.topology_group[*node]).collect::<std::collections::BTreeSet<_>>().len()
    }

    #[test]
    fn the_smallest_group_that_is_large_enough_serves() {
        let kept = State::from(view(&[0, 0, 0, 0, 1, 1, 1, 2, 2]));
        let columns = &kept.columns;
        let all = || (0..9).collect::<Vec<_>>();
        let first = |nodes, groups_max| sets(columns, all(), &[], &spec_of(nodes, Topology::Any), groups_max).remove(0);
        assert_eq!(first(2, ANY)[..2], [7, 8]);
        assert_eq!(first(3, ANY)[..3], [4, 5, 6]);
        // The largest group, then the smallest that has the missing nodes.
        assert_eq!(first(6, ANY)[..6], [0, 1, 2, 3, 7, 8]);
        assert_eq!(first(7, ANY)[..7], [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(first(3, 1), [4, 5, 6]);
        assert_eq!(reach(columns, 0..9, &spec_of(3, Topology::Any)), [4, 7, 9]);
    }

    proptest! {
        #[test]
        fn no_more_groups_are_used_than_are_needed(groups in prop::collection::vec(0_u8..5, 1..24), wanted in 2_usize..12) {
            let kept = State::from(view(&groups));
            let columns = &kept.columns;
            let spec = spec_of(wanted as u32, Topology::Any);
            let reach = reach(columns, 0..groups.len(), &spec);
            let needed = reach.iter().position(|most| *most >= wanted).map(|at| at + 1);
            let first = sets(columns, (0..groups.len()).collect(), &[], &spec, ANY).remove(0);
            prop_assert_eq!(first.len(), groups.len());
            if let Some(needed) = needed {
                prop_assert_eq!(groups_of(columns, &first[..wanted]), needed);
                // With that limit, the first set is large enough and within the limit.
                let sets = sets(columns, (0..groups.len()).collect(), &[], &spec, needed);
                prop_assert!(sets[0].len() >= wanted && groups_of(columns, &sets[0]) <= needed);
            }
            for groups_max in 1..6 {
                let most = together(columns, 0..groups.len(), &spec, groups_max);
                prop_assert_eq!(most, reach[groups_max.min(reach.len()) - 1]);
            }
        }
    }
}
