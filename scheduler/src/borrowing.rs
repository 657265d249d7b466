//! Nodes that vClusters lend each other while they are idle.
//!
//! ```text
//!   all queues are planned with nodes of their own ─▶ work that still waits in a borrowing queue ─▶ its own free nodes,
//!                                                                                                     then lent ones
//! ```
//!
//! Work of the lender comes first: its claims and reservations are in the plan already, and a loan ends before the next
//! of them begins. Borrowing work that gets in the lender's way later gives the node back (see [`crate::victims`]).

use crate::choice;
use crate::classes::Class;
use crate::draft::Draft;
use crate::grouping;
use crate::node_set::NodeSet;
use crate::quotas::Quotas;
use crate::span::Part;
use lattice_model::{Allocation, Borrower, DEFAULT_VCLUSTER, VCluster};
use std::collections::BTreeMap;

/// For each class of work, the nodes that other vClusters could lend to it.
#[derive(Default)]
pub struct Lent {
    /// By the index of a class.
    of_class: BTreeMap<usize, NodeSet>,
    /// Searches without a result, by class and number of nodes: the shortest duration. A plan only takes nodes away, so
    /// a longer search finds nothing either.
    in_vain: BTreeMap<(usize, u32), u64>,
}

impl Lent {
    /// The nodes on which an allocation can begin now with the help of other vClusters and stay until `until_ms`.
    /// `None`: too few are free. `is_reserved`: it has a reservation, which does not block it. `looks` counts how often
    /// a node is looked at.
    pub fn choose(
        &mut self,
        state: &Draft<'_>,
        (number, class): (usize, &Class),
        quotas: &Quotas<'_>,
        (allocation, is_reserved): (&Allocation, bool),
        until_ms: u64,
        looks: &mut usize,
    ) -> Option<Vec<usize>> {
        // Work with nodes set aside for it gets only those.
        if allocation.spec.reservation.is_some() {
            return None;
        }
        // From here on the result depends only on the class and the duration, for all work that gives nodes back.
        allocation.spec.walltime?;
        if allocation.spec.never_gives_back(allocation.requeue_count).is_some() {
            return None;
        }
        let key = (number, allocation.spec.nodes);
        if self.in_vain.get(&key).is_some_and(|shortest_ms| *shortest_ms <= until_ms) {
            return None;
        }
        let lendable = self.of_class.entry(number).or_insert_with(|| {
            *looks += state.nodes.len();
            lendable(state, allocation)
        });
        let open = state.open.and_len(&class.candidates) + state.open.and_len(lendable);
        if open < allocation.spec.nodes as usize {
            return None;
        }
        *looks += open;
        let is_free = |node: &usize, part: Option<Part>| {
            let has_room = part.is_none_or(|part| state.free_now[*node].holds(&part.amount));
            let is_open = state.is_open_until(*node, class.reservation(), until_ms);
            has_room && is_open && state.is_free_beside(*node, part.as_ref(), until_ms, |span| span.by != allocation.id)
        };
        let own: Vec<usize> = state.open.and(&class.candidates).filter(|node| is_free(node, class.part(state.columns, *node))).collect();
        let is_lent = |node: &usize| {
            VCluster::lends(|name| state.view.vclusters.get(name), state.nodes[*node], &allocation.spec, allocation.requeue_count)
        };
        let lent = state.open.and(lendable).filter(|node| is_lent(node) && is_free(node, class.part(state.columns, *node)));
        let nodes = together(state, class, quotas, allocation, own, lent.collect());
        if nodes.is_none() && !is_reserved && !quotas.depend_on_nodes(allocation) {
            self.in_vain.insert(key, until_ms);
        }
        nodes
    }
}

/// The nodes of other vClusters that meet the class's requirements.
fn lendable(state: &Draft<'_>, allocation: &Allocation) -> NodeSet {
    let named = state.view.named(allocation);
    let mut set = NodeSet::empty(state.nodes.len());
    for (at, node) in state.nodes.iter().enumerate() {
        let spec = &allocation.spec;
        let could_serve =
            spec.never_served_by(node).is_none() && spec.lacked_by(node).is_none() && allocation.exclusion(&node.id).is_none();
        if could_serve && !VCluster::may_use(named, node) {
            set.insert(at);
        }
    }
    set
}

/// As many of these nodes as the work asks for, those of its own vCluster first.
fn together(
    state: &Draft<'_>,
    class: &Class,
    quotas: &Quotas<'_>,
    allocation: &Allocation,
    own: Vec<usize>,
    lent: Vec<usize>,
) -> Option<Vec<usize>> {
    let (spec, groups_max) = (&allocation.spec, class.groups_max(allocation));
    let sets = |nodes: Vec<usize>| grouping::sets(state.columns, nodes, &[], spec, groups_max);
    let sets = if spec.constraints.conformance || groups_max != grouping::ANY || spec.constraints.together().is_some() {
        sets([own, lent].concat())
    } else {
        vec![[own, lent].into_iter().flat_map(sets).flatten().collect()]
    };
    let wanted = spec.nodes as usize;
    let allowed = |nodes: Vec<usize>| {
        let mut nodes = choice::allowed(state, quotas, allocation, nodes);
        nodes.truncate(wanted);
        (nodes.len() == wanted).then_some(nodes)
    };
    sets.into_iter().find_map(allowed)
}

/// Whether work of this queue may use nodes that others lend.
pub fn borrows(vclusters: &BTreeMap<String, VCluster>, queue: &str) -> bool {
    vclusters.get(queue).is_some_and(|vcluster| vcluster.borrows) && vclusters.values().any(|vcluster| vcluster.lend_ms.is_some())
}

/// Those of an allocation's nodes that another vCluster lent to it.
pub fn borrowed(state: &Draft<'_>, allocation: &Allocation, nodes: &[usize]) -> Vec<usize> {
    let record = |name: &str| state.view.vclusters.get(name);
    let Some(borrower) = Borrower::of(record, &allocation.spec) else { return Vec::new() };
    // Neighbours are mostly of one vCluster.
    let (mut lender_name, mut lender) = (DEFAULT_VCLUSTER, record(DEFAULT_VCLUSTER));
    let is_lent = |node: &usize| {
        let node = state.nodes[*node];
        let home = if node.home.is_empty() { DEFAULT_VCLUSTER } else { node.home.as_str() };
        if home != lender_name {
            (lender_name, lender) = (home, record(home));
        }
        borrower.has_from(lender, node)
    };
    nodes.iter().copied().filter(is_lent).collect()
}
