//! Scaled services: how many replicas there should be, and which ones begin and leave.
//!
//! ```text
//!   Scale, Update ───╮
//!   (a user)         │
//!   StepScaling ─────┴▶ `wanted` of the service ──end of the command──▶ replicas created: each an allocation like any other
//!   (the agent with the scheduler's lease)                          ╰──▶ those too many: the waiting ones end, the latest first;
//!                                                                        then the running ones are asked to leave
//!   a command changes a replica ──note_before──▶ `replicas` of the context
//!   end of the command: each replica followed ──▶ the counts in the record of its service ──▶ as above
//! ```
//!
//! A service gets no nodes itself and is in no queue, like a task group; [`super::task_groups`] says how
//! much one command does, and how many lanes and replicas of a user wait. The public state of a
//! service is in its record ([`ScalingState`]), so a watcher needs nothing else. The numbers of its
//! replicas are in `scaled_services`.
//!
//! | a replica | then |
//! |---|---|
//! | waits or is being prepared, and is one too many | ends at once |
//! | runs, and is one too many | must leave: it is out of the service registry at once, and ends for good, however it ends |
//! | is requeued, or was preempted | waits again, with the same number |
//! | ends otherwise for good | another one takes its place, with a number of its own |
//!
//! A replica that ends by itself soon after it has begun would be replaced for ever. So the service
//! ends with the third such end in a row. A replica that was created after such an end and has run for
//! a while interrupts the row.
//!
//! After a recovery from a backup, no replica is created or asked to leave before every node has reported
//! what it has. Replicas that the backup lacks are adopted, and so is a higher bound under which they were
//! created. When all have reported, the service wants at least as many replicas as then run, unless somebody
//! has changed the number since.

use super::claims::scheduler_lease;
use super::preemptions::checkpoint_of;
use super::reports::bounded;
use super::task_groups::lane_id;
use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_ledger_state::refusal::{Refusal, UpdateRefusal};
use lattice_ledger_state::scaled_services::{ReplicaCounts, ServiceReplicas, is_asked_to_leave};
use lattice_ledger_state::task_groups::LanePhase;
use lattice_ledger_state::user_usage::holds_nodes;
use lattice_model::count::counted;
use lattice_model::scaling::{Step, check};
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, AllocationState, AuditAction, DesiredShare, EndReason, MailEvent, NodeId, PreemptCause,
    Preemption, Principal, ReplicaOf, ScaleMetric, Scaling, ScalingState, Timestamp,
};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::sync::Arc;

/// Who changed the number of replicas, in records, if no user did.
const SCALING: &str = "scaling";
/// After this many early ends of its replicas in a row, a service ends.
const EARLY_ENDS_MAX: u32 = 3;
/// A replica that has run for this long, in milliseconds, does not end early.
const RUNS_MS: u64 = 10 * 60_000;

/// A step of the loop that scales a service, from the agent with the lease for the queue of the service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalingStep {
    /// The service.
    pub service: AllocationId,
    /// The token of the lease for its queue.
    pub lease_token: u64,
    /// The metric that the loop looked at.
    pub metric: ScaleMetric,
    /// The result or the request of the loop.
    pub step: Step,
}

/// Whether a replica that ends for this reason has ended by itself.
fn is_own_end(reason: &EndReason) -> bool {
    match reason {
        EndReason::Exited { .. }
        | EndReason::PrologueFailed { .. }
        | EndReason::LaunchAborted { .. }
        | EndReason::OutOfMemory { .. }
        | EndReason::ProbeFailed { .. } => true,
        EndReason::WalltimeExceeded
        | EndReason::WalltimeSaved { .. }
        | EndReason::Cancelled { .. }
        | EndReason::NodeLost { .. }
        | EndReason::DrainDeadline { .. }
        | EndReason::RunLeaseLapsed { .. }
        | EndReason::Preempted { .. }
        | EndReason::Requeued { .. }
        | EndReason::DependencyUnmet { .. }
        | EndReason::DeadlineMissed { .. }
        | EndReason::TasksFailed { .. } => false,
    }
}

/// The end of a replica that was not asked to leave.
struct ReplicaEnd {
    reason: EndReason,
    /// For how long it had run, in milliseconds.
    ran_ms: u64,
}

