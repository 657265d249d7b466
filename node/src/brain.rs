//! A node's allocations, from the list that the quorum sends to the reports that go back.
//!
//! ```text
//!              list has it            image, scope, shim            list says Running
//!   (nothing) ───────────▶ Preparing ──────────────▶ Prepared ────────────────────▶ Running
//!                              │ failed                  │   list lacks it, or the      │
//!                              ▼                         ▼   entry point is over        ▼
//!   Gone, Released ◀────── Undoing ◀──────────────── Stopping ◀──────────────────────────
//! ```
//!
//! What a list wants is compared with what is here after every event ([`Brain::reconcile`]): there is no other
//! place where work begins or is stopped because of the quorum.

use crate::assign::assign;
use crate::durable::Durable;
use crate::record::{Local, Phase, Record};
use lattice_model::{
    AllocationId, AllocationState, Assignment, CheckpointId, CheckpointRef, DesiredList, DesiredShare, EndReason, Epoch, Incarnation,
    NodeId, NodeReport, NodeTopology, ReportItem, Timestamp, WorkUsage,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// So many changes of how a node finds itself are kept for a quorum that does not hear it.
const UNHEARD_MAX: usize = 64;

/// What happens to a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The quorum registered this life of the agent, and has its reports up to `report_seq`.
    Registered { incarnation: Incarnation, report_seq: u64 },
    /// The quorum's list.
    Listed(DesiredList),
    /// The quorum has the reports up to `seq` of this incarnation.
    Acknowledged { incarnation: Incarnation, seq: u64 },
    /// The quorum refused what was reported of this claim: the allocation was claimed anew since, or waits to be.
    Superseded { allocation: AllocationId, epoch: Epoch },
    /// Preparing came to its end.
    Prepared { allocation: AllocationId, epoch: Epoch, result: Result<(), String> },
    /// The head's entry point is over, or this node's walltime is, or its shim is lost with what it ran.
    Ended { allocation: AllocationId, epoch: Epoch, reason: EndReason },
    /// A checkpoint of it is whole in the store: told on its head, once or often.
    Checkpointed { allocation: AllocationId, epoch: Epoch, checkpoint: CheckpointRef },
    /// Work that is to give its nodes back under this request has saved itself as this checkpoint, or why it could not: told on its head.
    Saved { allocation: AllocationId, epoch: Epoch, request: CheckpointId, saved: Result<CheckpointId, String> },
    /// No process of it is left.
    Stopped { allocation: AllocationId, epoch: Epoch },
    /// Nothing of it is left at all.
    Undone { allocation: AllocationId, epoch: Epoch, usage: Option<WorkUsage> },
    /// The node's GPUs are found to be otherwise.
    Gpus(Box<GpusNow>),
    /// An error of a GPU, which is well, hit what runs on it: this work is to be started again.
    Hit { allocation: AllocationId, epoch: Epoch, why: String },
    /// How the node finds itself from this time on, while no heartbeat of it is acknowledged.
    Unheard { at: Timestamp, word: String },
}

/// The node's GPUs at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpusNow {
    /// What the node is made of, with every GPU that it ever had in this life of the agent.
    pub topology: NodeTopology,
    /// Those that are gone, by [`lattice_model::topology::GpuDevice::id`], and how each is called and why it counts as gone.
    pub lost: BTreeMap<String, String>,
    /// Those that no share may get: the lost ones among them.
    pub withheld: BTreeSet<String>,
}

/// What is to be done, once the records are on the disk. May be asked for again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Verify the image, make the scope, start the shim or find it again. Answered by [`Event::Prepared`].
    Prepare(Box<Local>),
    /// Find its shim again after a restart of the agent.
    Adopt(Box<DesiredShare>),
    /// Let walltime run; on the head start the entry point. Finds the shim again where that is needed.
    Start(Box<DesiredShare>),
    /// It runs, and has another walltime from now on, counted from its beginning.
    ChangeWalltime(Box<DesiredShare>),
    /// On the head: have it save itself, for it is to give its nodes back ([`DesiredShare::preempt`]). Answered by [`Event::Saved`].
    Preempt(Box<DesiredShare>),
    /// End its processes. Answered by [`Event::Stopped`].
    Stop(Box<DesiredShare>),
    /// Take away what was made. Answered by [`Event::Undone`].
    Undo(Box<DesiredShare>),
    /// The outbox changed: [`Brain::reports`] has what is to be sent.
    Report,
}

/// The state of one node. See the module's figure. Its stored form is that of its durable half.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Brain {
    durable: Durable,
    #[serde(skip)]
    volatile: Volatile,
}

