//! The working copy of one plan: the state's columns, with the parts of each node that are held, and
//! until when.

use crate::columns::Columns;
use crate::floors::Floors;
use crate::node_set::NodeSet;
use crate::replicas::service_of;
use crate::span::{
    OUTAGE_MS_MAX, Part, Span, expected_end_ms, free_at_ms, held_by, hold_in_order, holds_share, overdue_end_ms, walltime_ms_max,
};
use crate::state::State;
use crate::untouched::Untouched;
use crate::view::View;
use crate::windows::Windows;
use lattice_model::{AllocationId, Node, NodeState, Resources, Timestamp};
use std::borrow::Cow;

/// Whether a node can take work now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Up,
    /// It has been out of service for a short time, and is expected back.
    BackSoon,
    /// It is out of service, and nobody knows until when.
    Away,
}

/// See the module documentation. Nodes are in the order of their ids.
pub struct Draft<'a> {
    /// The state from which the plan is made.
    pub kept: &'a State,
    pub view: &'a View,
    pub columns: &'a Columns,
    pub now_ms: u64,
    pub nodes: Vec<&'a Node>,
    pub service: Vec<Service>,
    /// The held parts of each node, the latest end first.
    pub spans: Vec<Cow<'a, [Span]>>,
    /// How much of each node is free now.
    pub free_now: Vec<Resources>,
    /// The nodes in service that have something free now.
    pub open: NodeSet,
    /// The nodes in `open` of which nothing is held now.
    pub vacant: NodeSet,
    /// The nodes in service of which nothing is held, now or later.
    pub untouched: Untouched<'a>,
    /// The nodes in service whose span with the latest end leaves no core ([`crate::held::Held::full`]). Nodes
    /// with windows, with spans of this plan, or with spans whose end is counted from now are not among them.
    pub full: NodeSet,
    pub floors: Floors,
    /// When nodes are set aside by reservations.
    pub windows: Windows<'a>,
    /// The nodes of which this plan has reserved something for later.
    reserved: NodeSet,
}

impl<'a> Draft<'a> {
    pub fn of(kept: &'a State, now: Timestamp) -> Self {
        let (view, columns, held) = (&kept.view, &kept.columns, &kept.held);
        let nodes: Vec<&Node> = columns.nodes.iter().map(|node| &**node).collect();
        let service = nodes.iter().enumerate().map(|(at, node)| if columns.up.contains(at) { Service::Up } else { away(view, node, now) });
        let (mut open, mut full) = (held.open.clone(), held.full.clone());
        open.keep(&columns.up);
        full.keep(&columns.up);
        let mut draft = Self {
            kept,
            view,
            columns,
            now_ms: now.0,
            service: service.collect(),
            spans: held.spans.iter().map(|spans| Cow::Borrowed(&spans[..])).collect(),
            free_now: held.free.clone(),
            open,
            vacant: NodeSet::empty(nodes.len()),
            untouched: Untouched::of(&columns.alike, NodeSet::empty(nodes.len())),
            full,
            floors: Floors::none(nodes.len()),
            windows: Windows::of(view, columns, now.0),
            reserved: NodeSet::empty(nodes.len()),
            nodes,
        };
        let mut untouched = columns.up.clone();
        untouched.leave_out(&held.touched);
        for node in draft.hold_moving().iter() {
            let free = draft.free_at_ms(node, draft.now_ms);
            draft.free_now[node] = free;
            draft.open.set(node, columns.up.contains(node) && free != Resources::default());
            draft.full.remove(node);
            untouched.set(node, columns.up.contains(node) && draft.spans[node].is_empty());
        }
        draft.vacant = draft.open.clone();
        draft.vacant.keep(&untouched);
        // The ends of their spans do not tell when these nodes are available.
        for node in draft.windows.nodes(draft.now_ms) {
            draft.full.remove(node);
        }
        draft.untouched = Untouched::of(&columns.alike, untouched);
        draft
    }

