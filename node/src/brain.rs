//! The brain: it compares a node's allocations with the list from the quorum, and reports back.
//!
//! ```text
//!              list has share         image, scope, shim            list has it Running
//!   (nothing) ───────────▶ Preparing ──────────────▶ Prepared ────────────────────▶ Running
//!                              │ failed                  │   list lacks share, or the   │
//!                              ▼                         ▼   entry point is over        ▼
//!   Gone, Released ◀────── Undoing ◀──────────────── Stopping ◀──────────────────────────
//! ```
//!
//! After every event [`Brain::reconcile`] compares what the list wants with what is on the node.
//! Only there work begins, or stops because the list lacks it.

use crate::allocation::NotPrepared;
use crate::assign::assign;
use crate::durable::Durable;
use crate::record::{Local, Phase, Record};
use lattice_model::end_reason::NotSaved;
use lattice_model::{
    AllocationId, AllocationState, Assignment, CheckpointId, CheckpointRef, DesiredList, DesiredShare, EndReason, Epoch, Incarnation,
    NodeId, NodeReport, NodeTopology, ReportItem, Timestamp, WorkUsage,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// How many changes of the node's health are stored while the quorum receives no heartbeats. One
/// more report then states that later changes are left out.
const UNREPORTED_HEALTH_MAX: usize = 64;

/// An event of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The quorum registered this life of the agent, and has its reports up to `report_seq`.
    Registered { incarnation: Incarnation, report_seq: u64 },
    /// The desired list from the quorum.
    Listed(DesiredList),
    /// The quorum has the reports of this incarnation up to `seq`.
    Acknowledged { incarnation: Incarnation, seq: u64 },
    /// The quorum refused reports of this claim: the allocation has been claimed anew, or waits for
    /// that.
    Superseded { allocation: AllocationId, epoch: Epoch },
    /// Preparing has ended.
    Prepared { allocation: AllocationId, epoch: Epoch, result: Result<(), NotPrepared> },
    /// The head's entry point or this node's walltime has ended, or the shim is lost with its
    /// processes.
    Ended { allocation: AllocationId, epoch: Epoch, reason: EndReason },
    /// A checkpoint of the allocation is whole in the store. The head's node gets this, perhaps
    /// repeatedly.
    Checkpointed { allocation: AllocationId, epoch: Epoch, checkpoint: CheckpointRef },
    /// Work that must give its nodes back under this request has saved itself as this checkpoint,
    /// or could not, and why. The head's node gets this.
    Saved { allocation: AllocationId, epoch: Epoch, request: CheckpointId, saved: Result<CheckpointId, NotSaved> },
    /// These exposed ports of the allocation accept connections on this node.
    PortsOpened { allocation: AllocationId, epoch: Epoch, ports: Vec<u16> },
    /// No process of the allocation is left.
    Stopped { allocation: AllocationId, epoch: Epoch },
    /// Nothing of the allocation is left on the node.
    Undone { allocation: AllocationId, epoch: Epoch, usage: Option<WorkUsage> },
    /// The state of the node's GPUs has changed.
    Gpus(Box<GpusNow>),
    /// A GPU error hit the work, though the GPU is well: the work cannot continue.
    Hit { allocation: AllocationId, epoch: Epoch, why: String },
    /// The node's health changed at this time, while none of its heartbeats is acknowledged.
    UnreportedHealth { at: Timestamp, text: String },
}

/// The state of the node's GPUs at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpusNow {
    /// The node's topology, with every GPU that it has had in this life of the agent.
    pub topology: NodeTopology,
    /// The lost GPUs, by [`lattice_model::topology::GpuDevice::id`]; the value names the GPU and
    /// the reason.
    pub lost: BTreeMap<String, String>,
    /// The GPUs that no share may get, lost ones included.
    pub withheld: BTreeSet<String>,
}

/// What to do once the records are on the disk. An action may be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Verify the image, make the scope, start the shim or find it again. The answer is
    /// [`Event::Prepared`].
    Prepare(Box<Local>),
    /// Find the allocation's shim again after a restart of the agent.
    Adopt(Box<DesiredShare>),
    /// Start the walltime, and on the head the entry point. Finds the shim again if necessary.
    Start(Box<DesiredShare>),
    /// Running work has another walltime from now on, counted from its beginning.
    ChangeWalltime(Box<DesiredShare>),
    /// Tasks that a running lane of a task group holds may have been cancelled since it last asked.
    ChangeLane(Box<DesiredShare>),
    /// On the head: have the work save itself, because it must give its nodes back
    /// ([`DesiredShare::preempt`]). The answer is [`Event::Saved`].
    Preempt(Box<DesiredShare>),
    /// End the work's processes. The answer is [`Event::Stopped`].
    Stop(Box<DesiredShare>),
    /// Remove everything that was made for the allocation. The answer is [`Event::Undone`].
    Undo(Box<DesiredShare>),
    /// The outbox changed: [`Brain::reports`] has what to send.
    Report,
}