/// What is true of the machine and of this life of the agent: known anew after each start, never written down.
#[derive(Clone, Debug, Default, PartialEq)]
struct Volatile {
    topology: Option<NodeTopology>,
    /// GPUs of it that no share may get now.
    withheld: BTreeSet<String>,
    /// Allocations of a former life that could not be ended.
    unswept: BTreeSet<AllocationId>,
    /// Work that was asked to save itself, under which request.
    preempting: BTreeMap<AllocationId, CheckpointId>,
}

impl Brain {
    /// A node that has never done anything.
    pub fn new(me: NodeId) -> Self {
        Self { durable: Durable::new(me), volatile: Volatile::default() }
    }

    /// Tells it what the node is made of: from now on each allocation gets processors and GPUs of its own. Those that
    /// are here keep what they have.
    pub fn knows(&mut self, topology: NodeTopology) {
        self.volatile.topology = Some(topology);
    }

    /// Tells it of what allocations something still lives here that it does not know: what is held for them stays held.
    pub fn could_not_end(&mut self, allocations: BTreeSet<AllocationId>) {
        self.volatile.unswept = allocations;
    }

    /// A node whose memory is lost, or that never had one: `found` is all that is left of its work, and of what it had
    /// to report. What was found is kept until the quorum's list says otherwise, which comes after the quorum was told
    /// ([`Brain::found`]) and has taken everything else from this node: so nothing is begun a second time.
    pub fn recovered(me: NodeId, incarnation: Incarnation, found: Vec<Local>, outbox: Vec<ReportItem>) -> Self {
        Self { durable: Durable::recovered(me, incarnation, found, outbox), volatile: Volatile::default() }
    }

    /// What the quorum must be told at the next registration where the memory of this node is lost: all that is left.
    pub fn found(&self) -> Option<Vec<(AllocationId, Epoch)>> {
        self.durable.is_unremembered().then(|| self.locals().map(|l| (l.share.allocation, l.share.epoch)).collect())
    }

    /// This node's name.
    pub fn me(&self) -> &NodeId {
        self.durable.me()
    }

    /// The agent's life, 0 before the first registration.
    pub fn incarnation(&self) -> Incarnation {
        self.durable.incarnation()
    }

    /// The last list taken.
    pub fn list(&self) -> &DesiredList {
        self.durable.list()
    }

    /// What is on this node, by allocation.
    pub fn locals(&self) -> impl Iterator<Item = &Local> {
        self.durable.locals().values()
    }

    /// What is on this node, with what the last list says of it beyond what was said when it began.
    pub fn told(&self) -> impl Iterator<Item = Local> {
        self.locals().cloned().map(|mut local| {
            let listed = self.durable.listed(local.share.allocation, local.share.epoch);
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

    /// Takes an event: changes the state, and gives what must be written down and what is then to be done.
    pub fn handle(&mut self, event: Event, records: &mut Vec<Record>, actions: &mut Vec<Action>) {
        let mut turn = Turn { brain: self, records, actions };
        turn.event(event);
        turn.reconcile();
    }

    /// Replays one record of the journal.
    pub fn replay(&mut self, record: Record) {
        self.durable.apply(record);
    }

    /// After a start of the agent: what must be done again, from the records alone. `same_boot` is false when the
    /// machine was restarted since: then nothing of before lives, and all that remains is to take it away.
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
        turn.preempt();
        if !turn.brain.durable.outbox().is_empty() {
            turn.actions.push(Action::Report);
        }
    }
}

/// One call of [`Brain::handle`].
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
        self.write(Record::ToReport(item));
        self.actions.push(Action::Report);
    }

    fn enter(&mut self, allocation: AllocationId, phase: Phase) {
        if let Some(local) = self.brain.durable.locals().get(&allocation) {
            let epoch = local.share.epoch;
            self.write(Record::Entered { allocation, epoch, phase, assignment: None });
        }
    }

