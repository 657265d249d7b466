//! Floors of nodes: a reservation that could be moved to a node keeps later reservations from beginning
//! there before its own start.

use crate::node_set::NodeSet;
use std::sync::Arc;

/// For this many sets of candidates, one floor is stored for the whole set; for others, one for each
/// node. Most classes share a few sets.
const SETS_MAX: usize = 4;

/// See the module documentation.
pub struct Floors {
    of_sets: Vec<(Arc<NodeSet>, u64)>,
    /// In milliseconds; 0: no floor.
    of_nodes: Vec<u64>,
}

impl Floors {
    /// No reservation could be moved to any of this number of nodes.
    pub fn none(nodes: usize) -> Self {
        Self { of_sets: Vec::new(), of_nodes: vec![0; nodes] }
    }

    /// A reservation that begins at `start_ms` could be moved to each of these nodes.
    pub fn raise(&mut self, candidates: &Arc<NodeSet>, start_ms: u64) {
        if let Some((_, floor_ms)) = self.of_sets.iter_mut().find(|(set, _)| Arc::ptr_eq(set, candidates)) {
            *floor_ms = start_ms.max(*floor_ms);
        } else if self.of_sets.len() < SETS_MAX {
            self.of_sets.push((Arc::clone(candidates), start_ms));
        } else {
            for node in candidates.iter() {
                self.of_nodes[node] = start_ms.max(self.of_nodes[node]);
            }
        }
    }

    /// When the latest reservation begins that could be moved to this node; 0: there is none.
    pub fn of_node(&self, node: usize) -> u64 {
        let of_sets = self.of_sets.iter().filter(|(set, _)| set.contains(node)).map(|(_, floor_ms)| *floor_ms);
        of_sets.fold(self.of_nodes[node], u64::max)
    }

    /// A lower bound of the floors of these nodes.
    pub fn least(&self, candidates: &Arc<NodeSet>) -> u64 {
        self.of_sets.iter().find(|(set, _)| Arc::ptr_eq(set, candidates)).map_or(0, |(_, floor_ms)| *floor_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_the_latest_floor_of_all_sets_that_it_is_in() {
        let set = |nodes: &[usize]| {
            let mut set = NodeSet::empty(4);
            nodes.iter().for_each(|node| set.insert(*node));
            Arc::new(set)
        };
        let mut floors = Floors::none(4);
        let [some, others] = [set(&[0, 1]), set(&[1, 2])];
        floors.raise(&some, 5);
        floors.raise(&others, 3);
        floors.raise(&others, 7);
        floors.raise(&some, 4);
        // More sets than `SETS_MAX`.
        for start_ms in 8..16 {
            floors.raise(&set(&[2]), start_ms);
        }
        assert_eq!([0, 1, 2, 3].map(|node| floors.of_node(node)), [5, 7, 15, 0]);
        assert_eq!([&some, &others, &set(&[0, 1])].map(|set| floors.least(set)), [5, 7, 0]);
    }
}
