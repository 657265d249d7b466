//! The plan: what begins now, what has a reservation, and why the rest waits.
//!
//! ```text
//!   State ─▶ Draft (columns by node)   ─┬─▶ for each waiting allocation in order:
//!            Classes (equal requests)  ─┤     begins now │ reservation │ waits without one │ cannot begin
//!            Headroom (quotas, limits) ─┘
//! ```
//!
//! Backfill: the first [`RESERVATIONS_MAX`] allocations of a queue that cannot begin now get
//! reservations. Work behind them begins now if its walltime ends before it would delay any of these
//! reservations, and before the window of a reservation that an operator made. Work that accepts less
//! than its walltime gets the longest time that delays none of them, but at least its minimum.

use crate::borrowing::{Lent, borrows};
use crate::choice;
use crate::classes::Classes;
use crate::draft::{Draft, Service};
use crate::grouping;
use crate::headroom::{Headroom, Obstacle};
use crate::order::{Ordered, Queue, Waiting};
use crate::replicas::service_of;
use crate::reserve::{self, Found, Reservation};
use crate::score::{Score, Scorer};
use crate::span::{Span, duration_at_ms, duration_ms};
use crate::state::State;
use crate::victims::{Choice, PreemptedFor, Victims, Whom};
use lattice_model::claim::ClaimShare;
use lattice_model::{Allocation, AllocationId, Claim, SchedulerKind, Timestamp, millis};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How many allocations of each queue have a reservation.
pub const RESERVATIONS_MAX: usize = 50;
/// How often a plan may look at a node; all queues get equal parts. This many looks take some tenths of
/// a second. Work that the plan does not reach waits for the next one, which is made once something
/// has changed. The limit is a number and not a time, so that all agents make the same plan.
const LOOKS_MAX: usize = 30_000_000;

/// What the plan decides about one waiting allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It begins now on these nodes, in rank order.
    Begins(Vec<usize>),
    /// It waits for nodes, and they are reserved for it.
    Reserved(Reservation),
    /// It waits for nodes that are out of service.
    OutOfService,
    /// It waits behind others without a reservation.
    Behind,
    /// This plan did not reach it: too much work waits.
    NotReached,
    /// Each node in service that could serve it has a replica of its service, or is reserved for one. So
    /// no node that becomes free can serve it, and no work behind it has to wait for it.
    NoOtherNode,
    /// Fewer nodes could ever serve it than it asks for.
    TooFewNodes,
    /// It cannot begin, whichever nodes are free. `later`: because of work ahead of it that has a
    /// reservation.
    Blocked { obstacle: Obstacle, later: bool },
}

impl Decision {
    /// Whether it waits in line for nodes, so that it counts as ahead of the work behind it.
    pub fn is_in_line(&self) -> bool {
        match self {
            Self::Begins(_) | Self::Reserved(_) | Self::OutOfService | Self::Behind | Self::NotReached => true,
            Self::NoOtherNode | Self::TooFewNodes | Self::Blocked { .. } => false,
        }
    }
}

/// One waiting allocation in the plan.
pub struct Planned<'a> {
    pub allocation: &'a Allocation,
    /// The index of its queue.
    pub queue: usize,
    /// The index of its class.
    pub class: usize,
    /// How many of its queue are in line ahead of it.
    pub ahead: usize,
    pub decision: Decision,
}

/// What begins now, when the rest is expected to begin, and the reasons: one deterministic function
/// of a state and a time, so that the reasons shown are those of the decision.
pub struct Plan<'a> {
    pub(crate) state: Draft<'a>,
    pub(crate) classes: &'a Classes,
    pub(crate) scorer: Scorer<'a>,
    pub(crate) queues: Vec<Queue<'a>>,
    /// All that waits, in the order in which it was considered.
    pub(crate) planned: Vec<Planned<'a>>,
    /// For each allocation that others are preempted for, the index of its queue.
    preempted: Vec<(usize, PreemptedFor)>,
    /// The walltime of each allocation that begins with less than it asks for.
    granted: BTreeMap<AllocationId, Duration>,
}

