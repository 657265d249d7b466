//! The view in columns by node index, with what is held of each node and until when.

use crate::node_set::NodeSet;
use crate::owners::Owners;
use crate::replicas::service_of;
use crate::untouched::{Likeness, Untouched};
use crate::view::View;
use lattice_model::spec::WALLTIME_MAX;
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, Conformance, Node, NodeId, NodeState, Resources, SharePhase, Timestamp, millis,
};
use std::collections::{BTreeMap, HashMap};

/// Work past its walltime, and work that has ended and is not released yet, counts as gone so many
/// milliseconds from now.
const OVERDUE_GRACE_MS: u64 = 60_000;
/// A node that has been out of service for less than this, in milliseconds, is expected back.
pub const OUTAGE_MS_MAX: u64 = 15 * 60_000;

/// The longest walltime in milliseconds: what runs without one counts as running so long from now.
fn walltime_ms_max() -> u64 {
    millis(WALLTIME_MAX)
}

/// How long this work lasts at most once it has begun, in milliseconds. Work without a walltime has
/// no end: it never begins on nodes that are reserved, however late the reservation begins.
pub fn duration_ms(spec: &AllocationSpec) -> u64 {
    spec.walltime.map_or(u64::MAX, millis)
}

/// A part of a node that is held for a time.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// When it begins, in milliseconds; for work that holds it already, now.
    pub start_ms: u64,
    /// When it is free again at the latest.
    pub end_ms: u64,
    pub amount: Resources,
    pub by: AllocationId,
    /// Whose it is: see [`Owners`].
    pub who: u32,
    /// The service of which it is a replica, if it is one.
    pub replica_of: Option<AllocationId>,
    /// Whether the work has a walltime.
    pub has_end: bool,
    /// Whether it is of this plan: the work does not hold it yet.
    pub is_planned: bool,
}

/// The part of a node that work asks for.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub amount: Resources,
    /// Whose it would be: see [`Owners`]. Nothing of anybody else may hold a part of the node at the
    /// same time.
    pub who: u32,
    /// The service of which it would be a replica, if it is one. No other replica of it may hold a part
    /// of the node at the same time.
    pub replica_of: Option<AllocationId>,
}

impl Span {
    /// Whether this part may not be held at the same time, however much of the node is free.
    fn keeps_off(&self, part: &Part) -> bool {
        self.who != part.who || (part.replica_of.is_some() && self.replica_of == part.replica_of)
    }
}

/// Whether a node can take work now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Up,
    /// It is out of service since a short time, and expected back.
    BackSoon,
    /// It is out of service, and nobody knows until when.
    Away,
}

/// See the module documentation. Nodes are in the order of their ids.
pub struct State<'a> {
    pub view: &'a View,
    pub now_ms: u64,
    pub nodes: Vec<&'a Node>,
    /// Where each node is among them.
    pub index: HashMap<&'a NodeId, usize>,
    pub service: Vec<Service>,
    /// The conformance group of each node; a node that belongs to none has a number of its own.
    pub conformance_group: Vec<usize>,
    pub conformance_groups: usize,
    /// The topology group of each node; those without one are in one together.
    pub topology_group: Vec<usize>,
    pub topology_groups: usize,
    pub has_drifted: Vec<bool>,
    /// The kind of each node: nodes of one kind can serve the same work, and equally well.
    pub kind: Vec<usize>,
    /// A node of each kind.
    pub kinds: Vec<usize>,
    /// What is held of each node, the latest end first.
    pub spans: Vec<Vec<Span>>,
    /// How much of each node is free now.
    pub free_now: Vec<Resources>,
    /// The nodes in service of which something is free now.
    pub open: NodeSet,
    /// Those of them of which nothing is held now.
    pub vacant: NodeSet,
    /// Those of them of which nothing is held, now or later.
    pub untouched: Untouched,
    /// For each node, when the latest reservation begins that could be moved to it; 0: there is none.
    pub floor_ms: Vec<u64>,
    pub owners: Owners<'a>,
}

