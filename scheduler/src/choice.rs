//! Chooses the nodes of an allocation among the nodes that are free for it now.

use crate::classes::Class;
use crate::draft::Draft;
use crate::grouping;
use crate::node_set::NodeSet;
use crate::quotas::Quotas;
use crate::untouched::{Likeness, More};
use lattice_model::tenant::Excess;
use lattice_model::{Allocation, AllocationSpec, Node};
use std::cmp::Reverse;

/// The nodes that an allocation can begin on now and keep until `until_ms`, so that it delays no
/// reservation: as many as it asks for, of a range as many as possible, and no more new nodes than its
/// tenant's quota allows. `None`: too few nodes are free until then.
pub fn choose(state: &Draft<'_>, class: &Class, quotas: &Quotas<'_>, allocation: &Allocation, until_ms: u64) -> Option<Vec<usize>> {
    let wanted = allocation.spec.nodes as usize;
    // The rest of the limit for sensitive work is not known here: a claim of more than the least of a range
    // could be refused each time.
    let most = if allocation.spec.sensitive { wanted } else { allocation.spec.nodes_most() as usize };
    let Free { nodes: mut free, more } = free(state, class, quotas, allocation, until_ms);
    let place = |node: &usize| place(state, &allocation.spec, *node);
    // A shortcut with the same result as the code below, without sorting all nodes.
    let is_counted = grouping::is_counted(&allocation.spec);
    if most == 1 && !is_counted && !quotas.depend_on_nodes(allocation) {
        if is_ordered(allocation) {
            return Some(vec![free.into_iter().min_by_key(|node| (state.columns.has_drifted[*node], place(node)))?]);
        }
        let well = free.iter().find(|node| !state.columns.has_drifted[**node]);
        return Some(vec![*well.or(free.first())?]);
    }
    if free.len() < wanted {
        return None;
    }
    if is_ordered(allocation) {
        free.sort_by_cached_key(place);
    }
    let mut chosen = best_allowed(state, class, free, &more, quotas, allocation);
    chosen.truncate(most);
    (chosen.len() >= wanted).then_some(chosen)
}

/// Whether it gets free nodes by [`place`], and not in the order of their ids.
fn is_ordered(allocation: &Allocation) -> bool {
    allocation.spec.share.is_some() || allocation.spec.constraints.same_numa
}

/// The sort key of free nodes: whether no memory domain is large enough, links of GPUs, the remainder,
/// and links again.
type Place = (bool, Reverse<u8>, Left, Reverse<u8>);
/// The remainder of a node: if owners are kept apart, nodes of which nothing is held come last, because
/// work there closes them to others; then free GPUs, cores and memory.
type Left = (bool, u32, u32, u64);

/// The place of a free node among others; the smallest is taken first. A share gets the node with the
/// smallest remainder (best fit), so that whole nodes stay free for work that wants them; of equal
/// nodes, the one with the faster links between its GPUs. Work that prefers one memory domain gets nodes
/// where one domain is large enough, then nodes with faster links, and then best fit.
fn place(state: &Draft<'_>, spec: &AllocationSpec, node: usize) -> Place {
    let (free, Node { size, locality, .. }) = (state.free_now[node], state.nodes[node]);
    let is_unshared = (state.kept.owners.has_policy() || spec.exclusive_user) && free == *size;
    let left = spec.share.map_or((false, 0, 0, 0), |_| (is_unshared, free.gpus, free.cores, free.memory_bytes));
    let gpus = spec.share.map_or(size.gpus, |share| share.gpus);
    let links = Reverse(locality.gpu_link_percent(gpus).unwrap_or(0));
    if spec.constraints.same_numa {
        (!locality.has_in_one_domain(&spec.amount_of(size)), links, left, Reverse(0))
    } else {
        (false, Reverse(0), left, links)
    }
}

/// Nodes that are free for an allocation; of untouched nodes that are alike, only as many as it can get.
struct Free {
    /// In ascending order.
    nodes: Vec<usize>,
    /// How many more untouched nodes are free.
    more: Vec<More>,
}

fn free(state: &Draft<'_>, class: &Class, quotas: &Quotas<'_>, allocation: &Allocation, until_ms: u64) -> Free {
    let is_free = |node: &usize| {
        let is_open = state.is_open_until(*node, class.reservation(), until_ms);
        is_open && state.is_free_until(*node, class.part(state.columns, *node).as_ref(), until_ms)
    };
    let Some(kinds) = &class.kinds else {
        return Free { nodes: with_room(state, allocation).and(&class.candidates).filter(is_free).collect(), more: Vec::new() };
    };
    let touched = with_room(state, allocation).and_without(&class.candidates, state.untouched.set());
    let mut nodes: Vec<usize> = touched.filter(is_free).collect();
    let most = allocation.spec.nodes_most() as usize;
    let constraints = &allocation.spec.constraints;
    let is_free_choice = class.groups_max(allocation) == grouping::ANY && !constraints.conformance && constraints.together().is_none();
    let are_open = |likeness: &Likeness| state.are_open_until(likeness.windows, class.reservation(), until_ms);
    let enough = if most > 1 && is_free_choice && !quotas.depend_on_nodes(allocation) {
        let untouched = state.untouched.counts(kinds).filter(|of| are_open(&of.likeness));
        grouping::enough(state.columns, &nodes, untouched, most, is_ordered(allocation))
    } else {
        None
    };
    let more = match enough {
        Some(enough) => {
            nodes.retain(|node| enough.has(Some(state.columns.conformance_group[*node]), state.columns.topology_group[*node]));
            let is_wanted = |of: &Likeness| enough.has(of.conformance_group, of.topology_group) && are_open(of);
            state.untouched.first(kinds, is_wanted, most, &mut nodes)
        }
        None => state.untouched.first(kinds, are_open, most, &mut nodes),
    };
    nodes.sort_unstable();
    Free { nodes, more }
}

