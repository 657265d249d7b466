//! Reports from agents, applied in sequence within an incarnation.

use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_ledger_state::refusal::Refusal;
use lattice_ledger_state::scaled_services::is_asked_to_leave;
use lattice_model::end_reason::NotSaved;
use lattice_model::lifecycle::Event;
use lattice_model::{
    Allocation, AllocationId, AllocationState, AuditAction, CheckpointRef, EndReason, Epoch, LaneOf, MailEvent, NodeId, NodeReport,
    ReportItem, SharePhase, WorkUsage,
};
use std::collections::BTreeSet;

/// An allocation ends when its prologue has failed on this many nodes since it last ran.
const PROLOGUE_FAILED_NODES_MAX: usize = 3;
/// Largest size of a reason from a node, in bytes; the rest is cut off.
const WHY_BYTES_MAX: usize = 512;

impl Ledger {
    pub(super) fn report(&mut self, context: &mut ApplyContext, report: &NodeReport) -> Result<Outcome, Refusal> {
        let Some(node) = self.nodes.get(&report.node) else {
            return Err(self.not_registered(&report.node));
        };
        if node.incarnation != report.incarnation {
            return Err(Refusal::StaleIncarnation { node: report.node.clone(), seen: report.incarnation, now: node.incarnation });
        }
        if report.seq <= node.report_seq {
            return Ok(Outcome::Done);
        }
        if report.seq != node.report_seq + 1 {
            return Err(Refusal::Malformed {
                why: format!("report {} of node {} does not follow {}", report.seq, report.node, node.report_seq),
            });
        }
        // Only bookkeeping, which nobody watches, so the node's revision stays.
        if let Some(node) = self.nodes.get_mut(&report.node) {
            std::sync::Arc::make_mut(node).report_seq = report.seq;
        }
        if let Some(refusal) = self.superseded(&report.item) {
            return Ok(Outcome::ContentRefused(refusal));
        }
        match &report.item {
            ReportItem::Prepared { allocation, epoch } => self.prepared(context, &report.node, *allocation, *epoch),
            ReportItem::PrepareFailed { allocation, epoch, why } => {
                self.prepare_failed(context, &report.node, *allocation, *epoch, bounded(why));
            }
            ReportItem::Ended { allocation, epoch, reason } => self.ended_report(context, &report.node, *allocation, *epoch, reason),
            ReportItem::Released { allocation, epoch, usage } => self.released(context, &report.node, *allocation, *epoch, *usage),
            ReportItem::Checkpointed { allocation, epoch, checkpoint } => {
                self.checkpointed(context, &report.node, *allocation, *epoch, checkpoint);
            }
            ReportItem::NotPreempted { allocation, epoch, id, why } => {
                self.not_preempted(context, &report.node, *allocation, *epoch, *id, bounded(why));
            }
            ReportItem::PortsOpen { allocation, epoch, ports } => self.list_ports(&report.node, *allocation, *epoch, ports),
            ReportItem::UnreportedHealth { at, health } => {
                let about = Subject { allocation: None, node: Some(&report.node) };
                let detail = format!("unheard, at {at} by its own clock: {}", bounded(health));
                self.record(context, &format!("node:{}", report.node), AuditAction::NodeUnheard, about, detail);
            }
        }
        Ok(Outcome::Done)
    }

    /// Why a report about this claim is refused: the allocation has been claimed again or waits for
    /// a claim. A release report is always accepted, and a late report about an ended allocation is
    /// harmless.
    fn superseded(&self, item: &ReportItem) -> Option<Refusal> {
        let (id, seen) = match item {
            ReportItem::Prepared { allocation, epoch }
            | ReportItem::PrepareFailed { allocation, epoch, .. }
            | ReportItem::Ended { allocation, epoch, .. }
            | ReportItem::NotPreempted { allocation, epoch, .. }
            | ReportItem::PortsOpen { allocation, epoch, .. }
            | ReportItem::Checkpointed { allocation, epoch, .. } => (*allocation, *epoch),
            ReportItem::Released { .. } | ReportItem::UnreportedHealth { .. } => return None,
        };
        let allocation = self.allocations.get(&id)?;
        let waits = allocation.state.is_without_nodes() && allocation.epoch == seen;
        (seen < allocation.epoch || waits).then_some(Refusal::StaleEpoch { id, seen, now: allocation.epoch })
    }

    /// Whether `node` may report about this claim: the claim is current and the node has a share of
    /// it.
    pub(super) fn takes_part(&self, node: &NodeId, id: AllocationId, epoch: Epoch) -> bool {
        self.is_live(id, epoch) && self.allocations.get(&id).is_some_and(|a| a.shares.rank_of(node).is_some())
    }

