//! The nodes of a view in columns by node index, in the order of their ids. A [`crate::State`]
//! keeps the columns from one plan to the next. They stay valid while the same nodes are registered
//! with equal properties ([`is_alike`]).

use crate::calendar::Calendar;
use crate::node_set::NodeSet;
use crate::untouched::{Alike, Likeness};
use crate::view::View;
use lattice_model::{Conformance, Node, NodeId, hostlist};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// See the module documentation.
#[derive(Default)]
pub struct Columns {
    pub nodes: Vec<Arc<Node>>,
    /// The index of each node in `nodes`.
    pub index: HashMap<NodeId, usize>,
    /// The conformance group of each node; a node that belongs to none has a number of its own.
    pub conformance_group: Vec<usize>,
    pub conformance_groups: usize,
    /// The topology group of each node; nodes without one share a group.
    pub topology_group: Vec<usize>,
    pub topology_groups: usize,
    pub has_drifted: Vec<bool>,
    /// The kind of each node: nodes of one kind can serve the same work, and equally well.
    pub kind: Vec<usize>,
    /// A node of each kind.
    pub kinds: Vec<usize>,
    /// The position of each node in the order of names, in which `n2` comes before `n10`.
    pub place: Vec<usize>,
    /// Largest number of GPUs of a node.
    pub gpus_most: u32,
    /// When operators have set nodes aside.
    pub calendar: Calendar,
    /// Which nodes are alike.
    pub alike: Alike,
    /// Nodes that gossip shows as alive.
    alive: NodeSet,
    /// Nodes whose record in the quorum allows claims.
    claimable: NodeSet,
    /// Nodes in service: alive and claimable.
    pub up: NodeSet,
    /// Nodes that still hold shares of ended claims.
    pub leaving: NodeSet,
}

impl Columns {
    pub fn of(view: &View) -> Self {
        let nodes: Vec<Arc<Node>> = view.nodes.shared().cloned().collect();
        let (kind, kinds) = kinds(&nodes);
        let (conformance_group, conformance_groups) = conformance_groups(&nodes);
        let (topology_group, topology_groups) = topology_groups(&nodes);
        let index: HashMap<NodeId, usize> = nodes.iter().enumerate().map(|(at, node)| (node.id.clone(), at)).collect();
        let calendar = Calendar::of(view, &index, nodes.len());
        let alike = nodes.iter().enumerate().map(|(at, node)| Likeness {
            kind: kind[at],
            conformance_group: has_conformance_group(node).then_some(conformance_group[at]),
            topology_group: topology_group[at],
            windows: calendar.list_of(at),
        });
        let none = NodeSet::empty(nodes.len());
        let mut place = vec![0; nodes.len()];
        for (at, node) in hostlist::by_name(nodes.iter().map(|node| &node.id)).into_iter().enumerate() {
            place[index[node]] = at;
        }
        let mut columns = Self {
            index,
            place,
            alike: Alike::of(alike),
            calendar,
            conformance_group,
            conformance_groups,
            topology_group,
            topology_groups,
            has_drifted: nodes.iter().map(|node| has_drifted(node)).collect(),
            kind,
            kinds,
            gpus_most: nodes.iter().map(|node| node.size.gpus).max().unwrap_or_default(),
            alive: none.clone(),
            claimable: none.clone(),
            up: none.clone(),
            leaving: none,
            nodes,
        };
        columns.set_alive(view);
        for at in 0..columns.nodes.len() {
            columns.set_service(at);
        }
        columns
    }

    /// Updates which nodes gossip shows as alive.
    pub fn set_alive(&mut self, view: &View) {
        self.alive = NodeSet::empty(self.nodes.len());
        // Both are in the order of ids.
        let mut alive = view.alive.iter().peekable();
        for (at, node) in self.nodes.iter().enumerate() {
            while alive.next_if(|id| **id < node.id).is_some() {}
            if alive.peek().is_some_and(|id| **id == node.id) {
                self.alive.insert(at);
            }
        }
        self.up = self.claimable.clone();
        self.up.keep(&self.alive);
    }