impl<'a> State<'a> {
    pub fn of(view: &'a View, now: Timestamp) -> Self {
        let nodes: Vec<&Node> = view.nodes.values().collect();
        let (kind, kinds) = kinds(&nodes);
        let (conformance_group, conformance_groups) = conformance_groups(&nodes);
        let (topology_group, topology_groups) = topology_groups(&nodes);
        let mut alive = view.alive.iter().peekable();
        // Both are in the order of ids.
        let mut is_alive = |node: &Node| {
            while alive.next_if(|id| **id < node.id).is_some() {}
            alive.peek().is_some_and(|id| **id == node.id)
        };
        let service: Vec<Service> = nodes.iter().map(|node| service(view, node, is_alive(node), now)).collect();
        let alike = nodes.iter().enumerate().map(|(at, node)| Likeness {
            kind: kind[at],
            conformance_group: has_conformance_group(node).then_some(conformance_group[at]),
            topology_group: topology_group[at],
        });
        let mut state = Self {
            view,
            now_ms: now.0,
            index: nodes.iter().enumerate().map(|(at, node)| (&node.id, at)).collect(),
            untouched: Untouched::of(alike, |node| service[node] == Service::Up),
            service,
            conformance_group,
            conformance_groups,
            topology_group,
            topology_groups,
            has_drifted: nodes.iter().map(|node| node.conformance.as_ref().is_some_and(|c| c.drift.is_some())).collect(),
            kind,
            kinds,
            spans: vec![Vec::new(); nodes.len()],
            free_now: Vec::new(),
            open: NodeSet::empty(nodes.len()),
            vacant: NodeSet::empty(nodes.len()),
            floor_ms: vec![0; nodes.len()],
            owners: Owners::of(view),
            nodes,
        };
        state.hold_shares();
        for node in 0..state.nodes.len() {
            let free = state.free_at_ms(node, state.now_ms);
            state.free_now.push(free);
            if state.service[node] == Service::Up && free != Resources::default() {
                state.open.insert(node);
                if state.spans[node].is_empty() {
                    state.vacant.insert(node);
                }
            }
        }
        state
    }

    /// Counts what allocations and leaving shares hold. A share that both the allocation and the node
    /// list counts once, as in [`crate::Holdings`].
    fn hold_shares(&mut self) {
        let view = self.view;
        for allocation in view.allocations.values().filter(|a| !a.state.is_without_nodes()) {
            let end_ms = expected_end_ms(allocation, self.now_ms);
            let has_end = allocation.spec.walltime.is_some() || allocation.state.is_terminal();
            let (who, replica_of) = (self.owners.number(allocation), service_of(allocation));
            for share in allocation.shares.iter().filter(|share| share.phase != SharePhase::Released) {
                let Some(node) = self.index.get(share.node).copied() else { continue };
                let (start_ms, amount, by) = (self.now_ms, share.resources, allocation.id);
                self.hold(node, Span { start_ms, end_ms, amount, by, who, replica_of, has_end, is_planned: false });
            }
        }
        for node in 0..self.nodes.len() {
            let Node { id, leaving, .. } = self.nodes[node];
            for leaving in leaving {
                let record = view.allocations.get(&leaving.allocation);
                if record.is_some_and(|a| a.epoch == leaving.epoch && holds_share(a, id)) {
                    continue;
                }
                // Since the end of its attempt; of work that is not known any more, long ago.
                let ended = record.map(|a| a.attempts.last().map_or(self.now_ms, |attempt| attempt.ended_at.0));
                let (start_ms, end_ms) = (self.now_ms, overdue_end_ms(ended.unwrap_or_default(), self.now_ms));
                let (amount, by, who) = (leaving.resources, leaving.allocation, self.owners.number_of_leaving(leaving));
                let replica_of = record.and_then(service_of);
                self.hold(node, Span { start_ms, end_ms, amount, by, who, replica_of, has_end: true, is_planned: false });
            }
        }
    }

    fn hold(&mut self, node: usize, span: Span) {
        self.untouched.remove(node);
        let spans = &mut self.spans[node];
        let at = spans.partition_point(|other| other.end_ms >= span.end_ms);
        spans.insert(at, span);
    }

