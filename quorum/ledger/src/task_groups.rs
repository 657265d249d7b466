//! Task groups: which lane runs which tasks, and how many lanes there are.
//!
//! ```text
//!   Submit ──▶ group, in no queue ──lanes are created──▶ lane: an allocation like any other ──▶ claim
//!                 ▲                                        │ AdvanceLane: ends in, tasks out
//!                 ╰── tasks of a claim that is over ◀──────╯ ended, lost, preempted: never requeued
//!
//!   a command changes a lane or a group ──note_before──▶ `lanes`, `groups` of the context
//!   end of the command: each lane followed ──▶ its group ──▶ lanes created and ended, or the group ends
//! ```
//!
//! The ledger leases tasks to lanes itself, so each task ends once, whatever an isolated node still
//! reports (decision 88). A lane holds its tasks as long as one of its nodes has an unfenced
//! holding. Then nothing of the lane can run any more, and what it has not reported waits again.
//!
//! One command creates and ends a bounded number of lanes and of replicas of scaled services (see
//! [`super::scaled_services`]). Groups and services with more to do stay in `unsettled_groups`, which is
//! replicated, until the next command; if there is none, the leader's clock proposes one
//! (`Action::SettleDependents`).
//!
//! After a recovery from a backup, the ledger does not know what the lost quorum leased since:
//!
//! | a task that | and in the backup | |
//! |---|---|---|
//! | ended in a lane that a node still has | waited | the lane's report counts |
//! | runs in such a lane | waited | is killed there, and runs again |
//! | ended in a lane that is gone | was leased by it | runs again, which counts as a restart |
//! | ended in a lane that is gone | waited | runs again |
//!
//! So no task is lost, and some run twice. Lanes are created only when every node has reported what it
//! has, or is away.

use super::corresponding::unmet_reason;
use super::user_limits::admits_group_bytes;
use super::{ApplyContext, LIVE_MAX, Ledger, Outcome, Subject};
use lattice_ledger_state::record_bytes::TASK_RANGE_BYTES;
use lattice_ledger_state::refusal::Refusal;
use lattice_ledger_state::task_groups::{GroupTasks, LanePhase};
use lattice_ledger_state::task_states::{LanesObstacle, TaskPlace, TaskStates, WhichTasks};
use lattice_ledger_state::user_usage::holds_nodes;
use lattice_model::task_group::{lane_walltime, task_walltime};
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, AllocationState, AuditAction, DesiredShare, EndReason, Epoch, LaneOf, LaneReport, LaneWork,
    MailEvent, NodeId, Principal, ReplicaOf, RequeuePolicy, TaskGroup, TaskOutcome, TaskSet, Timing,
};
use std::borrow::Cow;
use std::ops::{Bound, RangeInclusive};
use std::sync::Arc;
use uuid::Uuid;

/// How many lanes and replicas one command creates, ends and notifies at most.
pub(super) const LANES_AT_ONCE_MAX: usize = if cfg!(test) { 8 } else { 64 };
/// While this many lanes and replicas of a user wait for nodes, each of the user's groups and services
/// gets another one only if none of its own waits.
pub const LANES_WAITING_OF_USER_MAX: u32 = if cfg!(test) { 40 } else { 1000 };
/// Lanes and replicas are created only while fewer allocations live than this: the rest is for what
/// people submit.
pub const LIVE_WITH_LANES_MAX: usize = LIVE_MAX / 4 * 3;
/// Largest number of ranges of tasks that one command names.
const RANGES_MAX: usize = 20_000;
/// How long the tasks that a lane holds should last together, in microseconds.
const LEASE_US: u64 = 2_000_000;
/// A lane whose tasks take at least this long on average holds one at a time, in microseconds.
const LONG_TASK_US: u64 = 1_000_000;
/// Largest number of tasks that a lane holds.
const LEASED_MAX: u32 = 10_000;
/// Largest number of nodes that a group avoids because its lanes failed there.
const AVOIDED_NODES_MAX: usize = 64;
/// After a recovery, the numbers of lanes and replicas skip this many: the lost quorum is assumed to have
/// created fewer since the backup.
const NUMBERS_STEP: u32 = 1_000_000;

/// A report of a lane or replica with this number or a higher one is refused, so numbers are always left.
pub(super) const REPORTED_NUMBERS: u32 = 1 << 31;

/// The id of a lane of a group, or of a replica of a scaled service. The ids of a group and its lanes differ
/// in the digits that people type.
pub fn lane_id(group: AllocationId, number: u32) -> AllocationId {
    // An odd factor: different numbers have different products.
    let digits = number.wrapping_add(1).wrapping_mul(0x9E37_79B1);
    AllocationId(Uuid::from_u128(group.0.as_u128() ^ (u128::from(digits) << 96)))
}

