//! Waiting work in classes: the same nodes could ever serve all work of one class.

use crate::grouping;
use crate::locality;
use crate::misfit;
use crate::node_set::NodeSet;
use crate::replicas::service_of;
use crate::state::{Part, State};
use lattice_model::{Allocation, AllocationId, Resources, Topology};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// For each kind of node, whether it can serve.
pub type Kinds = Rc<[bool]>;

/// Beside what on a node a share may be. The same for all that want whole nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Beside {
    /// Whose it is: see [`crate::owners::Owners`].
    who: u32,
    /// The service of which it is a replica, if it is one.
    replica_of: Option<AllocationId>,
}

impl Beside {
    fn of(state: &State<'_>, allocation: &Allocation) -> Self {
        if allocation.spec.share.is_none() {
            return Self { who: 0, replica_of: None };
        }
        Self { who: state.owners.number(allocation), replica_of: service_of(allocation) }
    }
}

/// Work that is equal in all that decides which nodes could ever serve it, and beside what.
#[derive(Clone)]
pub struct Class<'a> {
    /// One of its allocations.
    like: &'a Allocation,
    beside: Beside,
    /// The nodes that could ever serve it: they are registered, in its vCluster, schedulable, large
    /// enough, with the constraints that it asks for, and not now excluded for it.
    pub candidates: Rc<NodeSet>,
    /// Which kinds of nodes these are. `None`: not all nodes of a kind, or few nodes are alike.
    pub kinds: Option<Kinds>,
    /// How many of these could serve one allocation together, for 1, 2, … topology groups at most.
    reach: Rc<[usize]>,
    /// How much a share gets of a node of each kind: they are equal in size.
    amounts: OnceCell<Rc<[Resources]>>,
    /// How well the wiring of a node suits it, of the best of these; see [`locality::fitness`].
    pub fitness_within: Option<f64>,
    /// How much memory it gets of a node, in bytes; for whole nodes, of one of these.
    pub memory_bytes: u64,
}

impl Class<'_> {
    /// How much it gets of this node; `None`: the whole node.
    pub fn part(&self, state: &State<'_>, node: usize) -> Option<Part> {
        let spec = &self.like.spec;
        spec.share?;
        let of_kinds = || state.kinds.iter().map(|node| spec.amount_of(&state.nodes[*node].size)).collect();
        let Beside { who, replica_of } = self.beside;
        Some(Part { amount: self.amounts.get_or_init(of_kinds)[state.kind[node]], who, replica_of })
    }

    /// How many of its candidates could serve one allocation together.
    pub fn possible(&self) -> usize {
        self.reach.last().copied().unwrap_or(0)
    }

    /// The fewest topology groups with so many candidates that could serve together. `None`: all of them
    /// have fewer.
    pub fn groups_needed(&self, nodes: u32) -> Option<usize> {
        let fewer = self.reach.partition_point(|most| *most < nodes as usize);
        (fewer < self.reach.len()).then_some(fewer + 1)
    }

    /// Of how many topology groups the nodes of one of its allocations may be.
    pub fn groups_max(&self, allocation: &Allocation) -> usize {
        match self.like.spec.constraints.topology {
            Topology::Any => grouping::ANY,
            Topology::Tight => self.groups_needed(allocation.spec.nodes).unwrap_or(grouping::ANY),
        }
    }
}

/// All classes of a view.
#[derive(Default)]
pub struct Classes<'a> {
    pub all: Vec<Class<'a>>,
    /// By what work asks for ([`Likenesses`]): beside what it may be, and the class.
    by_likeness: Vec<Vec<(Beside, usize)>>,
    /// Sets of candidates by the kinds of nodes that can serve. Classes share them.
    by_kinds: BTreeMap<Kinds, Rc<NodeSet>>,
    /// See [`Class::reach`], by kinds, and whether one conformance group is required.
    reach: BTreeMap<(Kinds, bool), Rc<[usize]>>,
}