/// The nodes that may be free for it now.
fn with_room<'s>(state: &'s Draft<'_>, allocation: &Allocation) -> &'s NodeSet {
    if allocation.spec.share.is_some() { &state.open } else { &state.vacant }
}

/// How many nodes [`choose`] looks at for an allocation. `None`: fewer than it asks for have room now.
pub fn to_look_at(state: &Draft<'_>, class: &Class, allocation: &Allocation) -> Option<usize> {
    let all = with_room(state, allocation).and_len(&class.candidates);
    if all < allocation.spec.nodes as usize {
        return None;
    }
    let Some(kinds) = &class.kinds else { return Some(all) };
    let (untouched, first) = state.untouched.count(kinds, allocation.spec.nodes_most() as usize);
    Some(all.saturating_sub(untouched) + first)
}

/// How many of the nodes that are free for an allocation could serve it together. Nodes that the
/// quota forbids do not count if too few others are left.
pub fn count_free(state: &Draft<'_>, class: &Class, free: &[usize], quotas: &Quotas<'_>, allocation: &Allocation) -> usize {
    let allowed = best_allowed(state, class, free.to_vec(), &[], quotas, allocation).len();
    if allowed < allocation.spec.nodes as usize {
        return allowed;
    }
    grouping::together(state.columns, free.iter().copied(), &allocation.spec, class.groups_max(allocation))
}

/// The quota that keeps an allocation off because too few of the nodes that its tenant uses already
/// are free for it, and how many of those are free. All other nodes would be new to the tenant.
pub fn over_quota(
    state: &Draft<'_>,
    class: &Class,
    quotas: &Quotas<'_>,
    allocation: &Allocation,
    until_ms: u64,
) -> Option<(Excess, usize)> {
    let wanted = allocation.spec.nodes as usize;
    let mut used = NodeSet::empty(state.nodes.len());
    let is_used = |node: &usize| {
        let is_free = state.is_free_until(*node, class.part(state.columns, *node).as_ref(), until_ms);
        let is_open = state.is_open_until(*node, class.reservation(), until_ms);
        is_free && is_open && quotas.is_used(allocation, &state.nodes[*node].id)
    };
    state.open.and(&class.candidates).filter(is_used).for_each(|node| used.insert(node));
    let new = |set: Vec<usize>| wanted.saturating_sub(set.into_iter().filter(|node| used.contains(*node)).count());
    let sets = grouping::sets(state.columns, class.candidates.iter().collect(), &[], &allocation.spec, class.groups_max(allocation));
    let excess = quotas.excess(allocation, sets.into_iter().filter(|set| set.len() >= wanted).map(new).min()?)?;
    Some((excess, used.len()))
}

/// The first set of free nodes of which the quota allows enough; if there is none, the largest allowed
/// set. `more`: see [`Free`].
fn best_allowed(
    state: &Draft<'_>,
    class: &Class,
    free: Vec<usize>,
    more: &[More],
    quotas: &Quotas<'_>,
    allocation: &Allocation,
) -> Vec<usize> {
    let mut largest = Vec::new();
    for set in grouping::sets(state.columns, free, more, &allocation.spec, class.groups_max(allocation)) {
        let set = allowed(state, quotas, allocation, set);
        if set.len() >= allocation.spec.nodes as usize {
            return set;
        }
        if set.len() > largest.len() {
            largest = set;
        }
    }
    largest
}

/// The nodes of a set of [`grouping::sets`] that the quota allows, in the order of the set. Nodes that count for numbers of
/// nodes with features are not given up for other nodes.
pub fn allowed(state: &Draft<'_>, quotas: &Quotas<'_>, allocation: &Allocation, mut set: Vec<usize>) -> Vec<usize> {
    let is_counted = grouping::is_counted(&allocation.spec) && quotas.depend_on_nodes(allocation);
    if is_counted {
        set.sort_by_key(|node| !quotas.is_used(allocation, &state.nodes[*node].id));
        set = grouping::arranged(state.columns, &allocation.spec, set);
    }
    quotas.retain_allowed(allocation, &mut set, |node| &state.nodes[*node].id);
    if grouping::is_contiguous(&allocation.spec) {
        return grouping::runs(state.columns, set).into_iter().max_by_key(Vec::len).unwrap_or_default();
    }
    if is_counted { grouping::arranged(state.columns, &allocation.spec, set) } else { set }
}
