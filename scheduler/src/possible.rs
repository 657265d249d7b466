//! How many nodes could ever serve an allocation.

use crate::view::View;
use crate::{conformity, misfit};
use lattice_model::{Allocation, Node};

/// How many nodes of the cluster could ever serve the allocation: those that are registered, in its
/// vCluster, schedulable, large enough, with the constraints that it asks for, and not now excluded
/// for it.
pub(crate) fn possible(view: &View, allocation: &Allocation) -> usize {
    possible_where(view, allocation, |node| allocation.exclusion(&node.id).is_none())
}

/// The same, counting only nodes for which `wanted` is true.
pub(crate) fn possible_where(view: &View, allocation: &Allocation, wanted: impl Fn(&Node) -> bool) -> usize {
    conformity::together(&fitting(view, allocation, wanted), &allocation.spec)
}

/// The nodes that [`possible`] counts, of all groups.
pub(crate) fn possible_nodes<'a>(view: &'a View, allocation: &Allocation) -> Vec<&'a Node> {
    fitting(view, allocation, |node| allocation.exclusion(&node.id).is_none())
}

fn fitting<'a>(view: &'a View, allocation: &Allocation, wanted: impl Fn(&Node) -> bool) -> Vec<&'a Node> {
    let named = view.named(allocation);
    let fits =
        |n: &&Node| misfit::never_serves(named, &allocation.spec, n).is_none() && allocation.spec.lacked_by(n).is_none() && wanted(n);
    view.nodes.values().filter(fits).collect()
}
