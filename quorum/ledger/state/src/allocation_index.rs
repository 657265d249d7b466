//! Look-ups over all allocations, mainly for the leader's clocks. Not part of the replicated state:
//! derived from the allocations when a snapshot is read, and then updated with each changed
//! allocation. An allocation without nodes, waits, delays, deadlines, exclusions, due mail and
//! measurements has no entry of its own.

use crate::user_usage::holds_nodes;
use imbl::{OrdMap, OrdSet};
use lattice_model::{Allocation, AllocationId, AllocationState, NodeId, Timestamp};
use uuid::Uuid;

/// See the module documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocationIndex {
    /// How many allocations are in each state; states without any are absent.
    pub states: OrdMap<AllocationState, u32>,
    /// How many allocations of each tenant have not ended; tenants without any are absent.
    pub live_of_tenant: OrdMap<String, u32>,
    /// How many allocations have not ended, by the vCluster that they name.
    pub queues: OrdMap<String, QueueCounts>,
    /// When the waits of requeued allocations end.
    pub wait_ends: OrdSet<(Timestamp, AllocationId)>,
    /// When the delays end of allocations that begin a while after other work has begun.
    pub delay_ends: OrdSet<(Timestamp, AllocationId)>,
    /// When it is too late for a waiting allocation to end by its deadline.
    pub deadline_ends: OrdSet<(Timestamp, AllocationId)>,
    /// When the next part of a walltime is over, if the user wants mail about it.
    pub mail_marks: OrdSet<(Timestamp, AllocationId)>,
    /// When nodes are no longer excluded for allocations.
    pub exclusion_ends: OrdSet<(Timestamp, AllocationId)>,
    /// The nodes that are excluded for allocations, each with the allocation.
    pub excluded: OrdSet<(NodeId, AllocationId)>,
    /// When measurements with an end are over.
    pub telemetry_ends: OrdSet<(Timestamp, AllocationId)>,
    /// The allocations that have not ended and had other nodes before.
    pub moved: OrdSet<AllocationId>,
    /// The allocations that have nodes, by the name of their user.
    with_nodes: OrdSet<(String, AllocationId)>,
    /// The allocations whose nodes their tenant is charged for now, by tenant.
    pub charged: OrdSet<(String, AllocationId)>,
}

/// Allocations that have not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Allocations that wait for nodes and are not held.
    pub pending: u32,
    /// Allocations that have nodes.
    pub running: u32,
    /// Allocations that are held.
    pub held: u32,
}

impl QueueCounts {
    fn of(&mut self, queued: Queued) -> &mut u32 {
        match queued {
            Queued::Pending => &mut self.pending,
            Queued::Held => &mut self.held,
            Queued::Running => &mut self.running,
        }
    }

    /// All of them.
    pub fn live(&self) -> u32 {
        self.pending.saturating_add(self.running).saturating_add(self.held)
    }
}

/// The facts of one allocation that the index needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationFacts {
    tenant: String,
    vcluster: String,
    state: AllocationState,
    /// `None`: it has ended.
    queued: Option<Queued>,
    wait_ends: Option<Timestamp>,
    delays: Vec<Timestamp>,
    deadline_ends: Option<Timestamp>,
    mail_mark: Option<Timestamp>,
    exclusions: Vec<(NodeId, Timestamp)>,
    telemetry_ends: Option<Timestamp>,
    has_moved: bool,
    /// The name of its user; `None`: it has no nodes.
    with_nodes_of: Option<String>,
    is_charged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queued {
    Pending,
    Held,
    Running,
}

impl AllocationFacts {
    /// The facts of this allocation.
    pub fn of(allocation: &Allocation) -> Self {
        let is_live = !allocation.state.is_terminal();
        let queued = match allocation.state {
            state if holds_nodes(state) => Some(Queued::Running),
            _ if !is_live => None,
            _ if allocation.held => Some(Queued::Held),
            _ => Some(Queued::Pending),
        };
        let exclusions = allocation.excluded.iter().filter(|_| is_live);
        let dependencies = allocation.dependencies.iter().filter(|_| is_live);
        Self {
            tenant: allocation.spec.tenant.clone(),
            vcluster: allocation.spec.vcluster.clone(),
            state: allocation.state,
            queued,
            wait_ends: allocation.waits_until.filter(|_| is_live),
            delays: dependencies.flat_map(|all| all.delay_ends()).collect(),
            deadline_ends: allocation.deadline_missed_at(),
            mail_mark: allocation.next_mail_mark().map(|(at, _)| at),
            exclusions: exclusions.filter_map(|excluded| Some((excluded.node.clone(), excluded.until?))).collect(),
            telemetry_ends: allocation.telemetry.as_ref().and_then(|order| order.until),
            has_moved: is_live && !allocation.attempts.is_empty(),
            with_nodes_of: holds_nodes(allocation.state).then(|| allocation.owner.name.clone()),
            is_charged: allocation.started_at.is_some() && holds_nodes(allocation.state),
        }
    }

    fn live_tenant(&self) -> Option<&String> {
        self.queued.map(|_| &self.tenant)
    }

    fn charged_tenant(&self) -> Option<&String> {
        Some(&self.tenant).filter(|tenant| self.is_charged && !tenant.is_empty())
    }

    fn queue(&self) -> Option<(&String, Queued)> {
        self.queued.map(|queued| (&self.vcluster, queued))
    }
}