    /// Holds a part of a node for work of this plan, from now on or from a reservation's start.
    pub fn plan(&mut self, node: usize, span: Span) {
        self.hold(node, span);
        if span.start_ms > self.now_ms {
            return;
        }
        self.vacant.remove(node);
        self.free_now[node] = self.free_at_ms(node, self.now_ms);
        if self.free_now[node] == Resources::default() {
            self.open.remove(node);
        }
    }

    /// Whether a start is known: a later one depends on the end of work that has no walltime.
    pub fn is_known_start(&self, start_ms: u64) -> bool {
        start_ms < self.now_ms.saturating_add(walltime_ms_max())
    }

    /// How much of the node is free at this time.
    fn free_at_ms(&self, node: usize, at_ms: u64) -> Resources {
        free_at_ms(&self.nodes[node].size, &self.spans[node], at_ms)
    }

    /// Whether so much of the node is free from now until then; `None`: the whole node.
    pub fn is_free_until(&self, node: usize, part: Option<&Part>, until_ms: u64) -> bool {
        part.is_none_or(|part| self.free_now[node].holds(&part.amount)) && self.is_free_beside(node, part, until_ms, |_| true)
    }

    /// The same, counting only spans for which `counts` is true.
    pub fn is_free_beside(&self, node: usize, part: Option<&Part>, until_ms: u64, counts: impl Fn(&Span) -> bool) -> bool {
        let mut spans = self.spans[node].iter().filter(|span| counts(span));
        let Some(part) = part else { return spans.all(|span| span.start_ms >= until_ms) };
        if spans.clone().any(|span| span.keeps_off(part) && span.start_ms < until_ms) {
            return false;
        }
        let later = spans.clone().map(|span| span.start_ms).filter(|start_ms| (self.now_ms + 1..until_ms).contains(start_ms));
        let mut times = std::iter::once(self.now_ms).chain(later);
        times.all(|at_ms| free_at_ms(&self.nodes[node].size, spans.clone(), at_ms).holds(&part.amount))
    }

    /// Whether so much of the node is free now, without the work of this plan.
    pub fn is_free_in_view(&self, node: usize, part: Option<&Part>) -> bool {
        let Some(part) = part else { return self.held_in_view(node).next().is_none() };
        self.has_amount_in_view(node, &part.amount) && !self.held_in_view(node).any(|span| span.keeps_off(part))
    }

    /// The same for an amount, whoever and whatever holds the rest.
    pub fn has_amount_in_view(&self, node: usize, amount: &Resources) -> bool {
        let held = self.held_in_view(node).fold(Resources::default(), |sum, span| sum.plus(&span.amount));
        self.nodes[node].size.minus(&held).holds(amount)
    }

    /// What holds a part of the node now, without the work of this plan.
    pub fn held_in_view(&self, node: usize) -> impl Iterator<Item = &Span> {
        self.spans[node].iter().filter(|span| !span.is_planned)
    }

    /// When so much of the node is free for good: all that holds it at that time has begun. `None`:
    /// the whole node. Work with an end (`ends`) may use it before a reservation whose start is not
    /// known.
    pub fn free_from_ms(&self, node: usize, part: Option<&Part>, ends: bool) -> u64 {
        let counts = |span: &&Span| !(ends && span.is_planned && !self.is_known_start(span.start_ms));
        let mut spans = self.spans[node].iter().filter(counts);
        let Some(part) = part else { return spans.next().map_or(self.now_ms, |span| span.end_ms) };
        let mut held = Resources::default();
        for span in spans {
            held = held.plus(&span.amount);
            if span.keeps_off(part) || !self.nodes[node].size.minus(&held).holds(&part.amount) {
                return span.end_ms;
            }
        }
        self.now_ms
    }
}

fn free_at_ms<'s>(size: &Resources, spans: impl IntoIterator<Item = &'s Span>, at_ms: u64) -> Resources {
    let active = spans.into_iter().filter(|span| span.start_ms <= at_ms && at_ms < span.end_ms);
    size.minus(&active.fold(Resources::default(), |sum, span| sum.plus(&span.amount)))
}

fn holds_share(allocation: &Allocation, node: &NodeId) -> bool {
    let share = allocation.shares.rank_of(node).and_then(|rank| allocation.shares.get(rank));
    !allocation.state.is_without_nodes() && share.is_some_and(|share| share.phase != SharePhase::Released)
}

