//! Preemption: work saves itself and releases its nodes, and continues from the checkpoint when it
//! gets new nodes.
//!
//! ```text
//!   Running ──asked──▶ Running, its head makes it save itself ──saved, ended──▶ Suspended ──claim──▶ Staging
//!                        │ it cannot: ended (request), or continues (drain)    │ held: only after `resume`
//!                        ▼
//!                      Failed, or back to the queue by its policy
//! ```
//!
//! The request is committed, and stays in the head's list until the claim ends, so that an agent
//! that is restarted meanwhile still finds it.

use super::claims::scheduler_lease;
use super::dependencies::only_in_queue;
use super::holds::{Ends, reason_is_well_formed};
use super::waits::Requeue;
use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_ledger_state::refusal::Refusal;
use lattice_ledger_state::scaled_services::is_asked_to_leave;
use lattice_model::checkpoint::{DEADLINE_MS, DEADLINE_MS_DEFAULT};
use lattice_model::end_reason::NotSaved;
use lattice_model::preemption::{CLASS_MAX, DEBTORS_MAX, VICTIMS_MAX};
use lattice_model::{
    Allocation, AllocationId, AllocationState, AuditAction, CheckpointId, EndReason, Epoch, HoldKind, MailEvent, NodeId, PreemptCause,
    Preemption, Principal, Timestamp, When, hostlist,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The actor in records when work is preempted for other work.
const SCHEDULER: &str = "scheduler";

/// An order of a scheduler to preempt work for other work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreemptFor {
    /// The allocation that waits for the nodes.
    pub beneficiary: AllocationId,
    /// The allocations that give nodes back, each with the epoch of its claim.
    pub victims: Vec<(AllocationId, Epoch)>,
    /// The token of the lease for the queue of the beneficiary.
    pub lease_token: u64,
    /// How long each victim has to save itself, in milliseconds.
    pub deadline_ms: u64,
}

impl Ledger {
    pub(super) fn preempt(
        &mut self,
        context: &mut ApplyContext,
        (id, epoch): (AllocationId, Epoch),
        by: &Principal,
        order: &Preemption,
        kill: bool,
    ) -> Result<Outcome, Refusal> {
        reason_is_well_formed(&order.reason)?;
        let (least, most) = DEADLINE_MS;
        if !(least..=most).contains(&order.deadline_ms) {
            return Err(Refusal::Malformed {
                why: format!("a deadline of {} ms: {least} ms to {most} ms are possible", order.deadline_ms),
            });
        }
        let allocation = self.allocations.get(&id).ok_or_else(|| self.no_such_allocation(id))?;
        if !self.may("AllocationService/Preempt", by, &allocation.owner, &allocation.spec.tenant) {
            return Err(Refusal::NotYours { id, owner: allocation.owner.name.clone() });
        }
        if !by.owns(&allocation.owner)
            && let Some(why) = exempt(allocation)
        {
            return Err(Refusal::NotPreemptible { id, why });
        }
        // The service would lack a replica until somebody resumes the held one.
        if order.hold && allocation.replica.is_some() {
            Self::not_to_a_part(allocation)?;
        }
        // A repetition: the work has already released its nodes because of this order, with or
        // without a checkpoint.
        if allocation.preempted_by == Some(order.id) {
            return Ok(Outcome::Done);
        }
        let order = Preemption { by: by.name.clone(), cause: PreemptCause::Request, failed: None, ..order.clone() };
        match allocation.state {
            AllocationState::Pending if allocation.epoch == Epoch(0) => {
                return Err(Refusal::NotRunning { id, state: AllocationState::Pending });
            }
            AllocationState::Suspended if order.hold && !allocation.held => {
                if let Some(allocation) = self.allocation_mut(context, id) {
                    allocation.held = true;
                }
                let about = Subject { allocation: Some(id), node: None };
                self.record(context, &by.name, AuditAction::PreemptRequested, about, format!("it stays Suspended: {}", order.reason));
            }
            AllocationState::Staging | AllocationState::Running if allocation.epoch == epoch => {
                if let Some(lost) = loss_by_preemption(allocation).filter(|_| !kill) {
                    return Err(Refusal::CannotSave { id, lost });
                }
                self.begin_preemption(context, id, order);
            }
            // The claim that the request names has ended and its nodes are released: this is a
            // repetition whose first answer was lost.
            AllocationState::Staging
            | AllocationState::Running
            | AllocationState::Pending
            | AllocationState::Suspended
            | AllocationState::Completed
            | AllocationState::Failed
            | AllocationState::Cancelled => {}
        }
        Ok(Outcome::Done)
    }

