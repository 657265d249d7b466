//! Waiting work in classes: the same nodes could ever serve all work of one class. A
//! [`crate::State`] keeps them from one plan to the next.

use crate::columns::Columns;
use crate::grouping;
use crate::likeness::{hash, is_alike};
use crate::locality;
use crate::misfit;
use crate::node_set::NodeSet;
use crate::owners::{Owners, Who};
use crate::replicas::service_of;
use crate::span::Part;
use crate::view::View;
use lattice_model::{Allocation, AllocationId, Constraints, Resources, Topology};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

/// Classes are discarded when they are more than this many times the classes with waiting work.
const KEPT_FACTOR_MAX: usize = 2;
/// This many classes are kept, even if little work waits.
const KEPT_MIN: usize = 1024;

/// For each kind of node, whether it can serve.
pub type Kinds = Arc<[bool]>;

/// Decides which other shares may be on a node beside a share. Equal for all work on whole nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Beside {
    who: Who,
    /// The service of which it is a replica, if it is one.
    replica_of: Option<AllocationId>,
}

impl Beside {
    fn of(owners: &Owners, allocation: &Allocation) -> Self {
        if allocation.spec.share.is_none() {
            return Self { who: Who::default(), replica_of: None };
        }
        Self { who: owners.who(allocation), replica_of: service_of(allocation) }
    }
}

/// Work that is equal in everything that decides which nodes could ever serve it, and beside which
/// other shares.
#[derive(Clone)]
pub struct Class {
    /// One of its allocations.
    like: Arc<Allocation>,
    beside: Beside,
    /// The nodes that could ever serve it: they are registered, in its vCluster, schedulable, large
    /// enough, with the constraints that it asks for, of the reservation that it names, and not now excluded for it.
    pub candidates: Arc<NodeSet>,
    /// The kinds of the candidates. `None`: they are not all nodes of their kinds, or few nodes are
    /// alike.
    pub kinds: Option<Kinds>,
    /// How many candidates could serve one allocation together, in at most 1, 2, … topology groups.
    reach: Arc<[usize]>,
    /// A share's part of a node, for each kind of nodes: nodes of a kind are equal in size.
    amounts: OnceLock<Arc<[Resources]>>,
    /// How well the wiring of the best candidate suits it; see [`locality::fitness`].
    pub fitness_within: Option<f64>,
    /// How much memory it gets on a node, in bytes; for whole nodes, the memory of one candidate.
    pub memory_bytes: u64,
}

impl Class {
    /// Everything but its candidates, as a text.
    #[cfg(test)]
    pub fn facts(&self) -> String {
        format!("{:?} {:?} {:?} {}", self.kinds, self.reach, self.fitness_within, self.memory_bytes)
    }

    /// Its part of this node; `None`: the whole node.
    pub fn part(&self, columns: &Columns, node: usize) -> Option<Part> {
        let spec = &self.like.spec;
        spec.share?;
        let of_kinds = || columns.kinds.iter().map(|node| spec.amount_of(&columns.nodes[*node].size)).collect();
        let Beside { who, replica_of } = self.beside;
        Some(Part { amount: self.amounts.get_or_init(of_kinds)[columns.kind[node]], who, replica_of })
    }

    /// The reservation that its work names, if it does.
    pub fn reservation(&self) -> Option<&str> {
        self.like.spec.reservation.as_deref()
    }

    /// How many of its candidates could serve one allocation together.
    pub fn possible(&self) -> usize {
        let groups = match self.like.spec.constraints.topology {
            Topology::Any | Topology::Tight | Topology::Contiguous => self.reach.len(),
            Topology::AtMost(groups) => self.reach.len().min(groups as usize),
        };
        groups.checked_sub(1).map_or(0, |last| self.reach[last])
    }

    /// The fewest topology groups that have this many candidates which could serve together.
    /// `None`: even all groups have fewer.
    pub fn groups_needed(&self, nodes: u32) -> Option<usize> {
        let fewer = self.reach.partition_point(|most| *most < nodes as usize);
        (fewer < self.reach.len()).then_some(fewer + 1)
    }