/// The state of one node; see the module's figure. Only its durable part is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Brain {
    durable: Durable,
    #[serde(skip)]
    volatile: Volatile,
}

/// Facts about the machine and this life of the agent. They are found anew after each start and
/// never stored.
#[derive(Clone, Debug, Default, PartialEq)]
struct Volatile {
    topology: Option<NodeTopology>,
    /// GPUs of the topology that no share may get now.
    withheld: BTreeSet<String>,
    /// Allocations of an earlier life of which processes or mounts could not be removed.
    unswept: BTreeSet<AllocationId>,
    /// Work that was asked to save itself, and the request.
    preempting: BTreeMap<AllocationId, CheckpointId>,
}

impl Brain {
    /// A node without history.
    pub fn new(me: NodeId) -> Self {
        Self { durable: Durable::new(me), volatile: Volatile::default() }
    }

    /// Sets the node's topology. From now on each new allocation gets processors and GPUs of its
    /// own; present allocations keep what they have.
    pub fn knows(&mut self, topology: NodeTopology) {
        self.volatile.topology = Some(topology);
    }

    /// Sets the allocations that the brain does not know, but whose processes or mounts are still
    /// on the node: the quorum keeps their shares held.
    pub fn set_unswept(&mut self, allocations: BTreeSet<AllocationId>) {
        self.volatile.unswept = allocations;
    }

    /// A node whose stored state is lost, or that never had one. `found` is all that is left of its
    /// work, and `outbox` all that is left of its reports. The brain keeps what was found until the
    /// quorum's list differs. That list comes after the quorum has learned of the loss
    /// ([`Brain::found`]) and has ended all other claims on this node as lost, so nothing is begun
    /// a second time.
    pub fn recovered(me: NodeId, incarnation: Incarnation, found: Vec<Local>, outbox: Vec<ReportItem>) -> Self {
        Self { durable: Durable::recovered(me, incarnation, found, outbox), volatile: Volatile::default() }
    }

    /// All claims still on the node, for the next registration; `None` unless its stored state is
    /// lost.
    pub fn found(&self) -> Option<Vec<(AllocationId, Epoch)>> {
        self.durable.is_state_lost().then(|| self.locals().map(|l| (l.share.allocation, l.share.epoch)).collect())
    }

    /// This node's name.
    pub fn me(&self) -> &NodeId {
        self.durable.me()
    }

    /// The agent's life, 0 before the first registration.
    pub fn incarnation(&self) -> Incarnation {
        self.durable.incarnation()
    }

    /// The last desired list.
    pub fn list(&self) -> &DesiredList {
        self.durable.list()
    }

    /// The node's allocations, in order of their ids.
    pub fn locals(&self) -> impl Iterator<Item = &Local> {
        self.durable.locals().values()
    }

    /// The node's allocations, each with the last list's name and requests for preemption and
    /// telemetry. Their work keeps the name with which its claim began.
    pub fn locals_with_requests(&self) -> impl Iterator<Item = Local> {
        self.locals().cloned().map(|mut local| {
            let listed = self.durable.listed(local.share.allocation, local.share.epoch);
            if let Some(listed) = listed {
                local.share.spec.name.clone_from(&listed.spec.name);
            }
            local.share.preempt = listed.and_then(|share| share.preempt.clone());
            local.share.telemetry = listed.and_then(|share| share.telemetry.clone());
            local
        })
    }

    /// One local allocation.
    pub fn local(&self, allocation: AllocationId) -> Option<&Local> {
        self.durable.locals().get(&allocation)
    }

    /// Reports that the quorum has not acknowledged, numbered, oldest first.
    pub fn reports(&self) -> impl Iterator<Item = NodeReport> {
        self.durable.reports()
    }

    /// Handles an event: changes the state, and appends the records to write and the actions to
    /// take after that.
    pub fn handle(&mut self, event: Event, records: &mut Vec<Record>, actions: &mut Vec<Action>) {
        let mut turn = Turn { brain: self, records, actions };
        turn.handle(event);
        turn.reconcile();
    }