    /// Records the order for work that has nodes. A replica that must leave is out of the service registry
    /// from now on.
    pub(super) fn begin_preemption(&mut self, context: &mut ApplyContext, id: AllocationId, order: Preemption) {
        let Some(allocation) = self.allocations.get(&id) else { return };
        let (by, reason) = (order.by.clone(), order.reason.clone());
        let runs = may_have_begun(allocation);
        let next = match allocation.preemption.as_deref() {
            _ if !runs => None,
            Some(known) if known.stands() => {
                let mut joined = known.clone();
                joined.join(&order);
                Some(joined)
            }
            // The same request has been tried already.
            Some(known) if known.id == order.id && !order.cause.ends_unsaved(allocation.spec.checkpoint.is_some()) => return,
            Some(_) | None => Some(order.clone()),
        };
        if runs && next.as_ref() == allocation.preemption.as_deref() {
            return;
        }
        let head = allocation.head().cloned();
        let has_until = match order.cause {
            PreemptCause::ScaleDown => format!("{} ms to leave", order.deadline_ms),
            PreemptCause::Request | PreemptCause::Drain | PreemptCause::Priority | PreemptCause::Reclaim => {
                format!("{} ms to save itself", order.deadline_ms)
            }
        };
        let how = if !runs { "it had not begun".to_owned() } else { has_until };
        let hold = if order.hold { ", then it is held" } else { "" };
        let about = Subject { allocation: Some(id), node: None };
        let detail = format!("{} ({}): {how}{hold}", order.reason, order.cause);
        self.record(context, &by, AuditAction::PreemptRequested, about, detail);
        if let Some(next) = next {
            if let Some(allocation) = self.allocation_mut(context, id) {
                allocation.preemption = Some(Box::new(next));
            }
            if self.allocations.get(&id).is_some_and(|allocation| is_asked_to_leave(allocation)) {
                self.close_services(id);
            }
            context.changed.desired.extend(head);
        } else {
            let saved = Err(NotSaved("it had not begun".to_owned()));
            self.suspend(context, id, EndReason::Preempted { by: by.clone(), why: reason, saved }, order.hold, &by);
            if let Some(allocation) = self.allocation_mut(context, id) {
                allocation.preempted_by = Some(order.id);
            }
        }
    }

    /// Ends the current claim; the allocation continues from its latest checkpoint when it gets a
    /// new claim.
    pub(super) fn suspend(&mut self, context: &mut ApplyContext, id: AllocationId, reason: EndReason, hold: bool, actor: &str) {
        // Another lane continues the tasks of a lane, and a replica that was asked to leave does not come back.
        if self.allocations.get(&id).is_some_and(|allocation| allocation.lane.is_some() || is_asked_to_leave(allocation)) {
            return self.end_for_good(context, id, reason, actor);
        }
        // A replica is never held: nobody would resume it.
        let hold = hold && self.allocations.get(&id).is_some_and(|allocation| allocation.replica.is_none());
        self.back_to_queue(context, id, reason.clone(), actor);
        let Some(allocation) = self.allocation_mut(context, id) else { return };
        if hold || allocation.checkpoint.is_some() {
            allocation.state = AllocationState::Suspended;
        }
        allocation.held = hold;
        allocation.preempted_count += u32::from(matches!(reason, EndReason::Preempted { .. }));
        let then = if hold { "held until it is resumed" } else { "waits for nodes" };
        let detail = format!("{reason}; {then}");
        self.record(context, actor, AuditAction::AllocationSuspended, Subject { allocation: Some(id), node: None }, detail);
        self.mail(context, id, MailEvent::Requeue);
    }