impl ReplicaEnd {
    /// `None`: it has not ended.
    fn of(replica: &Allocation) -> Option<Self> {
        let reason = replica.reason.clone().filter(|_| replica.state.is_terminal())?;
        let ran_ms = replica.started_at.zip(replica.ended_at).map_or(0, |(started_at, ended_at)| ended_at.since_ms(started_at));
        Some(Self { reason, ran_ms })
    }
}

/// The specified scaling and the state of a service that has not ended.
fn scaled(service: &Allocation) -> Result<(&Scaling, &ScalingState), Refusal> {
    let id = service.id;
    Ledger::not_to_a_part(service)?;
    let (Some(scaling), Some(known)) = (service.spec.scaling.as_deref(), service.scaling.as_deref()) else {
        return Err(Refusal::NotScaled { id });
    };
    if service.state.is_terminal() {
        return Err(Refusal::Update { id, why: UpdateRefusal::HasEnded { state: service.state } });
    }
    Ok((scaling, known))
}

/// The step, with a text of bounded length.
fn bounded_step(step: &Step) -> Step {
    match step {
        Step::Note { found } => Step::Note { found: found.clone().map_err(|why| bounded(&why)) },
        Step::Restart { found } => Step::Restart { found: found.clone().map_err(|why| bounded(&why)) },
        Step::Want { replicas, value } => Step::Want { replicas: *replicas, value: *value },
    }
}

fn change_text(from: u32, to: u32) -> String {
    format!("{} instead of {from}", counted(to, "replica"))
}

impl Ledger {
    /// The service was submitted, or adopted, just now.
    pub(super) fn open_service(&mut self, context: &mut ApplyContext, id: AllocationId, scaling: &Scaling) {
        self.note_before(context, id);
        self.scaled_services.insert(id, Arc::new(ServiceReplicas::default()));
        if let Some(service) = self.allocation_mut(context, id) {
            service.scaling = Some(Box::new(ScalingState { wanted: scaling.replicas_min, ..ScalingState::default() }));
        }
    }

    /// A user wants this number of replicas.
    pub(super) fn scale(
        &mut self,
        context: &mut ApplyContext,
        id: AllocationId,
        replicas: u32,
        by: &Principal,
    ) -> Result<Outcome, Refusal> {
        let service = self.allocations.get(&id).ok_or_else(|| self.no_such_allocation(id))?;
        if !self.may("AllocationService/Scale", by, &service.owner, &service.spec.tenant) {
            return Err(Refusal::NotYours { id, owner: service.owner.name.clone() });
        }
        let (scaling, known) = scaled(service)?;
        let (least, most) = (scaling.replicas_min, scaling.replicas_max);
        if !(least..=most).contains(&replicas) {
            return Err(Refusal::ReplicasOutOfBounds { id, asked: replicas, least, most });
        }
        let (wanted, detail) = (known.wanted, change_text(known.wanted, replicas));
        self.forget_adopted(id);
        if replicas == wanted {
            return Ok(Outcome::Done);
        }
        self.change_scaling(context, id, |state, at| state.set_wanted(replicas, Some(by.name.clone()), None, at));
        self.record(context, &by.name, AuditAction::AllocationScaled, Subject { allocation: Some(id), node: None }, detail);
        Ok(Outcome::Done)
    }

    /// A step of the service's loop: it has found something, or asks for one replica more or less. From the
    /// agent with the lease of its queue.
    pub(super) fn step_scaling(&mut self, context: &mut ApplyContext, order: &ScalingStep) -> Result<Outcome, Refusal> {
        let ScalingStep { service: id, lease_token, metric, step } = order;
        let id = *id;
        let service = self.allocations.get(&id).ok_or_else(|| self.no_such_allocation(id))?;
        let name = scheduler_lease(self.queue_of(&service.spec.vcluster));
        if self.leases.get(&name).is_none_or(|lease| lease.token != *lease_token) {
            return Err(Refusal::StaleLease { name, token: *lease_token });
        }
        let (scaling, known) = scaled(service)?;
        // The metric was changed while the loop looked at the former one.
        if let Some(policy) = scaling.policy.as_ref().filter(|policy| policy.metric != *metric) {
            return Err(Refusal::ScalingStep { id, why: format!("it scales by {} now, and not by {metric}", policy.metric) });
        }
        check(scaling, known, step, context.at).map_err(|why| Refusal::ScalingStep { id, why: why.to_string() })?;
        let mut next = known.clone();
        next.take(scaling, bounded_step(step), context.at);
        // The step changes nothing.
        if next == *known {
            return Ok(Outcome::Done);
        }
        let detail = match step {
            Step::Note { .. } | Step::Restart { .. } => None,
            Step::Want { replicas, value } => Some(format!("{}: {metric} is {value}", change_text(known.wanted, *replicas))),
        };
        self.change_scaling(context, id, |state, _| *state = next);
        if let Some(detail) = detail {
            self.forget_adopted(id);
            self.record(context, SCALING, AuditAction::AllocationScaled, Subject { allocation: Some(id), node: None }, detail);
        }
        Ok(Outcome::Done)
    }

