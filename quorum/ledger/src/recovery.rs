//! Recovery from a backup: nodes report what they run, the ledger adopts it, and only then is work
//! placed again.
//!
//! The backup is older than the state at the loss of the quorum. The generation is increased, and
//! with it every number that must not be assigned twice: revisions, epochs, lease tokens, job numbers and
//! the numbers of ends continue beyond any value that the lost quorum can have assigned. The ledger waits
//! for each node of the backup: the node registers, reports once what it has and its pending reports, gets a list
//! with the same content, and stops nothing. The ledger does not wait for nodes that are Down; they
//! may still report later.
//!
//! Access tokens are dropped: after the backup, one may have leaked and been revoked.
//!
//! A node's report counts only for the node itself: a share that it reports for another node counts
//! only if that node reports it, too.

use super::job_numbers;
use super::task_groups::{REPORTED_NUMBERS, lane_id, spec_as_submitted};
use super::{ApplyContext, Holding, LIVE_MAX, Ledger, Outcome, Recovery, Registration, Subject};
use lattice_ledger_state::refusal::{Conflict, Refusal};
use lattice_ledger_state::scaled_services::is_asked_to_leave;
use lattice_model::count::counted;
use lattice_model::lifecycle::Event;
use lattice_model::shares::ShareRef;
use lattice_model::{
    Allocation, AllocationId, AllocationState, AuditAction, AuditRecord, CheckpointRef, DesiredShare, EndReason, Epoch, Generation,
    Incarnation, NodeId, PreemptCause, ReportItem, Revision, Share, SharePhase, Timestamp,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// After a recovery, numbers that must not be assigned twice continue from a multiple of this.
const NUMBERS_STEP: u64 = 1_000_000_000;
/// Largest number of nodes named in a refusal.
const NAMED_MAX: usize = 16;
/// Largest number of shares of one node.
const HELD_MAX: usize = 4096;
/// Largest number of nodes of all these shares together.
const HELD_NAMES_MAX: usize = 1_000_000;

/// The first multiple of [`NUMBERS_STEP`] that is at least half a step away: the lost quorum is
/// assumed not to have reached it.
pub fn beyond(number: u64) -> u64 {
    number.saturating_add(NUMBERS_STEP / 2).div_ceil(NUMBERS_STEP).saturating_mul(NUMBERS_STEP)
}

/// One share as reported by its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldShare {
    /// As received from the quorum.
    pub share: DesiredShare,
    /// How far the node has prepared it; `None`: it is being removed.
    pub phase: Option<SharePhase>,
}

impl HeldShare {
    /// Approximate size in a message, in bytes.
    pub fn bytes_about(&self) -> usize {
        let script = self.share.spec.script().map_or(0, |text| text.len());
        512 + self.share.spec.bytes_without_script() + script + self.share.nodes.len() * 64
    }
}

impl Ledger {
    /// Turns the state of a backup into the first state of a new generation. Done once, before a
    /// member serves it.
    ///
    /// The generation is the time in seconds if that is higher than the next number, so that two
    /// recoveries from one backup get different generations.
    pub fn recover(&mut self, revision: Revision, at: Timestamp) -> AuditRecord {
        let was = self.revision;
        self.generation = Generation((self.generation.0 + 1).max(at.0 / 1000));
        self.revision = revision;
        self.epoch = Epoch(beyond(self.epoch.0));
        self.lease_token = beyond(self.lease_token);
        // The accounting store may have numbers that the lost quorum assigned.
        self.ends.last = beyond(self.ends.last);
        self.jobs = job_numbers::beyond(self.jobs);
        // No holder keeps its lease: the next token is higher.
        self.leases.clear();
        let dropped_tokens = self.access_tokens.drop_all();
        self.forget_admissions();
        let changed = self.nodes.keys().filter_map(|id| Some((id.clone(), self.state_after(id, Event::QuorumRecovered).ok()?)));
        for (id, state) in changed.collect::<Vec<_>>() {
            let Some(node) = self.nodes.get_mut(&id).map(Arc::make_mut) else { continue };
            node.state = state;
            "not heard of since the quorum was recovered".clone_into(&mut node.state_reason);
            (node.state_since, node.hold_revision, node.revision) = (at, revision, revision);
        }
        let pending = self.allocations.values().filter(|a| a.state.is_without_nodes()).map(|a| a.id).collect();
        let awaited = self.nodes.keys().cloned().collect();
        let (epochs, jobs, adopting) = (self.epoch, self.jobs, Some(BTreeMap::new()));
        self.recovery = Some(Recovery { awaited, pending, epochs, jobs, adopting, rebounded: BTreeSet::new() });
        self.skip_lane_numbers();
        self.build_indexes();
        let mut context = ApplyContext::new(revision, at);
        let mut detail = format!("generation {} from a backup of revision {was}", self.generation);
        if dropped_tokens > 0 {
            detail += &format!("; {} dropped: issue anew what is needed", counted(dropped_tokens, "access token"));
        }
        self.record(&mut context, "quorum", AuditAction::QuorumRecovered, Subject::default(), detail);
        context.audit.remove(0)
    }