    /// From how many topology groups an allocation may have nodes, at most.
    pub fn groups_max(&self, allocation: &Allocation) -> usize {
        match self.like.spec.constraints.topology {
            Topology::Any | Topology::Contiguous => grouping::ANY,
            Topology::Tight => self.groups_needed(allocation.spec.nodes).unwrap_or(grouping::ANY),
            Topology::AtMost(groups) => groups as usize,
        }
    }
}

/// All classes of waiting work, and some classes without waiting work.
#[derive(Default)]
pub struct Classes {
    pub all: Vec<Class>,
    /// The number of waiting allocations of each class.
    members: Vec<usize>,
    /// The number of classes with waiting work.
    in_use: usize,
    /// Groups of classes that differ only in [`Beside`]; each entry has that and the class.
    alike: Vec<Vec<(Beside, usize)>>,
    /// The indexes in `alike`, by hash.
    by_hash: HashMap<u64, Vec<usize>>,
    /// Sets of candidates by the kinds of nodes that can serve. Classes share them.
    by_kinds: BTreeMap<Kinds, Arc<NodeSet>>,
    /// See [`Class::reach`], by kinds, and whether one conformance group is required. Only of work
    /// whose nodes may have any features.
    reach: BTreeMap<(Kinds, bool), Arc<[usize]>>,
}

impl Classes {
    /// Adds an allocation, and returns the number of its class.
    pub fn add(&mut self, columns: &Columns, view: &View, owners: &Owners, allocation: &Arc<Allocation>) -> usize {
        let class = self.class_of(columns, view, owners, allocation);
        self.in_use += usize::from(self.members[class] == 0);
        self.members[class] += 1;
        class
    }

    /// Removes an allocation of this class that no longer waits.
    pub fn remove(&mut self, class: usize) {
        self.members[class] -= 1;
        self.in_use -= usize::from(self.members[class] == 0);
    }

    /// The number of waiting allocations of each class, and the number of classes with waiting
    /// work.
    #[cfg(test)]
    pub fn counts(&self) -> (&[usize], usize) {
        (&self.members, self.in_use)
    }

    /// Whether most classes are of no use any more.
    pub fn are_too_many(&self) -> bool {
        self.all.len() > KEPT_MIN.max(KEPT_FACTOR_MAX * self.in_use)
    }

    fn class_of(&mut self, columns: &Columns, view: &View, owners: &Owners, allocation: &Arc<Allocation>) -> usize {
        let (beside, next) = (Beside::of(owners, allocation), self.alike.len());
        let same_hash = self.by_hash.entry(hash(allocation)).or_default();
        let is_like = |alike: &[(Beside, usize)]| alike.first().is_some_and(|(_, class)| is_alike(&self.all[*class].like, allocation));
        let likeness = same_hash.iter().copied().find(|likeness| is_like(&self.alike[*likeness])).unwrap_or(next);
        if likeness == next {
            same_hash.push(next);
            self.alike.push(Vec::new());
        }
        let alike = &mut self.alike[likeness];
        if let Some((_, class)) = alike.iter().find(|(of_class, _)| *of_class == beside) {
            return *class;
        }
        let of_others = alike.first().map(|(_, class)| *class);
        alike.push((beside, self.all.len()));
        let class = match of_others {
            Some(other) => Class { like: Arc::clone(allocation), beside, ..self.all[other].clone() },
            None => self.new_class(columns, view, allocation, beside),
        };
        self.all.push(class);
        self.members.push(0);
        self.all.len() - 1
    }