    /// A user has changed the specification of an allocation. If it is a scaled service: its number of
    /// replicas is brought into the bounds, and with another policy, the reading and the alternations under
    /// the former one are dropped.
    pub(super) fn adapt_scaling(&mut self, context: &mut ApplyContext, id: AllocationId, before: &AllocationSpec, by: &str) {
        let Some(service) = self.allocations.get(&id) else { return };
        let (Some(was), Some(scaling)) = (before.scaling.as_deref(), service.spec.scaling.as_deref()) else { return };
        let Some(wanted) = service.scaling.as_deref().map(|known| known.wanted) else { return };
        let next = wanted.clamp(scaling.replicas_min, scaling.replicas_max);
        let (is_rebounded, is_retargeted) = (scaling.replicas_max != was.replicas_max, scaling.policy != was.policy);
        if is_retargeted {
            self.change_scaling(context, id, |state, _| (state.reading, state.alternations) = (None, 0));
        }
        if let Some(recovery) = self.recovery.as_mut().filter(|recovery| is_rebounded && recovery.adopting.is_some()) {
            recovery.rebounded.insert(id);
        }
        if next == wanted {
            return;
        }
        // During a recovery, adopted replicas still count: other bounds do not say how many replicas somebody wants.
        self.change_scaling(context, id, |state, at| state.set_wanted(next, Some(by.to_owned()), None, at));
        let detail = change_text(wanted, next);
        self.record(context, by, AuditAction::AllocationScaled, Subject { allocation: Some(id), node: None }, detail);
    }

    fn change_scaling(&mut self, context: &mut ApplyContext, id: AllocationId, change: impl FnOnce(&mut ScalingState, Timestamp)) {
        let at = context.at;
        if let Some(state) = self.allocation_mut(context, id).and_then(|service| service.scaling.as_deref_mut()) {
            change(state, at);
        }
    }

    /// The replicas of a service, to be changed by this command.
    fn replicas_mut(&mut self, context: &mut ApplyContext, service: AllocationId) -> Option<&mut ServiceReplicas> {
        self.note_before(context, service);
        self.scaled_services.get_mut(&service).map(Arc::make_mut)
    }

    /// The specification has changed. If it is a scaled service's, new replicas replace those that wait and
    /// have never begun.
    pub(super) fn outdate_replicas(&mut self, context: &mut ApplyContext, id: AllocationId) {
        if self.scaled_services.contains_key(&id)
            && let Some(replicas) = self.replicas_mut(context, id)
        {
            replicas.lanes.outdate();
        }
    }

    /// Another replica of the same service that holds a part of this node, or leaves it; and why both cannot
    /// be there.
    pub(super) fn replica_beside(&self, allocation: &Allocation, node: &NodeId) -> Option<(AllocationId, String)> {
        let service = allocation.replica.as_deref()?.service;
        let others = self.holdings(node).iter().filter(|held| held.allocation != allocation.id);
        others.filter_map(|held| self.allocations.get(&held.allocation)).find_map(|other| {
            let of = other.replica.as_deref().filter(|of| of.service == service)?;
            let why = format!("has replica {} of the same service, allocation {}: each of them has a node of its own", of.number, other.id);
            Some((other.id, why))
        })
    }