/// How many tasks a lane should hold; `mean_us`: how long its tasks take on average.
fn lease_target(mean_us: u64, waiting: u32, running: u32) -> u32 {
    let long = mean_us == 0 || mean_us >= LONG_TASK_US;
    let wanted = if long { 1 } else { u32::try_from(LEASE_US / mean_us).unwrap_or(LEASED_MAX).min(LEASED_MAX) };
    // Near the end, the lanes that have nodes share what is left.
    wanted.min(waiting / running.max(1).saturating_mul(2) + 1)
}

/// Whether tasks that a lane held when it ended in this way may have begun there.
fn may_have_begun_tasks(reason: &EndReason) -> bool {
    match reason {
        // A task that began has ended before the lane's walltime, or is reported as over its own walltime. A preemption
        // is not the tasks' fault. With 126 or 127 the shim ends a lane whose node cannot start tasks.
        EndReason::Exited { code: 0 | 126 | 127 }
        | EndReason::WalltimeExceeded
        | EndReason::WalltimeSaved { .. }
        | EndReason::Preempted { .. }
        | EndReason::PrologueFailed { .. } => false,
        EndReason::Exited { .. }
        | EndReason::Cancelled { .. }
        | EndReason::NodeLost { .. }
        | EndReason::LaunchAborted { .. }
        | EndReason::OutOfMemory { .. }
        | EndReason::ProbeFailed { .. }
        | EndReason::DrainDeadline { .. }
        | EndReason::RunLeaseLapsed { .. }
        | EndReason::Requeued { .. }
        | EndReason::DependencyUnmet { .. }
        | EndReason::DeadlineMissed { .. }
        | EndReason::TasksFailed { .. } => true,
    }
}

/// Whether another lane of the group will probably end in the same way: not if its node was lost, or
/// somebody needed the node.
fn is_fault_of_group(reason: &EndReason) -> bool {
    match reason {
        // 143: somebody sent SIGTERM to the shim.
        EndReason::Exited { code } => !matches!(code, 0 | 143),
        EndReason::PrologueFailed { .. }
        | EndReason::LaunchAborted { .. }
        | EndReason::OutOfMemory { .. }
        | EndReason::ProbeFailed { .. } => true,
        // A lane ends by itself before its walltime does, if the quorum answers it.
        EndReason::WalltimeExceeded
        | EndReason::WalltimeSaved { .. }
        | EndReason::Preempted { .. }
        | EndReason::Cancelled { .. }
        | EndReason::NodeLost { .. }
        | EndReason::DrainDeadline { .. }
        | EndReason::RunLeaseLapsed { .. }
        | EndReason::Requeued { .. }
        | EndReason::DependencyUnmet { .. }
        | EndReason::DeadlineMissed { .. }
        | EndReason::TasksFailed { .. } => false,
    }
}

/// The submitted specification of a share's work: in the share of a lane, the walltime is that of several
/// tasks.
pub(super) fn spec_as_submitted(share: &DesiredShare) -> Cow<'_, AllocationSpec> {
    match share.lane {
        Some(_) => {
            let of_group = |timing: Box<Timing>| Box::new(Timing { walltime_min: timing.walltime_min.map(task_walltime), ..*timing });
            let (walltime, timing) = (share.spec.walltime_of_tasks(), share.spec.timing.clone().map(of_group));
            Cow::Owned(AllocationSpec { walltime, timing, ..share.spec.clone() })
        }
        None => Cow::Borrowed(&share.spec),
    }
}

/// The bounds in time of a group's lanes. Their tasks have the group's least walltime even where a deadline cuts a lane short.
fn timing_of_lanes(group: &AllocationSpec) -> Option<Box<Timing>> {
    let Timing { begin: _, deadline, walltime_min } = group.timing.as_deref().cloned()?;
    let is_bound = deadline.is_some() || walltime_min.is_some();
    let walltime_min = group.walltime_least().filter(|_| is_bound).map(lane_walltime);
    Timing { begin: None, deadline, walltime_min }.unless_empty()
}

/// The node at which a lane could not start tasks, and why the group's other lanes avoid it.
fn unable_node(lane: &Allocation) -> Option<(NodeId, String)> {
    let Some(reason @ EndReason::Exited { code: 126 | 127 }) = &lane.reason else { return None };
    Some((lane.head()?.clone(), format!("lane {} of its task group could not start tasks there: {reason}", lane.id.short())))
}

fn named_ranges_are_bounded(count: usize) -> Result<(), Refusal> {
    if count > RANGES_MAX {
        let why = format!("{count} separate ranges of tasks: at most {RANGES_MAX} at a time, so name some now and the others later");
        return Err(Refusal::Malformed { why });
    }
    Ok(())
}

fn failures_max(group: &Allocation) -> Option<u32> {
    group.spec.tasks.as_ref().and_then(|tasks| tasks.failures_max)
}