    /// Replays one record of the journal.
    pub fn replay(&mut self, record: Record) {
        self.durable.apply(record);
    }

    /// After a start of the agent: the actions to repeat, from the records alone. `same_boot` is
    /// false if the machine has been restarted: then no earlier process is alive, and the
    /// allocations only need to be removed.
    pub fn resume(&mut self, same_boot: bool, records: &mut Vec<Record>, actions: &mut Vec<Action>) {
        let mut turn = Turn { brain: self, records, actions };
        if !same_boot {
            let all: Vec<AllocationId> = turn.brain.durable.locals().keys().copied().collect();
            for allocation in all {
                turn.enter(allocation, Phase::Undoing);
            }
        }
        for local in turn.brain.durable.locals().values() {
            let share = Box::new(local.share.clone());
            turn.actions.push(match local.phase {
                Phase::Preparing => Action::Prepare(Box::new(local.clone())),
                Phase::Prepared => Action::Adopt(share),
                Phase::Running => Action::Start(share),
                Phase::Stopping => Action::Stop(share),
                Phase::Undoing => Action::Undo(share),
            });
        }
        turn.ask_to_save();
        if !turn.brain.durable.outbox().is_empty() {
            turn.actions.push(Action::Report);
        }
    }
}

/// One call of [`Brain::handle`] or [`Brain::resume`].
struct Turn<'a> {
    brain: &'a mut Brain,
    records: &'a mut Vec<Record>,
    actions: &'a mut Vec<Action>,
}