    /// A replica of the service is in this phase from now on. `has_begun`: whether it has nodes and its work runs.
    fn set_replica_phase(
        &mut self,
        context: &mut ApplyContext,
        ReplicaOf { service, number }: ReplicaOf,
        phase: LanePhase,
        has_begun: bool,
    ) {
        let Some(replicas) = self.replicas_mut(context, service) else { return };
        let was = replicas.counts();
        replicas.set_phase(number, phase, has_begun);
        let now = replicas.counts();
        if was == now {
            return;
        }
        if let Some(uid) = self.allocations.get(&service).map(|service| service.owner.uid) {
            self.count_waiting(uid, was.waiting, now.waiting);
        }
        let ReplicaCounts { waiting, running, serving, leaving } = now;
        self.change_scaling(context, service, |state, _| {
            (state.waiting, state.running, state.serving, state.leaving) = (waiting, running, serving, leaving);
        });
    }

    /// A replica may have changed: updates its service.
    pub(super) fn follow_replica(&mut self, context: &mut ApplyContext, id: AllocationId, of: ReplicaOf) {
        let ReplicaOf { service, number } = of;
        let (Some(replicas), Some(service_record)) = (self.scaled_services.get(&service), self.allocations.get(&service)) else { return };
        let record = self.allocations.get(&id).or_else(|| context.changed.dropped.get(&id));
        let phase = match record {
            Some(replica) if holds_nodes(replica.state) && is_asked_to_leave(replica) => LanePhase::Leaving,
            Some(replica) if holds_nodes(replica.state) => LanePhase::Running,
            Some(replica) if !replica.state.is_terminal() => LanePhase::Waiting,
            Some(_) | None if self.holdings.unfenced_of(id) > 0 => LanePhase::Leaving,
            Some(_) | None => LanePhase::Absent,
        };
        let was = replicas.lanes.phase(number);
        let has_begun = record.is_some_and(|replica| replica.state == AllocationState::Running);
        let is_known = was == phase && (phase != LanePhase::Running || replicas.serving.contains(&number) == has_begun);
        let started_at = record.filter(|replica| replica.state == AllocationState::Running).and_then(|replica| replica.started_at);
        let of_lost_quorum = record.zip(self.recovery.as_ref()).is_some_and(|(replica, recovery)| replica.epoch <= recovery.epochs);
        let is_adopted = of_lost_quorum && phase == LanePhase::Running && was != LanePhase::Running;
        let is_start = service_record.started_at.is_none() && !service_record.state.is_terminal();
        let end = match was {
            LanePhase::Waiting | LanePhase::Running => record.and_then(|replica| ReplicaEnd::of(replica)),
            LanePhase::Leaving | LanePhase::Absent => None,
        };
        if let Some(at) = started_at.filter(|_| is_start)
            && let Some(service) = self.allocation_mut(context, service)
        {
            service.started_at = Some(at);
            self.mail(context, of.service, MailEvent::Begin);
        }
        if is_known {
            return;
        }
        self.set_replica_phase(context, of, phase, has_begun);
        if is_adopted {
            self.note_adopted(service);
        }
        if let Some(end) = end {
            self.note_replica_end(context, of, end);
        }
    }

    /// A replica has ended for good and was not asked to leave. After too many early ends in a row, its
    /// service ends.
    fn note_replica_end(&mut self, context: &mut ApplyContext, of: ReplicaOf, end: ReplicaEnd) {
        let ReplicaOf { service, number } = of;
        let Some(known) = self.allocations.get(&service).filter(|service| !service.state.is_terminal()) else { return };
        let before = known.scaling.as_ref().map_or(0, |state| state.early_ends);
        let is_early = is_own_end(&end.reason) && end.ran_ms < RUNS_MS;
        let early_ends = if end.ran_ms >= RUNS_MS {
            0
        } else if !is_early {
            before
        } else if self.has_newer_that_runs(service, context.at) {
            1
        } else {
            before.saturating_add(1)
        };
        if is_early && let Some(replicas) = self.replicas_mut(context, service) {
            replicas.note_early_end(number);
        }
        if early_ends != before {
            self.change_scaling(context, service, |state, _| state.early_ends = early_ends);
        }
        if early_ends >= EARLY_ENDS_MAX {
            self.end_for_good(context, service, end.reason, "quorum");
        }
    }

