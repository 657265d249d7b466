//! The record of one allocation that the quorum agrees on.

mod marks;

use crate::allocation_state::AllocationState;
use crate::attempt::{self, Attempt};
use crate::checkpoint::CheckpointRef;
use crate::dependency::Dependencies;
use crate::end_reason::EndReason;
use crate::hostlist;
use crate::ids::{AllocationId, CheckpointId, DagId, Epoch, NodeId, Revision};
use crate::preemption::Preemption;
use crate::principal::Principal;
use crate::scaling::{ReplicaOf, Scaling, ScalingState};
use crate::shares::Shares;
use crate::spec::{AllocationSpec, PREEMPTION_CLASS_DEFAULT};
use crate::task_group::LaneOf;
use crate::telemetry::TelemetryOrder;
use crate::time::Timestamp;
use crate::timing::{NICE_UNIT_MS, Timing};
use crate::work_usage::WorkUsage;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A node whose prologue failed for an allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exclusion {
    /// The node.
    pub node: NodeId,
    /// The reason of the latest failure.
    pub why: String,
    /// Number of failures on this node.
    pub failures: u32,
    /// The allocation is not placed on this node before this time (leader's clock). `None`: no
    /// restriction.
    pub until: Option<Timestamp>,
}

/// The submitted values of everything that can be changed later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmittedValues {
    /// The name.
    pub name: String,
    /// The walltime; `None`: a service, which had no walltime.
    pub walltime: Option<Duration>,
    /// The preemption class.
    pub preemption_class: u8,
    /// The project.
    pub project: String,
    /// The tags.
    pub tags: BTreeMap<String, String>,
    /// Of a scaled service: how it scales.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Box<Scaling>>,
    /// How often the spec was changed since.
    pub changes: u64,
    /// Bounds in time, `nice`, the comment and the reservation; `None`: of an older record, which could not change them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Box<SubmittedPlace>>,
}

/// The submitted values that decide where work is in its queue, and what people wrote about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmittedPlace {
    /// Bounds in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<Box<Timing>>,
    /// How much later in its queue it is than equal work.
    pub nice: i32,
    /// For people.
    pub comment: String,
    /// The reservation on whose nodes it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
}

impl SubmittedPlace {
    fn of(spec: &AllocationSpec) -> Self {
        let (comment, reservation) = (spec.comment.clone(), spec.reservation.clone());
        Self { timing: spec.timing.clone(), nice: spec.nice, comment, reservation }
    }
}

impl SubmittedValues {
    /// Of a spec as it was submitted.
    pub fn of(spec: &AllocationSpec) -> Self {
        Self {
            name: spec.name.clone(),
            walltime: spec.walltime,
            preemption_class: spec.preemption_class,
            project: spec.project.clone(),
            tags: spec.tags.clone(),
            scaling: spec.scaling.clone(),
            changes: 0,
            place: Some(Box::new(SubmittedPlace::of(spec))),
        }
    }
}

/// The place of a step in its DAG.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepOf {
    /// The DAG.
    pub dag: DagId,
    /// The step's number in it, from 0, in an order in which each step is after those that it depends
    /// on.
    pub number: u32,
    /// The step's name. The allocation's own name may be another one.
    pub name: String,
}