    /// The state of the recovery; `None`: it is complete, or there was none.
    pub fn recovery(&self) -> Option<&Recovery> {
        self.recovery.as_ref()
    }

    /// Whether this node must report what it runs before it gets its list.
    pub fn awaits(&self, node: &NodeId) -> bool {
        self.recovery.as_ref().is_some_and(|r| r.awaited.contains(node))
    }

    /// A node that is not in the backup but was registered before: it may run work of the lost
    /// quorum.
    pub(super) fn await_unknown_node(&mut self, context: &mut ApplyContext, new: &Registration) {
        self.note_node(context, &new.node);
        if new.incarnation > Incarnation(0)
            && let Some(recovery) = &mut self.recovery
        {
            recovery.awaited.insert(new.node.clone());
        }
    }

    /// The node is removed: nobody waits for its report.
    pub(super) fn stop_awaiting(&mut self, node: &NodeId) {
        if let Some(recovery) = &mut self.recovery {
            recovery.awaited.remove(node);
        }
    }

    /// The nodes that may run allocations which were waiting in the backup.
    pub fn placing_waits_for(&self) -> Vec<NodeId> {
        self.node_index.waited_for.iter().cloned().collect()
    }

    /// Whether [`Self::placing_waits_for`] has any.
    pub(super) fn placing_waits(&self) -> bool {
        !self.node_index.waited_for.is_empty()
    }

    /// Whether this allocation was waiting in the backup, and a node may already run it.
    pub(super) fn may_be_adopted(&self, id: AllocationId) -> bool {
        self.placing_waits() && self.recovery.as_ref().is_some_and(|recovery| recovery.pending.contains(&id))
    }

    /// Refuses to place this allocation while a node may already run it.
    pub(super) fn not_before_adoption(&self, id: AllocationId) -> Result<(), Refusal> {
        if self.recovery.as_ref().is_none_or(|recovery| !recovery.pending.contains(&id)) {
            return Ok(());
        }
        let why = "may run it: the quorum was recovered from a backup, and this node has not reported yet what it has";
        let against = |node: &NodeId| Conflict { node: node.clone(), holder: None, why: why.to_owned() };
        let conflicts: Vec<Conflict> = self.node_index.waited_for.iter().take(NAMED_MAX).map(against).collect();
        if conflicts.is_empty() { Ok(()) } else { Err(Refusal::Conflict { conflicts }) }
    }

    /// After a command: shows the allocations that were waiting in the backup to the schedulers again,
    /// once no node may run them. `was_waiting`: whether a node might run them before the command.
    pub(super) fn resume_placing(&mut self, context: &mut ApplyContext, was_waiting: bool) {
        if self.placing_waits() {
            return;
        }
        let Some(recovery) = &self.recovery else { return };
        if was_waiting {
            recovery.pending.iter().filter(|id| self.allocations.contains_key(*id)).for_each(|id| context.changed.record(*id));
        }
        // As long as a node might run them, they were not ended.
        let unmet = recovery.pending.iter().filter(|id| was_waiting && self.waits_in_vain(**id));
        let unmet: Vec<AllocationId> = unmet.copied().collect();
        if recovery.awaited.is_empty() && !recovery.pending.is_empty() {
            // Those that have ended since may be dropped now.
            let has_ended = |id: &&AllocationId| self.allocations.get(*id).is_some_and(|a| a.state.is_terminal());
            recovery.pending.iter().filter(has_ended).for_each(|id| self.note_before(context, *id));
            self.recovery.iter_mut().for_each(|recovery| recovery.pending.clear());
            self.count_changed(context);
        }
        if was_waiting {
            unmet.into_iter().for_each(|id| self.end_unmet(context, id));
            self.want_adopted(context);
            self.resume_groups();
            self.settle(context);
            self.count_changed(context);
            self.update_indexes(context);
        }
    }