/// Plans all queues of a state's view, at this time of the quorum's clock.
pub fn plan(state: &State, now: Timestamp) -> Plan<'_> {
    plan_within(state, now, LOOKS_MAX)
}

/// [`plan`] with at most this many looks at nodes.
pub(crate) fn plan_within(kept: &State, now: Timestamp, looks: usize) -> Plan<'_> {
    let ordered = Ordered::of(kept, now);
    let order = ordered.merged();
    let Ordered { state, classes, scorer, queues } = ordered;
    let starts = state.windows.starts(now.0).collect();
    let mut planner = Planner {
        victims: Victims::of(&state),
        preempted: Vec::new(),
        awaiting: BTreeSet::new(),
        headroom: Headroom::of(&state),
        state,
        classes,
        scorer,
        progress: queues.iter().map(|_| Progress { looks_left: looks / queues.len(), ..Progress::default() }).collect(),
        does_not_fit: BTreeMap::new(),
        starts,
        granted: BTreeMap::new(),
    };
    let mut planned = Vec::with_capacity(order.len());
    for (queue, waiting) in order {
        let (Waiting { allocation, class }, decision) = planner.decide_form(&queues[queue], queue, waiting);
        let ahead = planner.progress[queue].in_line;
        planner.progress[queue].in_line += usize::from(decision.is_in_line());
        planned.push(Planned { allocation, queue, class, ahead, decision });
    }
    planner.borrow(&queues, &mut planned);
    let Planner { state, classes, scorer, preempted, granted, .. } = planner;
    Plan { state, classes, scorer, queues, planned, preempted, granted }
}

impl Plan<'_> {
    /// The claims to propose now, for the vClusters for which `token_of` gives the lease's token.
    pub fn claims(&self, token_of: impl Fn(&str) -> Option<u64>) -> Vec<Claim> {
        let claim = |planned: &Planned<'_>| {
            let Decision::Begins(nodes) = &planned.decision else { return None };
            let lease_token = token_of(self.queues[planned.queue].name)?;
            let allocation = planned.allocation;
            let share = |node: &usize| {
                let node = self.state.nodes[*node];
                let resources = allocation.spec.amount_of(&node.size);
                ClaimShare { node: node.id.clone(), resources, hold_revision: node.hold_revision }
            };
            let (requeue_count, shares) = (allocation.requeue_count, nodes.iter().map(share).collect());
            let walltime = self.granted.get(&allocation.id).copied();
            Some(Claim { allocation: allocation.id, requeue_count, lease_token, shares, after: None, by: None, walltime })
        };
        self.planned.iter().filter_map(claim).collect()
    }

    /// The preemptions to request now, each with the vCluster in whose queue the beneficiary waits.
    pub fn preemptions(&self) -> Vec<(String, PreemptedFor)> {
        self.preempted.iter().map(|(queue, preempted)| (self.queues[*queue].name.to_owned(), preempted.clone())).collect()
    }

    /// The allocations that begin now although work ahead of them in their queues waits for nodes.
    pub fn backfilled(&self) -> BTreeSet<AllocationId> {
        let mut is_somebody_ahead = vec![false; self.queues.len()];
        let mut begins_behind = |planned: &Planned<'_>| match planned.decision {
            Decision::Begins(_) => is_somebody_ahead[planned.queue],
            Decision::Reserved(_) | Decision::OutOfService | Decision::Behind | Decision::NotReached => {
                is_somebody_ahead[planned.queue] = true;
                false
            }
            // It waits for something else than nodes.
            Decision::NoOtherNode | Decision::TooFewNodes | Decision::Blocked { .. } => false,
        };
        self.planned.iter().filter_map(|planned| begins_behind(planned).then_some(planned.allocation.id)).collect()
    }

    /// When each allocation with a reservation is expected to begin, in the order of the plan.
    /// `None`: unknown, because it needs nodes that are out of service or held by work without a
    /// walltime.
    pub fn expected_starts(&self) -> impl Iterator<Item = (AllocationId, Option<Timestamp>)> {
        self.planned.iter().filter_map(|planned| match &planned.decision {
            Decision::Reserved(reservation) => Some((planned.allocation.id, self.expected_start(reservation))),
            Decision::Begins(_)
            | Decision::OutOfService
            | Decision::Behind
            | Decision::NotReached
            | Decision::NoOtherNode
            | Decision::TooFewNodes
            | Decision::Blocked { .. } => None,
        })
    }

    /// The score of one of its allocations; `None`: its queue is served in the order of submission.
    pub(crate) fn score(&self, planned: &Planned<'_>) -> Option<Score> {
        let weights = self.queues[planned.queue].weights.as_ref()?;
        Some(self.scorer.score(planned.allocation, &self.classes.all[planned.class], weights))
    }

    pub(crate) fn expected_start(&self, reservation: &Reservation) -> Option<Timestamp> {
        reservation.expected_start_ms(&self.state).map(Timestamp)
    }
}