/// One allocation as recorded by the quorum. Members hold all allocations in memory: fields that
/// are rarely set are boxed, and a change of the record does not copy the spec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Its id.
    pub id: AllocationId,
    /// The spec with its current values; the original values of changed fields are in
    /// [`Self::submitted_values`].
    pub spec: Arc<AllocationSpec>,
    /// Set if the spec was changed after the submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitted_values: Option<Box<SubmittedValues>>,
    /// The user who submitted it.
    pub owner: Principal,
    /// The current state.
    pub state: AllocationState,
    /// Why it ended, or why it is back in the queue.
    pub reason: Option<EndReason>,
    /// When the submission was committed; a requeue does not change it.
    pub submitted_at: Timestamp,
    /// The number of the audit record of its submission: the smaller one of two was submitted earlier.
    /// 0: of a lane.
    #[serde(default)]
    pub submission: u64,
    /// Its job number, from 1: no other allocation ever has the same. A task group has as many numbers as
    /// tasks, from this one on, in the order of their indices. 0: of a lane or a replica.
    #[serde(default, skip_serializing_if = "has_no_number")]
    pub number: u64,
    /// When nodes were last claimed for it.
    pub claimed_at: Option<Timestamp>,
    /// When it last began to run.
    pub started_at: Option<Timestamp>,
    /// When it ended for good.
    pub ended_at: Option<Timestamp>,
    /// The epoch of its current or latest claim; 0 before the first claim.
    pub epoch: Epoch,
    /// Its shares in rank order; the first share's node is the head. They stay after the end, as
    /// history.
    #[serde(default, skip_serializing_if = "Shares::is_empty")]
    pub shares: Shares,
    /// The VNI of its network domain under its current or latest claim.
    pub vni: Option<u32>,
    /// The walltime that it asks for, if its current claim gave it less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_walltime: Option<Duration>,
    /// Which part of its walltime was last reported by mail under its current claim, in percent; 0: none.
    #[serde(default, skip_serializing_if = "is_none_reported")]
    pub mailed_percent: u8,
    /// Number of requeues, without those of claims under which the work never began.
    pub requeue_count: u32,
    /// Number of consecutive claims that ended soon after they were made.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub quick_requeues: u32,
    /// After a requeue: no node is claimed for it before this time (leader's clock).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_until: Option<Timestamp>,
    /// Its finished claims, oldest first; at most [`attempt::ATTEMPTS_KEPT_MAX`], the latest ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// Nodes whose prologue has failed for it since it last ran.
    pub excluded: Vec<Exclusion>,
    /// Its latest complete checkpoint.
    pub checkpoint: Option<Box<CheckpointRef>>,
    /// Set while it must release the nodes of its current claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption: Option<Box<Preemption>>,
    /// The latest preemption request that it has released nodes for. If the same request arrives
    /// again, it does not apply to the newer claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempted_by: Option<CheckpointId>,
    /// Number of preemptions.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub preempted_count: u32,
    /// Whether it is held: it gets no nodes until somebody resumes it.
    #[serde(default, skip_serializing_if = "is_not")]
    pub held: bool,
    /// What it depends on, with the state of each parent; `None`: it depends on nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dependencies: Option<Box<Dependencies>>,
    /// Set if it is a lane: the task group whose tasks it runs, and which lane of it this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<LaneOf>,
    /// Set if it is a replica: its scaled service, and its number there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<Box<ReplicaOf>>,
    /// Of a scaled service: how many replicas it has and should have, and what its loop found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Box<ScalingState>>,
    /// Set if it is a step of a DAG: which one of which DAG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dag: Option<Box<StepOf>>,
    /// Set while the work of its current claim is measured in more detail than usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<Box<TelemetryOrder>>,
    /// Resource usage of its current or latest claim, summed over the nodes that have released it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Box<WorkUsage>>,
    /// The ledger's revision at the latest change of this record.
    pub revision: Revision,
}

impl Allocation {
    /// The preemption class that decides its place in its queue, and what it may preempt. Everybody
    /// may choose a class, so a class above the usual one counts only if an operator has bounded
    /// the classes of its tenant: `bound`.
    pub fn effective_class(&self, bound: Option<u8>) -> u8 {
        self.spec.preemption_class.min(bound.unwrap_or(PREEMPTION_CLASS_DEFAULT))
    }