    /// A node reports everything that it has, once after a recovery. Its report replaces what the
    /// backup has recorded for it.
    pub(super) fn adopt(
        &mut self,
        context: &mut ApplyContext,
        node: &NodeId,
        incarnation: Incarnation,
        (held, unreported): (&[HeldShare], &[ReportItem]),
    ) -> Result<Outcome, Refusal> {
        let Some(known) = self.nodes.get(node) else { return Err(self.not_registered(node)) };
        if known.incarnation != incarnation {
            return Err(Refusal::StaleIncarnation { node: node.clone(), seen: incarnation, now: known.incarnation });
        }
        let Some(recovery) = self.recovery.as_ref().filter(|r| r.awaited.contains(node)) else {
            // A repetition: the first report counted.
            context.changed.desired.insert(node.clone());
            return Ok(Outcome::Done);
        };
        well_formed(node, held, recovery.epochs)?;
        self.are_of_their_groups(node, held)?;
        // The node's list will order them to end.
        let strangers: BTreeSet<AllocationId> =
            held.iter().map(|held| &held.share).filter(|share| self.is_stranger(share)).map(|share| share.allocation).collect();
        let ends: Vec<(AllocationId, Epoch, &EndReason)> = unreported
            .iter()
            .filter_map(|item| match item {
                ReportItem::Ended { allocation, epoch, reason } if *epoch <= recovery.epochs && !strangers.contains(allocation) => {
                    Some((*allocation, *epoch, reason))
                }
                ReportItem::Ended { .. }
                | ReportItem::Prepared { .. }
                | ReportItem::PrepareFailed { .. }
                | ReportItem::Released { .. }
                | ReportItem::NotPreempted { .. }
                | ReportItem::PortsOpen { .. }
                | ReportItem::Checkpointed { .. }
                | ReportItem::UnreportedHealth { .. } => None,
            })
            .collect();
        let epochs = recovery.epochs;
        self.note_node(context, node);
        if let Some(recovery) = &mut self.recovery {
            recovery.awaited.remove(node);
        }
        let believed = self.replace_holdings(context, node, held);
        for held in held.iter().filter(|held| !strangers.contains(&held.share.allocation)) {
            let ended = ends.iter().any(|(id, epoch, _)| (*id, *epoch) == (held.share.allocation, held.share.epoch));
            self.adopt_share(context, node, held, ended);
        }
        // A checkpoint made before the end is the one to continue from.
        for item in unreported {
            if let ReportItem::Checkpointed { allocation, epoch, checkpoint } = item
                && *epoch <= epochs
                && !strangers.contains(allocation)
            {
                self.checkpointed(context, node, *allocation, *epoch, checkpoint);
            }
        }
        for (id, epoch, reason) in &ends {
            let made = |item: &&ReportItem| matches!(item, ReportItem::Checkpointed { allocation, epoch: of, .. } if (allocation, of) == (id, epoch));
            let last = unreported.iter().rfind(made).and_then(|item| match item {
                ReportItem::Checkpointed { checkpoint, .. } => Some(checkpoint),
                ReportItem::Ended { .. }
                | ReportItem::Prepared { .. }
                | ReportItem::PrepareFailed { .. }
                | ReportItem::Released { .. }
                | ReportItem::NotPreempted { .. }
                | ReportItem::PortsOpen { .. }
                | ReportItem::UnreportedHealth { .. } => None,
            });
            self.ended_unreported(context, node, (*id, *epoch), reason, last);
        }
        let has = |b: &Holding| held.iter().any(|h| (h.share.allocation, h.share.epoch) == (b.allocation, b.epoch));
        for gone in believed.into_iter().filter(|b| !has(b)) {
            let live = self.is_live(gone.allocation, gone.epoch);
            self.mark_released(context, gone.allocation, gone.epoch, node);
            if live {
                // It must not run again, because it may have completed.
                self.ended_since(context, gone.allocation, node);
            }
        }
        self.show_leaving(context, node);
        // If there is a drain, the node's state depends on what it has now.
        let others = held.iter().flat_map(|h| h.share.nodes.iter());
        for id in std::iter::once(node).chain(others) {
            self.apply_event_if_possible(context, id, Event::ShareFound, "");
            self.apply_event_if_possible(context, id, Event::LastShareGone, "");
        }
        context.changed.desired.insert(node.clone());
        context.changed.nodes.insert(node.clone());
        Ok(Outcome::Done)
    }