/// How far a queue is planned.
#[derive(Default)]
struct Progress {
    in_line: usize,
    reservations: usize,
    /// For first come, first served: an allocation waits, so nothing behind it begins now.
    is_stopped: bool,
    /// When the last reservation begins.
    floor_ms: u64,
    /// For first come, first served: an allocation waits without a reservation, so nothing behind it
    /// gets one.
    is_unknown: bool,
    /// How often this plan may still look at a node for this queue.
    looks_left: usize,
}

impl Progress {
    fn look_at(&mut self, nodes: usize) {
        self.looks_left = self.looks_left.saturating_sub(nodes);
    }
}

struct Planner<'a> {
    state: Draft<'a>,
    classes: &'a Classes,
    scorer: Scorer<'a>,
    headroom: Headroom<'a>,
    victims: Victims<'a>,
    preempted: Vec<(usize, PreemptedFor)>,
    /// Work for which enough nodes are being given back.
    awaiting: BTreeSet<AllocationId>,
    /// For each queue.
    progress: Vec<Progress>,
    /// By class and number of nodes: the earliest end in milliseconds until which too few nodes stay free;
    /// 0: too few nodes are free even now. A plan only takes nodes, so an entry stays true.
    does_not_fit: BTreeMap<(usize, u32), u64>,
    /// The times when reservations begin, and windows in which nodes are set aside, in milliseconds.
    starts: BTreeSet<u64>,
    /// See [`Plan`].
    granted: BTreeMap<AllocationId, Duration>,
}

impl<'a> Planner<'a> {
    /// Decides about an allocation. If it has a form for each number of nodes, it begins in the form with the fewest nodes
    /// that can begin now; if none can, it waits in the first form for which enough nodes are in service. Once its wait for
    /// topology groups is over, it has the form that takes nodes of any groups.
    fn decide_form(&mut self, of: &Queue<'a>, queue: usize, first: Waiting<'a>) -> (Waiting<'a>, Decision) {
        let kept = self.state.kept;
        let Some(others) = kept.other_forms.get(&first.allocation.id) else {
            return (first, self.decide(of, queue, first.class, first.allocation));
        };
        if let Some(from) = first.allocation.any_topology_from() {
            let any = others.first().filter(|_| from.0 <= self.state.now_ms);
            let form = any.map_or(first, |(allocation, class)| Waiting { allocation, class: *class });
            return (form, self.decide(of, queue, form.class, form.allocation));
        }
        let others = others.iter().map(|(allocation, class)| Waiting { allocation, class: *class });
        let forms: Vec<Waiting<'a>> = std::iter::once(first).chain(others).collect();
        for form in &forms {
            if let Some(nodes) = self.begin_form(of, queue, *form) {
                return (*form, Decision::Begins(nodes));
            }
        }
        let in_service = |form: &Waiting<'a>| kept.columns.up.and_len(&self.classes.all[form.class].candidates);
        let form = forms.iter().find(|form| in_service(form) >= form.allocation.spec.nodes as usize).copied().unwrap_or(first);
        (form, self.decide(of, queue, form.class, form.allocation))
    }