impl Ledger {
    /// The group was submitted, or adopted, just now.
    pub(super) fn open_group(&mut self, context: &mut ApplyContext, id: AllocationId, tasks: &TaskGroup) {
        self.task_groups.insert(id, Arc::new(GroupTasks::new(tasks.indices.count())));
        context.groups.insert(id);
    }

    /// The tasks of a group, to be changed by this command.
    pub(super) fn tasks_mut(&mut self, context: &mut ApplyContext, group: AllocationId) -> Option<&mut GroupTasks> {
        self.note_before(context, group);
        self.task_groups.get_mut(&group).map(Arc::make_mut)
    }

    /// Whether the allocation has lanes or replicas that have not ended, or whose processes may still be
    /// there.
    pub(super) fn has_lanes(&self, id: AllocationId) -> bool {
        let lanes = self.task_groups.get(&id).map(|tasks| &tasks.lanes);
        let lanes = lanes.or_else(|| self.scaled_services.get(&id).map(|replicas| &replicas.lanes));
        lanes.is_some_and(|lanes| !lanes.are_gone())
    }

    fn holds_unfenced(&self, node: &NodeId, id: AllocationId, epoch: Epoch) -> bool {
        self.holdings(node).iter().any(|h| (h.allocation, h.epoch, h.fenced) == (id, epoch, false))
    }

    /// A lane's head reports ended tasks, and gets the tasks that it may run.
    pub(super) fn advance_lane(
        &mut self,
        context: &mut ApplyContext,
        (id, epoch): (AllocationId, Epoch),
        node: &NodeId,
        report: &LaneReport,
    ) -> Result<Outcome, Refusal> {
        // First, because the backup may lack the lane or its claim until the node reports it.
        if self.recovery.is_some() && (self.awaits(node) || !self.nodes.contains_key(node)) {
            let why = format!("node {node} has not reported yet what it has since the quorum was recovered");
            return Err(Refusal::Unavailable { why });
        }
        let known = self.allocations.get(&id).ok_or_else(|| self.no_such_allocation(id))?;
        let Some(LaneOf { group, number, .. }) = known.lane else { return Err(Refusal::NotALane { id }) };
        let named = report.ended.iter().map(|ended| &ended.tasks).chain(report.returned.iter().map(|returned| &returned.tasks));
        named_ranges_are_bounded(named.map(TaskSet::range_count).sum())?;
        if known.epoch != epoch || !self.holds_unfenced(node, id, epoch) {
            return Err(Refusal::StaleEpoch { id, seen: epoch, now: known.epoch });
        }
        if let Some(head) = known.head().filter(|head| *head != node) {
            return Err(Refusal::Malformed { why: format!("lane {id} is advanced by its head, {head}, and not by {node}") });
        }
        let group_record = self.allocations.get(&group).ok_or_else(|| self.no_such_allocation(group))?;
        let is_asked_back = known.preemption.as_ref().is_some_and(|order| order.stands());
        let may_lease = self.is_live(id, epoch) && !group_record.held && !is_asked_back;
        let (has_ended, failures_max) = (group_record.state.is_terminal(), failures_max(group_record));
        let is_of_lost_quorum = self.recovery.as_ref().is_some_and(|recovery| epoch <= recovery.epochs);
        if has_ended {
            return Ok(Outcome::LaneWork(LaneWork { leased: TaskSet::default(), is_last: true, returns: 0 }));
        }
        let before = self.ended_before(group);
        let Some(tasks) = self.tasks_mut(context, group) else { return Err(Refusal::NotATaskGroup { id: group }) };
        tasks.open_lease(number, epoch);
        for ended in &report.ended {
            match ended.outcome {
                TaskOutcome::Exited(_) | TaskOutcome::WalltimeExceeded => {
                    tasks.end_leased(number, ended.outcome, &ended.tasks);
                    if is_of_lost_quorum {
                        tasks.end_unknown(number, ended.outcome, &ended.tasks);
                    }
                }
                // Only the quorum decides these outcomes.
                TaskOutcome::Lost | TaskOutcome::Cancelled | TaskOutcome::Unmet => {}
            }
        }
        if let Some(returned) = &report.returned {
            tasks.accept_return(number, returned);
        }
        tasks.stop_if_due(failures_max);
        if may_lease && report.returned.is_none() {
            let target = lease_target(report.mean_us, tasks.waiting_count(), tasks.lanes_running());
            tasks.top_up(number, target);
        }
        let (leased, returns) = tasks.lease(number).map(|lease| (lease.tasks.clone(), lease.returns)).unwrap_or_default();
        // Tasks that other lanes give back later run in another lane.
        let is_last = !may_lease || tasks.waiting_count() == 0;
        self.mail_tasks(context, group, before);
        Ok(Outcome::LaneWork(LaneWork { leased, is_last, returns }))
    }