    /// Whether a replica that was created after the last early end has run for a while.
    fn has_newer_that_runs(&self, service: AllocationId, now: Timestamp) -> bool {
        let runs = |number: u32| {
            let started_at = self.allocations.get(&lane_id(service, number)).and_then(|replica| replica.started_at);
            started_at.is_some_and(|started_at| now.since_ms(started_at) >= RUNS_MS)
        };
        self.scaled_services.get(&service).is_some_and(|replicas| replicas.running_since_early_end().any(runs))
    }

    /// After a recovery: a node has a replica of this service that the backup lacks.
    fn note_adopted(&mut self, service: AllocationId) {
        if let Some(adopting) = self.recovery.as_mut().and_then(|recovery| recovery.adopting.as_mut()) {
            adopting.entry(service).or_insert(true);
        }
    }

    /// Somebody has set the number of replicas: it counts, and not the adopted replicas.
    fn forget_adopted(&mut self, service: AllocationId) {
        if let Some(adopting) = self.recovery.as_mut().and_then(|recovery| recovery.adopting.as_mut()) {
            adopting.insert(service, false);
        }
    }

    /// Once after a recovery, when the ledger waits for no node any more: services with adopted replicas want
    /// at least as many as run, because the lost quorum wanted them.
    pub(super) fn want_adopted(&mut self, context: &mut ApplyContext) {
        let Some(recovery) = &mut self.recovery else { return };
        let adopting = recovery.adopting.take().unwrap_or_default();
        recovery.rebounded.clear();
        for id in adopting.into_iter().filter_map(|(id, decides)| decides.then_some(id)) {
            let Some(service) = self.allocations.get(&id).filter(|service| !service.state.is_terminal()) else { continue };
            let (Some(scaling), Some(known)) = (service.spec.scaling.as_deref(), service.scaling.as_deref()) else { continue };
            let (wanted, runs) = (known.wanted, known.running.min(scaling.replicas_max));
            if runs <= wanted {
                continue;
            }
            self.change_scaling(context, id, |state, at| state.set_wanted(runs, Some("quorum".to_owned()), None, at));
            let detail = format!("{}: nodes have them since before the recovery", change_text(wanted, runs));
            self.record(context, "quorum", AuditAction::AllocationScaled, Subject { allocation: Some(id), node: None }, detail);
        }
    }

    /// After a recovery: a node has a replica of a service that the backup lacks.
    pub(super) fn adopt_service(&mut self, context: &mut ApplyContext, node: &NodeId, share: &DesiredShare) {
        let (Some(ReplicaOf { service: id, .. }), Some(scaling)) = (share.replica, share.spec.scaling.as_deref()) else { return };
        if self.allocations.contains_key(&id) {
            // A replica in the backup may have been created under earlier bounds.
            if !self.allocations.contains_key(&share.allocation) {
                self.widen_bounds(context, node, id, scaling.replicas_max);
            }
            return;
        }
        let submitted = Allocation::submitted(id, share.spec.clone(), share.owner.clone(), context.at);
        let (revision, submission) = (context.revision, self.audit.seq + 1);
        let mut service = Allocation { revision, submission, ..submitted };
        self.scripts.share(&mut Arc::make_mut(&mut service.spec).entrypoint);
        self.adopt_number(&mut service, share);
        self.note_before(context, id);
        self.allocations.insert(id, Arc::new(service));
        context.changed.record(id);
        self.open_service(context, id, scaling);
        let about = Subject { allocation: Some(id), node: Some(node) };
        self.record(context, &format!("node:{node}"), AuditAction::AllocationAdopted, about, "the scaled service of a replica".to_owned());
    }

    /// After a recovery: a node has a replica of this service that was created after the backup. The lost
    /// quorum allowed this many then.
    fn widen_bounds(&mut self, context: &mut ApplyContext, node: &NodeId, service: AllocationId, most: u32) {
        if self.recovery.as_ref().is_some_and(|recovery| recovery.rebounded.contains(&service)) {
            return;
        }
        let live = self.allocations.get(&service).filter(|service| !service.state.is_terminal());
        let Some(spec) = live.map(|service| Arc::clone(&service.spec)) else { return };
        let Some(before) = spec.scaling.as_deref().filter(|scaling| scaling.replicas_max < most) else { return };
        let (least, was) = (before.replicas_min, before.replicas_max);
        let next = Scaling { replicas_max: most, ..before.clone() };
        self.replace_spec(context, service, AllocationSpec { scaling: Some(Box::new(next)), ..AllocationSpec::clone(&spec) });
        let detail = format!("bounds {least} to {most} instead of {least} to {was}; node {node} had them before the recovery");
        self.record(context, "quorum", AuditAction::AllocationChanged, Subject { allocation: Some(service), node: None }, detail);
    }