    /// Replaces a node's record by a newer one that is alike ([`is_alike`]).
    pub fn set_node(&mut self, at: usize, node: &Arc<Node>) {
        self.nodes[at] = Arc::clone(node);
        self.set_service(at);
    }

    fn set_service(&mut self, at: usize) {
        let node = &self.nodes[at];
        let is_claimable = node.unclaimable().is_none();
        self.claimable.set(at, is_claimable);
        self.up.set(at, is_claimable && self.alive.contains(at));
        self.leaving.set(at, !node.leaving.is_empty());
    }

    /// Asserts that all columns are equal.
    #[cfg(test)]
    pub fn assert_equal(&self, other: &Self) {
        assert_eq!(self.nodes, other.nodes);
        assert_eq!(self.index, other.index);
        assert_eq!((&self.conformance_group, &self.topology_group), (&other.conformance_group, &other.topology_group));
        assert_eq!((&self.kind, &self.kinds, &self.has_drifted), (&other.kind, &other.kinds, &other.has_drifted));
        assert_eq!((&self.up, &self.leaving, self.gpus_most), (&other.up, &other.leaving, other.gpus_most));
        assert_eq!((&self.alive, &self.claimable), (&other.alive, &other.claimable));
        assert_eq!((self.conformance_groups, self.topology_groups), (other.conformance_groups, other.topology_groups));
        assert_eq!((&self.alike, &self.calendar), (&other.alike, &other.calendar));
    }
}

/// Whether the columns that are read from a node's registration are the same for both records of it.
pub fn is_alike(one: &Node, other: &Node) -> bool {
    let same_place = one.id == other.id && one.home == other.home && one.topology_group == other.topology_group;
    let same_make = one.size == other.size && one.features == other.features && one.locality == other.locality;
    let same_use = one.schedulable == other.schedulable && has_drifted(one) == has_drifted(other);
    same_place && same_make && same_use && group(one) == group(other)
}

fn group(node: &Node) -> Option<&str> {
    node.conformance.as_ref().and_then(Conformance::group)
}

fn has_drifted(node: &Node) -> bool {
    node.conformance.as_ref().is_some_and(|c| c.drift.is_some())
}

/// Whether other nodes can be in its conformance group.
fn has_conformance_group(node: &Node) -> bool {
    group(node).is_some()
}

/// The number of each node's conformance group, and how many groups there are.
fn conformance_groups(nodes: &[Arc<Node>]) -> (Vec<usize>, usize) {
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    let mut count = 0;
    let mut numbers = Vec::with_capacity(nodes.len());
    for node in nodes {
        let mut next = || {
            count += 1;
            count - 1
        };
        numbers.push(match group(node) {
            Some(fingerprint) => *known.entry(fingerprint).or_insert_with(next),
            None => next(),
        });
    }
    (numbers, count)
}

/// The number of each node's topology group, and how many groups there are.
fn topology_groups(nodes: &[Arc<Node>]) -> (Vec<usize>, usize) {
    let mut known: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    let mut numbers = Vec::with_capacity(nodes.len());
    for node in nodes {
        let next = known.len();
        numbers.push(*known.entry(node.topology_group.as_deref()).or_insert(next));
    }
    (numbers, known.len())
}

/// The kind of each node, and a node of each kind: equal in all that decides whether a node could
/// ever serve work that names no nodes, and in how it is wired.
fn kinds(nodes: &[Arc<Node>]) -> (Vec<usize>, Vec<usize>) {
    let mut known = BTreeMap::new();
    let mut kinds = Vec::new();
    // Neighbours are mostly of one kind.
    let mut last = None;
    let kind = nodes.iter().enumerate().map(|(at, node)| {
        let size = (node.size.cores, node.size.memory_bytes, node.size.gpus);
        let key = (&node.home, node.schedulable, size, &node.features, &node.locality, has_conformance_group(node), has_drifted(node));
        if let Some((_, kind)) = last.filter(|(of_last, _)| *of_last == key) {
            return kind;
        }
        let kind = *known.entry(key).or_insert_with(|| {
            kinds.push(at);
            kinds.len() - 1
        });
        last = Some((key, kind));
        kind
    });
    let kind = kind.collect();
    (kind, kinds)
}
