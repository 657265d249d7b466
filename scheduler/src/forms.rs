//! Work that may be placed in several forms. A form is the same allocation with another specification, and has a class of
//! its own. Work whose ranks are spread over nodes has a form for each number of nodes
//! ([`lattice_model::AllocationSpec::spread_over`]). Work that waits for topology groups for a limited time has a second form,
//! which takes any groups.

use crate::columns::Columns;
use lattice_model::{Allocation, Topology};
use std::sync::Arc;

/// How many forms of an allocation are tried, from the fewest nodes on: each costs a pass over the nodes in each plan.
const FORMS_MAX: usize = 32;

/// The forms of an allocation. If it is spread: the forms for which enough registered nodes are large enough, the fewest
/// nodes first; if there is no such form, the first of all.
pub fn of(columns: &Columns, allocation: &Arc<Allocation>) -> Vec<Arc<Allocation>> {
    if allocation.spec.topology_wait.is_some() {
        return vec![Arc::clone(allocation), with_any_topology(allocation)];
    }
    if allocation.spec.spread.is_none() {
        return vec![Arc::clone(allocation)];
    }
    let mut counts = vec![0_usize; columns.kinds.len()];
    columns.kind.iter().for_each(|kind| counts[*kind] += 1);
    // Many numbers of nodes are checked, but few forms are built.
    let are_enough = |nodes: &u32| {
        let fits = |kind: &usize| allocation.spec.spread_fits(*nodes, &columns.nodes[columns.kinds[*kind]].size);
        (0..counts.len()).filter(fits).map(|kind| counts[kind]).sum::<usize>() >= *nodes as usize
    };
    let form = |nodes: u32| allocation.spread_over(nodes as usize);
    let counts_possible = allocation.spec.spread_counts().take_while(|nodes| *nodes as usize <= columns.nodes.len());
    let mut forms: Vec<Arc<Allocation>> = counts_possible.filter(are_enough).take(FORMS_MAX).map(form).collect();
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