    /// Adds spans of work whose end is counted from now, and of leaving shares. A share that both the
    /// allocation and the node list counts once, as in [`crate::Holdings`]. Returns the nodes whose spans
    /// now differ from the state's.
    fn hold_moving(&mut self) -> NodeSet {
        let (kept, mut changed) = (self.kept, NodeSet::empty(self.nodes.len()));
        let mut moving: Vec<AllocationId> = kept.held.moving.iter().copied().collect();
        for id in kept.held.overdue(self.now_ms) {
            for share in kept.holders.get(&id).into_iter().flat_map(|allocation| allocation.shares.iter()) {
                let Some(node) = self.columns.index.get(share.node).copied() else { continue };
                self.spans[node].to_mut().retain(|span| span.by != id);
                changed.insert(node);
            }
            moving.push(id);
        }
        for allocation in moving.iter().filter_map(|id| kept.holders.get(id)) {
            let end_ms = expected_end_ms(allocation, self.now_ms);
            for (node, span) in held_by(self.columns, allocation, kept.owners.who(allocation), end_ms) {
                hold_in_order(self.spans[node].to_mut(), span);
                changed.insert(node);
            }
        }
        for node in self.columns.leaving.iter() {
            self.hold_leaving(node);
            changed.insert(node);
        }
        changed
    }

    fn hold_leaving(&mut self, node: usize) {
        let Node { id, leaving, .. } = self.nodes[node];
        for leaving in leaving {
            let record = self.view.allocations.get(&leaving.allocation);
            if record.is_some_and(|a| a.epoch == leaving.epoch && holds_share(a, id)) {
                continue;
            }
            // The end of its attempt; long ago for work that is not known any more.
            let ended = record.map(|a| a.attempts.last().map_or(self.now_ms, |attempt| attempt.ended_at.0));
            let end_ms = overdue_end_ms(ended.unwrap_or_default(), self.now_ms);
            let (amount, by, who) = (leaving.resources, leaving.allocation, self.kept.owners.who_of_leaving(leaving));
            let replica_of = record.and_then(service_of);
            self.hold(node, Span { start_ms: 0, end_ms, amount, by, who, replica_of, has_end: true, is_planned: false });
        }
    }

    /// Inserts a span after all spans that do not end earlier.
    fn hold(&mut self, node: usize, span: Span) {
        let spans = self.spans[node].to_mut();
        let at = spans.partition_point(|other| other.end_ms >= span.end_ms);
        spans.insert(at, span);
    }

    /// Holds a part of a node for work of this plan, from now on or from a reservation's start.
    pub fn plan(&mut self, node: usize, span: Span) {
        self.untouched.remove(node);
        self.full.remove(node);
        self.hold(node, span);
        if span.start_ms > self.now_ms {
            self.reserved.insert(node);
            return;
        }
        self.vacant.remove(node);
        self.free_now[node] = self.free_at_ms(node, self.now_ms);
        if self.free_now[node] == Resources::default() {
            self.open.remove(node);
        }
    }

    /// Whether a start is known; otherwise it depends on the end of work that has no walltime.
    pub fn is_known_start(&self, start_ms: u64) -> bool {
        start_ms < self.now_ms.saturating_add(walltime_ms_max())
    }

    /// How much of the node is free at this time.
    fn free_at_ms(&self, node: usize, at_ms: u64) -> Resources {
        free_at_ms(&self.nodes[node].size, self.spans[node].iter(), at_ms)
    }

    /// Whether no window of another reservation than this one blocks the node from now until `until_ms`.
    pub fn is_open_until(&self, node: usize, reservation: Option<&str>, until_ms: u64) -> bool {
        self.windows.first(node, reservation, self.now_ms, until_ms).is_none()
    }

    /// [`Self::is_open_until`] for nodes with these windows: [`crate::calendar::Calendar::list_of`].
    pub fn are_open_until(&self, windows: usize, reservation: Option<&str>, until_ms: u64) -> bool {
        self.windows.first_of(windows, reservation, self.now_ms, until_ms).is_none()
    }