/// The end of the minute of this time. An end that is counted from now moves on with each plan; so
/// what people see of it changes once a minute.
fn minute_end_ms(at_ms: u64) -> u64 {
    at_ms.div_ceil(60_000).saturating_mul(60_000)
}

/// When work that has nodes is expected to have given them back.
fn expected_end_ms(allocation: &Allocation, now_ms: u64) -> u64 {
    if allocation.state.is_terminal() {
        return overdue_end_ms(allocation.ended_at.map_or(now_ms, |ended| ended.0), now_ms);
    }
    let end_ms = match (allocation.spec.walltime, allocation.started_at) {
        (None, _) => now_ms + walltime_ms_max(),
        (Some(walltime), Some(started)) => started.0.saturating_add(millis(walltime)),
        // Its walltime counts from the end of the last prologue.
        (Some(walltime), None) => minute_end_ms(now_ms + millis(walltime)),
    };
    let end_ms = if end_ms <= now_ms { overdue_end_ms(end_ms, now_ms) } else { end_ms };
    match &allocation.preemption {
        Some(preemption) if preemption.stands() => {
            let given_back_ms = now_ms.saturating_add(preemption.deadline_ms.max(OVERDUE_GRACE_MS));
            end_ms.min(minute_end_ms(given_back_ms))
        }
        Some(_) | None => end_ms,
    }
}

/// When work is expected to be gone that should have been gone by `due_ms`. If that is long ago, it may
/// last as long as work without a walltime.
fn overdue_end_ms(due_ms: u64, now_ms: u64) -> u64 {
    let is_recent = now_ms.saturating_sub(due_ms) < OUTAGE_MS_MAX;
    if is_recent { minute_end_ms(now_ms + OVERDUE_GRACE_MS) } else { now_ms + walltime_ms_max() }
}

fn service(view: &View, node: &Node, is_alive: bool, now: Timestamp) -> Service {
    if node.unclaimable().is_none() && is_alive {
        return Service::Up;
    }
    let out_since = match node.state {
        // Only gossip does not see it. If that is right, its state changes soon.
        NodeState::Ready if node.unclaimable().is_none() => view.silent_since(node),
        NodeState::Ready => node.holds.iter().map(|hold| hold.since).min().unwrap_or(node.state_since),
        NodeState::Booting | NodeState::Degraded | NodeState::Down | NodeState::Draining | NodeState::Drained | NodeState::Failed => {
            node.state_since
        }
    };
    if now.since_ms(out_since) < OUTAGE_MS_MAX { Service::BackSoon } else { Service::Away }
}

/// Whether other nodes can be in its conformance group.
fn has_conformance_group(node: &Node) -> bool {
    node.conformance.as_ref().and_then(Conformance::group).is_some()
}

/// The number of each node's conformance group, and how many groups there are.
fn conformance_groups(nodes: &[&Node]) -> (Vec<usize>, usize) {
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    let mut count = 0;
    let mut numbers = Vec::with_capacity(nodes.len());
    for node in nodes {
        let mut next = || {
            count += 1;
            count - 1
        };
        numbers.push(match node.conformance.as_ref().and_then(Conformance::group) {
            Some(fingerprint) => *known.entry(fingerprint).or_insert_with(next),
            None => next(),
        });
    }
    (numbers, count)
}

/// The number of each node's topology group, and how many groups there are.
fn topology_groups(nodes: &[&Node]) -> (Vec<usize>, usize) {
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
fn kinds(nodes: &[&Node]) -> (Vec<usize>, Vec<usize>) {
    let mut known = BTreeMap::new();
    let mut kinds = Vec::new();
    // Neighbours are mostly of one kind.
    let mut last = None;
    let kind = nodes.iter().enumerate().map(|(at, node)| {
        let size = (node.size.cores, node.size.memory_bytes, node.size.gpus);
        let has_group = has_conformance_group(node);
        let has_drifted = node.conformance.as_ref().is_some_and(|c| c.drift.is_some());
        let key = (&node.home, node.schedulable, size, &node.features, &node.locality, has_group, has_drifted);
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