    /// Begins a form of an allocation now, if nothing is in its way.
    fn begin_form(&mut self, of: &Queue<'a>, queue: usize, form: Waiting<'a>) -> Option<Vec<usize>> {
        let (Waiting { allocation, class }, progress) = (form, &self.progress[queue]);
        let is_stopped = is_fifo(of) && progress.is_stopped;
        let is_closed = Obstacle::of_reservation(self.state.view, allocation, Timestamp(self.state.now_ms)).is_some();
        if is_closed || is_stopped || progress.looks_left == 0 || self.headroom.obstacle(allocation).is_some() {
            return None;
        }
        let until_ms = self.state.now_ms.saturating_add(duration_at_ms(&allocation.spec, self.state.now_ms)?);
        let is_free = self.headroom.obstacle_until(allocation, until_ms).is_none();
        let whole = if is_free { self.begin(queue, class, allocation, until_ms) } else { None };
        whole.or_else(|| self.begin_shorter(queue, class, allocation, until_ms))
    }

    fn decide(&mut self, of: &Queue<'a>, queue: usize, class: usize, allocation: &'a Allocation) -> Decision {
        if let Some(obstacle) = Obstacle::of_reservation(self.state.view, allocation, Timestamp(self.state.now_ms)) {
            return Decision::Blocked { obstacle, later: false };
        }
        if self.classes.all[class].possible() < allocation.spec.nodes as usize {
            return Decision::TooFewNodes;
        }
        if let Some(obstacle) = self.headroom.obstacle(allocation) {
            return Decision::Blocked { obstacle, later: false };
        }
        if self.progress[queue].looks_left == 0 {
            return Decision::NotReached;
        }
        let is_fifo = is_fifo(of);
        let Some(longest_ms) = duration_at_ms(&allocation.spec, self.state.now_ms) else {
            let deadline = allocation.spec.deadline().unwrap_or_default();
            return Decision::Blocked { obstacle: Obstacle::Deadline(deadline), later: false };
        };
        let until_ms = self.state.now_ms.saturating_add(longest_ms);
        if !(is_fifo && self.progress[queue].is_stopped) {
            let obstacle = self.headroom.obstacle_until(allocation, until_ms);
            let whole = if obstacle.is_none() { self.begin(queue, class, allocation, until_ms) } else { None };
            if let Some(nodes) = whole.or_else(|| self.begin_shorter(queue, class, allocation, until_ms)) {
                return Decision::Begins(nodes);
            }
            if let Some(obstacle) = obstacle {
                return Decision::Blocked { obstacle, later: true };
            }
            let quotas = self.headroom.quotas_until(allocation, until_ms);
            if quotas.depend_on_nodes(allocation) {
                self.progress[queue].look_at(self.classes.all[class].candidates.len());
                if let Some((excess, usable)) = choice::over_quota(&self.state, &self.classes.all[class], quotas, allocation, until_ms) {
                    return Decision::Blocked { obstacle: Obstacle::NodesOfTenant { excess, usable }, later: false };
                }
            }
        }
        if self.has_replicas_everywhere(queue, class, allocation) {
            return Decision::NoOtherNode;
        }
        self.wait(is_fifo, queue, class, allocation)
    }