    /// Refuses a lane whose group is no task group or has another owner, and likewise a replica of a
    /// scaled service.
    fn are_of_their_groups(&self, node: &NodeId, held: &[HeldShare]) -> Result<(), Refusal> {
        for HeldShare { share, .. } in held {
            self.is_of_its_service(node, share)?;
            let Some(group) = share.lane.and_then(|lane| self.allocations.get(&lane.group)) else { continue };
            if !group.is_task_group() || group.owner != share.owner {
                let (id, of, owner) = (share.allocation, group.id, &share.owner.name);
                let why = format!("node {node} reports allocation {id} of {owner} as a lane of {of}, which is no task group of theirs");
                return Err(Refusal::Malformed { why });
            }
        }
        Ok(())
    }

    fn is_of_its_service(&self, node: &NodeId, share: &DesiredShare) -> Result<(), Refusal> {
        let id = share.allocation;
        let is_other = |known: &Allocation| known.epoch == share.epoch && known.replica.as_deref() != share.replica.as_ref();
        if self.allocations.get(&id).is_some_and(|known| is_other(known)) {
            return Err(Refusal::Malformed {
                why: format!("node {node} reports allocation {id} as another replica than it is, or as none"),
            });
        }
        let Some(service) = share.replica.and_then(|replica| self.allocations.get(&replica.service)) else { return Ok(()) };
        if !service.is_scaled_service() || service.owner != share.owner {
            let (of, owner) = (service.id, &share.owner.name);
            let why = format!("node {node} reports allocation {id} of {owner} as a replica of {of}, which is no scaled service of theirs");
            return Err(Refusal::Malformed { why });
        }
        Ok(())
    }

    /// Whether the report and the ledger disagree about which replica the allocation is, if any: somebody
    /// submitted work with this id after the backup, or before the lost quorum created the replica.
    fn is_stranger(&self, share: &DesiredShare) -> bool {
        self.allocations.get(&share.allocation).is_some_and(|known| known.replica.as_deref() != share.replica.as_ref())
    }

    fn ended_since(&mut self, context: &mut ApplyContext, id: AllocationId, node: &NodeId) {
        let why = "it ended there after the backup that the quorum was recovered from; how is not known".to_owned();
        self.end_for_good(context, id, EndReason::NodeLost { node: node.clone(), why }, "quorum");
    }