    fn prepared(&mut self, context: &mut ApplyContext, node: &NodeId, id: AllocationId, epoch: Epoch) {
        if !self.takes_part(node, id, epoch) || self.allocations.get(&id).is_none_or(|a| a.state != AllocationState::Staging) {
            return;
        }
        let at = context.at;
        let Some((allocation, rank)) = self.share_mut(context, id, node) else { return };
        if allocation.shares.get(rank).is_some_and(|share| share.phase == SharePhase::Claimed) {
            allocation.shares.set_phase_of_rank(rank, SharePhase::Prepared);
        }
        if !allocation.shares.all_prepared() {
            return;
        }
        let Some(allocation) = self.allocation_mut(context, id) else { return };
        allocation.state = AllocationState::Running;
        allocation.started_at = Some(at);
        allocation.reason = None;
        allocation.excluded.retain(|excluded| excluded.until.is_some());
        let nodes: Vec<NodeId> = allocation.nodes().cloned().collect();
        let detail = format!("epoch {epoch}, {} nodes prepared", nodes.len());
        context.changed.desired.extend(nodes);
        self.record(context, "quorum", AuditAction::AllocationRunning, Subject { allocation: Some(id), node: None }, detail);
        self.end_by_deadline(context, id);
        self.mail(context, id, MailEvent::Begin);
    }

    fn prepare_failed(&mut self, context: &mut ApplyContext, node: &NodeId, id: AllocationId, epoch: Epoch, why: String) {
        if !self.takes_part(node, id, epoch) {
            return;
        }
        let about = Subject { allocation: Some(id), node: Some(node) };
        let actor = format!("node:{node}");
        self.record(context, &actor, AuditAction::PrologueFailed, about, why.clone());
        let failed_nodes = self.exclude(context, id, node, &why);
        let lane = self.allocations.get(&id).filter(|allocation| allocation.lane.is_some());
        // A lane also avoids the nodes at which other lanes of its group failed: they do not count.
        let failed_nodes = lane.map_or(failed_nodes, |lane| failed_prologues(lane, node));
        if let Some(LaneOf { group, .. }) = lane.and_then(|lane| lane.lane) {
            self.avoid_node(context, group, node, &why);
        }
        let reason = EndReason::PrologueFailed { node: node.clone(), why };
        let leaves = self.allocations.get(&id).is_some_and(|allocation| is_asked_to_leave(allocation));
        if leaves || failed_nodes >= PROLOGUE_FAILED_NODES_MAX {
            self.end(context, id, reason, &actor);
        } else {
            self.back_to_queue(context, id, reason, &actor);
        }
    }

    /// Accepts a checkpoint from the head alone, which knows that every node has finished. The epoch
    /// must be current: a later attempt must never start from a checkpoint of an isolated earlier one.
    pub(super) fn checkpointed(
        &mut self,
        context: &mut ApplyContext,
        node: &NodeId,
        id: AllocationId,
        epoch: Epoch,
        checkpoint: &CheckpointRef,
    ) {
        let known = |a: &Allocation| a.head() == Some(node) && a.spec.checkpoint.is_some() && a.checkpoint.as_deref() != Some(checkpoint);
        if !self.takes_part(node, id, epoch) || checkpoint.epoch != epoch || !self.allocations.get(&id).is_some_and(|a| known(a)) {
            return;
        }
        let Some(allocation) = self.allocation_mut(context, id) else { return };
        allocation.checkpoint = Some(Box::new(checkpoint.clone()));
        let step_text = checkpoint.step.map_or_else(String::new, |step| format!(", step {step}"));
        let detail = format!("{} under epoch {epoch}: {} bytes{step_text}", checkpoint.id, checkpoint.bytes);
        let about = Subject { allocation: Some(id), node: Some(node) };
        self.record(context, &format!("node:{node}"), AuditAction::CheckpointCommitted, about, detail);
    }

    pub(super) fn ended_report(&mut self, context: &mut ApplyContext, node: &NodeId, id: AllocationId, epoch: Epoch, reason: &EndReason) {
        if !self.takes_part(node, id, epoch) {
            return;
        }
        let is_its_node = |named: &NodeId| self.allocations.get(&id).is_some_and(|a| a.shares.rank_of(named).is_some());
        let decided = reason_by_node(node, reason, is_its_node);
        match reason {
            // Any node of the allocation can report these.
            EndReason::WalltimeExceeded | EndReason::NodeLost { .. } | EndReason::ProbeFailed { .. } | EndReason::RunLeaseLapsed { .. } => {
            }
            // Decided by the quorum alone.
            EndReason::DrainDeadline { .. }
            | EndReason::Requeued { .. }
            | EndReason::DependencyUnmet { .. }
            | EndReason::DeadlineMissed { .. }
            | EndReason::TasksFailed { .. } => return,
            // Only the node of the entry point knows how it ended.
            EndReason::Exited { .. }
            | EndReason::Cancelled { .. }
            | EndReason::PrologueFailed { .. }
            | EndReason::LaunchAborted { .. }
            | EndReason::OutOfMemory { .. }
            | EndReason::Preempted { .. }
            | EndReason::WalltimeSaved { .. }
                if self.allocations.get(&id).is_none_or(|a| a.head() != Some(node)) =>
            {
                return;
            }
            EndReason::Exited { .. }
            | EndReason::Cancelled { .. }
            | EndReason::PrologueFailed { .. }
            | EndReason::LaunchAborted { .. }
            | EndReason::OutOfMemory { .. } => {}
            EndReason::Preempted { .. } | EndReason::WalltimeSaved { .. } => return self.ended_saved(context, node, id, decided),
        }
        // The report comes from the node itself, after its report that it is prepared.
        let begun = self.allocations.get(&id).is_some_and(|a| a.state == AllocationState::Running);
        self.end_begun(context, id, decided, &format!("node:{node}"), begun);
    }