    /// The waiting replicas to end if `wanted` should wait: all with an earlier specification that have never
    /// begun, and the surplus of the others. Also returns how many are missing then. A checkpoint is lost with
    /// its replica, so replicas without one end first, the latest of them first.
    fn replicas_to_end(&self, service: AllocationId, replicas: &ServiceReplicas, wanted: u32) -> (Vec<u32>, u32) {
        let record = |number: u32| self.allocations.get(&lane_id(service, number));
        let has_begun = |number: u32| record(number).is_some_and(|replica| replica.has_ever_begun());
        let is_outdated = |number: &u32| *number < replicas.lanes.current_from && !has_begun(*number);
        let (outdated, mut others): (Vec<u32>, Vec<u32>) = replicas.lanes.waiting.iter().copied().partition(is_outdated);
        let waiting = u32::try_from(others.len()).unwrap_or(u32::MAX);
        let surplus = waiting.saturating_sub(wanted) as usize;
        if surplus > 0 {
            let has_checkpoint = |number: u32| record(number).is_some_and(|replica| replica.checkpoint.is_some());
            others.sort_by_cached_key(|number| (has_checkpoint(*number), Reverse(*number)));
        }
        (outdated.into_iter().chain(others.into_iter().take(surplus)).collect(), wanted.saturating_sub(waiting))
    }

    /// Creates replicas of a service, or ends those that it does not need. Returns whether nothing is left
    /// to do.
    pub(super) fn settle_service(&mut self, context: &mut ApplyContext, id: AllocationId, left: &mut usize) -> bool {
        let Some(service) = self.allocations.get(&id).cloned() else { return true };
        if service.state.is_terminal() {
            return self.end_replicas_of_ended(context, &service, left);
        }
        // A node may have replicas that the backup lacks.
        if self.placing_waits() {
            return true;
        }
        let (Some(state), Some(replicas)) = (service.scaling.as_deref(), self.scaled_services.get(&id)) else { return true };
        let (wanted, running) = (state.wanted, replicas.counts().running);
        let may_begin = !service.held && service.dependencies.as_ref().is_none_or(|all| all.are_met());
        let (ending, missing) = self.replicas_to_end(id, replicas, if may_begin { wanted.saturating_sub(running) } else { 0 });
        let leaving: Vec<u32> = replicas.lanes.running.iter().rev().take(running.saturating_sub(wanted) as usize).copied().collect();
        for number in ending {
            if *left == 0 {
                return false;
            }
            *left -= 1;
            self.end_for_good(context, lane_id(id, number), EndReason::Cancelled { by: "quorum".to_owned() }, "quorum");
        }
        for number in leaving {
            if *left == 0 {
                return false;
            }
            *left -= 1;
            self.ask_to_leave(context, &service, number);
        }
        self.create_replicas(context, &service, missing, left)
    }

    /// Asks a surplus replica that has nodes to leave. One that is still being prepared ends at once.
    fn ask_to_leave(&mut self, context: &mut ApplyContext, service: &Allocation, number: u32) {
        let id = lane_id(service.id, number);
        let (Some(replica), Some(state)) = (self.allocations.get(&id), service.scaling.as_deref()) else { return };
        // It was ended just now, and its service has not been updated yet.
        if replica.state.is_terminal() {
            return;
        }
        let Some(drain) = replica.spec.scaling.as_ref().map(|scaling| scaling.drain) else { return };
        let by = state.change.as_ref().and_then(|change| change.by.clone()).unwrap_or_else(|| SCALING.to_owned());
        if replica.state == AllocationState::Staging {
            self.end_for_good(context, id, EndReason::Cancelled { by: by.clone() }, &by);
            return;
        }
        let order = Preemption {
            id: checkpoint_of(service.id.0, id, replica.epoch),
            by,
            reason: format!("service {} needs {} now", service.id.short(), counted(state.wanted, "replica")),
            cause: PreemptCause::ScaleDown,
            deadline_ms: drain.grace_ms,
            hold: false,
            failed: None,
        };
        self.begin_preemption(context, id, order);
        self.set_replica_phase(context, ReplicaOf { service: service.id, number }, LanePhase::Leaving, false);
    }