    /// Applies the end of an allocation that the node could not report before the quorum was lost.
    fn ended_unreported(
        &mut self,
        context: &mut ApplyContext,
        node: &NodeId,
        (id, epoch): (AllocationId, Epoch),
        reason: &EndReason,
        last: Option<&CheckpointRef>,
    ) {
        let waits = self.allocations.get(&id).is_some_and(|a| a.state.is_without_nodes() && a.epoch < epoch);
        if !waits {
            return self.ended_report(context, node, id, epoch, reason);
        }
        // Which nodes it had is not known.
        let reason = super::reports::reason_by_node(node, reason, |named| self.nodes.contains_key(named));
        let actor = format!("node:{node}");
        let (saved, hold) = match &reason {
            EndReason::Preempted { saved: Ok(made), .. } => (Some(*made), false),
            EndReason::WalltimeSaved { checkpoint } => (Some(*checkpoint), true),
            _ => (None, false),
        };
        match last.filter(|made| saved == Some(made.id) && made.epoch == epoch) {
            // It was placed after the backup, ran, and saved itself: it is suspended, as it would
            // have been.
            Some(made) => {
                self.forget_unmet(context, id);
                if let Some(allocation) = self.allocation_mut(context, id) {
                    (allocation.epoch, allocation.checkpoint) = (epoch, Some(Box::new(made.clone())));
                    // Of its nodes, only the reporting head is known.
                    let resources = allocation.shares.get(0).map(|s| s.resources).unwrap_or_default();
                    allocation.shares = [Share { node: node.clone(), resources, phase: SharePhase::Released }].into();
                }
                self.suspend(context, id, reason, hold, &actor);
            }
            // It was placed after the backup and ran.
            None => self.end_for_good(context, id, reason, &actor),
        }
    }

    /// Replaces the node's holdings by those that it reports; returns the earlier ones. Done before
    /// anything else, so that an ended allocation which the node still has is not dropped in
    /// between: it would be adopted as one that the backup lacks.
    fn replace_holdings(&mut self, context: &mut ApplyContext, node: &NodeId, held: &[HeldShare]) -> Vec<Holding> {
        let believed = self.retain_holdings(context, node, |_| false);
        for HeldShare { share, .. } in held {
            let (allocation, epoch) = (share.allocation, share.epoch);
            let (vni, run_lease_ms) = (share.vni, share.run_lease_ms);
            self.add_holding(context, node, Holding { allocation, epoch, resources: share.resources, vni, run_lease_ms, fenced: false });
        }
        believed
    }

    fn adopt_share(&mut self, context: &mut ApplyContext, node: &NodeId, held: &HeldShare, ended: bool) {
        let share = &held.share;
        let (id, epoch) = (share.allocation, share.epoch);
        let known = self.allocations.get(&id);
        let newer = known.is_none_or(|a| a.epoch < epoch && !a.state.is_terminal());
        match held.phase {
            // It is being removed, and its pending report will state how it ended.
            None if ended => {
                if newer {
                    self.adopt_allocation(context, node, held);
                }
                // Only that report states whether it must stay held.
                self.adopt_preemption(context, share);
            }
            // It is being removed because the lost quorum ordered that: it does not run again.
            None => {
                if newer && known.is_some() || self.is_live(id, epoch) {
                    self.ended_since(context, id, node);
                }
            }
            Some(phase) => {
                if newer {
                    self.adopt_allocation(context, node, held);
                }
                if let Some(vni) = share.vni.filter(|_| self.is_live(id, epoch)) {
                    self.adopt_vni(context, id, vni);
                }
                // Only the head node received a preemption order, and executes it.
                self.adopt_preemption(context, share);
                if let Some(order) = share.telemetry.as_ref().filter(|_| self.is_live(id, epoch)) {
                    self.adopt_telemetry(context, node, id, order);
                }
                self.adopt_walltime(context, node, share);
                self.prepared_there(context, node, held, phase);
                self.end_where_a_part_is_gone(context, id, epoch);
            }
        }
    }

    /// Adopts the preemption order that its head received. The order that a replica must leave replaces any other.
    fn adopt_preemption(&mut self, context: &mut ApplyContext, share: &DesiredShare) {
        if let Some(order) = &share.preempt
            && self.is_live(share.allocation, share.epoch)
            && let Some(allocation) = self.allocation_mut(context, share.allocation)
        {
            if order.cause == PreemptCause::ScaleDown {
                allocation.preemption = Some(Box::new(order.clone()));
            } else {
                allocation.preemption.get_or_insert_with(|| Box::new(order.clone()));
            }
            if is_asked_to_leave(allocation) {
                self.close_services(share.allocation);
            }
        }
    }

