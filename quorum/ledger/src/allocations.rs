//! Allocations: submission and end.

use super::corresponding::AwaitedTasks;
use super::preemptions::may_have_begun;
use super::tenant_members::was_sent_as;
use super::timing::admits_times;
use super::waits::Requeue;
use super::{ApplyContext, LIVE_MAX, Ledger, Outcome, Subject};
use lattice_ledger_state::refusal::{DependencyRefusal, Refusal};
use lattice_ledger_state::scaled_services::is_asked_to_leave;
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, AllocationState, AuditAction, Claim, EndReason, Epoch, HoldKind, MailEvent, NodeId,
    Principal, SharePhase, Timestamp, WorkUsage,
};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Ledger {
    pub(super) fn submit(
        &mut self,
        context: &mut ApplyContext,
        id: AllocationId,
        spec: &AllocationSpec,
        owner: &Principal,
        claim: Option<&Claim>,
    ) -> Result<Outcome, Refusal> {
        if let Some(there) = self.allocations.get(&id) {
            let same = there.owner == *owner && was_sent_as(there, spec);
            let number = there.number;
            return if same { Ok(Outcome::Submitted { number }) } else { Err(Refusal::AllocationExists { id }) };
        }
        if spec.depends_on.iter().any(|dependency| dependency.on == id) {
            return Err(Refusal::Dependency { on: id.to_string(), why: DependencyRefusal::Itself });
        }
        let spec = &*self.with_tenant(spec, owner, &context.login_tenants)?;
        self.admits_to_queue(spec)?;
        self.admits_to_project(&spec.tenant, &spec.project, owner)?;
        admits_times(spec, context.at)?;
        self.admits_to_reservation(spec, owner, context.at)?;
        self.admits_dependencies(spec, owner)?;
        // First, because `admits_of_user` may drop records for the script, even those of its parents.
        let (dependencies, awaited) = (self.dependencies_of(spec, owner, context.at), self.tasks_awaited(spec));
        self.admits_of_user(context, spec, owner)?;
        let submitted = Allocation::submitted(id, spec.clone(), owner.clone(), context.at);
        let number = self.add_submitted(context, Allocation { dependencies, ..submitted }, &awaited);
        self.follow_parents(context, id);
        self.end_unmet(context, id);
        if let Some(claim) = claim.filter(|c| c.allocation == id) {
            // A refused claim changes nothing: the allocation then waits in the queue.
            let _refused = self.claim(context, claim);
        }
        Ok(Outcome::Submitted { number })
    }

    /// Adds an allocation that the ledger admits, and returns its job number. It does not follow its
    /// parents yet.
    pub(super) fn add_submitted(&mut self, context: &mut ApplyContext, mut allocation: Allocation, awaited: &[AwaitedTasks]) -> u64 {
        let (id, owner) = (allocation.id, allocation.owner.name.clone());
        self.give_number(&mut allocation);
        let number = allocation.number;
        (allocation.revision, allocation.submission) = (context.revision, self.audit.seq + 1);
        self.scripts.share(&mut Arc::make_mut(&mut allocation.spec).entrypoint);
        let spec = Arc::clone(&allocation.spec);
        self.note_before(context, id);
        self.allocations.insert(id, Arc::new(allocation));
        context.changed.record(id);
        // Not at the end of the command: a later step of the same DAG may need the name.
        if let Some(place) = self.name_place(id) {
            context.names_before.insert(id, Some(place.clone()));
            self.names.insert(place);
        }
        let nodes = spec.nodes_max.map_or_else(|| format!("{} nodes", spec.nodes), |_| spec.nodes_text());
        let detail = format!("{} on {nodes}", spec.name);
        self.record(context, &owner, AuditAction::AllocationSubmitted, Subject { allocation: Some(id), node: None }, detail);
        if let Some(tasks) = &spec.tasks {
            self.open_group(context, id, tasks);
            self.await_tasks(context, id, awaited);
        }
        if let Some(scaling) = &spec.scaling {
            self.open_service(context, id, scaling);
        }
        number
    }

    /// Checks whether the submission would be accepted now. Changes nothing. `login_tenants`: tenants that count the
    /// owner as a member by its login.
    ///
    /// # Errors
    /// The refusal that the submission would get.
    pub fn admits_submission(
        &self,
        spec: &AllocationSpec,
        owner: &Principal,
        login_tenants: &BTreeSet<String>,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let spec = &*self.with_tenant(spec, owner, login_tenants)?;
        self.admits_to_queue(spec)?;
        self.admits_to_project(&spec.tenant, &spec.project, owner)?;
        admits_times(spec, now.max(self.time))?;
        self.admits_to_reservation(spec, owner, now.max(self.time))?;
        self.admits_dependencies(spec, owner)?;
        self.would_admit_of_user(spec, owner, now.max(self.time))
    }

    pub(super) fn admits_to_queue(&self, spec: &AllocationSpec) -> Result<(), Refusal> {
        spec.validate().map_err(|error| Refusal::Malformed { why: error.to_string() })?;
        self.admits_to_vcluster(spec)?;
        let live = self.allocations.len() - self.ended.len();
        if live >= LIVE_MAX {
            return Err(Refusal::TooMany { what: "allocations that have not ended".to_owned(), most: LIVE_MAX as u64 });
        }
        self.admits_to_tenant(spec)
    }

    pub(super) fn cancel(&mut self, context: &mut ApplyContext, id: AllocationId, by: &Principal) -> Result<Outcome, Refusal> {
        let Some(allocation) = self.allocations.get(&id) else {
            return Err(self.no_such_allocation(id));
        };
        if !self.may("AllocationService/Cancel", by, &allocation.owner, &allocation.spec.tenant) {
            return Err(Refusal::NotYours { id, owner: allocation.owner.name.clone() });
        }
        if allocation.state.is_terminal() {
            return Ok(Outcome::Done);
        }
        let detail = format!("while {}", allocation.state);
        self.record(context, &by.name, AuditAction::CancelRequested, Subject { allocation: Some(id), node: None }, detail);
        self.end(context, id, EndReason::Cancelled { by: by.name.clone() }, &by.name);
        Ok(Outcome::Done)
    }

    /// Ends the allocation's current claim for `reason`: requeues it if its policy says so, else
    /// ends it. A replica that was asked to leave is never requeued. Its holdings stay until the nodes
    /// report them as released.
    pub(super) fn end(&mut self, context: &mut ApplyContext, id: AllocationId, reason: EndReason, actor: &str) {
        let begun = self.allocations.get(&id).is_some_and(|allocation| may_have_begun(allocation));
        self.end_begun(context, id, reason, actor, begun);
    }

    /// As [`Self::end`], for a caller that knows whether the work has begun under the claim.
    pub(super) fn end_begun(&mut self, context: &mut ApplyContext, id: AllocationId, reason: EndReason, actor: &str, begun: bool) {
        let Some(allocation) = self.allocations.get(&id).filter(|a| !a.state.is_terminal()) else { return };
        let requeue = Requeue::of(allocation, &reason, begun, context.at);
        let Some(requeue) = requeue.filter(|_| !is_asked_to_leave(allocation)) else {
            return self.end_for_good(context, id, reason, actor);
        };
        let Requeue { is_counted, quick, waits_until } = requeue;
        let count = allocation.requeue_count + u32::from(is_counted);
        self.back_to_queue(context, id, reason.clone(), actor);
        if let Some(allocation) = self.allocation_mut(context, id) {
            allocation.requeue_count = count;
            (allocation.quick_requeues, allocation.waits_until) = (quick, waits_until);
            allocation.preempted_count += u32::from(matches!(reason, EndReason::Preempted { .. }));
        }
        let number = if is_counted { format!("requeue {count}") } else { "requeued, not counted: it had not begun".to_owned() };
        let detail = format!("{number}: {reason}");
        self.record(context, actor, AuditAction::AllocationRequeued, Subject { allocation: Some(id), node: None }, detail);
        self.mail(context, id, MailEvent::Requeue);
    }

    /// Ends the allocation for `reason`, regardless of its policy. A replica that was asked to leave counts
    /// as cancelled by the actor of that order, however it ends.
    pub(super) fn end_for_good(&mut self, context: &mut ApplyContext, id: AllocationId, reason: EndReason, actor: &str) {
        let Some(allocation) = self.allocations.get(&id).filter(|allocation| !allocation.state.is_terminal()) else { return };
        let order = allocation.preemption.as_deref().filter(|_| is_asked_to_leave(allocation));
        let reason = order.map_or(reason, |order| EndReason::Cancelled { by: order.by.clone() });
        let at = context.at;
        self.drop_session(context, id, actor);
        self.usage_shrinks(context, id);
        self.leave_domain(context, id);
        self.close_services(id);
        self.unfollow_parents(context, id);
        self.unfollow_tasks(context, id);
        self.end_tasks(context, id);
        let Some(allocation) = self.allocation_mut(context, id) else { return };
        // A reason such as a preemption means that work waits again: without another claim, it has failed.
        allocation.state = if reason.state().is_terminal() { reason.state() } else { AllocationState::Failed };
        (allocation.preemption, allocation.held, allocation.telemetry) = (None, false, None);
        allocation.waits_until = None;
        // Excluded nodes matter only before a claim, and three with long reasons need 1 KB of an ended record.
        allocation.excluded = Vec::new();
        allocation.ended_at = Some(at);
        let detail = format!("{}: {reason}", allocation.state);
        allocation.reason = Some(reason);
        let nodes: Vec<NodeId> = allocation.nodes().cloned().collect();
        self.leave(context, nodes);
        self.mail_end(context, id);
        self.note_step_end(id);
        self.number_end(context, id);
        self.keep_ended(context, id);
        self.record(context, actor, AuditAction::AllocationEnded, Subject { allocation: Some(id), node: None }, detail);
    }

    /// The claim has ended and the allocation waits for another one. The epoch stays, as history: of the
    /// reports under it, only a release counts from now on.
    pub(super) fn back_to_queue(&mut self, context: &mut ApplyContext, id: AllocationId, reason: EndReason, actor: &str) {
        self.drop_session(context, id, "quorum");
        self.usage_shrinks(context, id);
        self.leave_domain(context, id);
        self.close_services(id);
        let (at, by) = (context.at, self.ended_by(&reason, actor));
        let Some(allocation) = self.allocation_mut(context, id) else { return };
        // A pending order to release the nodes is fulfilled, whatever ended the claim.
        let met = allocation.preemption.as_ref().filter(|order| order.stands()).map(|order| order.id);
        allocation.preempted_by = met.or(allocation.preempted_by);
        let nodes: Vec<NodeId> = allocation.nodes().cloned().collect();
        allocation.close_attempt(at, &reason, &by);
        allocation.state = AllocationState::Pending;
        let reason_of_claim = reason.clone();
        allocation.reason = Some(reason);
        (allocation.preemption, allocation.held, allocation.telemetry) = (None, false, None);
        allocation.vni = None;
        allocation.mailed_percent = 0;
        // The next claim gets the whole requested walltime again.
        if let Some(asked) = allocation.asked_walltime.take() {
            Arc::make_mut(&mut allocation.spec).walltime = Some(asked);
        }
        self.leave(context, nodes);
        self.mail_walltime_over(context, id, Some(&reason_of_claim));
    }

    /// The actor to show as the cause of a claim's end: for a requested end, the user who requested
    /// it, not the node or timer that carried it out.
    fn ended_by(&self, reason: &EndReason, actor: &str) -> String {
        match reason {
            EndReason::Preempted { by, .. } | EndReason::Cancelled { by } | EndReason::Requeued { by, .. } => by.clone(),
            EndReason::DrainDeadline { node } => {
                let drain = self.node(node).and_then(|node| node.hold(HoldKind::Drain));
                drain.map_or_else(|| actor.to_owned(), |drain| drain.by.clone())
            }
            EndReason::Exited { .. }
            | EndReason::WalltimeExceeded
            | EndReason::WalltimeSaved { .. }
            | EndReason::PrologueFailed { .. }
            | EndReason::NodeLost { .. }
            | EndReason::LaunchAborted { .. }
            | EndReason::OutOfMemory { .. }
            | EndReason::ProbeFailed { .. }
            | EndReason::DependencyUnmet { .. }
            | EndReason::DeadlineMissed { .. }
            | EndReason::TasksFailed { .. }
            | EndReason::RunLeaseLapsed { .. } => actor.to_owned(),
        }
    }

    fn leave(&mut self, context: &mut ApplyContext, nodes: Vec<NodeId>) {
        for node in &nodes {
            self.show_leaving(context, node);
        }
        context.changed.desired.extend(nodes);
    }

    /// Records in the allocation's history that `node` has released it.
    pub(super) fn mark_released(&mut self, context: &mut ApplyContext, id: AllocationId, epoch: Epoch, node: &NodeId) {
        if self.allocations.get(&id).is_some_and(|a| a.epoch == epoch)
            && let Some((allocation, rank)) = self.share_mut(context, id, node)
        {
            allocation.shares.set_phase_of_rank(rank, SharePhase::Released);
        }
    }

    /// Adds a node's usage to the claim that it was reported for, never to a later one.
    pub(super) fn add_usage(&mut self, context: &mut ApplyContext, id: AllocationId, epoch: Epoch, usage: Option<WorkUsage>) {
        let Some(usage) = usage.filter(|_| self.allocations.get(&id).is_some_and(|a| a.epoch == epoch)) else { return };
        // If the claim has ended and the allocation waits for another one, it has no shares.
        let Some(allocation) = self.usage_mut(context, id) else { return };
        let before = allocation.usage.as_deref().copied().unwrap_or_default();
        allocation.usage = Some(Box::new(before.with(usage)));
    }
}