    /// The local allocation that an event speaks of, unless it is of another epoch.
    fn subject(&self, allocation: AllocationId, epoch: Epoch) -> Option<&Local> {
        self.brain.durable.of_claim(allocation, epoch)
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Registered { incarnation, report_seq } => {
                if incarnation == self.brain.durable.incarnation() {
                    self.acknowledged(report_seq);
                } else {
                    self.write(Record::Registered { incarnation });
                }
                self.actions.push(Action::Report);
            }
            Event::Listed(list) => {
                let seen = (self.brain.durable.list().generation, self.brain.durable.list().revision);
                if (list.generation, list.revision) > seen {
                    let changed = self.changed_walltimes(&list);
                    self.write(Record::Listed(list));
                    let changed = changed.into_iter().filter_map(|allocation| self.brain.durable.locals().get(&allocation));
                    self.actions.extend(changed.map(|local| Action::ChangeWalltime(Box::new(local.share.clone()))));
                }
            }
            Event::Acknowledged { incarnation, seq } => {
                if incarnation == self.brain.durable.incarnation() {
                    self.acknowledged(seq);
                }
            }
            // Its list will lack the share as well; until that comes, work that may run elsewhere already is not left running.
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
                        self.report(ReportItem::PrepareFailed { allocation, epoch, why });
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
            Event::Gpus(now) => self.gpus(*now),
            Event::Hit { allocation, epoch, why } => self.hit(allocation, epoch, why),
            Event::Checkpointed { allocation, epoch, checkpoint } => {
                let item = ReportItem::Checkpointed { allocation, epoch, checkpoint };
                let lives = self.subject(allocation, epoch).is_some_and(|l| l.phase == Phase::Running);
                if lives && !self.brain.durable.outbox().contains(&item) {
                    self.report(item);
                }
            }
            Event::Saved { allocation, epoch, request, saved } => self.saved(allocation, epoch, request, saved),
            Event::Unheard { at, word } => self.unheard(at, word),
            Event::Undone { allocation, epoch, usage } => {
                if let Some(Local { phase: Phase::Undoing, .. }) = self.subject(allocation, epoch) {
                    self.gone(allocation, epoch, usage);
                }
            }
        }
    }

    /// What runs here and has another walltime in this list than until now.
    fn changed_walltimes(&self, list: &DesiredList) -> Vec<AllocationId> {
        let changes = |share: &&DesiredShare| {
            let local = self.subject(share.allocation, share.epoch).filter(|local| local.phase == Phase::Running);
            local.is_some_and(|local| local.share.spec.walltime != share.spec.walltime)
        };
        list.shares.iter().filter(changes).map(|share| share.allocation).collect()
    }

    /// For the node's history, once it is heard again. As it is then, its heartbeats say: what is too much is left out at the end.
    fn unheard(&mut self, at: Timestamp, word: String) {
        let kept = self.brain.durable.outbox().iter().filter(|item| matches!(item, ReportItem::Unheard { .. })).count();
        if kept > UNHEARD_MAX {
            return;
        }
        let left_out = || format!("more than {UNHEARD_MAX} changes: the later ones are in its agent's log alone");
        let word = if kept == UNHEARD_MAX { left_out() } else { word };
        self.report(ReportItem::Unheard { at, word });
    }

    /// Work that is to give its nodes back ends once it has saved itself; where it could not, it depends on what for.
    fn saved(&mut self, allocation: AllocationId, epoch: Epoch, request: CheckpointId, saved: Result<CheckpointId, String>) {
        let Some(Local { phase: Phase::Running, .. }) = self.subject(allocation, epoch) else { return };
        // As it is asked for now: more may be wanted than when it was asked first.
        let order =
            self.brain.durable.listed(allocation, epoch).and_then(|share| share.preempt.as_ref()).filter(|order| order.id == request);
        let Some(order) = order.cloned() else {
            // Where a recovered quorum says it again, it is asked again.
            if self.brain.volatile.preempting.get(&allocation) == Some(&request) {
                self.brain.volatile.preempting.remove(&allocation);
            }
            return;
        };
        match saved {
            Err(why) if !order.cause.ends_unsaved() => {
                let item = ReportItem::NotPreempted { allocation, epoch, id: request, why };
                let said = |other: &ReportItem| matches!(other, ReportItem::NotPreempted { id, .. } if *id == request);
                if !self.brain.durable.outbox().iter().any(said) {
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

    /// Has work save itself that is to give its nodes back, where this node is its head: once for each request.
    fn preempt(&mut self) {
        let (durable, preempting) = (&self.brain.durable, &mut self.brain.volatile.preempting);
        let (locals, listed) = (durable.locals(), &durable.list().shares);
        // What the list says no more is over: said anew, it is asked anew.
        let asks = |share: &DesiredShare, id: CheckpointId| share.preempt.as_ref().is_some_and(|order| order.id == id);
        let says = |allocation, id| listed.iter().any(|share| share.allocation == allocation && asks(share, id));
        preempting.retain(|allocation, id| locals.contains_key(allocation) && says(*allocation, *id));
        let me = durable.me();
        let heads = |share: &&DesiredShare| share.nodes.first().is_some_and(|(node, _)| node == me);
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

    /// The report first: where the rest is cut off, it is undone and reported again, and a claim that nobody reports is held for ever.
    fn gone(&mut self, allocation: AllocationId, epoch: Epoch, usage: Option<WorkUsage>) {
        self.report(ReportItem::Released { allocation, epoch, usage });
        self.write(Record::Gone { allocation, epoch });
    }

    fn acknowledged(&mut self, seq: u64) {
        let count = seq.saturating_sub(self.brain.durable.acknowledged()).min(self.brain.durable.outbox().len() as u64);
        if count > 0 {
            self.write(Record::Acknowledged { count });
        }
    }

    /// Whoever had a GPU that is lost has failed; all others keep what they have.
    fn gpus(&mut self, now: GpusNow) {
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

    /// What had not begun to run was not hit, and what ends anyway is not started again for this.
    fn hit(&mut self, allocation: AllocationId, epoch: Epoch, why: String) {
        let runs = |local: &Local| match local.phase {
            Phase::Prepared | Phase::Running => local.share.epoch == epoch,
            Phase::Preparing | Phase::Stopping | Phase::Undoing => false,
        };
        if self.brain.durable.locals().get(&allocation).is_some_and(runs) {
            self.fail(allocation, epoch, why);
        }
    }

    /// Something of the node's ended the work: whether it begins again is as its owner wants it.
    fn fail(&mut self, allocation: AllocationId, epoch: Epoch, why: String) {
        let reason = EndReason::NodeLost { node: self.brain.durable.me().clone(), why };
        self.report(ReportItem::Ended { allocation, epoch, reason });
        self.stop(allocation);
    }

    /// Gives a share its part of the node and has it prepared; or reports why it cannot be.
    fn begin(&mut self, share: &DesiredShare) {
        let (allocation, epoch) = (share.allocation, share.epoch);
        let withheld = Assignment { gpus: self.brain.volatile.withheld.clone(), ..Assignment::default() };
        let taken = self.brain.durable.locals().values().filter_map(|l| l.assignment.as_ref()).chain([&withheld]);
        let assigned = self.brain.volatile.topology.as_ref().map(|node| assign(node, taken, &share.resources)).transpose();
        match assigned {
            Ok(assignment) => {
                self.write(Record::Entered { allocation, epoch, phase: Phase::Preparing, assignment });
                if let Some(local) = self.brain.durable.locals().get(&allocation) {
                    self.actions.push(Action::Prepare(Box::new(local.clone())));
                }
            }
            // The report first: what is cut short here begins again, and is refused again.
            Err(why) => {
                self.report(ReportItem::PrepareFailed { allocation, epoch, why: why.to_string() });
                self.write(Record::Entered { allocation, epoch, phase: Phase::Undoing, assignment: None });
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

    /// Compares what the list wants with what is here, and begins what is missing on either side.
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
            // A list that names it twice has it reported once.
            if self.is_missed(claim) {
                self.gone(claim.0, claim.1, None);
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
        self.preempt();
    }

    /// Whether a claim that is leaving was never here, or is gone, and was not reported to be gone.
    fn is_missed(&self, (allocation, epoch): (AllocationId, Epoch)) -> bool {
        let released =
            |item: &ReportItem| matches!(item, ReportItem::Released { allocation: a, epoch: e, .. } if (*a, *e) == (allocation, epoch));
        let durable = &self.brain.durable;
        let is_known = durable.of_claim(allocation, epoch).is_some() || durable.is_released(allocation, epoch);
        !is_known && !self.brain.volatile.unswept.contains(&allocation) && !durable.outbox().iter().any(released)
    }

    /// What a listed share lacks here.
    fn next_step(&self, share: &DesiredShare) -> Option<NextStep> {
        let (allocation, epoch) = (share.allocation, share.epoch);
        match self.brain.durable.locals().get(&allocation) {
            None => (!self.brain.durable.is_done(allocation, epoch)).then_some(NextStep::Begin),
            // One node alone need not wait to hear that every node is prepared.
            Some(local) => {
                let may_run = share.state == AllocationState::Running || share.nodes.len() == 1;
                (local.share.epoch == epoch && local.phase == Phase::Prepared && may_run).then_some(NextStep::Start)
            }
        }
    }
}

/// What is to be done next with a listed share.
enum NextStep {
    /// It is not here.
    Begin,
    /// It is prepared, and may run.
    Start,
}

#[cfg(test)]
#[path = "brain_tests.rs"]
pub(crate) mod tests;