    /// Whether it is a replica, and each node in service that could serve it has another replica of the
    /// same service, or this plan reserves the node for one.
    fn has_replicas_everywhere(&mut self, queue: usize, class: usize, allocation: &Allocation) -> bool {
        let Some(service) = service_of(allocation) else { return false };
        let candidates = &self.classes.all[class].candidates;
        self.progress[queue].look_at(candidates.len());
        let state = &self.state;
        let mut in_service = candidates.iter().filter(|node| state.service[*node] == Service::Up).peekable();
        let has_replica = |node: usize| state.spans[node].iter().any(|span| span.replica_of == Some(service));
        in_service.peek().is_some() && in_service.all(has_replica)
    }

    /// Begins the allocation now, if that delays no reservation.
    fn begin(&mut self, queue: usize, class: usize, allocation: &'a Allocation, until_ms: u64) -> Option<Vec<usize>> {
        let key = (class, allocation.spec.nodes);
        let quotas = self.headroom.quotas_until(allocation, until_ms);
        if self.does_not_fit.get(&key).is_some_and(|shortest_ms| *shortest_ms <= until_ms) {
            return None;
        }
        let looks = choice::to_look_at(&self.state, &self.classes.all[class], allocation);
        self.progress[queue].look_at(1 + looks.unwrap_or(0));
        if looks.is_none() {
            self.does_not_fit.insert(key, 0);
            return None;
        }
        let Some(nodes) = choice::choose(&self.state, &self.classes.all[class], quotas, allocation, until_ms) else {
            if !quotas.depend_on_nodes(allocation) {
                self.does_not_fit.insert(key, until_ms);
            }
            return None;
        };
        self.hold(allocation, &nodes, self.state.now_ms, until_ms);
        self.grant(allocation, until_ms);
        let state = &self.state;
        self.headroom.begin(allocation, nodes.iter().map(|node| &state.nodes[*node].id));
        Some(nodes)
    }

    /// Begins an allocation that accepts less than its walltime. It lasts as long as it delays no reservation, at most
    /// until `until_ms`.
    fn begin_shorter(&mut self, queue: usize, class: usize, allocation: &'a Allocation, until_ms: u64) -> Option<Vec<usize>> {
        let least = allocation.spec.timing.as_ref()?.walltime_min?;
        let shortest_ms = self.state.now_ms.saturating_add(millis(least));
        if shortest_ms >= until_ms || !self.fits_until(queue, class, allocation, shortest_ms) {
            return None;
        }
        // Work that fits until a later time fits until an earlier one. What fits changes only where a reservation begins.
        let ends: Vec<u64> = self.starts.range(shortest_ms + 1..until_ms).copied().collect();
        let (mut fits, mut fits_not) = (0, ends.len() + 1);
        while fits + 1 < fits_not {
            let middle = usize::midpoint(fits, fits_not);
            match self.fits_until(queue, class, allocation, ends[middle - 1]) {
                true => fits = middle,
                false => fits_not = middle,
            }
        }
        let end_ms = if fits == 0 { shortest_ms } else { ends[fits - 1] };
        self.begin(queue, class, allocation, end_ms)
    }

    /// Whether an allocation could begin now and last until `until_ms` without delaying a reservation.
    fn fits_until(&mut self, queue: usize, class: usize, allocation: &'a Allocation, until_ms: u64) -> bool {
        let key = (class, allocation.spec.nodes);
        let is_known_not_to_fit = self.does_not_fit.get(&key).is_some_and(|shortest_ms| *shortest_ms <= until_ms);
        if is_known_not_to_fit || self.headroom.obstacle_until(allocation, until_ms).is_some() {
            return false;
        }
        let looks = choice::to_look_at(&self.state, &self.classes.all[class], allocation);
        self.progress[queue].look_at(1 + looks.unwrap_or(0));
        let quotas = self.headroom.quotas_until(allocation, until_ms);
        let fits = looks.is_some() && choice::choose(&self.state, &self.classes.all[class], quotas, allocation, until_ms).is_some();
        if !fits && !quotas.depend_on_nodes(allocation) {
            self.does_not_fit.insert(key, until_ms);
        }
        fits
    }

