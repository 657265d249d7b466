//! Finds nodes with the features that the nodes of work must have together: all nodes have the same alternative, or certain
//! numbers of nodes have some features. Nodes of one kind have the same features, so each kind is examined once.

use crate::columns::Columns;
use lattice_model::feature_choice::Together;
use std::collections::BTreeMap;

/// Which of the requested features the nodes have.
pub struct Meeting<'c> {
    columns: &'c Columns,
    together: &'c Together,
    /// For each kind that was looked at, a bit for each set of features.
    of_kind: Vec<Option<u32>>,
}

impl<'c> Meeting<'c> {
    pub fn of(columns: &'c Columns, together: &'c Together) -> Self {
        Self { columns, together, of_kind: vec![None; columns.kinds.len()] }
    }

    fn met_by(&mut self, kind: usize) -> u32 {
        let (columns, together) = (self.columns, self.together);
        *self.of_kind[kind].get_or_insert_with(|| together.met_by(&columns.nodes[columns.kinds[kind]].features))
    }

    /// Whether a node has this alternative.
    pub fn has(&mut self, node: usize, alternative: usize) -> bool {
        self.kind_has(self.columns.kind[node], alternative)
    }

    /// Whether nodes of this kind have this alternative.
    pub fn kind_has(&mut self, kind: usize, alternative: usize) -> bool {
        let bit = u32::try_from(alternative).ok().and_then(|at| 1_u32.checked_shl(at)).unwrap_or(0);
        self.met_by(kind) & bit != 0
    }

    /// Moves the nodes that count for the requested numbers to the front; the order stays otherwise. If they are too few,
    /// only they remain. Empty if the numbers add up to more than `most`.
    pub fn needed_first(&mut self, nodes: Vec<usize>, most: u32) -> Vec<usize> {
        if self.together.counted_nodes() > most {
            return Vec::new();
        }
        let (mut needed, mut others) = (self.needed(nodes.iter().copied()), Vec::new());
        let is_enough = needed.values().sum::<usize>() >= self.together.counted_nodes() as usize;
        let mut first = Vec::with_capacity(nodes.len());
        for node in nodes {
            match needed.get_mut(&self.met_by(self.columns.kind[node])) {
                Some(missing) if *missing > 0 => {
                    *missing -= 1;
                    first.push(node);
                }
                Some(_) | None => others.push(node),
            }
        }
        if is_enough {
            first.append(&mut others);
        }
        first
    }

    /// Whether these nodes are enough for the numbers that are asked for.
    pub fn are_enough(&mut self, nodes: impl Iterator<Item = usize>) -> bool {
        self.needed(nodes).values().sum::<usize>() >= self.together.counted_nodes() as usize
    }

    /// How many nodes are needed, by the requested features that they have.
    fn needed(&mut self, nodes: impl Iterator<Item = usize>) -> BTreeMap<u32, usize> {
        let mut counts = BTreeMap::new();
        for node in nodes {
            *counts.entry(self.met_by(self.columns.kind[node])).or_insert(0) += 1;
        }
        self.together.needed(&counts)
    }
}
