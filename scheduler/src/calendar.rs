//! The windows of reservations in lists: nodes with the same windows have one list, so that a plan looks at no more of
//! these nodes than work can get ([`crate::untouched`]).

use crate::view::View;
use lattice_model::{NodeId, Reservation};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The windows of nodes. They stay from one plan to the next, as long as no reservation changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Calendar {
    /// The windows of each list, in the order of time; no two of one list overlap. The first list is empty.
    pub lists: Vec<Vec<Arc<Reservation>>>,
    /// The list of each node.
    pub of_node: Vec<usize>,
}

impl Calendar {
    /// `index`: the index of each node. `nodes`: how many nodes there are.
    pub fn of(view: &View, index: &HashMap<NodeId, usize>, nodes: usize) -> Self {
        let mut lists: Vec<Vec<Arc<Reservation>>> = vec![Vec::new()];
        let mut of_node = vec![0; nodes];
        let mut all: Vec<&Arc<Reservation>> = view.reservations.values().collect();
        all.sort_by_key(|reservation| reservation.start);
        for reservation in all {
            // For each list that a node had before: the list with this reservation added.
            let mut longer: BTreeMap<usize, usize> = BTreeMap::new();
            for node in reservation.nodes.iter().filter_map(|node| index.get(node)) {
                let before = of_node[*node];
                of_node[*node] = *longer.entry(before).or_insert_with(|| {
                    let mut list = lists[before].clone();
                    list.push(Arc::clone(reservation));
                    lists.push(list);
                    lists.len() - 1
                });
            }
        }
        Self { lists, of_node }
    }

    /// The number of the node's list: nodes with the same number have the same windows.
    pub fn list_of(&self, node: usize) -> usize {
        self.of_node[node]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::view;
    use lattice_model::{Revision, Timestamp, hostlist};

    #[test]
    fn nodes_with_the_same_windows_have_one_list() {
        let mut v = view(5, vec![]);
        for (name, nodes, start) in [("b", "n[1-4]", 10), ("a", "n[3-5]", 20)] {
            let reservation = Reservation {
                name: name.into(),
                nodes: hostlist::expand(nodes).unwrap(),
                start: Timestamp(start),
                end: Timestamp(start + 10),
                tenants: Default::default(),
                users: Default::default(),
                maintenance: true,
                comment: String::new(),
                created_by: "root".into(),
                created_at: Timestamp(1),
                revision: Revision(1),
            };
            v.reservations.insert(name.into(), Arc::new(reservation));
        }
        let index: HashMap<NodeId, usize> = v.nodes.values().enumerate().map(|(at, node)| (node.id.clone(), at)).collect();
        let calendar = Calendar::of(&v, &index, 5);
        let windows = |node: usize| calendar.lists[calendar.list_of(node)].iter().map(|r| r.name.as_str()).collect::<Vec<_>>();
        assert_eq!((0..5).map(windows).collect::<Vec<_>>(), [vec!["b"], vec!["b"], vec!["b", "a"], vec!["b", "a"], vec!["a"]]);
        assert_eq!((calendar.list_of(0), calendar.list_of(2)), (calendar.list_of(1), calendar.list_of(3)));
    }
}