    /// Records the walltime of an allocation that begins now and lasts until `until_ms`, if it is less than requested: in
    /// whole seconds, and at least its minimum.
    fn grant(&mut self, allocation: &Allocation, until_ms: u64) {
        let Some((asked, least)) = allocation.spec.walltime.zip(allocation.spec.walltime_least()) else { return };
        let granted = Duration::from_millis(until_ms.saturating_sub(self.state.now_ms));
        if granted < asked {
            self.granted.insert(allocation.id, Duration::from_secs(granted.as_secs()).max(least));
        }
    }

    /// Gives an allocation that cannot begin now a reservation, if it is one of the first.
    fn wait(&mut self, is_fifo: bool, queue: usize, class: usize, allocation: &'a Allocation) -> Decision {
        let progress = &mut self.progress[queue];
        if progress.reservations >= RESERVATIONS_MAX || progress.is_unknown {
            progress.is_stopped = true;
            return Decision::Behind;
        }
        if let Some(obstacle) = self.headroom.obstacle_later(allocation) {
            return Decision::Blocked { obstacle, later: true };
        }
        let floor_ms = if is_fifo { progress.floor_ms } else { 0 };
        let (of_class, quotas, mut searches) = (&self.classes.all[class], self.headroom.quotas_later(), 0);
        let found = reserve::find(&self.state, of_class, quotas, allocation, floor_ms, &mut searches);
        progress.look_at(2 * searches * of_class.candidates.len());
        let window = allocation.spec.reservation.as_ref().and_then(|name| self.state.view.reservations.get(name));
        if let (Found::Reservation(found), Some(window)) = (&found, window)
            && window.is_over(Timestamp(found.start_ms))
        {
            let obstacle = Obstacle::ReservationFull { name: window.name.clone(), end: window.end };
            return Decision::Blocked { obstacle, later: true };
        }
        match found {
            Found::Reservation(reservation) => {
                // First come, first served: nothing behind the first begins now, so only the first may preempt.
                let may_preempt = !(grouping::is_contiguous(&allocation.spec) || is_fifo && progress.is_stopped);
                (progress.is_stopped, progress.floor_ms) = (true, reservation.start_ms);
                progress.reservations += 1;
                let end_ms = reservation.start_ms.saturating_add(duration_ms(&allocation.spec));
                let (mut held, mut held_from_ms) = (reservation.nodes.clone(), reservation.start_ms);
                let start_ms = self.state.is_known_start(reservation.start_ms).then_some(reservation.start_ms);
                let mut looks = 0;
                let of_class = (class, &self.classes.all[class]);
                let whom = if is_fifo { Whom::Borrowers } else { Whom::LowerClasses };
                let choice = if may_preempt {
                    self.victims.choose(&self.state, &self.scorer, of_class, allocation, (whom, start_ms), &mut looks)
                } else {
                    Choice::Nothing
                };
                self.progress[queue].look_at(looks);
                match choice {
                    Choice::Nothing => {}
                    // Work that began on its nodes now would be in the way, and be preempted next.
                    Choice::GivenBack => {
                        held_from_ms = self.state.now_ms;
                        self.awaiting.insert(allocation.id);
                    }
                    Choice::Victims(preempted, nodes) => {
                        (held, held_from_ms) = (nodes, self.state.now_ms);
                        self.preempted.push((queue, preempted));
                    }
                }
                self.hold(allocation, &held, held_from_ms, end_ms);
                // No floor if it waits for the end of a window: work that ends before the window begins does not delay it.
                let own = allocation.spec.reservation.as_deref();
                let has_window = |node: &usize| self.state.windows.first(*node, own, self.state.now_ms, reservation.start_ms).is_some();
                if reservation.expected_start_ms(&self.state).is_some() && !reservation.nodes.iter().any(has_window) {
                    self.state.floors.raise(&self.classes.all[class].candidates, reservation.start_ms);
                }
                let state = &self.state;
                let nodes = reservation.nodes.iter().map(|node| &state.nodes[*node].id);
                // An allocation that may never begin takes no quota from others.
                if self.state.is_known_start(reservation.start_ms) {
                    self.headroom.reserve(allocation, nodes, reservation.start_ms);
                }
                Decision::Reserved(reservation)
            }
            Found::OutOfService => {
                (progress.is_stopped, progress.is_unknown) = (true, is_fifo);
                Decision::OutOfService
            }
            Found::OverQuota { excess, usable } => Decision::Blocked { obstacle: Obstacle::NodesOfTenant { excess, usable }, later: true },
        }
    }