impl Turn<'_> {
    fn write(&mut self, record: Record) {
        self.brain.durable.apply(record.clone());
        self.records.push(record);
    }

    fn report(&mut self, item: ReportItem) {
        self.write(Record::ReportQueued(item));
        self.actions.push(Action::Report);
    }

    fn enter(&mut self, allocation: AllocationId, phase: Phase) {
        if let Some(local) = self.brain.durable.locals().get(&allocation) {
            let epoch = local.share.epoch;
            self.write(Record::PhaseEntered { allocation, epoch, phase, assignment: None });
        }
    }

    /// The local allocation of an event, unless it is of another epoch.
    fn subject(&self, allocation: AllocationId, epoch: Epoch) -> Option<&Local> {
        self.brain.durable.of_claim(allocation, epoch)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Registered { incarnation, report_seq } => {
                if incarnation == self.brain.durable.incarnation() {
                    self.apply_acknowledgement(report_seq);
                } else {
                    self.write(Record::Registered { incarnation });
                }
                self.actions.push(Action::Report);
            }
            Event::Listed(list) => {
                let seen = (self.brain.durable.list().generation, self.brain.durable.list().revision);
                if (list.generation, list.revision) > seen {
                    let walltimes = self.changed(&list, |old, new| old.spec.walltime != new.spec.walltime);
                    let lanes = self.changed(&list, |old, new| old.lane != new.lane);
                    self.write(Record::ListReceived(list));
                    let locals = self.brain.durable.locals();
                    let share = |allocation: &AllocationId| Some(Box::new(locals.get(allocation)?.share.clone()));
                    self.actions.extend(walltimes.iter().filter_map(share).map(Action::ChangeWalltime));
                    self.actions.extend(lanes.iter().filter_map(share).map(Action::ChangeLane));
                }
            }
            Event::Acknowledged { incarnation, seq } => {
                if incarnation == self.brain.durable.incarnation() {
                    self.apply_acknowledgement(seq);
                }
            }
            // The next list will lack the share as well, but the work may already run elsewhere: it
            // is stopped now.
            Event::Superseded { allocation, epoch } => match self.subject(allocation, epoch).map(|l| l.phase) {
                Some(Phase::Preparing | Phase::Prepared | Phase::Running) => self.stop(allocation),
                Some(Phase::Stopping | Phase::Undoing) | None => {}
            },
            Event::Prepared { allocation, epoch, result } => {
                let Some(Local { phase: Phase::Preparing, .. }) = self.subject(allocation, epoch) else { return };
                match result {
                    Ok(()) => {
                        self.enter(allocation, Phase::Prepared);
                        self.report(ReportItem::Prepared { allocation, epoch });
                    }
                    Err(why) => {
                        self.report(ReportItem::PrepareFailed { allocation, epoch, why: why.to_string() });
                        self.undo(allocation);
                    }
                }
            }
            Event::Ended { allocation, epoch, reason } => {
                let Some(local) = self.subject(allocation, epoch) else { return };
                match local.phase {
                    Phase::Preparing | Phase::Prepared | Phase::Running => {
                        self.report(ReportItem::Ended { allocation, epoch, reason });
                        self.stop(allocation);
                    }
                    Phase::Stopping | Phase::Undoing => {}
                }
            }
            Event::Stopped { allocation, epoch } => {
                if let Some(Local { phase: Phase::Stopping, .. }) = self.subject(allocation, epoch) {
                    self.undo(allocation);
                }
            }
            Event::Gpus(now) => self.update_gpus(*now),
            Event::Hit { allocation, epoch, why } => self.handle_hit(allocation, epoch, why),
            Event::Checkpointed { allocation, epoch, checkpoint } => {
                let item = ReportItem::Checkpointed { allocation, epoch, checkpoint };
                let lives = self.subject(allocation, epoch).is_some_and(|l| l.phase == Phase::Running);
                if lives && !self.brain.durable.outbox().contains(&item) {
                    self.report(item);
                }
            }
            Event::PortsOpened { allocation, epoch, ports } => {
                let item = ReportItem::PortsOpen { allocation, epoch, ports };
                let runs = self.subject(allocation, epoch).is_some_and(|l| l.phase == Phase::Running);
                if runs && !self.brain.durable.outbox().contains(&item) {
                    self.report(item);
                }
            }
            Event::Saved { allocation, epoch, request, saved } => self.handle_saved(allocation, epoch, request, saved),
            Event::UnreportedHealth { at, text } => self.report_health_change(at, text),
            Event::Undone { allocation, epoch, usage } => {
                if let Some(Local { phase: Phase::Undoing, .. }) = self.subject(allocation, epoch) {
                    self.report_gone(allocation, epoch, usage);
                }
            }
        }
    }

    /// The running allocations whose share differs in this list, as `differs` compares the old one with the new one.
    fn changed(&self, list: &DesiredList, differs: impl Fn(&DesiredShare, &DesiredShare) -> bool) -> Vec<AllocationId> {
        let changes = |share: &&DesiredShare| {
            let local = self.subject(share.allocation, share.epoch).filter(|local| local.phase == Phase::Running);
            local.is_some_and(|local| differs(&local.share, share))
        };
        list.shares.iter().filter(changes).map(|share| share.allocation).collect()
    }

    /// Reports a change of the node's health for its history. If there are too many, the last ones
    /// are left out, since heartbeats will show the present state.
    fn report_health_change(&mut self, at: Timestamp, text: String) {
        let kept = self.brain.durable.outbox().iter().filter(|item| matches!(item, ReportItem::UnreportedHealth { .. })).count();
        if kept > UNREPORTED_HEALTH_MAX {
            return;
        }
        let left_out = || format!("more than {UNREPORTED_HEALTH_MAX} changes: the later ones are only in the agent's log");
        let text = if kept == UNREPORTED_HEALTH_MAX { left_out() } else { text };
        self.report(ReportItem::UnreportedHealth { at, health: text });
    }

    /// Work that must give its nodes back ends once it has saved itself. If it could not, the
    /// reason for the request decides.
    fn handle_saved(&mut self, allocation: AllocationId, epoch: Epoch, request: CheckpointId, saved: Result<CheckpointId, NotSaved>) {
        let Some(Local { phase: Phase::Running, .. }) = self.subject(allocation, epoch) else { return };
        // The request as the list has it now: it may ask for more than at first.
        let listed = self.brain.durable.listed(allocation, epoch);
        let can_save = listed.is_some_and(|share| share.spec.checkpoint.is_some());
        let order = listed.and_then(|share| share.preempt.as_ref()).filter(|order| order.id == request);
        let Some(order) = order.cloned() else {
            // A recovered quorum may send the request again; then the work is asked again.
            if self.brain.volatile.preempting.get(&allocation) == Some(&request) {
                self.brain.volatile.preempting.remove(&allocation);
            }
            return;
        };
        match saved {
            Err(NotSaved(why)) if !order.cause.ends_unsaved(can_save) => {
                let item = ReportItem::NotPreempted { allocation, epoch, id: request, why };
                let is_reported = |other: &ReportItem| matches!(other, ReportItem::NotPreempted { id, .. } if *id == request);
                if !self.brain.durable.outbox().iter().any(is_reported) {
                    self.report(item);
                }
            }
            saved => {
                let reason = EndReason::Preempted { by: order.by, why: order.reason, saved };
                self.report(ReportItem::Ended { allocation, epoch, reason });
                self.stop(allocation);
            }
        }
    }

    /// Asks work that must give its nodes back to save itself, once for each request, if this node
    /// is its head.
    fn ask_to_save(&mut self) {
        let (durable, preempting) = (&self.brain.durable, &mut self.brain.volatile.preempting);
        let (locals, listed) = (durable.locals(), &durable.list().shares);
        // Forgets requests that the list no longer has: if it has one again, the work is asked
        // again.
        let asks = |share: &DesiredShare, id: CheckpointId| share.preempt.as_ref().is_some_and(|order| order.id == id);
        let is_requested = |allocation, id| listed.iter().any(|share| share.allocation == allocation && asks(share, id));
        preempting.retain(|allocation, id| locals.contains_key(allocation) && is_requested(*allocation, *id));
        let me = durable.me();
        let heads = |share: &&DesiredShare| share.nodes.first() == Some(me);
        let asked = listed.iter().filter(heads).filter_map(|share| Some((share, share.preempt.as_ref()?.id)));
        let runs =
            |share: &DesiredShare| durable.of_claim(share.allocation, share.epoch).is_some_and(|local| local.phase == Phase::Running);
        let due = asked.filter(|(share, id)| runs(share) && preempting.get(&share.allocation) != Some(id));
        let due: Vec<(DesiredShare, CheckpointId)> = due.map(|(share, id)| (share.clone(), id)).collect();
        for (share, id) in due {
            preempting.insert(share.allocation, id);
            self.actions.push(Action::Preempt(Box::new(share)));
        }
    }

    /// Reports the release before it writes the removal. If the agent dies in between, the undoing
    /// and the report are repeated; without the report the claim would be held for ever.
    fn report_gone(&mut self, allocation: AllocationId, epoch: Epoch, usage: Option<WorkUsage>) {
        self.report(ReportItem::Released { allocation, epoch, usage });
        self.write(Record::Removed { allocation, epoch });
    }

    fn apply_acknowledgement(&mut self, seq: u64) {
        let count = seq.saturating_sub(self.brain.durable.acknowledged()).min(self.brain.durable.outbox().len() as u64);
        if count > 0 {
            self.write(Record::Acknowledged { count });
        }
    }

    /// Ends the work that had a lost GPU; all other work keeps what it has.
    fn update_gpus(&mut self, now: GpusNow) {
        let GpusNow { topology, lost, withheld } = now;
        (self.brain.volatile.topology, self.brain.volatile.withheld) = (Some(topology), withheld);
        let failed = self.brain.durable.locals().values().filter_map(|local| match local.phase {
            Phase::Preparing | Phase::Prepared | Phase::Running => {
                let had = local.assignment.iter().flat_map(|a| &a.gpus);
                let why: Vec<&str> = had.filter_map(|id| lost.get(id).map(String::as_str)).collect();
                (!why.is_empty()).then(|| (local.share.allocation, local.share.epoch, why.join("; ")))
            }
            Phase::Stopping | Phase::Undoing => None,
        });
        for (allocation, epoch, why) in failed.collect::<Vec<_>>() {
            self.fail(allocation, epoch, why);
        }
    }

    /// Ends work that a GPU error hit, unless it is not prepared yet or is ending anyway.
    fn handle_hit(&mut self, allocation: AllocationId, epoch: Epoch, why: String) {
        let runs = |local: &Local| match local.phase {
            Phase::Prepared | Phase::Running => local.share.epoch == epoch,
            Phase::Preparing | Phase::Stopping | Phase::Undoing => false,
        };
        if self.brain.durable.locals().get(&allocation).is_some_and(runs) {
            self.fail(allocation, epoch, why);
        }
    }

    /// Ends work because of a fault of the node; its owner's policy decides whether it begins
    /// again.
    fn fail(&mut self, allocation: AllocationId, epoch: Epoch, why: String) {
        let reason = EndReason::NodeLost { node: self.brain.durable.me().clone(), why };
        self.report(ReportItem::Ended { allocation, epoch, reason });
        self.stop(allocation);
    }

    /// Assigns a share its part of the node and prepares it, or reports why that is not possible.
    fn begin(&mut self, share: &DesiredShare) {
        let (allocation, epoch) = (share.allocation, share.epoch);
        let withheld = Assignment { gpus: self.brain.volatile.withheld.clone(), ..Assignment::default() };
        let taken = self.brain.durable.locals().values().filter_map(|l| l.assignment.as_ref()).chain([&withheld]);
        let assigned =
            self.brain.volatile.topology.as_ref().map(|node| assign(node, taken, &share.resources, &share.spec.constraints)).transpose();
        match assigned {
            Ok(assignment) => {
                self.write(Record::PhaseEntered { allocation, epoch, phase: Phase::Preparing, assignment });
                if let Some(local) = self.brain.durable.locals().get(&allocation) {
                    self.actions.push(Action::Prepare(Box::new(local.clone())));
                }
            }
            // The report first: if the agent dies in between, the share begins again and is refused
            // again.
            Err(why) => {
                self.report(ReportItem::PrepareFailed { allocation, epoch, why: why.to_string() });
                self.write(Record::PhaseEntered { allocation, epoch, phase: Phase::Undoing, assignment: None });
                self.actions.push(Action::Undo(Box::new(share.clone())));
            }
        }
    }

    fn stop(&mut self, allocation: AllocationId) {
        self.enter(allocation, Phase::Stopping);
        if let Some(local) = self.brain.durable.locals().get(&allocation) {
            self.actions.push(Action::Stop(Box::new(local.share.clone())));
        }
    }

    fn undo(&mut self, allocation: AllocationId) {
        self.enter(allocation, Phase::Undoing);
        if let Some(local) = self.brain.durable.locals().get(&allocation) {
            self.actions.push(Action::Undo(Box::new(local.share.clone())));
        }
    }

    /// Compares the list with the node: stops work that the list lacks, reports missed claims, and
    /// begins or starts listed shares.
    fn reconcile(&mut self) {
        let durable = &self.brain.durable;
        let unwanted = durable.locals().values().filter(|local| match local.phase {
            Phase::Preparing | Phase::Prepared | Phase::Running => durable.listed(local.share.allocation, local.share.epoch).is_none(),
            Phase::Stopping | Phase::Undoing => false,
        });
        for allocation in unwanted.map(|local| local.share.allocation).collect::<Vec<_>>() {
            self.stop(allocation);
        }
        let missed = self.brain.durable.list().leaving.iter().copied().filter(|claim| self.is_missed(*claim));
        for claim in missed.collect::<Vec<_>>() {
            // The list may name a claim twice; it is reported once.
            if self.is_missed(claim) {
                self.report_gone(claim.0, claim.1, None);
            }
        }
        let due = self.brain.durable.list().shares.iter().filter(|share| self.next_step(share).is_some());
        for share in due.cloned().collect::<Vec<_>>() {
            match self.next_step(&share) {
                Some(NextStep::Begin) => self.begin(&share),
                Some(NextStep::Start) => {
                    self.enter(share.allocation, Phase::Running);
                    self.actions.push(Action::Start(Box::new(share)));
                }
                None => {}
            }
        }
        self.ask_to_save();
    }

    /// Whether a claim that the list names as leaving is neither on the node nor reported as
    /// released.
    fn is_missed(&self, (allocation, epoch): (AllocationId, Epoch)) -> bool {
        let released =
            |item: &ReportItem| matches!(item, ReportItem::Released { allocation: a, epoch: e, .. } if (*a, *e) == (allocation, epoch));
        let durable = &self.brain.durable;
        let is_known = durable.of_claim(allocation, epoch).is_some() || durable.is_released(allocation, epoch);
        !is_known && !self.brain.volatile.unswept.contains(&allocation) && !durable.outbox().iter().any(released)
    }

    /// The next action for a listed share, if one is due.
    fn next_step(&self, share: &DesiredShare) -> Option<NextStep> {
        let (allocation, epoch) = (share.allocation, share.epoch);
        match self.brain.durable.locals().get(&allocation) {
            None => (!self.brain.durable.is_done(allocation, epoch)).then_some(NextStep::Begin),
            // The only node of an allocation need not wait for others to be prepared.
            Some(local) => {
                let may_run = share.state == AllocationState::Running || share.nodes.len() == 1;
                (local.share.epoch == epoch && local.phase == Phase::Prepared && may_run).then_some(NextStep::Start)
            }
        }
    }
}

/// The next action for a listed share.
enum NextStep {
    /// The share is not on the node.
    Begin,
    /// The share is prepared and may run.
    Start,
}

#[cfg(test)]
#[path = "brain_tests.rs"]
pub(crate) mod tests;
