//! Why each allocation waits, and when it is expected to begin: the decisions of a plan, for people.

use crate::borrowing::borrows;
use crate::choice;
use crate::draft::Service;
use crate::grouping;
use crate::headroom::Obstacle;
use crate::misfit::{self, misfit};
use crate::owners::{kept_apart, users_apart};
use crate::plan::{Decision, Plan, Planned, RESERVATIONS_MAX, plan};
use crate::quotas::Quotas;
use crate::reserve::{Endless, Reservation};
use crate::span::duration_ms;
use crate::state::State;
use crate::view::View;
use crate::why_not::excluded;
use lattice_model::count::{counted, is_or_are};
use lattice_model::{self as model, AllocationId, NodeId, SchedulerKind, Timestamp, Topology, hostlist};
use std::collections::BTreeMap;

/// The longest reason in a list, in characters.
pub const REASON_CHARS_MAX: usize = 40;
/// The longest list of nodes in an explanation, in bytes; instead of a longer one, only the number
/// of nodes is given.
const NODE_LIST_BYTES_MAX: usize = 200;
const DAY_MS: u64 = 86_400_000;

/// Shortens a reason to [`REASON_CHARS_MAX`].
pub fn clip(text: String) -> String {
    if text.chars().count() <= REASON_CHARS_MAX {
        return text;
    }
    text.chars().take(REASON_CHARS_MAX - 1).chain(['…']).collect()
}

/// These nodes as a hostlist, or their number if that would be too long.
pub(crate) fn node_list<'n>(nodes: impl Iterator<Item = &'n NodeId> + Clone) -> String {
    let folded = hostlist::fold(nodes.clone());
    if folded.is_empty() || folded.len() > NODE_LIST_BYTES_MAX { counted(nodes.count(), "node") } else { folded }
}

fn are_free(count: usize) -> String {
    format!("{count} {} free", is_or_are(count))
}