    /// Cancels single tasks of a group.
    pub(super) fn cancel_tasks(
        &mut self,
        context: &mut ApplyContext,
        id: AllocationId,
        tasks: &TaskSet,
        by: &Principal,
    ) -> Result<Outcome, Refusal> {
        let group = self.allocations.get(&id).ok_or_else(|| self.no_such_allocation(id))?;
        if !self.may("AllocationService/CancelTasks", by, &group.owner, &group.spec.tenant) {
            return Err(Refusal::NotYours { id, owner: group.owner.name.clone() });
        }
        let Some(spec) = group.spec.tasks.clone().filter(|_| group.is_task_group()) else { return Err(Refusal::NotATaskGroup { id }) };
        named_ranges_are_bounded(tasks.range_count())?;
        let asked = TaskSet::first(spec.indices.count()).and(tasks);
        let (Some(first), Some(last)) = (asked.ranges().next(), asked.ranges().next_back()) else {
            let (first, last) = (spec.indices.first(), spec.indices.last());
            return Err(Refusal::Malformed { why: format!("task group {id} has none of these tasks: its indices are {first} to {last}") });
        };
        // A range cancelled from the middle of a waiting one makes two more ranges, which need memory. All other cancels are
        // accepted, so users can free memory.
        let known = self.task_groups.get(&id);
        let parts = |range: &RangeInclusive<u32>| {
            let beside = [range.start().checked_sub(1), range.end().checked_add(1)];
            known.is_some_and(|known| beside.iter().all(|task| task.is_some_and(|task| known.is_unleased(task))))
        };
        let parting = asked.ranges().filter(parts).count();
        if parting > 0 {
            let owner = group.owner.clone();
            admits_group_bytes(self.counted(context), &owner, 2 * parting * TASK_RANGE_BYTES)?;
        }
        let Some(known) = self.tasks_mut(context, id) else { return Err(Refusal::NotATaskGroup { id }) };
        let (cancelled, ended) = known.cancel(&asked);
        if cancelled > 0 {
            known.cancelled_by = Some(by.name.clone());
            let [first, last] = [*first.start(), *last.end()].map(|ordinal| spec.indices.index_of(ordinal).unwrap_or_default());
            let detail = format!("{cancelled} of its tasks, with indices from {first} to {last}");
            self.record(context, &by.name, AuditAction::CancelRequested, Subject { allocation: Some(id), node: None }, detail);
        }
        Ok(Outcome::TasksCancelled { cancelled, ended })
    }

    /// The specification has changed. If it is a group's or a scaled service's, new lanes or replicas replace
    /// those that wait.
    pub(super) fn outdate_lanes(&mut self, context: &mut ApplyContext, id: AllocationId) {
        if self.task_groups.contains_key(&id)
            && let Some(tasks) = self.tasks_mut(context, id)
        {
            tasks.lanes.outdate();
        }
        self.outdate_replicas(context, id);
    }

    /// The allocation is about to end. If it is a group, its tasks end with it.
    pub(super) fn end_tasks(&mut self, context: &mut ApplyContext, id: AllocationId) {
        if self.task_groups.get(&id).is_some_and(|tasks| tasks.unended_count() > 0)
            && let Some(tasks) = self.tasks_mut(context, id)
        {
            tasks.cancel_all();
        }
    }

    /// Refuses a request for whole groups and scaled services if this is one of their lanes or replicas.
    pub(super) fn not_to_a_part(allocation: &Allocation) -> Result<(), Refusal> {
        let id = allocation.id;
        match (allocation.lane, allocation.replica.as_deref()) {
            (Some(LaneOf { group, number, .. }), _) => Err(Refusal::LaneOfGroup { id, number, group }),
            (None, Some(ReplicaOf { service, number })) => Err(Refusal::ReplicaOfService { id, number: *number, service: *service }),
            (None, None) => Ok(()),
        }
    }

    /// Whether lanes of a group or replicas of a scaled service must be created or ended: the next command
    /// continues with that.
    pub(super) fn groups_are_due(&self) -> bool {
        let is_crowded = !self.crowded_groups.is_empty() || self.user_below_waiting_limit().is_some();
        !self.unsettled_groups.is_empty() || (is_crowded && self.may_create_more())
    }

    fn may_create_more(&self) -> bool {
        self.allocations.len() - self.ended.len() < LIVE_WITH_LANES_MAX
    }

    fn may_wait_more(&self, uid: u32) -> bool {
        self.lanes_waiting_of.get(&uid).is_none_or(|lanes| *lanes < LANES_WAITING_OF_USER_MAX)
    }

    /// A user whose groups lacked lanes because too many waited, if more may wait now.
    fn user_below_waiting_limit(&self) -> Option<u32> {
        self.capped_groups.keys().copied().find(|uid| self.may_wait_more(*uid))
    }