    /// Adopts an allocation, or a claim, that the backup does not have.
    fn adopt_allocation(&mut self, context: &mut ApplyContext, node: &NodeId, held: &HeldShare) {
        let share = &held.share;
        let (id, epoch) = (share.allocation, share.epoch);
        // With a lane its group, and with a replica its service, may be adopted.
        let whole = share.lane.map(|lane| lane.group).or(share.replica.map(|replica| replica.service));
        let more = [Some(id), whole].into_iter().flatten().filter(|id| !self.allocations.contains_key(id)).count();
        if more > 0 && self.allocations.len() - self.ended.len() + more > LIVE_MAX {
            // The node's list will order it to end.
            return;
        }
        self.drop_session(context, id, "quorum");
        self.forget_unmet(context, id);
        self.adopt_group(context, node, share);
        self.adopt_service(context, node, share);
        // The lost quorum had also let the group or service begin.
        if let Some(whole) = whole.filter(|whole| self.allocations.get(whole).is_some_and(|whole| !whole.state.is_terminal())) {
            self.forget_unmet(context, whole);
        }
        let mut allocation = match self.allocations.get(&id) {
            Some(known) => Allocation::clone(known),
            None => {
                let submission = self.audit.seq + 1;
                let submitted = Allocation::submitted(id, share.spec.clone(), share.owner.clone(), context.at);
                let mut adopted = Allocation { submission, ..submitted };
                // A lane or a replica has no number of its own.
                if whole.is_none() {
                    self.adopt_number(&mut adopted, share);
                }
                adopted
            }
        };
        let amount = |of: &NodeId| match self.nodes.get(of) {
            Some(there) if of != node => share.spec.amount_of(&there.size),
            Some(_) | None => share.resources,
        };
        let shares = share.nodes.iter().map(|of| Share { node: of.clone(), resources: amount(of), phase: SharePhase::Claimed });
        allocation.shares = shares.collect();
        allocation.state = AllocationState::Staging;
        (allocation.preemption, allocation.held, allocation.telemetry) = (None, false, None);
        allocation.waits_until = None;
        allocation.epoch = epoch;
        allocation.requeue_count = share.requeue_count;
        (allocation.vni, allocation.lane) = (share.vni, allocation.lane.or(share.lane));
        allocation.replica = share.replica.map(Box::new);
        // The checkpoint that the lost quorum sent with the claim is newer than the backup's, and
        // the claim began from it.
        if share.restore.as_ref().is_some_and(|from| allocation.checkpoint.as_ref().is_none_or(|known| known.epoch <= from.epoch)) {
            allocation.checkpoint = share.restore.clone().map(Box::new);
        }
        allocation.claimed_at = Some(context.at);
        (allocation.started_at, allocation.usage, allocation.mailed_percent) = (None, None, 0);
        allocation.revision = context.revision;
        self.scripts.share(&mut Arc::make_mut(&mut allocation.spec).entrypoint);
        // Parts of other nodes count until those nodes report. Nodes that have reported are not
        // overridden.
        let silent = |s: &ShareRef<'_>| s.node != node && !self.has_reported(s.node);
        let shares = allocation.shares.clone();
        let others: Vec<ShareRef<'_>> = shares.iter().filter(silent).collect();
        for other in others {
            if !self.holdings(other.node).iter().any(|h| (h.allocation, h.epoch) == (id, epoch)) {
                let (vni, run_lease_ms) = (share.vni, share.run_lease_ms);
                let holding = Holding { allocation: id, epoch, resources: other.resources, vni, run_lease_ms, fenced: false };
                self.add_holding(context, other.node, holding);
            }
        }
        let detail = format!("epoch {epoch}, {} nodes", allocation.shares.len());
        self.note_before(context, id);
        self.usage_shrinks(context, id);
        context.lanes.extend(allocation.lane.map(|lane| (id, lane)));
        context.replicas.extend(share.replica.map(|replica| (id, replica)));
        self.allocations.insert(id, Arc::new(allocation));
        self.usage_grows(id);
        context.changed.record(id);
        self.close_services(id);
        let about = Subject { allocation: Some(id), node: Some(node) };
        self.record(context, &format!("node:{node}"), AuditAction::AllocationAdopted, about, detail);
    }

    fn has_reported(&self, node: &NodeId) -> bool {
        self.nodes.contains_key(node) && !self.awaits(node)
    }