    fn released(&mut self, context: &mut ApplyContext, node: &NodeId, id: AllocationId, epoch: Epoch, usage: Option<WorkUsage>) {
        if self.retain_holdings(context, node, |h| (h.allocation, h.epoch) != (id, epoch)).is_empty() {
            return;
        }
        // A node that has released a claim which is still current has lost it.
        let live = self.is_live(id, epoch);
        self.mark_released(context, id, epoch, node);
        self.add_usage(context, id, epoch, usage);
        if live {
            let why = "it reports that nothing of it is left".to_owned();
            self.end(context, id, EndReason::NodeLost { node: node.clone(), why }, &format!("node:{node}"));
        }
        self.show_leaving(context, node);
        let (about, actor) = (Subject { allocation: Some(id), node: Some(node) }, format!("node:{node}"));
        self.record(context, &actor, AuditAction::ShareReleased, about, format!("epoch {epoch}"));
        if self.holdings(node).is_empty() {
            self.apply_event_if_possible(context, node, Event::LastShareGone, "");
        }
    }
}

/// The reason with only the parts that `node` may decide. The head reports an end for lack of memory on any node of the
/// work; `is_its_node`: whether it may name this one.
pub(super) fn reason_by_node(node: &NodeId, reason: &EndReason, is_its_node: impl Fn(&NodeId) -> bool) -> EndReason {
    match reason {
        EndReason::WalltimeExceeded => EndReason::WalltimeExceeded,
        EndReason::NodeLost { why, .. } => EndReason::NodeLost { node: node.clone(), why: bounded(why) },
        EndReason::ProbeFailed { why, .. } => EndReason::ProbeFailed { node: node.clone(), why: bounded(why) },
        // With the same text as if the quorum had decided it.
        EndReason::RunLeaseLapsed { .. } => {
            EndReason::NodeLost { node: node.clone(), why: "its run lease lapsed, and its shim ended the work".to_owned() }
        }
        EndReason::Exited { code } => EndReason::Exited { code: *code },
        EndReason::Cancelled { by } => EndReason::Cancelled { by: bounded(by) },
        EndReason::PrologueFailed { why, .. } => EndReason::PrologueFailed { node: node.clone(), why: bounded(why) },
        EndReason::OutOfMemory { node: named, kill } => {
            let node = if is_its_node(named) { named } else { node };
            EndReason::OutOfMemory { node: node.clone(), kill: *kill }
        }
        EndReason::DrainDeadline { .. } => EndReason::DrainDeadline { node: node.clone() },
        EndReason::LaunchAborted { code, why } => EndReason::LaunchAborted { code: *code, why: bounded(why) },
        EndReason::Preempted { by, why, saved } => {
            let saved = saved.as_ref().copied().map_err(|NotSaved(why)| NotSaved(bounded(why)));
            EndReason::Preempted { by: bounded(by), why: bounded(why), saved }
        }
        EndReason::WalltimeSaved { checkpoint } => EndReason::WalltimeSaved { checkpoint: *checkpoint },
        EndReason::Requeued { by, why } => EndReason::Requeued { by: bounded(by), why: bounded(why) },
        EndReason::DependencyUnmet { on, name, condition, state } => {
            EndReason::DependencyUnmet { on: *on, name: bounded(name), condition: *condition, state: *state }
        }
        EndReason::DeadlineMissed { deadline } => EndReason::DeadlineMissed { deadline: *deadline },
        EndReason::TasksFailed { failed, tasks } => EndReason::TasksFailed { failed: *failed, tasks: *tasks },
    }
}

/// The number of nodes on which the prologue of a lane has failed, including this one. A lane never
/// begins twice.
fn failed_prologues(lane: &Allocation, node: &NodeId) -> usize {
    let earlier = lane.attempts.iter().filter_map(|attempt| {
        let EndReason::PrologueFailed { node, .. } = &attempt.reason else { return None };
        Some(node)
    });
    earlier.chain([node]).collect::<BTreeSet<_>>().len()
}

/// The beginning of a text that comes from an agent.
pub(super) fn bounded(text: &str) -> String {
    let mut end = text.len().min(WHY_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