    /// A group that lacked lanes because there were too many, if more may be created now.
    fn pop_crowded(&mut self) -> Option<AllocationId> {
        if !self.may_create_more() {
            return None;
        }
        if let Some(group) = self.crowded_groups.pop_first() {
            return Some(group);
        }
        let uid = self.user_below_waiting_limit()?;
        let groups = self.capped_groups.get_mut(&uid)?;
        let group = groups.pop_first();
        if groups.is_empty() {
            self.capped_groups.remove(&uid);
        }
        group
    }

    /// Whether this user's group or scaled service may get another waiting lane or replica now. If not, it gets
    /// one when there are fewer. `has_one`: whether one of its own waits already.
    pub(super) fn admits_waiting(&mut self, group: AllocationId, uid: u32, has_one: bool) -> bool {
        if !self.may_create_more() {
            self.crowded_groups.insert(group);
            return false;
        }
        if has_one && !self.may_wait_more(uid) {
            self.capped_groups.entry(uid).or_default().insert(group);
            return false;
        }
        true
    }

    /// Counts the lanes and replicas of each user that wait for nodes.
    pub(super) fn count_waiting_lanes(&mut self) {
        self.lanes_waiting_of.clear();
        let lanes = self.task_groups.iter().map(|(id, tasks)| (id, tasks.lanes_waiting()));
        let replicas = self.scaled_services.iter().map(|(id, replicas)| (id, replicas.counts().waiting));
        for (id, waiting) in lanes.chain(replicas).filter(|(_, waiting)| *waiting > 0) {
            let Some(group) = self.allocations.get(id) else { continue };
            *self.lanes_waiting_of.entry(group.owner.uid).or_default() += waiting;
        }
    }

    /// Updates how many lanes and replicas of this user wait for nodes: one group or service had `was`, and has `now`.
    pub(super) fn count_waiting(&mut self, uid: u32, was: u32, now: u32) {
        let of_user = self.lanes_waiting_of.entry(uid).or_default();
        *of_user = (*of_user + now).saturating_sub(was);
        if *of_user == 0 {
            self.lanes_waiting_of.remove(&uid);
        }
    }

    /// A lane of this user's group is in this phase from now on.
    fn set_lane_phase(&mut self, context: &mut ApplyContext, (group, uid): (AllocationId, u32), number: u32, phase: LanePhase) {
        let Some(tasks) = self.tasks_mut(context, group) else { return };
        let was = tasks.lanes_waiting();
        tasks.lanes.set_phase(number, phase);
        let now = tasks.lanes_waiting();
        self.count_waiting(uid, was, now);
    }

    /// No node may run unknown work any more: groups get lanes again, and services replicas.
    pub(super) fn resume_groups(&mut self) {
        self.unsettled_groups.extend(self.task_groups.keys().chain(self.scaled_services.keys()).copied());
    }

    /// After a recovery: the lost quorum may have created lanes and replicas since the backup.
    pub(super) fn skip_lane_numbers(&mut self) {
        for id in self.task_groups.keys().copied().collect::<Vec<_>>() {
            if let Some(tasks) = self.task_groups.get_mut(&id).map(Arc::make_mut) {
                tasks.lanes.next = tasks.lanes.next.saturating_add(NUMBERS_STEP);
            }
        }
        for id in self.scaled_services.keys().copied().collect::<Vec<_>>() {
            if let Some(replicas) = self.scaled_services.get_mut(&id).map(Arc::make_mut) {
                replicas.lanes.next = replicas.lanes.next.saturating_add(NUMBERS_STEP);
            }
        }
    }

    /// After a recovery: a node has a lane of a group that the backup lacks. The states of its tasks are
    /// lost, so all of them wait.
    pub(super) fn adopt_group(&mut self, context: &mut ApplyContext, node: &NodeId, share: &DesiredShare) {
        let (Some(LaneOf { group: id, .. }), Some(tasks)) = (share.lane, share.spec.tasks.as_deref()) else { return };
        if self.allocations.contains_key(&id) {
            return;
        }
        let (spec, owner) = (spec_as_submitted(share).into_owned(), share.owner.clone());
        let (revision, submission) = (context.revision, self.audit.seq + 1);
        let mut group = Allocation { revision, submission, ..Allocation::submitted(id, spec, owner, context.at) };
        self.scripts.share(&mut Arc::make_mut(&mut group.spec).entrypoint);
        self.adopt_number(&mut group, share);
        self.note_before(context, id);
        self.allocations.insert(id, Arc::new(group));
        context.changed.record(id);
        self.open_group(context, id, tasks);
        let about = Subject { allocation: Some(id), node: Some(node) };
        self.record(context, &format!("node:{node}"), AuditAction::AllocationAdopted, about, "the task group of a lane".to_owned());
    }