    /// Report of the head: the work saved itself and is being ended, or could not and is being
    /// ended anyway.
    pub(super) fn ended_saved(&mut self, context: &mut ApplyContext, node: &NodeId, id: AllocationId, reason: EndReason) {
        let Some(allocation) = self.allocations.get(&id) else { return };
        let (epoch, order) = (allocation.epoch, allocation.preemption.as_deref().cloned().filter(Preemption::stands));
        let known = |made: CheckpointId| allocation.checkpoint.as_ref().is_some_and(|c| (c.id, c.epoch) == (made, epoch));
        let actor = format!("node:{node}");
        match reason {
            EndReason::Preempted { by, why, saved } => {
                let unknown = |made| NotSaved(format!("checkpoint {made} never came here"));
                let saved = saved.and_then(|made| if known(made) { Ok(made) } else { Err(unknown(made)) });
                let (by, why, hold) = order.map_or((by, why, false), |order| (order.by, order.reason, order.hold));
                let is_saved = saved.is_ok();
                let reason = EndReason::Preempted { by, why, saved };
                if is_saved { self.suspend(context, id, reason, hold, &actor) } else { self.end(context, id, reason, &actor) }
            }
            // If it also had to release its nodes for an order, it waits for others, as after a preemption.
            EndReason::WalltimeSaved { checkpoint } if known(checkpoint) => {
                let hold = order.is_none_or(|order| order.hold);
                self.suspend(context, id, EndReason::WalltimeSaved { checkpoint }, hold, &actor);
            }
            EndReason::WalltimeSaved { .. } => self.end(context, id, EndReason::WalltimeExceeded, &actor),
            other => self.end(context, id, other, &actor),
        }
    }

    /// Report of the head: the work could not save itself for this request, and continues.
    pub(super) fn not_preempted(
        &mut self,
        context: &mut ApplyContext,
        node: &NodeId,
        id: AllocationId,
        epoch: Epoch,
        asked: CheckpointId,
        why: String,
    ) {
        let Some(allocation) = self.allocations.get(&id).filter(|a| a.head() == Some(node)) else { return };
        let can_save = allocation.spec.checkpoint.is_some();
        let Some(order) = allocation.preemption.as_deref().cloned().filter(|order| order.stands() && order.id == asked) else { return };
        if !self.takes_part(node, id, epoch) {
            return;
        }
        let actor = format!("node:{node}");
        if order.cause.ends_unsaved(can_save) {
            // A request that requires more was merged meanwhile.
            let reason = EndReason::Preempted { by: order.by, why: order.reason, saved: Err(NotSaved(why)) };
            return self.end(context, id, reason, &actor);
        }
        let about = Subject { allocation: Some(id), node: Some(node) };
        self.record(context, &actor, AuditAction::PreemptFailed, about, format!("{}: {why}", order.reason));
        if let Some(allocation) = self.allocation_mut(context, id) {
            allocation.preemption = Some(Box::new(Preemption { failed: Some(why), ..order }));
        }
        context.changed.desired.insert(node.clone());
    }

    pub(super) fn hold_allocation(&mut self, context: &mut ApplyContext, id: AllocationId, by: &Principal) -> Result<Outcome, Refusal> {
        let allocation = self.allocations.get(&id).ok_or_else(|| self.no_such_allocation(id))?;
        if !self.may("AllocationService/Hold", by, &allocation.owner, &allocation.spec.tenant) {
            return Err(Refusal::NotYours { id, owner: allocation.owner.name.clone() });
        }
        Self::not_to_a_part(allocation)?;
        if !allocation.state.is_without_nodes() {
            return Err(Refusal::NotPending { id, state: allocation.state });
        }
        if allocation.held {
            return Ok(Outcome::Done);
        }
        let detail = format!("while {}", allocation.state);
        if let Some(allocation) = self.allocation_mut(context, id) {
            allocation.held = true;
        }
        self.record(context, &by.name, AuditAction::AllocationHeld, Subject { allocation: Some(id), node: None }, detail);
        Ok(Outcome::Done)
    }