impl<'a> Classes<'a> {
    /// The class of an allocation of which this is the number of what it asks for.
    pub fn of(&mut self, state: &State<'a>, allocation: &'a Allocation, likeness: usize) -> usize {
        let beside = Beside::of(state, allocation);
        if self.by_likeness.len() <= likeness {
            self.by_likeness.resize_with(likeness + 1, Vec::new);
        }
        let alike = &mut self.by_likeness[likeness];
        if let Some((_, class)) = alike.iter().find(|(of_class, _)| *of_class == beside) {
            return *class;
        }
        let of_others = alike.first().map(|(_, class)| *class);
        alike.push((beside, self.all.len()));
        if let Some(other) = of_others {
            self.all.push(Class { like: allocation, beside, ..self.all[other].clone() });
            return self.all.len() - 1;
        }
        let (candidates, kinds) = self.candidates(state, allocation);
        let reach = || grouping::reach(state, candidates.iter(), &allocation.spec).into();
        let reach = match &kinds {
            Some(kinds) => Rc::clone(self.reach.entry((Rc::clone(kinds), allocation.spec.constraints.conformance)).or_insert_with(reach)),
            None => reach(),
        };
        let of_first_node = || candidates.iter().next().map_or(0, |node| state.nodes[node].size.memory_bytes);
        let memory_bytes = allocation.spec.share.map_or_else(of_first_node, |share| share.memory_bytes);
        let fitness_within = fitness_within(state, allocation, &candidates);
        self.all.push(Class { like: allocation, beside, candidates, kinds, reach, amounts: OnceCell::new(), fitness_within, memory_bytes });
        self.all.len() - 1
    }

    /// The candidates, and their kinds; see [`Class`].
    fn candidates(&mut self, state: &State<'a>, allocation: &Allocation) -> (Rc<NodeSet>, Option<Kinds>) {
        let named = state.view.named(allocation);
        let fits = |node: usize| {
            let node = state.nodes[node];
            misfit::never_serves(named, &allocation.spec, node).is_none() && allocation.spec.lacked_by(node).is_none()
        };
        let select = |wanted: &dyn Fn(usize) -> bool| {
            let mut set = NodeSet::empty(state.nodes.len());
            (0..state.nodes.len()).filter(|node| wanted(*node)).for_each(|node| set.insert(node));
            set
        };
        if !allocation.spec.constraints.nodes.is_empty() {
            let is_named = |node: usize| allocation.spec.constraints.nodes.contains(&state.nodes[node].id);
            return (Rc::new(select(&|node| is_named(node) && fits(node) && !is_excluded(state, allocation, node))), None);
        }
        let kinds: Kinds = state.kinds.iter().map(|node| fits(*node)).collect();
        if allocation.excluded.iter().any(|excluded| excluded.until.is_some()) {
            return (Rc::new(select(&|node| kinds[state.kind[node]] && !is_excluded(state, allocation, node))), None);
        }
        if let Some(known) = self.by_kinds.get(&kinds) {
            return (Rc::clone(known), state.untouched.has_few_groups().then_some(kinds));
        }
        let set = Rc::new(select(&|node| kinds[state.kind[node]]));
        self.by_kinds.insert(Rc::clone(&kinds), Rc::clone(&set));
        (set, state.untouched.has_few_groups().then_some(kinds))
    }
}

/// The fitness of the best candidate's wiring. All nodes of a kind are wired alike.
fn fitness_within(state: &State<'_>, allocation: &Allocation, candidates: &NodeSet) -> Option<f64> {
    let is_by_name = !allocation.spec.constraints.nodes.is_empty() || !allocation.excluded.is_empty();
    let kinds: BTreeSet<usize> = if is_by_name {
        candidates.iter().map(|node| state.kind[node]).collect()
    } else {
        (0..state.kinds.len()).filter(|kind| candidates.contains(state.kinds[*kind])).collect()
    };
    let fitness = |kind: usize| {
        let node = state.nodes[state.kinds[kind]];
        locality::fitness(&node.locality, &allocation.spec.amount_of(&node.size))
    };
    kinds.into_iter().filter_map(fitness).max_by(f64::total_cmp)
}

fn is_excluded(state: &State<'_>, allocation: &Allocation, node: usize) -> bool {
    allocation.exclusion(&state.nodes[node].id).is_some()
}