    /// After a command: updates groups after changes of their lanes, and scaled services after changes of
    /// their replicas.
    pub(super) fn follow_lanes(&mut self, context: &mut ApplyContext) {
        while let Some((id, lane)) = context.lanes.pop_first() {
            self.follow_lane(context, id, lane);
        }
        while let Some((id, replica)) = context.replicas.pop_first() {
            self.follow_replica(context, id, replica);
        }
    }

    /// After a command: creates and ends lanes and replicas as their groups and services need, at most `left`
    /// of them.
    pub(super) fn settle_groups(&mut self, context: &mut ApplyContext, left: &mut usize) {
        self.unsettled_groups.append(&mut context.groups);
        let mut from: Bound<AllocationId> = Bound::Unbounded;
        while *left > 0 {
            let next = self.unsettled_groups.range((from, Bound::Unbounded)).next().copied();
            let Some(group) = next.or_else(|| self.pop_crowded()) else { return };
            from = Bound::Excluded(group);
            let is_service = self.scaled_services.contains_key(&group);
            let is_settled = if is_service { self.settle_service(context, group, left) } else { self.settle_group(context, group, left) };
            if is_settled {
                self.unsettled_groups.remove(&group);
            } else {
                self.unsettled_groups.insert(group);
            }
        }
    }

    /// A lane may have changed: updates its group.
    fn follow_lane(&mut self, context: &mut ApplyContext, id: AllocationId, LaneOf { group, number, .. }: LaneOf) {
        let (Some(tasks), Some(group_record)) = (self.task_groups.get(&group), self.allocations.get(&group)) else { return };
        let record = self.allocations.get(&id).or_else(|| context.changed.dropped.get(&id));
        let phase = match record {
            Some(lane) if holds_nodes(lane.state) => LanePhase::Running,
            Some(lane) if !lane.state.is_terminal() => LanePhase::Waiting,
            Some(_) | None if self.holdings.unfenced_of(id) > 0 => LanePhase::Leaving,
            Some(_) | None => LanePhase::Absent,
        };
        let (was, lease) = (tasks.lanes.phase(number), tasks.lease(number));
        let is_over = lease.is_some() && self.holdings.unfenced_of(id) == 0;
        let started_at = record.filter(|lane| lane.state == AllocationState::Running).and_then(|lane| lane.started_at);
        let is_start = group_record.started_at.is_none() && !group_record.state.is_terminal();
        let ended_now = matches!(was, LanePhase::Waiting | LanePhase::Running) && matches!(phase, LanePhase::Leaving | LanePhase::Absent);
        // Tasks of a lane that has ended may still end until its claim is over.
        let holds_tasks = lease.is_some_and(|lease| !lease.tasks.is_empty());
        let is_idle_end = if holds_tasks { is_over && phase == LanePhase::Absent } else { ended_now };
        let is_idle_end = is_idle_end && lease.is_none_or(|lease| !lease.has_ended);
        let (failures_max, uid) = (failures_max(group_record), group_record.owner.uid);
        let reason = record.and_then(|lane| lane.reason.clone());
        let unable = record.filter(|_| ended_now).and_then(|lane| unable_node(lane));
        if let Some(at) = started_at.filter(|_| is_start)
            && let Some(group_record) = self.allocation_mut(context, group)
        {
            group_record.started_at = Some(at);
            self.mail(context, group, MailEvent::Begin);
        }
        if was == phase && !is_over {
            return;
        }
        self.set_lane_phase(context, (group, uid), number, phase);
        if let Some((node, why)) = unable {
            self.avoid_node(context, group, &node, &why);
        }
        let before = if is_over { self.ended_before(group) } else { None };
        let Some(tasks) = self.tasks_mut(context, group) else { return };
        if is_over {
            tasks.give_back(number, reason.as_ref().is_none_or(may_have_begun_tasks));
        }
        if phase == LanePhase::Absent {
            tasks.revoked.remove(&number);
        }
        if let Some(reason) = reason.filter(|reason| is_idle_end && is_fault_of_group(reason)) {
            tasks.note_failed_lane(&reason);
        }
        tasks.stop_if_due(failures_max);
        self.mail_tasks(context, group, before);
    }

    /// A lane of this group failed at that node: waiting and later lanes avoid it for a while. If no other
    /// node can serve them, they wait until the exclusion ends.
    pub(super) fn avoid_node(&mut self, context: &mut ApplyContext, group: AllocationId, node: &NodeId, why: &str) {
        if self.allocations.get(&group).is_none_or(|record| record.state.is_terminal()) {
            return;
        }
        self.exclude(context, group, node, why);
        let Some(record) = self.allocation_mut(context, group) else { return };
        let surplus = record.excluded.len().saturating_sub(AVOIDED_NODES_MAX);
        record.excluded.drain(..surplus);
        let avoided = record.excluded.clone();
        let waiting: Vec<u32> = self.task_groups.get(&group).into_iter().flat_map(|tasks| &tasks.lanes.waiting).copied().collect();
        for number in waiting {
            let id = lane_id(group, number);
            if self.allocations.get(&id).is_some_and(|lane| lane.state.is_without_nodes())
                && let Some(lane) = self.allocation_mut(context, id)
            {
                lane.excluded.clone_from(&avoided);
            }
        }
    }