    pub(super) fn resume(&mut self, context: &mut ApplyContext, id: AllocationId, by: &Principal) -> Result<Outcome, Refusal> {
        let allocation = self.allocations.get(&id).ok_or_else(|| self.no_such_allocation(id))?;
        if !self.may("AllocationService/Resume", by, &allocation.owner, &allocation.spec.tenant) {
            return Err(Refusal::NotYours { id, owner: allocation.owner.name.clone() });
        }
        if allocation.state.is_terminal() {
            return Err(Refusal::NotSuspended { id, state: allocation.state });
        }
        // Work that waits or runs was resumed before: the first answer was lost.
        if !allocation.held {
            return Ok(Outcome::Done);
        }
        let from = allocation.checkpoint.as_ref().map_or_else(|| "its beginning".to_owned(), |c| format!("checkpoint {}", c.id.short()));
        if let Some(allocation) = self.allocation_mut(context, id) {
            allocation.held = false;
        }
        let about = Subject { allocation: Some(id), node: None };
        self.record(context, &by.name, AuditAction::AllocationResumed, about, format!("from {from}"));
        Ok(Outcome::Done)
    }

    /// Makes running work save itself and give its nodes to work that waits: work of a higher class, or
    /// of the vCluster that lent the nodes. From the agent with the lease of the queue of that work.
    pub(super) fn preempt_for(&mut self, context: &mut ApplyContext, order: &PreemptFor) -> Result<Outcome, Refusal> {
        let PreemptFor { beneficiary: id, victims, lease_token, deadline_ms } = order;
        if victims.is_empty() || victims.len() > DEBTORS_MAX {
            return Err(Refusal::Malformed { why: format!("{} victims: 1 to {DEBTORS_MAX} are possible", victims.len()) });
        }
        let (least, most) = DEADLINE_MS;
        if !(least..=most).contains(deadline_ms) {
            return Err(Refusal::Malformed { why: format!("a deadline of {deadline_ms} ms: {least} ms to {most} ms are possible") });
        }
        let beneficiary = self.allocations.get(id).ok_or_else(|| self.no_such_allocation(id))?;
        let name = scheduler_lease(self.queue_of(&beneficiary.spec.vcluster));
        if self.leases.get(&name).is_none_or(|lease| lease.token != *lease_token) {
            return Err(Refusal::StaleLease { name, token: *lease_token });
        }
        only_in_queue(beneficiary)?;
        let class = beneficiary.effective_class(self.tenants.get(&beneficiary.spec.tenant).and_then(|tenant| tenant.class_max));
        // All victims, or none: with the nodes of some, the beneficiary could not begin. A claim that
        // has ended since has given its nodes back.
        let mut orders = Vec::new();
        for (victim, epoch) in victims {
            let Some(known) = self.allocations.get(victim).filter(|a| a.epoch == *epoch) else { continue };
            match known.state {
                AllocationState::Staging | AllocationState::Running => {}
                AllocationState::Pending
                | AllocationState::Suspended
                | AllocationState::Completed
                | AllocationState::Failed
                | AllocationState::Cancelled => continue,
            }
            let order = checkpoint_of(id.0, *victim, *epoch);
            // A repetition whose first answer was lost.
            if known.preemption.as_deref().is_some_and(|known| known.id == order) {
                continue;
            }
            let is_lent = self.has_nodes_of(&beneficiary.spec.vcluster, known);
            if known.spec.preemption_class >= class && !is_lent {
                let why = format!("its class is {}, and the work that needs its nodes has class {class}", known.spec.preemption_class);
                return Err(Refusal::NotPreemptible { id: *victim, why });
            }
            if let Some(why) = known.exempt_from_priority() {
                return Err(Refusal::NotPreemptible { id: *victim, why: why.to_owned() });
            }
            let (cause, reason) = if is_lent {
                let lender = self.queue_of(&beneficiary.spec.vcluster);
                (PreemptCause::Reclaim, format!("vCluster {lender} needs the nodes that it lent, for allocation {}", id.short()))
            } else {
                (PreemptCause::Priority, format!("allocation {} of class {class} needs its nodes", id.short()))
            };
            orders.push((*victim, order, cause, reason));
        }
        let others = orders.iter().filter(|(_, _, cause, _)| *cause != PreemptCause::Reclaim).count();
        if others > 0 && victims.len() > VICTIMS_MAX {
            let why = format!("{} victims: more than {VICTIMS_MAX} are possible only if all of them have lent nodes", victims.len());
            return Err(Refusal::Malformed { why });
        }
        for (victim, order, cause, reason) in orders {
            let order =
                Preemption { id: order, by: SCHEDULER.to_owned(), reason, cause, deadline_ms: *deadline_ms, hold: false, failed: None };
            self.begin_preemption(context, victim, order);
        }
        Ok(Outcome::Done)
    }