    fn new_class(&mut self, columns: &Columns, view: &View, allocation: &Arc<Allocation>, beside: Beside) -> Class {
        let (candidates, kinds) = self.candidates(columns, view, allocation);
        let reach = || grouping::reach(columns, candidates.iter(), &allocation.spec).into();
        let reach = match kinds.as_ref().filter(|_| allocation.spec.constraints.together().is_none()) {
            Some(kinds) => Arc::clone(self.reach.entry((Arc::clone(kinds), allocation.spec.constraints.conformance)).or_insert_with(reach)),
            None => reach(),
        };
        let of_first_node = || candidates.iter().next().map_or(0, |node| columns.nodes[node].size.memory_bytes);
        let memory_bytes = allocation.spec.share.map_or_else(of_first_node, |share| share.memory_bytes);
        let fitness_within = fitness_within(columns, allocation, &candidates);
        let like = Arc::clone(allocation);
        Class { like, beside, candidates, kinds, reach, amounts: OnceLock::new(), fitness_within, memory_bytes }
    }

    /// The candidates, and their kinds; see [`Class`].
    fn candidates(&mut self, columns: &Columns, view: &View, allocation: &Allocation) -> (Arc<NodeSet>, Option<Kinds>) {
        let named = view.named(allocation);
        let fits = |node: usize| {
            let node = &columns.nodes[node];
            misfit::never_serves(named, &allocation.spec, node).is_none() && allocation.spec.lacked_by(node).is_none()
        };
        let select = |wanted: &dyn Fn(usize) -> bool| {
            let mut set = NodeSet::empty(columns.nodes.len());
            (0..columns.nodes.len()).filter(|node| wanted(*node)).for_each(|node| set.insert(node));
            set
        };
        if is_by_name(allocation) {
            let Constraints { nodes, excluded, .. } = &allocation.spec.constraints;
            let reserved = allocation.spec.reservation.as_ref().map(|name| view.reservations.get(name));
            let is_named = |node: usize| {
                let id = &columns.nodes[node].id;
                let is_reserved = reserved.is_none_or(|reservation| reservation.is_some_and(|of| of.nodes.contains(id)));
                is_reserved && (nodes.is_empty() || nodes.contains(id)) && !excluded.contains(id)
            };
            return (Arc::new(select(&|node| is_named(node) && fits(node) && !is_excluded(columns, allocation, node))), None);
        }
        let kinds: Kinds = columns.kinds.iter().map(|node| fits(*node)).collect();
        if allocation.excluded.iter().any(|excluded| excluded.until.is_some()) {
            return (Arc::new(select(&|node| kinds[columns.kind[node]] && !is_excluded(columns, allocation, node))), None);
        }
        if let Some(known) = self.by_kinds.get(&kinds) {
            return (Arc::clone(known), columns.alike.has_few_groups().then_some(kinds));
        }
        let set = Arc::new(select(&|node| kinds[columns.kind[node]]));
        self.by_kinds.insert(Arc::clone(&kinds), Arc::clone(&set));
        (set, columns.alike.has_few_groups().then_some(kinds))
    }
}

/// Whether nodes of one kind may serve it differently: it names or excludes nodes, names a
/// reservation, or wants contiguous nodes.
fn is_by_name(allocation: &Allocation) -> bool {
    let constraints = &allocation.spec.constraints;
    let spec = &allocation.spec;
    !constraints.nodes.is_empty() || !constraints.excluded.is_empty() || spec.reservation.is_some() || grouping::is_contiguous(spec)
}

/// The fitness of the best candidate's wiring. All nodes of a kind are wired alike.
fn fitness_within(columns: &Columns, allocation: &Allocation, candidates: &NodeSet) -> Option<f64> {
    let kinds: BTreeSet<usize> = if is_by_name(allocation) || !allocation.excluded.is_empty() {
        candidates.iter().map(|node| columns.kind[node]).collect()
    } else {
        (0..columns.kinds.len()).filter(|kind| candidates.contains(columns.kinds[*kind])).collect()
    };
    let fitness = |kind: usize| {
        let node = &columns.nodes[columns.kinds[kind]];
        locality::fitness(&node.locality, &allocation.spec.amount_of(&node.size))
    };
    kinds.into_iter().filter_map(fitness).max_by(f64::total_cmp)
}

fn is_excluded(columns: &Columns, allocation: &Allocation, node: usize) -> bool {
    allocation.exclusion(&columns.nodes[node].id).is_some()
}