    /// Begins allocations that wait for nodes on nodes that other vClusters lend.
    fn borrow(&mut self, queues: &[Queue<'a>], planned: &mut [Planned<'a>]) {
        let mut may_borrow: Vec<bool> = queues.iter().map(|queue| borrows(&self.state.view.vclusters, queue.name)).collect();
        let mut lent = Lent::default();
        for planned in planned {
            let Planned { allocation, queue, class, .. } = *planned;
            match planned.decision {
                Decision::Reserved(_) | Decision::OutOfService | Decision::Behind | Decision::TooFewNodes => {}
                Decision::Begins(_) | Decision::NotReached | Decision::NoOtherNode | Decision::Blocked { .. } => continue,
            }
            let progress = &mut self.progress[queue];
            let is_alone = grouping::is_contiguous(&allocation.spec);
            if !may_borrow[queue] || is_alone || progress.looks_left == 0 || self.headroom.obstacle(allocation).is_some() {
                continue;
            }
            let Some(longest_ms) = duration_at_ms(&allocation.spec, self.state.now_ms) else { continue };
            let until_ms = self.state.now_ms.saturating_add(longest_ms);
            // The quotas already count its own reservation, which must not block it.
            let is_reserved = matches!(planned.decision, Decision::Reserved(_));
            if self.awaiting.contains(&allocation.id) || (!is_reserved && self.headroom.obstacle_until(allocation, until_ms).is_some()) {
                continue;
            }
            let quotas = if is_reserved { self.headroom.quotas_now() } else { self.headroom.quotas_until(allocation, until_ms) };
            let mut looks = 0;
            let of_class = (class, &self.classes.all[class]);
            let nodes = lent.choose(&self.state, of_class, quotas, (allocation, is_reserved), until_ms, &mut looks);
            progress.look_at(looks);
            let Some(nodes) = nodes else {
                // A queue without weights is in order of submission: nothing behind this allocation begins.
                may_borrow[queue] = queues[queue].weights.is_some();
                continue;
            };
            self.preempted.retain(|(_, preempted)| preempted.beneficiary != allocation.id);
            self.hold(allocation, &nodes, self.state.now_ms, until_ms);
            self.grant(allocation, until_ms);
            let state = &self.state;
            self.headroom.begin(allocation, nodes.iter().map(|node| &state.nodes[*node].id));
            planned.decision = Decision::Begins(nodes);
        }
    }

    fn hold(&mut self, allocation: &Allocation, nodes: &[usize], start_ms: u64, end_ms: u64) {
        let (has_end, who) = (allocation.spec.walltime.is_some(), self.state.kept.owners.who(allocation));
        let replica_of = service_of(allocation);
        if start_ms > self.state.now_ms {
            self.starts.insert(start_ms);
        }
        for node in nodes {
            let amount = allocation.spec.amount_of(&self.state.nodes[*node].size);
            self.state.plan(*node, Span { start_ms, end_ms, amount, by: allocation.id, who, replica_of, has_end, is_planned: true });
        }
    }
}

/// Whether this queue is first come, first served.
fn is_fifo(queue: &Queue<'_>) -> bool {
    match queue.scheduler {
        SchedulerKind::InteractiveFifo => true,
        SchedulerKind::HpcBackfill | SchedulerKind::MlTraining | SchedulerKind::ServiceBinPack => false,
    }
}
