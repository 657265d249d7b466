//! The parts of nodes that work holds, kept from one plan to the next.
//!
//! Most work that runs ends at a known time, and holds the same part of a node until then. Work whose end
//! is counted from now (no walltime, not begun, asked to leave, ended) is only listed here, and each plan
//! counts it anew.

use crate::columns::Columns;
use crate::node_set::NodeSet;
use crate::owners::Who;
use crate::span::{Span, held_by, hold_in_order, known_end_ms};
use lattice_model::{Allocation, AllocationId, Resources, SharePhase};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// See the module documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The spans of each node with a known end, the latest end first.
    pub spans: Vec<Vec<Span>>,
    /// How much of each node is free beside these spans.
    pub free: Vec<Resources>,
    /// The nodes of which something is free beside these spans.
    pub open: NodeSet,
    /// The nodes that have such spans.
    pub touched: NodeSet,
    /// The nodes whose span with the latest end leaves no core: before that end, no work gets a part of them.
    pub full: NodeSet,
    /// The full nodes by that end; of equal ends, the last node first.
    pub by_end: BTreeSet<(u64, Reverse<usize>)>,
    /// Work whose end is known, by its end.
    ends: BTreeSet<(u64, AllocationId)>,
    /// Work whose end is counted from now.
    pub moving: BTreeSet<AllocationId>,
    /// How much work of each preemption class has nodes.
    pub classes: BTreeMap<u8, usize>,
}

impl Held {
    /// Nothing is held of these nodes.
    pub fn none(columns: &Columns) -> Self {
        let none = NodeSet::empty(columns.nodes.len());
        let mut held = Self {
            spans: vec![Vec::new(); columns.nodes.len()],
            free: vec![Resources::default(); columns.nodes.len()],
            open: none.clone(),
            touched: none.clone(),
            full: none,
            ..Self::default()
        };
        for node in 0..columns.nodes.len() {
            held.sum(columns, node);
        }
        held
    }

    /// Adds the parts that an allocation holds. `who`: its owner.
    pub fn add(&mut self, columns: &Columns, allocation: &Allocation, who: Who) {
        *self.classes.entry(allocation.spec.preemption_class).or_default() += 1;
        let Some(end_ms) = known_end_ms(allocation) else {
            self.moving.insert(allocation.id);
            return;
        };
        self.ends.insert((end_ms, allocation.id));
        for (node, span) in held_by(columns, allocation, who, end_ms) {
            self.unlist(node);
            hold_in_order(&mut self.spans[node], span);
            self.sum(columns, node);
        }
    }

    /// Removes the parts of an allocation. The record must be the one that was added.
    pub fn remove(&mut self, columns: &Columns, allocation: &Allocation) {
        if let Some(count) = self.classes.get_mut(&allocation.spec.preemption_class) {
            *count -= 1;
            if *count == 0 {
                self.classes.remove(&allocation.spec.preemption_class);
            }
        }
        let Some(end_ms) = known_end_ms(allocation) else {
            self.moving.remove(&allocation.id);
            return;
        };
        self.ends.remove(&(end_ms, allocation.id));
        for share in allocation.shares.iter().filter(|share| share.phase != SharePhase::Released) {
            let Some(node) = columns.index.get(share.node).copied() else { continue };
            self.unlist(node);
            self.spans[node].retain(|span| span.by != allocation.id);
            self.sum(columns, node);
        }
    }

    /// Work whose end was known, and is over now.
    pub fn overdue(&self, now_ms: u64) -> impl Iterator<Item = AllocationId> {
        self.ends.iter().take_while(move |(end_ms, _)| *end_ms <= now_ms).map(|(_, id)| *id)
    }

    /// A copy in which `who_of` replaces the owner of each span, by allocation and owner.
    #[cfg(test)]
    pub fn with_owners(&self, who_of: impl Fn(AllocationId, Who) -> Who) -> Self {
        let mut held = self.clone();
        held.spans.iter_mut().flatten().for_each(|span| span.who = who_of(span.by, span.who));
        held
    }

    fn unlist(&mut self, node: usize) {
        if let Some(last) = self.spans[node].first().filter(|_| self.full.contains(node)) {
            self.by_end.remove(&(last.end_ms, Reverse(node)));
        }
    }

    /// Sums up the spans of a node that is not listed in `by_end`, and lists it there if it is full.
    fn sum(&mut self, columns: &Columns, node: usize) {
        let (size, spans) = (&columns.nodes[node].size, &self.spans[node]);
        let free = size.minus(&spans.iter().fold(Resources::default(), |sum, span| sum.plus(&span.amount)));
        let last = spans.first().filter(|last| size.minus(&last.amount).cores == 0);
        self.by_end.extend(last.map(|last| (last.end_ms, Reverse(node))));
        self.full.set(node, last.is_some());
        self.touched.set(node, !spans.is_empty());
        self.open.set(node, free != Resources::default());
        self.free[node] = free;
    }
}