    /// Records how far the node has prepared its share. The allocation runs once all nodes have
    /// prepared theirs, or if one was ordered to run it.
    fn prepared_there(&mut self, context: &mut ApplyContext, node: &NodeId, held: &HeldShare, phase: SharePhase) {
        let (id, at) = (held.share.allocation, context.at);
        if !self.is_live(id, held.share.epoch) {
            return;
        }
        let Some((allocation, rank)) = self.share_mut(context, id, node) else { return };
        allocation.shares.set_phase_of_rank(rank, phase);
        let was_ordered = held.share.state == AllocationState::Running;
        let all = allocation.shares.all_prepared();
        if (was_ordered || all)
            && allocation.state == AllocationState::Staging
            && let Some(allocation) = self.allocation_mut(context, id)
        {
            allocation.state = AllocationState::Running;
            allocation.started_at = Some(at);
            let nodes: Vec<NodeId> = allocation.nodes().cloned().collect();
            context.changed.desired.extend(nodes);
            self.end_by_deadline(context, id);
        }
        // The lost quorum had the node's report about its ports; the node does not repeat it.
        self.list_all_ports(node, id);
    }

    /// A node that has reported and does not have its part has ended it: it is not started there
    /// again, and the rest is ended.
    fn end_where_a_part_is_gone(&mut self, context: &mut ApplyContext, id: AllocationId, epoch: Epoch) {
        if !self.is_live(id, epoch) {
            return;
        }
        let Some(allocation) = self.allocations.get(&id) else { return };
        let has = |node: &NodeId| self.holdings(node).iter().any(|h| (h.allocation, h.epoch) == (id, epoch));
        let gone = allocation.nodes().find(|n| self.has_reported(n) && !has(n)).cloned();
        if let Some(gone) = gone {
            self.mark_released(context, id, epoch, &gone);
            self.ended_since(context, id, &gone);
        }
    }
}

/// Checks that a node can have these shares.
fn well_formed(node: &NodeId, held: &[HeldShare], epochs: Epoch) -> Result<(), Refusal> {
    let malformed = |why: String| Err(Refusal::Malformed { why });
    if held.len() > HELD_MAX {
        return malformed(format!("node {node} reports {} shares; at most {HELD_MAX} are possible", held.len()));
    }
    // Counted before a list is expanded: a few bytes may name a hundred thousand nodes.
    let names = held.iter().map(|h| h.share.nodes.len()).fold(0, usize::saturating_add);
    if names > HELD_NAMES_MAX {
        return malformed(format!("node {node} reports shares of {names} nodes together; at most {HELD_NAMES_MAX} are possible"));
    }
    let mut seen = BTreeSet::new();
    for HeldShare { share, .. } in held {
        let id = share.allocation;
        if !seen.insert(id) {
            return malformed(format!("node {node} reports allocation {id} twice"));
        }
        if share.epoch > epochs {
            return malformed(format!("node {node} reports allocation {id} under epoch {}, which no quorum issued", share.epoch));
        }
        let nodes: BTreeSet<&NodeId> = share.nodes.iter().collect();
        if nodes.len() != share.nodes.len() || !share.spec.may_have(nodes.len()) || !nodes.contains(node) {
            return malformed(format!("node {node} reports allocation {id}, which belongs to other nodes"));
        }
        // A group has no nodes itself, and the id of a lane follows from its number in its group.
        let is_other_lane = share.lane.is_some_and(|lane| lane.number >= REPORTED_NUMBERS || lane_id(lane.group, lane.number) != id);
        if is_other_lane || share.lane.is_some() != share.spec.tasks.is_some() {
            return malformed(format!("node {node} reports allocation {id}, which is not the lane of a task group that it names"));
        }
        let is_other_replica = share.replica.is_some_and(|of| of.number >= REPORTED_NUMBERS || lane_id(of.service, of.number) != id);
        if is_other_replica || share.replica.is_some() != share.spec.scaling.is_some() {
            return malformed(format!("node {node} reports allocation {id}, which is not the replica of a scaled service that it names"));
        }
        spec_as_submitted(share).validate().map_err(|error| Refusal::Malformed { why: format!("allocation {id}: {error}") })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