    /// Drains a node, and makes work there that can save itself move elsewhere.
    pub(super) fn drain_urgently(
        &mut self,
        context: &mut ApplyContext,
        node: &NodeId,
        by: &str,
        reason: &str,
        deadline: Option<When>,
        seed: Uuid,
    ) -> Result<Outcome, Refusal> {
        self.set_hold(context, node, HoldKind::Drain, by, reason, Ends { until: None, deadline })?;
        let left_ms = deadline.map_or(DEADLINE_MS_DEFAULT, |when| when.from(context.at).since_ms(context.at));
        let deadline_ms = left_ms.clamp(DEADLINE_MS.0, DEADLINE_MS_DEFAULT);
        let live = self.holdings(node).iter().filter(|h| self.is_live(h.allocation, h.epoch)).map(|h| h.allocation);
        for id in live.collect::<Vec<_>>() {
            let Some(allocation) = self.allocations.get(&id) else { continue };
            let saves = !may_have_begun(allocation) || allocation.spec.checkpoint.is_some();
            if !saves || exempt(allocation).is_some() {
                continue;
            }
            let order = Preemption {
                id: checkpoint_of(seed, id, allocation.epoch),
                by: by.to_owned(),
                reason: format!("node {node} is drained: {reason}"),
                cause: PreemptCause::Drain,
                deadline_ms,
                hold: false,
                failed: None,
            };
            self.begin_preemption(context, id, order);
        }
        Ok(Outcome::Done)
    }
}

/// Why only the owner may preempt the allocation; `None`: others may, too.
fn exempt(allocation: &Allocation) -> Option<String> {
    if is_asked_to_leave(allocation) {
        return Some("it is being ended already, because its service needs fewer replicas".to_owned());
    }
    if allocation.spec.sensitive {
        return Some("it is sensitive, and such work is never preempted; its owner or `lattice cancel` ends it".to_owned());
    }
    (allocation.spec.preemption_class >= CLASS_MAX)
        .then(|| format!("its preemption class is {CLASS_MAX}, which nothing preempts; its owner or `lattice cancel` ends it"))
}

/// What the end of the claim would lose, if the work may have begun and cannot save itself.
fn loss_by_preemption(allocation: &Allocation) -> Option<String> {
    if allocation.spec.checkpoint.is_some() || !may_have_begun(allocation) {
        return None;
    }
    let since = allocation.started_at.or(allocation.claimed_at).map_or_else(String::new, |at| format!(" since {at}"));
    let nodes = hostlist::fold(allocation.nodes());
    let reason = EndReason::Preempted { by: String::new(), why: String::new(), saved: Err(NotSaved(String::new())) };
    let then = if Requeue::of(allocation, &reason, true, Timestamp(0)).is_some() {
        "it would begin again from its beginning"
    } else {
        "it would be Failed"
    };
    Some(format!("it was submitted without --checkpoint: what it has done on {nodes}{since} would be lost, and {then}"))
}

/// Whether its work may be running. On a single node the work starts before the quorum learns that
/// the node is prepared.
pub(super) fn may_have_begun(allocation: &Allocation) -> bool {
    allocation.state == AllocationState::Running || allocation.shares.len() == 1
}

/// The id of the checkpoint that a preemption requests from a claim: the same for a repeated request,
/// and another one for each claim.
pub(super) fn checkpoint_of(seed: Uuid, allocation: AllocationId, epoch: Epoch) -> CheckpointId {
    let number = seed.as_u128() ^ allocation.0.as_u128() ^ (u128::from(epoch.0) << 80);
    CheckpointId(uuid::Builder::from_custom_bytes(number.to_be_bytes()).into_uuid())
}
