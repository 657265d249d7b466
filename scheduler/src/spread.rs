//! Work whose ranks are spread over nodes: its forms, each on another number of nodes. A form is the same allocation with
//! the specification for that number ([`lattice_model::AllocationSpec::spread_over`]), and has a class of its own.

use crate::columns::Columns;
use lattice_model::Allocation;
use std::sync::Arc;

/// So many forms of an allocation are tried, those on the fewest nodes: each costs a look at the nodes in each plan.
const FORMS_MAX: usize = 32;

/// The forms of an allocation for which the registered nodes are large enough, on the fewest nodes first; if there is none,
/// the first form. Of work that is not spread: itself.
pub fn forms(columns: &Columns, allocation: &Arc<Allocation>) -> Vec<Arc<Allocation>> {
    if allocation.spec.spread.is_none() {
        return vec![Arc::clone(allocation)];
    }
    let mut counts = vec![0_usize; columns.kinds.len()];
    columns.kind.iter().for_each(|kind| counts[*kind] += 1);
    let are_enough = |form: &Arc<Allocation>| {
        let fits = |kind: &usize| {
            let size = &columns.nodes[columns.kinds[*kind]].size;
            size.holds(&form.spec.amount_of(size)) && size.cores >= form.spec.constraints.cores
        };
        (0..counts.len()).filter(fits).map(|kind| counts[kind]).sum::<usize>() >= form.spec.nodes as usize
    };
    let all = || allocation.spec.spread_counts().map(|nodes| allocation.spread_over(nodes as usize));
    let mut forms: Vec<Arc<Allocation>> = all().filter(are_enough).take(FORMS_MAX).collect();
    if forms.is_empty() {
        forms.extend(all().next());
    }
    forms
}