    /// Ends the group, or ends and creates lanes as it needs. Returns whether nothing is left to do.
    fn settle_group(&mut self, context: &mut ApplyContext, id: AllocationId, left: &mut usize) -> bool {
        let is_notified = self.notify_revoked(context, id, left);
        let (Some(group), Some(tasks)) = (self.allocations.get(&id).cloned(), self.task_groups.get(&id)) else { return true };
        if group.state.is_terminal() {
            return self.end_lanes_of_ended(context, &group, left) && is_notified;
        }
        // A node may run tasks that the backup shows as waiting.
        if self.placing_waits() {
            return true;
        }
        if let Some(reason) = tasks.end_reason() {
            let unmet = if tasks.is_unmet() { unmet_reason(self, &group) } else { None };
            let reason = unmet.unwrap_or(reason);
            self.end_for_good(context, id, reason, "quorum");
            return is_notified;
        }
        let may_begin = !group.held && group.dependencies.as_ref().is_none_or(|all| all.are_met());
        let concurrent_max = group.spec.tasks.as_ref().and_then(|tasks| tasks.concurrent_max);
        let wanted = if may_begin { tasks.lanes_wanted(concurrent_max) } else { 0 };
        let (ending, missing) = tasks.lanes.to_end(wanted);
        for number in ending {
            if *left == 0 {
                return false;
            }
            *left -= 1;
            self.end_for_good(context, lane_id(id, number), EndReason::Cancelled { by: "quorum".to_owned() }, "quorum");
        }
        self.create_lanes(context, &group, missing, left) && is_notified
    }

    /// Ends the lanes of a group that has ended. If all tasks have ended, lanes with nodes end by
    /// themselves, because nothing is left to run.
    fn end_lanes_of_ended(&mut self, context: &mut ApplyContext, group: &Allocation, left: &mut usize) -> bool {
        let Some(tasks) = self.task_groups.get(&group.id) else { return true };
        let by = match &group.reason {
            Some(EndReason::Cancelled { by }) => by.clone(),
            Some(_) | None => "quorum".to_owned(),
        };
        let ends_by_itself = matches!(group.reason, Some(EndReason::Exited { .. } | EndReason::TasksFailed { .. }));
        let running = tasks.lanes.running.iter().filter(|_| !ends_by_itself);
        let mut lanes = tasks.lanes.waiting.iter().chain(running).copied();
        let now: Vec<u32> = lanes.by_ref().take(*left).collect();
        let is_all = lanes.next().is_none();
        *left -= now.len();
        for number in now {
            self.end_for_good(context, lane_id(group.id, number), EndReason::Cancelled { by: by.clone() }, &by);
        }
        is_all
    }

    /// Notifies lanes with cancelled tasks: their heads then ask which tasks they may still run. Returns
    /// whether all lanes were notified.
    fn notify_revoked(&mut self, context: &mut ApplyContext, group: AllocationId, left: &mut usize) -> bool {
        let Some(tasks) = self.task_groups.get(&group).filter(|tasks| !tasks.revoked.is_empty()) else { return true };
        let numbers: Vec<u32> = tasks.revoked.iter().take(*left).copied().collect();
        let is_all = numbers.len() == tasks.revoked.len();
        *left -= numbers.len();
        for number in numbers {
            if let Some(tasks) = self.tasks_mut(context, group) {
                tasks.revoked.remove(&number);
            }
            let id = lane_id(group, number);
            let Some(lane) = self.allocations.get(&id).filter(|lane| holds_nodes(lane.state)) else { continue };
            context.changed.desired.extend(lane.nodes().cloned());
            if let Some(lane) = self.allocation_mut(context, id).and_then(|lane| lane.lane.as_mut()) {
                lane.revocations = lane.revocations.wrapping_add(1);
            }
        }
        is_all
    }

    fn create_lanes(&mut self, context: &mut ApplyContext, group: &Allocation, count: u32, left: &mut usize) -> bool {
        if count == 0 {
            return true;
        }
        let (spec, uid) = (self.spec_of_lanes(group), group.owner.uid);
        for _ in 0..count {
            if *left == 0 {
                return false;
            }
            if self.task_groups.get(&group.id).is_none_or(|tasks| tasks.lanes.next == u32::MAX) {
                return true;
            }
            let has_one = self.task_groups.get(&group.id).is_some_and(|tasks| tasks.lanes_waiting() > 0);
            if !self.admits_waiting(group.id, uid, has_one) {
                return true;
            }
            *left -= 1;
            self.create_lane(context, group, Arc::clone(&spec));
        }
        true
    }