    /// Ends the replicas of a service that has ended.
    fn end_replicas_of_ended(&mut self, context: &mut ApplyContext, service: &Allocation, left: &mut usize) -> bool {
        let Some(replicas) = self.scaled_services.get(&service.id) else { return true };
        let by = match &service.reason {
            Some(EndReason::Cancelled { by }) => by.clone(),
            Some(_) | None => "quorum".to_owned(),
        };
        let lives = |id: &AllocationId| self.allocations.get(id).is_some_and(|replica| !replica.state.is_terminal());
        let numbers = replicas.lanes.waiting.iter().chain(&replicas.lanes.running).chain(&replicas.lanes.leaving);
        let mut live = numbers.map(|number| lane_id(service.id, *number)).filter(lives);
        let now: Vec<AllocationId> = live.by_ref().take(*left).collect();
        let is_all = live.next().is_none();
        *left -= now.len();
        for id in now {
            self.end_for_good(context, id, EndReason::Cancelled { by: by.clone() }, &by);
        }
        is_all
    }

    fn create_replicas(&mut self, context: &mut ApplyContext, service: &Allocation, count: u32, left: &mut usize) -> bool {
        if count == 0 {
            return true;
        }
        let spec = self.spec_of_replicas(service);
        for _ in 0..count {
            if *left == 0 {
                return false;
            }
            let Some(replicas) = self.scaled_services.get(&service.id).filter(|replicas| replicas.lanes.next < u32::MAX) else {
                return true;
            };
            let has_one = replicas.counts().waiting > 0;
            if !self.admits_waiting(service.id, service.owner.uid, has_one) {
                return true;
            }
            *left -= 1;
            self.create_replica(context, service, Arc::clone(&spec));
        }
        true
    }

    /// The specification of a service's next replicas: shared with another one that has the same.
    fn spec_of_replicas(&self, service: &Allocation) -> Arc<AllocationSpec> {
        let spec = AllocationSpec {
            depends_on: Vec::new(),
            singleton: false,
            hold: false,
            timing: None,
            mail: None,
            ..AllocationSpec::clone(&service.spec)
        };
        let lanes = self.scaled_services.get(&service.id).map(|replicas| &replicas.lanes);
        let latest = lanes.and_then(|lanes| lanes.waiting.last().or_else(|| lanes.running.last()));
        let known = latest.and_then(|number| self.allocations.get(&lane_id(service.id, *number)));
        match known.filter(|replica| *replica.spec == spec) {
            Some(replica) => Arc::clone(&replica.spec),
            None => Arc::new(spec),
        }
    }

    fn create_replica(&mut self, context: &mut ApplyContext, service: &Allocation, spec: Arc<AllocationSpec>) {
        let Some(number) = self.scaled_services.get(&service.id).map(|replicas| replicas.lanes.next) else { return };
        let id = lane_id(service.id, number);
        // Somebody may have submitted work with this id: then the service has no replica of this number.
        let is_free = !self.allocations.contains_key(&id);
        let phase = if is_free { LanePhase::Waiting } else { LanePhase::Absent };
        self.set_replica_phase(context, ReplicaOf { service: service.id, number }, phase, false);
        if !is_free {
            return;
        }
        let replica = Allocation {
            replica: Some(Box::new(ReplicaOf { service: service.id, number })),
            revision: context.revision,
            ..Allocation::submitted(id, spec, service.owner.clone(), context.at)
        };
        self.note_before(context, id);
        self.allocations.insert(id, Arc::new(replica));
        context.changed.record(id);
        let detail = format!("replica {number} of scaled service {}", service.id);
        self.record(context, "quorum", AuditAction::AllocationSubmitted, Subject { allocation: Some(id), node: None }, detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::Amount;

    #[test]
    fn a_step_has_a_bounded_text() {
        let long = Step::Note { found: Err("x".repeat(10_000)) };
        assert!(matches!(bounded_step(&long), Step::Note { found: Err(why) } if why.len() < 1000));
        for step in [Step::Note { found: Ok(Amount(7)) }, Step::Want { replicas: 3, value: Amount(1) }] {
            assert_eq!(bounded_step(&step), step);
        }
    }
}