impl AllocationIndex {
    /// Replaces the facts of an allocation; `None`: it did not exist, or exists no longer. Changes
    /// only the entries that differ.
    pub fn replace(&mut self, id: AllocationId, was: Option<&AllocationFacts>, now: Option<&AllocationFacts>) {
        if let Some((was, now)) = differing(was, now, |facts| Some(&facts.state)) {
            was.iter().for_each(|state| shrink(&mut self.states, state));
            now.iter().for_each(|state| grow(&mut self.states, state));
        }
        if let Some((was, now)) = differing(was, now, AllocationFacts::live_tenant) {
            was.iter().for_each(|tenant| shrink(&mut self.live_of_tenant, tenant));
            now.iter().for_each(|tenant| grow(&mut self.live_of_tenant, tenant));
        }
        if let Some((was, now)) = differing(was, now, AllocationFacts::queue) {
            was.iter().for_each(|(queue, queued)| self.leave_queue(queue, *queued));
            now.iter().for_each(|(queue, queued)| *self.queues.entry((*queue).clone()).or_default().of(*queued) += 1);
        }
        if let Some((was, now)) = differing(was, now, |facts| facts.wait_ends) {
            was.and_then(|end| self.wait_ends.remove(&(end, id)));
            now.and_then(|end| self.wait_ends.insert((end, id)));
        }
        if let Some((was, now)) = differing(was, now, |facts| Some(&facts.delays)) {
            for end in was.into_iter().flatten() {
                self.delay_ends.remove(&(*end, id));
            }
            for end in now.into_iter().flatten() {
                self.delay_ends.insert((*end, id));
            }
        }
        if let Some((was, now)) = differing(was, now, |facts| facts.deadline_ends) {
            was.and_then(|end| self.deadline_ends.remove(&(end, id)));
            now.and_then(|end| self.deadline_ends.insert((end, id)));
        }
        if let Some((was, now)) = differing(was, now, |facts| facts.mail_mark) {
            was.and_then(|mark| self.mail_marks.remove(&(mark, id)));
            now.and_then(|mark| self.mail_marks.insert((mark, id)));
        }
        if let Some((was, now)) = differing(was, now, |facts| Some(&facts.exclusions)) {
            for (node, end) in was.into_iter().flatten() {
                self.exclusion_ends.remove(&(*end, id));
                self.excluded.remove(&(node.clone(), id));
            }
            for (node, end) in now.into_iter().flatten() {
                self.exclusion_ends.insert((*end, id));
                self.excluded.insert((node.clone(), id));
            }
        }
        if let Some((was, now)) = differing(was, now, |facts| facts.telemetry_ends) {
            was.and_then(|end| self.telemetry_ends.remove(&(end, id)));
            now.and_then(|end| self.telemetry_ends.insert((end, id)));
        }
        if let Some((_, now)) = differing(was, now, |facts| facts.has_moved.then_some(())) {
            match now {
                Some(()) => self.moved.insert(id),
                None => self.moved.remove(&id),
            };
        }
        if let Some((was, now)) = differing(was, now, |facts| facts.with_nodes_of.as_ref()) {
            was.and_then(|user| self.with_nodes.remove(&(user.clone(), id)));
            now.and_then(|user| self.with_nodes.insert((user.clone(), id)));
        }
        if let Some((was, now)) = differing(was, now, AllocationFacts::charged_tenant) {
            was.and_then(|tenant| self.charged.remove(&(tenant.clone(), id)));
            now.and_then(|tenant| self.charged.insert((tenant.clone(), id)));
        }
    }

    /// The allocations that have nodes: of the users with this name, or (`None`) of all.
    pub fn with_nodes(&self, user: Option<&str>) -> impl Iterator<Item = AllocationId> {
        let first = (user.unwrap_or_default().to_owned(), AllocationId(Uuid::nil()));
        let wanted = move |(name, _): &&(String, AllocationId)| user.is_none_or(|user| user == name);
        self.with_nodes.range(first..).take_while(wanted).map(|(_, id)| *id)
    }

    fn leave_queue(&mut self, queue: &str, queued: Queued) {
        let Some(counts) = self.queues.get_mut(queue) else { return };
        let count = counts.of(queued);
        *count = count.saturating_sub(1);
        if *counts == QueueCounts::default() {
            self.queues.remove(queue);
        }
    }
}

/// One part of the facts before and now, if it differs.
fn differing<'a, T: PartialEq>(
    was: Option<&'a AllocationFacts>,
    now: Option<&'a AllocationFacts>,
    part: impl Fn(&'a AllocationFacts) -> Option<T>,
) -> Option<(Option<T>, Option<T>)> {
    let (was, now) = (was.and_then(&part), now.and_then(&part));
    (was != now).then_some((was, now))
}

fn grow<K: Ord + Clone>(counts: &mut OrdMap<K, u32>, key: &K) {
    match counts.get_mut(key) {
        Some(count) => *count += 1,
        None => drop(counts.insert(key.clone(), 1)),
    }
}

fn shrink<K: Ord + Clone>(counts: &mut OrdMap<K, u32>, key: &K) {
    match counts.get_mut(key) {
        Some(count) if *count > 1 => *count -= 1,
        Some(_) | None => drop(counts.remove(key)),
    }
}
