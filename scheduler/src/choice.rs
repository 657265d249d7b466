//! Which nodes an allocation gets of those that are free for it now.

use crate::classes::Class;
use crate::grouping;
use crate::node_set::NodeSet;
use crate::quotas::Quotas;
use crate::state::State;
use crate::untouched::More;
use lattice_model::Allocation;
use lattice_model::tenant::Excess;

/// The nodes that an allocation can begin on now and keep until `until_ms`, so that it delays no
/// reservation: as many as it asks for, the most of a range, and not more new ones than its tenant's
/// quota allows.
/// `None`: too few are free for so long.
pub fn choose(state: &State<'_>, class: &Class<'_>, quotas: &Quotas<'_>, allocation: &Allocation, until_ms: u64) -> Option<Vec<usize>> {
    let wanted = allocation.spec.nodes as usize;
    // What the limit for sensitive work leaves is not known here: with more of a range its claim could be
    // refused each time.
    let most = if allocation.spec.sensitive { wanted } else { allocation.spec.nodes_most() as usize };
    let Free { nodes: mut free, more } = free(state, class, allocation, until_ms);
    let left = |node: &usize| {
        let free = state.free_now[*node];
        // Work of this owner is there already if anything is: no further node is closed to others.
        let is_unshared = state.owners.are_apart() && free == state.nodes[*node].size;
        (is_unshared, free.gpus, free.cores, free.memory_bytes)
    };
    // The same as below, without sorting all nodes.
    if most == 1 && !quotas.depend_on_nodes(allocation) {
        if allocation.spec.share.is_some() {
            return Some(vec![free.into_iter().min_by_key(|node| (state.has_drifted[*node], left(node)))?]);
        }
        let well = free.iter().find(|node| !state.has_drifted[**node]);
        return Some(vec![*well.or(free.first())?]);
    }
    if free.len() < wanted {
        return None;
    }
    if allocation.spec.share.is_some() {
        // Best fit: the node with the least left over, so that whole nodes stay free for work that
        // wants whole nodes.
        free.sort_by_key(left);
    }
    let mut chosen = best_allowed(state, class, free, &more, quotas, allocation);
    chosen.truncate(most);
    (chosen.len() >= wanted).then_some(chosen)
}

/// Nodes that are free for an allocation: of untouched ones that are alike as many as it can get.
struct Free {
    /// In ascending order.
    nodes: Vec<usize>,
    /// How many more of the untouched ones there are.
    more: Vec<More>,
}

fn free(state: &State<'_>, class: &Class<'_>, allocation: &Allocation, until_ms: u64) -> Free {
    let is_free = |node: &usize| state.is_free_until(*node, class.part(state, *node).as_ref(), until_ms);
    let Some(kinds) = &class.kinds else {
        return Free { nodes: with_room(state, allocation).and(&class.candidates).filter(is_free).collect(), more: Vec::new() };
    };
    let touched = with_room(state, allocation).and_without(&class.candidates, state.untouched.set());
    let mut nodes: Vec<usize> = touched.filter(is_free).collect();
    let more = state.untouched.first(kinds, allocation.spec.nodes_most() as usize, &mut nodes);
    nodes.sort_unstable();
    Free { nodes, more }
}

/// The nodes that may be free for it now.
fn with_room<'s>(state: &'s State<'_>, allocation: &Allocation) -> &'s NodeSet {
    if allocation.spec.share.is_some() { &state.open } else { &state.vacant }
}

/// How many nodes may be free for an allocation now, and how many of them [`choose`] looks at.
pub fn to_look_at(state: &State<'_>, class: &Class<'_>, allocation: &Allocation) -> (usize, usize) {
    let all = with_room(state, allocation).and_len(&class.candidates);
    let Some(kinds) = &class.kinds else { return (all, all) };
    let (untouched, first) = state.untouched.count(kinds, allocation.spec.nodes_most() as usize);
    (all, all.saturating_sub(untouched) + first)
}

/// How many of the nodes that are free for an allocation could serve it together. Nodes that the
/// quota forbids do not count if too few others are left.
pub fn count_free(state: &State<'_>, class: &Class<'_>, free: &[usize], quotas: &Quotas<'_>, allocation: &Allocation) -> usize {
    let allowed = best_allowed(state, class, free.to_vec(), &[], quotas, allocation).len();
    if allowed < allocation.spec.nodes as usize {
        return allowed;
    }
    grouping::together(state, free.iter().copied(), &allocation.spec, class.groups_max(allocation))
}

/// The quota that keeps an allocation off because too few of the nodes that its tenant uses already
/// are free for it, and how many are: all further nodes would be new ones.
pub fn over_quota(
    state: &State<'_>,
    class: &Class<'_>,
    quotas: &Quotas<'_>,
    allocation: &Allocation,
    until_ms: u64,
) -> Option<(Excess, usize)> {
    let wanted = allocation.spec.nodes as usize;
    let mut used = NodeSet::empty(state.nodes.len());
    let is_used = |node: &usize| {
        let is_free = state.is_free_until(*node, class.part(state, *node).as_ref(), until_ms);
        is_free && quotas.is_used(allocation, &state.nodes[*node].id)
    };
    state.open.and(&class.candidates).filter(is_used).for_each(|node| used.insert(node));
    let new = |set: Vec<usize>| wanted.saturating_sub(set.into_iter().filter(|node| used.contains(*node)).count());
    let sets = grouping::sets(state, class.candidates.iter().collect(), &[], &allocation.spec, class.groups_max(allocation));
    let excess = quotas.excess(allocation, sets.into_iter().filter(|set| set.len() >= wanted).map(new).min()?)?;
    Some((excess, used.len()))
}

/// The first set of free nodes that is large enough with those that the quota allows; if there is none,
/// the largest. `more`: see [`Free`].
fn best_allowed(
    state: &State<'_>,
    class: &Class<'_>,
    free: Vec<usize>,
    more: &[More],
    quotas: &Quotas<'_>,
    allocation: &Allocation,
) -> Vec<usize> {
    let mut largest = Vec::new();
    for mut set in grouping::sets(state, free, more, &allocation.spec, class.groups_max(allocation)) {
        quotas.retain_allowed(allocation, &mut set, |node| &state.nodes[*node].id);
        if set.len() >= allocation.spec.nodes as usize {
            return set;
        }
        if set.len() > largest.len() {
            largest = set;
        }
    }
    largest
}
