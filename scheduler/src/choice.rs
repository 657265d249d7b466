//! Which of the free nodes an allocation gets. [`crate::place`] places by it, and the reasons that
//! people see come from the same functions.

use crate::conformity;
use crate::holdings::Holdings;
use crate::quotas::Quotas;
use lattice_model::tenant::Excess;
use lattice_model::{Allocation, Node, NodeId};
use std::collections::BTreeSet;

/// The nodes that an allocation gets of those that are free for it: as many as it asks for, and not
/// more new ones than its tenant's quota allows. `None`: these do not suffice.
pub(crate) fn choose<'a>(mut free: Vec<&'a Node>, held: &Holdings, quotas: &Quotas<'_>, allocation: &Allocation) -> Option<Vec<&'a Node>> {
    if allocation.spec.share.is_some() {
        // Best fit: the node with the least left over, so that whole nodes stay free for work that
        // wants whole nodes.
        let left = |node: &&Node| {
            let free = node.size.minus(&held.committed(&node.id));
            (free.gpus, free.cores, free.memory_bytes)
        };
        free.sort_by_key(left);
    }
    let wanted = allocation.spec.nodes as usize;
    let mut chosen = largest_allowed(free, quotas, allocation);
    chosen.truncate(wanted);
    (chosen.len() == wanted).then_some(chosen)
}

/// How many of the nodes that are free for an allocation could serve it together. Nodes that the
/// quota forbids do not count if too few others are left.
pub(crate) fn count_free(free: &[&Node], quotas: &Quotas<'_>, allocation: &Allocation) -> usize {
    let allowed = largest_allowed(free.to_vec(), quotas, allocation).len();
    if allowed < allocation.spec.nodes as usize { allowed } else { conformity::together(free, &allocation.spec) }
}

/// The quota that keeps an allocation off, given the nodes that could ever serve it, and those that
/// are free for it and that its tenant uses already: all further nodes would be new ones.
pub(crate) fn over_quota(possible: Vec<&Node>, free_and_used: &[&Node], quotas: &Quotas<'_>, allocation: &Allocation) -> Option<Excess> {
    let wanted = allocation.spec.nodes as usize;
    let used: BTreeSet<&NodeId> = free_and_used.iter().map(|node| &node.id).collect();
    let new = |set: Vec<&Node>| wanted.saturating_sub(set.iter().filter(|node| used.contains(&node.id)).count());
    let large_enough = conformity::sets(possible, &allocation.spec).into_iter().filter(|set| set.len() >= wanted);
    quotas.excess(allocation, large_enough.map(new).min()?)
}

fn largest_allowed<'a>(free: Vec<&'a Node>, quotas: &Quotas<'_>, allocation: &Allocation) -> Vec<&'a Node> {
    let sets = conformity::sets(free, &allocation.spec).into_iter().map(|set| quotas.allowed(allocation, set));
    sets.min_by_key(|set| std::cmp::Reverse(set.len())).unwrap_or_default()
}