    /// The specification of a group's next lanes: shared with another lane that has the same.
    fn spec_of_lanes(&self, group: &Allocation) -> Arc<AllocationSpec> {
        let spec = AllocationSpec {
            walltime: group.spec.walltime.map(lane_walltime),
            requeue: RequeuePolicy::Never,
            requeues_max: 0,
            depends_on: Vec::new(),
            singleton: false,
            hold: false,
            timing: timing_of_lanes(&group.spec),
            mail: None,
            ..AllocationSpec::clone(&group.spec)
        };
        let lanes = self.task_groups.get(&group.id).map(|tasks| &tasks.lanes);
        let latest = lanes.and_then(|lanes| lanes.waiting.last().or_else(|| lanes.running.last()));
        let known = latest.and_then(|number| self.allocations.get(&lane_id(group.id, *number)));
        match known.filter(|lane| *lane.spec == spec) {
            Some(lane) => Arc::clone(&lane.spec),
            None => Arc::new(spec),
        }
    }

    fn create_lane(&mut self, context: &mut ApplyContext, group: &Allocation, spec: Arc<AllocationSpec>) {
        let Some(number) = self.task_groups.get(&group.id).map(|tasks| tasks.lanes.next) else { return };
        let id = lane_id(group.id, number);
        // Somebody may have submitted work with this id: then the group has no lane of this number.
        let is_free = !self.allocations.contains_key(&id);
        let phase = if is_free { LanePhase::Waiting } else { LanePhase::Absent };
        self.set_lane_phase(context, (group.id, group.owner.uid), number, phase);
        if !is_free {
            return;
        }
        let lane = Allocation {
            // A lane has its group's place in the queue.
            lane: Some(LaneOf { group: group.id, number, queued_at: group.queued_at(), revocations: 0 }),
            excluded: group.excluded.clone(),
            revision: context.revision,
            ..Allocation::submitted(id, spec, group.owner.clone(), context.at)
        };
        self.note_before(context, id);
        self.allocations.insert(id, Arc::new(lane));
        context.changed.record(id);
        let detail = format!("lane {number} of task group {}", group.id);
        self.record(context, "quorum", AuditAction::AllocationSubmitted, Subject { allocation: Some(id), node: None }, detail);
    }

    /// The states of a group's tasks; for a single task, also where it ran.
    ///
    /// # Errors
    /// [`Refusal::NoSuchAllocation`]; [`Refusal::NotATaskGroup`].
    pub fn task_states(&self, id: AllocationId, which: WhichTasks) -> Result<TaskStates, Refusal> {
        if !self.allocations.contains_key(&id) {
            return Err(self.no_such_allocation(id));
        }
        let tasks = self.task_groups.get(&id).ok_or(Refusal::NotATaskGroup { id })?;
        let place = |number: u32| {
            let lane = lane_id(id, number);
            TaskPlace { lane, node: self.allocations.get(&lane).and_then(|lane| lane.head().cloned()) }
        };
        let places = match which {
            WhichTasks::One(ordinal) => tasks.lanes_of_task(ordinal).into_iter().map(place).collect(),
            WhichTasks::Counts | WhichTasks::Ranges { .. } | WhichTasks::All => Vec::new(),
        };
        let of_user = || self.allocations.get(&id).map(|group| group.owner.uid);
        let is_capped = |uid: &u32| self.capped_groups.get(uid).is_some_and(|groups| groups.contains(&id)) && !self.may_wait_more(*uid);
        let obstacle = if self.placing_waits() {
            Some(LanesObstacle::Recovery)
        } else if self.crowded_groups.contains(&id) {
            Some(LanesObstacle::TooManyLive)
        } else {
            of_user().filter(is_capped).map(|_| LanesObstacle::TooManyOfUser)
        };
        Ok(TaskStates { places, obstacle, ..TaskStates::of(tasks, which) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn lanes_differ_in_the_digits_that_people_type() {
        let group = AllocationId(Uuid::from_u128(0x1f0c_9a4e_5b7d_4c39_9a54_0f3c_2b1d_7e88));
        let ids: BTreeSet<String> = (0..10_000).map(|number| lane_id(group, number).short()).chain([group.short()]).collect();
        assert_eq!(ids.len(), 10_001);
        assert_eq!(lane_id(group, 0).to_string(), "813be3ff-5b7d-4c39-9a54-0f3c2b1d7e88");
    }

    #[test]
    fn a_lane_holds_work_for_two_seconds() {
        let many = |mean_us| lease_target(mean_us, 1_000_000, 1);
        assert_eq!([0, 1, 500, 1000, 400_000, 999_999, 1_000_000, u64::MAX].map(many), [1, 10_000, 4000, 2000, 5, 2, 1, 1]);
        assert_eq!([0, 1, 7, 100].map(|waiting| lease_target(1000, waiting, 4)), [1, 1, 1, 13]);
    }
}