impl Plan<'_> {
    fn ids<'p>(&'p self, nodes: &'p [usize]) -> impl Iterator<Item = &'p NodeId> + Clone {
        nodes.iter().map(|node| &self.state.nodes[*node].id)
    }

    /// The nodes that could serve it and are out of service.
    fn out_of_service(&self, planned: &Planned<'_>) -> Vec<usize> {
        let candidates = self.classes.all[planned.class].candidates.iter();
        candidates.filter(|node| self.state.service[*node] != Service::Up).collect()
    }

    /// How many of the nodes that are free now, without the work of this plan, could serve it together.
    fn count_free(&self, planned: &Planned<'_>) -> usize {
        self.count_together(planned, &self.free_nodes(planned))
    }

    fn free_nodes(&self, planned: &Planned<'_>) -> Vec<usize> {
        let class = &self.classes.all[planned.class];
        let is_free = |node: &usize| {
            let is_in_service = self.state.service[*node] == Service::Up;
            is_in_service && self.state.is_free_in_view(*node, class.part(self.state.columns, *node).as_ref())
        };
        class.candidates.iter().filter(is_free).collect()
    }

    fn count_together(&self, planned: &Planned<'_>, nodes: &[usize]) -> usize {
        choice::count_free(&self.state, &self.classes.all[planned.class], nodes, &Quotas::of(&self.state), planned.allocation)
    }

    /// If only the share policy, or `--exclusive=user`, keeps it from enough nodes now: how many nodes have enough free and
    /// are kept from it, what they hold, in words, and whether that is by the policy.
    fn kept_apart(&self, planned: &Planned<'_>) -> Option<(usize, &'static str, bool)> {
        if !self.state.kept.owners.are_apart() {
            return None;
        }
        let (class, wanted) = (&self.classes.all[planned.class], planned.allocation.spec.nodes as usize);
        let free = self.free_nodes(planned);
        if self.count_together(planned, &free) >= wanted {
            return None;
        }
        let work_there = |node: usize| {
            let part = class.part(self.state.columns, node)?;
            if self.state.service[node] != Service::Up || !self.state.has_amount_in_view(node, &part.amount) {
                return None;
            }
            let (view, of_node) = (self.state.view, self.state.nodes[node]);
            let holders = || self.state.held_in_view(node).map(|span| span.by);
            if let Some((_, work)) = kept_apart(view, planned.allocation, of_node, holders()) {
                return Some((node, (work, true)));
            }
            let (_, work) = users_apart(view, planned.allocation, of_node, holders())?;
            Some((node, (work, false)))
        };
        let (apart, works): (Vec<usize>, Vec<(&'static str, bool)>) = class.candidates.iter().filter_map(work_there).unzip();
        let all: Vec<usize> = free.into_iter().chain(apart.iter().copied()).collect();
        let first = *works.first().filter(|_| self.count_together(planned, &all) >= wanted)?;
        let are_alike = works.iter().all(|(work, _)| *work == first.0);
        let is_by_policy = works.iter().any(|(_, is_by_policy)| *is_by_policy);
        Some((apart.len(), if are_alike { first.0 } else { "work of others" }, is_by_policy))
    }

    /// Whether nodes in service have enough free for a replica, and each of these has a replica of the
    /// same service already.
    fn has_replicas_everywhere(&self, planned: &Planned<'_>) -> bool {
        let class = &self.classes.all[planned.class];
        let has_replica = |node: usize| {
            let part = class.part(self.state.columns, node)?;
            let service = part.replica_of?;
            let has_room = self.state.service[node] == Service::Up && self.state.has_amount_in_view(node, &part.amount);
            has_room.then(|| self.state.held_in_view(node).any(|span| span.replica_of == Some(service)))
        };
        let mut with_room = class.candidates.iter().filter_map(has_replica).peekable();
        with_room.peek().is_some() && with_room.all(|has_replica| has_replica)
    }

    /// The excluded nodes, if there would be enough nodes with them.
    fn excluded(&self, planned: &Planned<'_>) -> Option<(usize, String)> {
        let allocation = planned.allocation;
        let found = excluded(self.state.view, allocation)?;
        let named = self.state.view.named(allocation);
        let fits = |node: &usize| {
            let node = self.state.nodes[*node];
            misfit::never_serves(named, &allocation.spec, node).is_none() && allocation.spec.lacked_by(node).is_none()
        };
        let possible = grouping::together(self.state.columns, (0..self.state.nodes.len()).filter(fits), &allocation.spec, grouping::ANY);
        (possible >= allocation.spec.nodes as usize).then_some(found)
    }

    /// The reason in ten to forty characters.
    fn brief(&self, planned: &Planned<'_>) -> String {
        let wanted = planned.allocation.spec.nodes as usize;
        clip(match &planned.decision {
            Decision::TooFewNodes => match self.excluded(planned) {
                Some((excluded, _)) => format!("{} excluded: could not begin", counted(excluded, "node")),
                None if borrows(&self.state.view.vclusters, self.queues[planned.queue].name) => {
                    format!("waits to borrow: {} of {wanted} are its own", self.classes.all[planned.class].possible())
                }
                None => format!("wants {}, {} could serve", counted(wanted, "node"), self.classes.all[planned.class].possible()),
            },
            Decision::Blocked { obstacle, later: false } => obstacle.brief(),
            Decision::Blocked { obstacle, later: true } => obstacle.brief_later(),
            Decision::Begins(_) if planned.ahead == 0 => format!("about to be placed: {}", are_free(self.count_free(planned))),
            Decision::Begins(_) => "about to be placed".to_owned(),
            Decision::Reserved(reservation) => self.reserved_brief(planned, reservation),
            Decision::OutOfService => self.out_of_service_brief(&self.out_of_service(planned)),
            Decision::Behind => format!("behind {} in its queue", planned.ahead),
            Decision::NotReached => format!("behind {}: too much waits to look at", planned.ahead),
            Decision::NoOtherNode => "each free node has a replica of it".to_owned(),
        })
    }

    /// The advance reservation that makes it wait: without it enough nodes would be free now, or its window is on the
    /// planned nodes before the planned start.
    fn set_aside(&self, planned: &Planned<'_>) -> Option<&model::Reservation> {
        if self.state.windows.count() == 0 {
            return None;
        }
        let (own, wanted) = (planned.allocation.spec.reservation.as_deref(), planned.allocation.spec.nodes as usize);
        let first = |node: &usize, until_ms: u64| self.state.windows.first(*node, own, self.state.now_ms, until_ms);
        let until_ms = self.state.now_ms.saturating_add(duration_ms(&planned.allocation.spec));
        let free = self.free_nodes(planned);
        let open: Vec<usize> = free.iter().copied().filter(|node| first(node, until_ms).is_none()).collect();
        if self.count_together(planned, &free) >= wanted && self.count_together(planned, &open) < wanted {
            return free.iter().find_map(|node| first(node, until_ms));
        }
        match &planned.decision {
            Decision::Reserved(reservation) => reservation.nodes.iter().find_map(|node| first(node, reservation.start_ms)),
            Decision::Begins(_)
            | Decision::OutOfService
            | Decision::Behind
            | Decision::NotReached
            | Decision::NoOtherNode
            | Decision::TooFewNodes
            | Decision::Blocked { .. } => None,
        }
    }

    fn reserved_brief(&self, planned: &Planned<'_>, reservation: &Reservation) -> String {
        let (start, wanted) = (self.expected_start(reservation), planned.allocation.spec.nodes);
        if let Some(in_way) = self.set_aside(planned) {
            let until = start.map_or_else(|| "set aside".to_owned(), |start| format!("starts ~{}", self.clock(start)));
            return format!("{until}: reservation {}", in_way.name);
        }
        // In a queue without overtaking, the work ahead is the reason.
        let is_behind = planned.ahead > 0 && self.is_fifo(planned);
        if let Some((_, work, _)) = self.kept_apart(planned).filter(|_| !is_behind && reservation.awaited.is_empty()) {
            return start.map_or_else(|| format!("waits for {work}"), |start| format!("starts ~{}: {work}", self.clock(start)));
        }
        if start.is_none() && !is_behind && reservation.awaited.is_empty() && self.has_replicas_everywhere(planned) {
            return "each free node has a replica of it".to_owned();
        }
        match (start, planned.ahead) {
            (Some(start), 0) => format!("starts ~{}: next, {} of {wanted} free", self.clock(start), self.count_free(planned)),
            (Some(start), ahead) => format!("starts ~{}: {ahead} ahead", self.clock(start)),
            (None, ahead) => match reservation.endless {
                _ if !reservation.awaited.is_empty() => self.out_of_service_brief(&reservation.awaited),
                Some(Endless { by, is_overdue: false }) => format!("waits for {}: it has no walltime", by.short()),
                Some(Endless { by, is_overdue: true }) => format!("waits for {}, which is overdue", by.short()),
                None => format!("behind {ahead} in its queue, start unknown"),
            },
        }
    }

    fn out_of_service_brief(&self, nodes: &[usize]) -> String {
        match nodes {
            [] | [_] | [_, _] | [_, _, _] => format!("out of service: {}", hostlist::fold(self.ids(nodes))),
            more => format!("out of service: {} nodes", more.len()),
        }
    }

    /// The time of day in UTC, with the date if it is more than a day away.
    fn clock(&self, time: Timestamp) -> String {
        let text = time.to_string();
        let (date, clock) = (text.get(5..10).unwrap_or_default(), text.get(11..16).unwrap_or_default());
        if time.0 < self.state.now_ms + DAY_MS { format!("{clock}Z") } else { format!("{date} {clock}Z") }
    }

    /// The reason in a sentence.
    pub(crate) fn sentence(&self, planned: &Planned<'_>) -> String {
        let then = if planned.allocation.spec.constraints.topology == Topology::Contiguous { "any" } else { "in any" };
        let any_from = planned.allocation.any_topology_from().map(|from| format!(" (until {from}, then {then})"));
        let wants = misfit::wants(&planned.allocation.spec) + &any_from.unwrap_or_default();
        let expectation = match &planned.decision {
            Decision::TooFewNodes => return self.too_few_nodes(planned, &wants),
            Decision::Blocked { obstacle, later: false } => return obstacle.sentence(),
            Decision::Blocked { obstacle, later: true } => return obstacle.sentence_later(),
            Decision::Begins(_) => {
                let free = are_free(self.count_free(planned));
                return format!("{wants}, {free}: an agent with the scheduler's lease will place it in its next pass");
            }
            Decision::Reserved(reservation) => self.expectation(reservation),
            Decision::OutOfService => self.out_of_service_sentence(&self.out_of_service(planned)),
            Decision::Behind if self.has_reservation_ahead(planned) => {
                format!("only the first {RESERVATIONS_MAX} that wait in a queue have an expected start")
            }
            Decision::Behind => "when it starts is not known, nor for work ahead of it".to_owned(),
            Decision::NotReached => {
                return format!(
                    "{wants}; {} of its queue {} ahead of it, and so much waits that a plan does not come to it",
                    counted(planned.ahead, "allocation"),
                    is_or_are(planned.ahead)
                );
            }
            Decision::NoOtherNode => {
                let free = are_free(self.count_free(planned));
                return format!("{wants}, {free}; each node that is free has a replica of it already");
            }
        };
        let (free, is_fifo) = (self.count_free(planned), self.is_fifo(planned));
        let line = match planned.ahead {
            0 => format!("{wants}, {}: it is next", are_free(free)),
            ahead if is_fifo => {
                format!(
                    "{wants}, {}; {} submitted before it {} served first",
                    are_free(free),
                    counted(ahead, "allocation"),
                    is_or_are(ahead)
                )
            }
            ahead => format!("{wants}, {}; {} of its queue {} ahead of it", are_free(free), counted(ahead, "allocation"), is_or_are(ahead)),
        };
        let delays = free >= planned.allocation.spec.nodes as usize && !is_fifo && self.set_aside(planned).is_none();
        let delays = if delays { "; if it began now, it could delay work ahead of it" } else { "" };
        let set_aside = self.set_aside(planned).map_or_else(String::new, |in_way| {
            let model::Reservation { name, start, end, .. } = in_way;
            format!("; reservation {name} sets nodes aside from {start} to {end}, and it would last into that time")
        });
        let replicas = if self.has_replicas_everywhere(planned) { "; each node that is free has a replica of it already" } else { "" };
        format!("{line}; {expectation}{delays}{set_aside}{replicas}{}", self.kept_apart_clause(planned))
    }

    /// The result of [`Self::kept_apart`], as the end of a sentence.
    fn kept_apart_clause(&self, planned: &Planned<'_>) -> String {
        let Some((count, work, is_by_policy)) = self.kept_apart(planned) else { return String::new() };
        let (has, holds) = if count == 1 { ("has", "holds") } else { ("have", "hold") };
        let nodes = counted(count, "node");
        let why = match is_by_policy {
            true => format!("by the share policy {}", self.state.view.share_policy.rule()),
            false => "--exclusive=user keeps the two apart".to_owned(),
        };
        format!("; {nodes} {has} enough free and {holds} {work}: {why}")
    }

    fn is_fifo(&self, planned: &Planned<'_>) -> bool {
        self.queues[planned.queue].scheduler == SchedulerKind::InteractiveFifo
    }

    fn has_reservation_ahead(&self, planned: &Planned<'_>) -> bool {
        let of_queue = self.planned.iter().filter(|other| other.queue == planned.queue);
        of_queue.filter(|other| matches!(other.decision, Decision::Reserved(_))).count() >= RESERVATIONS_MAX
    }

    fn expectation(&self, reservation: &Reservation) -> String {
        match (self.expected_start(reservation), reservation.endless) {
            (Some(start), _) => format!("expected to start at {start} on {}", node_list(self.ids(&reservation.nodes))),
            (None, _) if !reservation.awaited.is_empty() => self.out_of_service_sentence(&reservation.awaited),
            (None, Some(Endless { by, is_overdue: false })) => {
                format!("when it starts is not known: allocation {} on its nodes has no walltime", by.short())
            }
            (None, Some(Endless { by, is_overdue: true })) => {
                format!("when it starts is not known: allocation {} should have left its nodes long ago", by.short())
            }
            (None, None) => "when it starts is not known: work ahead of it waits for work without a walltime".to_owned(),
        }
    }

    fn out_of_service_sentence(&self, nodes: &[usize]) -> String {
        let why = match nodes {
            [node] => {
                let node = self.state.nodes[*node];
                format!("{} {}", node.id, node.unclaimable().unwrap_or_else(|| "is not seen alive by gossip".to_owned()))
            }
            nodes => format!("{} are out of service", node_list(self.ids(nodes))),
        };
        format!("when it starts is not known: {why}")
    }

    fn too_few_nodes(&self, planned: &Planned<'_>, wants: &str) -> String {
        let (view, allocation, possible) = (self.state.view, planned.allocation, self.classes.all[planned.class].possible());
        if let Some((_, text)) = self.excluded(planned) {
            return format!("{wants}; {possible} could serve it without those that are excluded for it: it waits for {text}");
        }
        if let Some(name) = &allocation.spec.reservation {
            return format!("{wants}; reservation {name} has {possible} that could ever serve it: it waits until there are more");
        }
        // The whole work's specification, not that of one of its forms.
        let spec = view.allocations.get(&allocation.id).map_or(&allocation.spec, |allocation| &allocation.spec);
        let misfit = misfit(view.nodes.values(), &view.vclusters, spec).map(|misfit| misfit.summary());
        match misfit {
            Some(misfit) => format!("{misfit}: it waits until there are more"),
            None if allocation.any_topology_from().is_some() => format!("{wants}; {possible} could ever serve it before that"),
            None if borrows(&view.vclusters, self.queues[planned.queue].name) => {
                let never = allocation.spec.never_gives_back(allocation.requeue_count);
                let then = never
                    .map_or_else(|| "it waits until others lend it nodes".to_owned(), |why| format!("others lend it none, since {why}"));
                format!("{wants}; its vCluster has {possible} that could ever serve it: {then}")
            }
            None => format!("{wants}; this cluster has {possible} that could ever serve it: it waits until there are more"),
        }
    }

    pub(crate) fn expected(&self, planned: &Planned<'_>) -> Expected {
        let start = match &planned.decision {
            Decision::Begins(_) => Some(Timestamp(self.state.now_ms)),
            Decision::Reserved(reservation) => self.expected_start(reservation),
            Decision::Blocked { obstacle: Obstacle::BeforeReservation { start, .. }, .. } => Some(*start),
            Decision::OutOfService
            | Decision::Behind
            | Decision::NotReached
            | Decision::NoOtherNode
            | Decision::TooFewNodes
            | Decision::Blocked { .. } => None,
        };
        let is_blocked = matches!(planned.decision, Decision::Blocked { .. });
        Expected {
            place: planned.decision.is_in_line().then(|| u32::try_from(planned.ahead + 1).unwrap_or(u32::MAX)),
            start,
            class_in_queue: self.state.view.effective_class(planned.allocation),
            score: self.score(planned).map(|score| score.total()),
            reason: self.brief(planned),
            obstacle: is_blocked.then(|| self.sentence(planned)),
        }
    }
}

/// What is expected for one waiting allocation.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// Its position in its vCluster's queue, from 1; `None`: it waits for something else than nodes.
    pub place: Option<u32>,
    /// When it is expected to begin; `None`: that is not known.
    pub start: Option<Timestamp>,
    /// The preemption class that counts in its queue.
    pub class_in_queue: u8,
    /// Its score among work of that class; `None`: its queue is served in the order of submission.
    pub score: Option<f64>,
    /// Why it waits, in ten to forty characters.
    pub reason: String,
    /// Why it cannot begin, whichever nodes are free, in a sentence: quotas of its tenant, the limit of
    /// its user, no VNI for its network domain, an earlier attempt that may still run, or a time for
    /// which it waits. `None`: no such obstacle.
    pub obstacle: Option<String>,
}

/// What is expected for every waiting allocation, by id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outlook(BTreeMap<AllocationId, Expected>);

impl Outlook {
    /// The expectations for all queues of a view, at this time of the quorum's clock.
    pub fn of(view: &View, now: Timestamp) -> Self {
        let state = State::from(view.clone());
        let plan = plan(&state, now);
        Self(plan.planned.iter().map(|planned| (planned.allocation.id, plan.expected(planned))).collect())
    }

    /// The expectation for one waiting allocation.
    pub fn get(&self, id: &AllocationId) -> Option<&Expected> {
        self.0.get(id)
    }
}
