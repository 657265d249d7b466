//! Work that may be placed in several forms. A form is the same allocation with another specification, and has a class of
//! its own. Work whose ranks are spread over nodes has one for each number of nodes
//! ([`lattice_model::AllocationSpec::spread_over`]). Work that waits for topology groups for a limited time has a second one,
//! which takes any groups.

use crate::columns::Columns;
use lattice_model::{Allocation, Topology};
use std::sync::Arc;

/// Limit of the forms of an allocation that are tried, on the fewest nodes first: each costs a pass over the nodes in each
/// plan.
const FORMS_MAX: usize = 32;

/// The forms of an allocation. If it is spread: those for which the registered nodes are large enough, on the fewest nodes
/// first; if there is none, the first form.
pub fn of(columns: &Columns, allocation: &Arc<Allocation>) -> Vec<Arc<Allocation>> {
    if allocation.spec.topology_wait.is_some() {
        return vec![Arc::clone(allocation), with_any_topology(allocation)];
    }
    if allocation.spec.spread.is_none() {
        return vec![Arc::clone(allocation)];
    }
    let mut counts = vec![0_usize; columns.kinds.len()];
    columns.kind.iter().for_each(|kind| counts[*kind] += 1);
    // Many numbers are looked at, and few of the forms are made.
    let are_enough = |nodes: &u32| {
        let fits = |kind: &usize| allocation.spec.spread_fits(*nodes, &columns.nodes[columns.kinds[*kind]].size);
        (0..counts.len()).filter(fits).map(|kind| counts[kind]).sum::<usize>() >= *nodes as usize
    };
    let form = |nodes: u32| allocation.spread_over(nodes as usize);
    let counts_there = allocation.spec.spread_counts().take_while(|nodes| *nodes as usize <= columns.nodes.len());
    let mut forms: Vec<Arc<Allocation>> = counts_there.filter(are_enough).take(FORMS_MAX).map(form).collect();
    if forms.is_empty() {
        forms.extend(allocation.spec.spread_counts().next().map(form));
    }
    forms
}

/// The form that takes nodes of any topology groups.
fn with_any_topology(allocation: &Arc<Allocation>) -> Arc<Allocation> {
    let mut form = Allocation::clone(allocation);
    let spec = Arc::make_mut(&mut form.spec);
    (spec.constraints.topology, spec.topology_wait) = (Topology::Any, None);
    Arc::new(form)
}