    /// Whether this part of the node is free from now until `until_ms`; `None`: the whole node.
    pub fn is_free_until(&self, node: usize, part: Option<&Part>, until_ms: u64) -> bool {
        let Some(wanted) = part else { return self.is_free_later(node, part, until_ms, |_| true) };
        // Nothing begins there later, and nothing there keeps other work off.
        let is_simple = !self.reserved.contains(node) && wanted.replica_of.is_none() && !self.kept.owners.are_apart();
        self.free_now[node].holds(&wanted.amount) && (is_simple || self.is_free_later(node, part, until_ms, |_| true))
    }

    /// [`Self::is_free_until`], counting only spans for which `counts` is true.
    pub fn is_free_beside(&self, node: usize, part: Option<&Part>, until_ms: u64, counts: impl Fn(&Span) -> bool) -> bool {
        let spans = self.spans[node].iter().filter(|span| counts(span));
        let has_room = |part: &Part| free_at_ms(&self.nodes[node].size, spans, self.now_ms).holds(&part.amount);
        part.is_none_or(has_room) && self.is_free_later(node, part, until_ms, counts)
    }

    /// [`Self::is_free_beside`] for a node of which enough is free now.
    fn is_free_later(&self, node: usize, part: Option<&Part>, until_ms: u64, counts: impl Fn(&Span) -> bool) -> bool {
        let mut spans = self.spans[node].iter().filter(|span| counts(span));
        let Some(part) = part else { return spans.all(|span| span.start_ms >= until_ms) };
        if spans.clone().any(|span| span.keeps_off(part) && span.start_ms < until_ms) {
            return false;
        }
        let mut later = spans.clone().map(|span| span.start_ms).filter(|start_ms| (self.now_ms + 1..until_ms).contains(start_ms));
        later.all(|at_ms| free_at_ms(&self.nodes[node].size, spans.clone(), at_ms).holds(&part.amount))
    }

    /// Whether this part of the node is free now, without the work of this plan.
    pub fn is_free_in_view(&self, node: usize, part: Option<&Part>) -> bool {
        let Some(part) = part else { return self.held_in_view(node).next().is_none() };
        self.has_amount_in_view(node, &part.amount) && !self.held_in_view(node).any(|span| span.keeps_off(part))
    }

    /// Whether this amount of the node is free now, without the work of this plan, whoever holds the rest.
    pub fn has_amount_in_view(&self, node: usize, amount: &Resources) -> bool {
        let held = self.held_in_view(node).fold(Resources::default(), |sum, span| sum.plus(&span.amount));
        self.nodes[node].size.minus(&held).holds(amount)
    }

    /// The spans that hold a part of the node now, without the work of this plan.
    pub fn held_in_view(&self, node: usize) -> impl Iterator<Item = &Span> {
        self.spans[node].iter().filter(|span| !span.is_planned)
    }

    /// When this part of the node becomes free and stays free, also beside later reservations. `part`
    /// `None`: the whole node. Work with an end (`ends`) may use it before a reservation whose start is
    /// not known.
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

/// Whether a node that is out of service is expected back.
fn away(view: &View, node: &Node, now: Timestamp) -> Service {
    let out_since = match node.state {
        // Only gossip reports it as out of service. If gossip is right, its state changes soon.
        NodeState::Ready if node.unclaimable().is_none() => view.silent_since(node),
        NodeState::Ready => node.holds.iter().map(|hold| hold.since).min().unwrap_or(node.state_since),
        NodeState::Booting | NodeState::Degraded | NodeState::Down | NodeState::Draining | NodeState::Drained | NodeState::Failed => {
            node.state_since
        }
    };
    if now.since_ms(out_since) < OUTAGE_MS_MAX { Service::BackSoon } else { Service::Away }
}