    /// Why work of a higher class cannot preempt it; `None`: it can. Only work that continues later
    /// is preempted: from a checkpoint, or from its beginning if its user allows that.
    pub fn exempt_from_priority(&self) -> Option<&'static str> {
        let is_asked = self.preemption.is_some();
        let never = self.spec.never_gives_back(self.requeue_count);
        never.or_else(|| is_asked.then_some("it gives its nodes back already, or could not save itself when it was asked"))
    }

    /// A newly submitted allocation, not yet at any revision. The ledger adds its dependencies.
    pub fn submitted(id: AllocationId, spec: impl Into<Arc<AllocationSpec>>, owner: Principal, at: Timestamp) -> Self {
        let spec: Arc<AllocationSpec> = spec.into();
        let held = spec.hold;
        Self {
            id,
            spec,
            submitted_values: None,
            owner,
            state: AllocationState::Pending,
            reason: None,
            submitted_at: at,
            submission: 0,
            number: 0,
            claimed_at: None,
            started_at: None,
            ended_at: None,
            epoch: Epoch(0),
            shares: Shares::default(),
            vni: None,
            asked_walltime: None,
            mailed_percent: 0,
            requeue_count: 0,
            quick_requeues: 0,
            waits_until: None,
            attempts: Vec::new(),
            excluded: Vec::new(),
            checkpoint: None,
            preemption: None,
            preempted_by: None,
            preempted_count: 0,
            held,
            dependencies: None,
            lane: None,
            replica: None,
            scaling: None,
            dag: None,
            telemetry: None,
            usage: None,
            revision: Revision(0),
        }
    }

    /// How many job numbers it has, from [`Self::number`] on: one for each task of a task group.
    pub fn numbers_count(&self) -> u64 {
        let tasks = self.spec.tasks.as_deref().filter(|_| self.lane.is_none());
        tasks.map_or(1, |tasks| u64::from(tasks.indices.count()))
    }

    /// The index of the task with this job number; `None`: this is no task group, or the number means the
    /// whole group or none of its tasks.
    pub fn task_of_number(&self, number: u64) -> Option<u32> {
        let ordinal = u32::try_from(number.checked_sub(self.number).filter(|ordinal| *ordinal > 0)?).ok()?;
        self.spec.tasks.as_deref().filter(|_| self.is_task_group())?.indices.index_of(ordinal)
    }

    /// Its record with the spec that it has on this many nodes, if its ranks are spread; otherwise unchanged.
    pub fn spread_over(self: &Arc<Self>, nodes: usize) -> Arc<Self> {
        if self.spec.spread.is_none() {
            return Arc::clone(self);
        }
        let spec = self.spec.spread_over(u32::try_from(nodes).unwrap_or(u32::MAX));
        Arc::new(Self { spec: Arc::new(spec), ..Self::clone(self) })
    }

    /// The head node, where its script runs and its launches are coordinated; `None` before the
    /// first claim.
    pub fn head(&self) -> Option<&NodeId> {
        self.shares.head()
    }

    /// Whether `spec` is the spec that was submitted.
    pub fn was_submitted_as(&self, spec: &AllocationSpec) -> bool {
        match self.submitted_values.as_deref().cloned() {
            Some(SubmittedValues { name, walltime, preemption_class, project, tags, scaling, changes: _, place }) => {
                // Older records have none: these values could not be changed then.
                let scaling = scaling.or_else(|| self.spec.scaling.clone());
                let place = place.map_or_else(|| SubmittedPlace::of(&self.spec), |place| *place);
                let SubmittedPlace { timing, nice, comment, reservation } = place;
                let spec_now = AllocationSpec { timing, nice, comment, reservation, ..AllocationSpec::clone(&self.spec) };
                AllocationSpec { name, walltime, preemption_class, project, tags, scaling, ..spec_now } == *spec
            }
            None => *self.spec == *spec,
        }
    }

    /// The project in the paths of its output, its checkpoints and its traces: the submitted one, so that they are
    /// found after a change of its project.
    pub fn stored_project(&self) -> &str {
        self.submitted_values.as_deref().map_or(self.spec.project.as_str(), |values| values.project.as_str())
    }

    /// The version of its settings: how often they were changed since the submission.
    pub fn version(&self) -> u64 {
        self.submitted_values.as_deref().map_or(0, |values| values.changes)
    }

    /// Whether it is a task group. It gets no nodes itself: its lanes do.
    pub fn is_task_group(&self) -> bool {
        self.spec.tasks.is_some() && self.lane.is_none()
    }

    /// The name under which its children find its output: that of its step, if it belongs to a DAG.
    pub fn output_name(&self) -> &str {
        self.dag.as_deref().map_or(&self.spec.name, |step| &step.name)
    }

    /// Whether it has begun to run under any of its claims. Claims that are no longer in the record are assumed
    /// to have begun.
    pub fn has_ever_begun(&self) -> bool {
        let earlier = self.attempts.iter().any(|attempt| attempt.started_at.is_some());
        self.started_at.is_some() || earlier || self.may_have_begun_unrecorded()
    }

    /// Whether it may have begun under a claim that its record lacks: a claim removed in favour of later ones, or
    /// made after the backup from which the quorum was recovered.
    fn may_have_begun_unrecorded(&self) -> bool {
        let (first, last) = (self.attempts.first(), self.attempts.last());
        // Attempts that cannot have run are removed first.
        let are_removed = first.is_some_and(|attempt| attempt.number > 1) && self.attempts.iter().all(Attempt::may_have_run);
        are_removed || self.requeue_count > last.map_or(0, |attempt| attempt.number)
    }

    /// When it began to run for the first time; `None`: it never did. The record has only the latest of
    /// many claims: then this is the first known beginning, or else a later time.
    pub fn first_begun_at(&self) -> Option<Timestamp> {
        let starts = self.attempts.iter().filter_map(|attempt| attempt.started_at).chain(self.started_at);
        let later = self.attempts.first().map(|attempt| attempt.ended_at).or(self.claimed_at);
        let known = starts.min().or(later).unwrap_or(self.submitted_at);
        self.has_ever_begun().then_some(known)
    }

    /// Whether it is a scaled service. It gets no nodes itself: its replicas do.
    pub fn is_scaled_service(&self) -> bool {
        self.spec.scaling.is_some() && self.replica.is_none()
    }

    /// Whether other allocations, which the ledger creates, get the nodes for it: the lanes of a task
    /// group, or the replicas of a scaled service.
    pub fn is_group(&self) -> bool {
        self.is_task_group() || self.is_scaled_service()
    }

    /// Its state for people. A group is Running from the start of its first lane or replica on.
    pub fn shown_state(&self) -> AllocationState {
        match self.state {
            AllocationState::Pending if self.is_group() && self.started_at.is_some() => AllocationState::Running,
            state => state,
        }
    }

    /// Whether it is waiting for nodes.
    pub fn waits(&self) -> bool {
        !self.is_group() && self.state.is_without_nodes() && !self.held && self.dependencies.as_ref().is_none_or(|all| all.are_met())
    }

    /// What it waits for before it is in its queue, in a sentence without its subject; `None`: for
    /// nothing.
    pub fn awaits(&self) -> Option<String> {
        self.dependencies.as_ref().filter(|_| self.state.is_without_nodes())?.sentence()
    }

    /// Since when it has its place in the queue: since its submission, or since all its conditions
    /// were met for the first time. A lane has the place of its group.
    pub fn queued_at(&self) -> Timestamp {
        if let Some(lane) = self.lane {
            return lane.queued_at;
        }
        self.dependencies.as_ref().and_then(|all| all.eligible_at).unwrap_or(self.submitted_at)
    }

    /// The time that orders it in its queue: that of its place, and a minute later for each unit of its `nice`.
    pub fn ordered_at(&self) -> Timestamp {
        let later_ms = i64::from(self.spec.nice).saturating_mul(NICE_UNIT_MS);
        Timestamp(self.queued_at().0.saturating_add_signed(later_ms))
    }

    /// When the allocation begins to accept nodes of any topology groups; `None`: it never does.
    pub fn any_topology_from(&self) -> Option<Timestamp> {
        let wait = self.spec.topology_wait?;
        Some(Timestamp(self.queued_at().0.saturating_add(crate::millis(wait))))
    }

    /// Whether the site's mail hook reports its events: its user asked for mail, and it is no lane or replica.
    pub fn has_mail(&self) -> bool {
        self.spec.mail.is_some() && self.lane.is_none() && self.replica.is_none()
    }

    /// Why this node is not claimed for it now; `None`: the node may be claimed.
    pub fn exclusion(&self, node: &NodeId) -> Option<&Exclusion> {
        self.excluded.iter().find(|excluded| excluded.node == *node && excluded.until.is_some())
    }

    /// Its nodes in rank order.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeId> {
        self.shares.nodes()
    }

    /// The number of its current or latest claim, starting at 1; `None`: it is waiting for a claim.
    pub fn attempt_number(&self) -> Option<u32> {
        let before = self.attempts.last().map_or(0, |a| a.number);
        (!self.shares.is_empty()).then_some(before.saturating_add(1))
    }

    /// Moves the current claim to the finished attempts. Does nothing if there is no current claim.
    pub fn close_attempt(&mut self, ended_at: Timestamp, reason: &EndReason, by: &str) {
        let (Some(number), Some(head)) = (self.attempt_number(), self.head().cloned()) else { return };
        let closed = Attempt {
            number,
            epoch: self.epoch,
            head,
            nodes: hostlist::fold(self.nodes()),
            claimed_at: self.claimed_at.take(),
            started_at: self.started_at.take(),
            ended_at,
            reason: reason.clone(),
            by: by.to_owned(),
        };
        self.shares.clear();
        attempt::keep(&mut self.attempts, closed);
    }
}

