//! Work that must not run twice while an earlier attempt of it may still run.

use crate::draft::Draft;
use lattice_model::{Allocation, AllocationId, NodeId, OnIsolation};
use std::collections::{BTreeMap, BTreeSet};

/// For each allocation, the nodes where an attempt that lost its claim may still run.
pub struct Settling<'a>(BTreeMap<AllocationId, BTreeSet<&'a NodeId>>);

impl<'a> Settling<'a> {
    pub fn of(state: &Draft<'a>) -> Self {
        let mut open: BTreeMap<AllocationId, BTreeSet<&NodeId>> = BTreeMap::new();
        for node in state.columns.leaving.iter().map(|node| state.nodes[node]) {
            for leaving in node.leaving.iter().filter(|l| !l.fenced) {
                open.entry(leaving.allocation).or_default().insert(&node.id);
            }
        }
        Self(open)
    }

    /// Nodes where an earlier attempt may still run, of work that must not run twice.
    pub fn nodes(&self, allocation: &Allocation) -> Option<&BTreeSet<&'a NodeId>> {
        self.0.get(&allocation.id).filter(|_| allocation.spec.on_isolation == OnIsolation::Stop)
    }
}