fn has_no_number(number: &u64) -> bool {
    *number == 0
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn is_none_reported(percent: &u8) -> bool {
    *percent == 0
}

fn is_not(flag: &bool) -> bool {
    !flag
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_builders;
    use uuid::Uuid;

    fn allocation() -> Allocation {
        Allocation { requeue_count: 1, ..test_builders::allocation(AllocationId(Uuid::from_u128(1))) }
    }

    fn attempt(number: u32, started_at: Option<u64>) -> Attempt {
        Attempt {
            number,
            epoch: Epoch(u64::from(number)),
            head: "n1".parse().unwrap(),
            nodes: "n1".to_owned(),
            claimed_at: Some(Timestamp(10)),
            started_at: started_at.map(Timestamp),
            ended_at: Timestamp(90),
            reason: EndReason::Exited { code: 1 },
            by: "quorum".to_owned(),
        }
    }

    fn begun(attempts: Vec<Attempt>) -> (bool, Option<u64>) {
        let allocation = Allocation { attempts, ..allocation() };
        (allocation.has_ever_begun(), allocation.first_begun_at().map(|at| at.0))
    }

    #[test]
    fn started_attempts_have_begun_and_unknown_attempts_may_have_begun() {
        assert_eq!(begun(vec![attempt(1, None)]), (false, None), "it was preempted while it was prepared");
        assert_eq!(begun(vec![attempt(1, None), attempt(2, Some(50))]), (true, Some(50)));
        assert_eq!(begun(vec![attempt(2, None), attempt(3, None)]), (true, Some(90)), "the record lacks its first attempt");
        let unprepared =
            Attempt { reason: EndReason::PrologueFailed { node: "n1".parse().unwrap(), why: String::new() }, ..attempt(9, None) };
        assert_eq!(begun(vec![attempt(2, None), unprepared]), (false, None), "the first attempt cannot have run: it was removed first");
        assert_eq!(begun(vec![]), (true, Some(0)), "it was requeued after the backup");
    }

    #[test]
    fn a_task_group_has_a_number_for_each_task_and_its_first_one_means_the_group() {
        let plain = Allocation { number: 7, ..allocation() };
        assert_eq!((plain.numbers_count(), plain.task_of_number(7), plain.task_of_number(8)), (1, None, None));
        let mut group = plain;
        test_builders::spec_of(&mut group).tasks = Some(Box::new(crate::TaskGroup::parse("10-18:2").unwrap()));
        assert_eq!(group.numbers_count(), 5);
        assert_eq!([6, 7, 8, 11, 12].map(|number| group.task_of_number(number)), [None, None, Some(12), Some(18), None]);
    }

    #[test]
    fn submitted_values_of_older_records_have_no_scaling() {
        let mut allocation = allocation();
        let scaling = Scaling { replicas_min: 1, replicas_max: 3, policy: None, drain: crate::Drain::default() };
        test_builders::spec_of(&mut allocation).scaling = Some(Box::new(scaling));
        let submitted = AllocationSpec::clone(&allocation.spec);
        allocation.submitted_values = Some(Box::new(SubmittedValues { scaling: None, place: None, ..SubmittedValues::of(&submitted) }));
        test_builders::spec_of(&mut allocation).name = "renamed".to_owned();
        test_builders::spec_of(&mut allocation).project = "other".to_owned();
        assert_eq!(allocation.stored_project(), submitted.project, "its output and checkpoints stay where they are");
        assert!(allocation.was_submitted_as(&submitted));
        assert!(!allocation.was_submitted_as(&AllocationSpec { scaling: None, ..submitted }));
    }
}
