//! The tasks of a group, and its lanes.
//!
//! ```text
//!   awaiting ──the task of the same index of another group succeeds──▶ waiting, otherwise ──▶ ended
//!
//!   waiting ──a lane leases it──▶ leased ──the lane reports its end──▶ ended
//!      ▲                            │  │
//!      ├── returned before it began ┤  │
//!      │ nothing of the lane's      │  ╰─ cancelled, or returned too often ──▶ ended
//!      ╰──── claim may run any more ╯
//! ```
//!
//! Each task is in exactly one of these sets. They are stored as ranges with counts, so the cost of a
//! change depends on the ranges that it touches, and not on the size of the group.

use crate::correspondence::{Correspondence, EndedNews};
use crate::record_bytes::{GROUP_TASKS_BYTES, REASON_BYTES, TASK_PLACE_BYTES, TASK_RANGE_BYTES, TASK_SET_BYTES, reason_bytes, text_bytes};
use lattice_model::task_group::TASK_RESTARTS_MAX;
use lattice_model::{AllocationId, EndReason, Epoch, LaneReturn, TaskOutcome, TaskSet};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// Largest number of lanes of a group that wait for nodes at a time.
pub const LANES_WAITING_MAX: u32 = 32;
/// Largest number of lanes in [`GroupTasks::earlier`].
const EARLIER_LANES_MAX: usize = 1000;
/// After this many failed lanes in a row in which no task has ended, the group starts no more tasks.
const FAILED_LANES_MAX: u32 = 16;

/// The tasks of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupTasks {
    /// How many there are.
    pub total: u32,
    /// The tasks that wait for a lane, and their number.
    pub waiting: TaskSet,
    pub waiting_count: u32,
    /// What each lane holds, by its number, and the number of tasks in all leases.
    pub leases: BTreeMap<u32, LaneLease>,
    pub leased_count: u32,
    /// The tasks that have ended.
    pub ended: BTreeMap<TaskOutcome, TaskSet>,
    pub completed: u32,
    pub failed: u32,
    pub cancelled: u32,
    /// Tasks that were begun again, by how often; and the number of all restarts.
    pub restarted: BTreeMap<u32, TaskSet>,
    pub restarts: u32,
    /// The lane that leased each task last.
    pub placed: TaskPlaces,
    /// The tasks of each lane that another lane has leased since.
    pub earlier: BTreeMap<u32, TaskSet>,
    /// The lanes, by their number.
    pub lanes: Lanes,
    /// Lanes that do not know yet that a task which they hold was cancelled.
    pub revoked: BTreeSet<u32>,
    /// How many lanes in a row have failed and had no task end.
    pub failed_lanes: u32,
    /// Set if no task is started any more: why.
    pub stopped: Option<Box<EndReason>>,
    /// Who cancelled tasks last.
    pub cancelled_by: Option<String>,
    /// Set if tasks of this group wait for tasks of other groups, or the reverse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correspondence: Option<Box<Correspondence>>,
}

/// What a lane holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneLease {
    /// The epoch of the lane's claim.
    pub epoch: Epoch,
    /// The tasks that it has not reported as ended.
    pub tasks: TaskSet,
    /// Whether it has reported the end of a task.
    pub has_ended: bool,
    /// How many times it has returned tasks.
    pub returns: u32,
}

/// The lanes of a group whose claims are not over, by their number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lanes {
    /// The number of the next lane.
    pub next: u32,
    /// Lanes with a lower number have an earlier specification of their group.
    pub current_from: u32,
    /// Lanes that wait for nodes.
    pub waiting: BTreeSet<u32>,
    /// Lanes that have nodes.
    pub running: BTreeSet<u32>,
    /// Lanes that have ended, but whose processes may still be there.
    pub leaving: BTreeSet<u32>,
}

/// Where a lane is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LanePhase {
    Waiting,
    Running,
    /// It has ended, and its processes may still be there.
    Leaving,
    /// It does not exist yet, or nothing of it is left.
    Absent,
}

impl Lanes {
    /// The phase of the lane with this number.
    pub fn phase(&self, number: u32) -> LanePhase {
        if self.waiting.contains(&number) {
            LanePhase::Waiting
        } else if self.running.contains(&number) {
            LanePhase::Running
        } else if self.leaving.contains(&number) {
            LanePhase::Leaving
        } else {
            LanePhase::Absent
        }
    }

    /// The lane with this number is in this phase from now on.
    pub fn set_phase(&mut self, number: u32, phase: LanePhase) {
        for lanes in [&mut self.waiting, &mut self.running, &mut self.leaving] {
            lanes.remove(&number);
        }
        self.next = self.next.max(number.saturating_add(1));
        match phase {
            LanePhase::Waiting => self.waiting.insert(number),
            LanePhase::Running => self.running.insert(number),
            LanePhase::Leaving => self.leaving.insert(number),
            LanePhase::Absent => false,
        };
    }

    /// The specification of the group has changed: all lanes so far have an earlier one.
    pub fn outdate(&mut self) {
        self.current_from = self.next;
    }

    /// The waiting lanes to end if `wanted` should wait: all with an earlier specification, and the latest
    /// surplus ones. Also returns how many lanes are missing then.
    pub fn to_end(&self, wanted: u32) -> (Vec<u32>, u32) {
        let (outdated, current) = (self.waiting.range(..self.current_from), self.waiting.range(self.current_from..));
        let waiting = u32::try_from(current.clone().count()).unwrap_or(u32::MAX);
        let surplus = current.rev().take(waiting.saturating_sub(wanted) as usize);
        (outdated.chain(surplus).copied().collect(), wanted.saturating_sub(waiting))
    }

    /// Whether there are any.
    pub fn are_gone(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.leaving.is_empty()
    }
}

/// The number of lanes.
fn count(lanes: &BTreeSet<u32>) -> u32 {
    u32::try_from(lanes.len()).unwrap_or(u32::MAX)
}

impl GroupTasks {
    /// All of them wait.
    pub fn new(total: u32) -> Self {
        Self { total, waiting: TaskSet::first(total), waiting_count: total, ..Self::default() }
    }

    /// How many wait.
    pub fn waiting_count(&self) -> u32 {
        self.waiting_count
    }

    /// How many wait for tasks of other groups.
    pub fn awaiting_count(&self) -> u32 {
        self.correspondence.as_ref().map_or(0, |all| all.awaiting_count)
    }

    /// Those that wait for tasks of other groups; `None`: none do.
    pub fn awaiting(&self) -> Option<&TaskSet> {
        self.correspondence.as_ref().map(|all| &all.awaiting)
    }

    /// Whether the task has neither ended nor been leased.
    pub fn is_unleased(&self, task: u32) -> bool {
        self.waiting.contains(task) || self.awaiting().is_some_and(|awaiting| awaiting.contains(task))
    }

    /// How many have not ended.
    pub fn unended_count(&self) -> u32 {
        self.waiting_count + self.leased_count + self.awaiting_count()
    }

    /// How many lanes should wait for nodes now.
    pub fn lanes_wanted(&self, concurrent_max: Option<u32>) -> u32 {
        let most = (self.waiting_count + self.leased_count).min(concurrent_max.unwrap_or(u32::MAX));
        most.saturating_sub(count(&self.lanes.running))
            .saturating_sub(self.lanes_left_with_tasks())
            .min(self.waiting_count)
            .min(LANES_WAITING_MAX)
    }

    /// How many lanes have ended and still hold tasks, for example in their grace period.
    pub fn lanes_left_with_tasks(&self) -> u32 {
        let holds = |lane: &&u32| self.leases.get(*lane).is_some_and(|lease| !lease.tasks.is_empty());
        u32::try_from(self.lanes.leaving.iter().filter(holds).count()).unwrap_or(u32::MAX)
    }

    /// How many lanes wait for nodes.
    pub fn lanes_waiting(&self) -> u32 {
        count(&self.lanes.waiting)
    }

    /// How many lanes have nodes.
    pub fn lanes_running(&self) -> u32 {
        count(&self.lanes.running)
    }

    /// What this lane holds, if it has held anything under its claim.
    pub fn lease(&self, lane: u32) -> Option<&LaneLease> {
        self.leases.get(&lane)
    }

    /// The lane may hold tasks from now on, under this claim.
    pub fn open_lease(&mut self, lane: u32, epoch: Epoch) {
        if self.leases.get(&lane).is_some_and(|lease| lease.epoch != epoch) {
            // The prologue failed under the earlier claim: no task had begun.
            self.give_back(lane, false);
        }
        self.leases.entry(lane).or_insert_with(|| LaneLease { epoch, tasks: TaskSet::default(), has_ended: false, returns: 0 });
    }

    /// The lane holds `target` tasks from now on, or fewer if not enough wait.
    pub fn top_up(&mut self, lane: u32, target: u32) {
        let Some(lease) = self.leases.get_mut(&lane) else { return };
        let taken = self.waiting.take_first(target.saturating_sub(lease.tasks.len()));
        lease.tasks.insert_all(&taken);
        let count = taken.len();
        self.waiting_count -= count;
        self.leased_count += count;
        for range in taken.ranges() {
            self.place(range, lane);
        }
    }

    fn place(&mut self, range: RangeInclusive<u32>, lane: u32) {
        for (part, before) in self.placed.set(range, lane) {
            if before != lane {
                self.earlier.entry(before).or_default().insert(part);
            }
        }
        while self.earlier.len() > EARLIER_LANES_MAX {
            self.earlier.pop_first();
        }
    }

    /// Of these tasks, those that the lane holds have ended.
    pub fn end_leased(&mut self, lane: u32, outcome: TaskOutcome, tasks: &TaskSet) {
        let Some(lease) = self.leases.get_mut(&lane) else { return };
        let those = lease.tasks.and(tasks);
        lease.tasks.remove_all(&those);
        self.leased_count -= those.len();
        if !those.is_empty() {
            lease.has_ended = true;
            self.failed_lanes = 0;
        }
        self.add_ended(outcome, &those);
    }

    /// Of these tasks, the lane returns those that it holds, because it has not begun them. A repeated
    /// return changes nothing: the lane may hold some of the tasks again.
    pub fn accept_return(&mut self, lane: u32, LaneReturn { number, tasks }: &LaneReturn) {
        let Some(lease) = self.leases.get_mut(&lane).filter(|lease| lease.returns == *number) else { return };
        lease.returns = lease.returns.wrapping_add(1);
        let those = lease.tasks.and(tasks);
        lease.tasks.remove_all(&those);
        self.leased_count -= those.len();
        self.waiting_count += those.len();
        self.waiting.insert_all(&those);
    }

    /// Of these tasks, those that wait have ended in this lane: it leased them from the lost quorum.
    pub fn end_unknown(&mut self, lane: u32, outcome: TaskOutcome, tasks: &TaskSet) {
        let mut those = self.waiting.and(tasks);
        self.waiting.remove_all(&those);
        self.waiting_count -= those.len();
        // In the lost quorum, the tasks that they waited for had succeeded.
        those.insert_all(&self.take_awaiting(tasks));
        for range in those.ranges() {
            self.place(range, lane);
        }
        if let Some(lease) = self.leases.get_mut(&lane).filter(|_| !those.is_empty()) {
            lease.has_ended = true;
            self.failed_lanes = 0;
        }
        self.add_ended(outcome, &those);
    }

    fn add_ended(&mut self, outcome: TaskOutcome, tasks: &TaskSet) {
        if tasks.is_empty() {
            return;
        }
        let counted = if outcome.is_success() {
            &mut self.completed
        } else if outcome.is_failure() {
            &mut self.failed
        } else {
            &mut self.cancelled
        };
        *counted += tasks.len();
        self.ended.entry(outcome).or_default().insert_all(tasks);
        if let Some(all) = &mut self.correspondence {
            all.note_ended(outcome.is_success(), tasks);
        }
    }

    /// Of these tasks, those that have not ended wait for the tasks of the same index of that group.
    pub fn await_tasks(&mut self, of: AllocationId, tasks: &TaskSet) {
        let moved = self.waiting.and(tasks);
        self.waiting.remove_all(&moved);
        self.waiting_count -= moved.len();
        self.correspondence.get_or_insert_with(Box::default).await_tasks(of, tasks, &moved);
    }

    /// Whether tasks wait for tasks of that group.
    pub fn awaits(&self, of: AllocationId) -> bool {
        self.correspondence.as_ref().is_some_and(|all| all.awaits(of))
    }

    /// The tasks of that group that have the same indices as these have succeeded.
    pub fn meet(&mut self, of: AllocationId, tasks: &TaskSet) {
        let Some(all) = &mut self.correspondence else { return };
        let ready = all.meet(of, tasks);
        self.waiting_count += ready.len();
        self.waiting.insert_all(&ready);
    }

    /// The tasks of that group that have the same indices as these have ended without success: those
    /// that wait for them never begin.
    pub fn give_up(&mut self, of: AllocationId, tasks: &TaskSet) {
        let Some(all) = &mut self.correspondence else { return };
        let those = all.give_up(of, tasks);
        self.add_ended(TaskOutcome::Unmet, &those);
    }

    /// These tasks never begin, unless they have been leased.
    pub fn end_unmet(&mut self, tasks: &TaskSet) {
        let mut those = self.waiting.and(tasks);
        self.waiting.remove_all(&those);
        self.waiting_count -= those.len();
        those.insert_all(&self.take_awaiting(tasks));
        self.add_ended(TaskOutcome::Unmet, &those);
    }

    /// Tasks of that group wait for tasks of this one.
    pub fn add_follower(&mut self, group: AllocationId) {
        self.correspondence.get_or_insert_with(Box::default).add_follower(group);
    }

    /// Nothing of that group waits any more.
    pub fn remove_follower(&mut self, group: AllocationId) {
        if let Some(all) = &mut self.correspondence {
            all.remove_follower(group);
            if all.is_over() {
                self.correspondence = None;
            }
        }
    }

    /// How many groups have tasks that wait for tasks of this one.
    pub fn follower_count(&self) -> usize {
        self.correspondence.as_ref().map_or(0, |all| all.follower_count())
    }

    /// Whether tasks have ended that the followers do not know of yet.
    pub fn has_news(&self) -> bool {
        self.correspondence.as_ref().is_some_and(|all| all.has_news())
    }

    /// The groups whose tasks wait for tasks of this one.
    pub fn followers(&self) -> Vec<AllocationId> {
        self.correspondence.as_ref().map(|all| all.followers()).unwrap_or_default()
    }

    /// Removes and returns news for the followers: at most `ranges_max` ranges and `tasks_max` tasks.
    pub fn take_news(&mut self, ranges_max: usize, tasks_max: u32) -> EndedNews {
        self.correspondence.as_mut().map(|all| all.take_news(ranges_max, tasks_max)).unwrap_or_default()
    }

    fn take_awaiting(&mut self, tasks: &TaskSet) -> TaskSet {
        self.correspondence.as_mut().map_or_else(TaskSet::default, |all| all.take(tasks))
    }

    /// The lane's lease is over: its unreported tasks wait again. `is_counted`: they may have begun, so
    /// each counts as begun again; a task that was begun again too often is lost.
    pub fn give_back(&mut self, lane: u32, is_counted: bool) {
        let Some(LaneLease { tasks: mut again, .. }) = self.leases.remove(&lane) else { return };
        self.leased_count -= again.len();
        if is_counted {
            let among = |restarted: &BTreeMap<u32, TaskSet>, times: u32, tasks: &TaskSet| {
                restarted.get(&times).map_or_else(TaskSet::default, |all| all.and(tasks))
            };
            let lost = among(&self.restarted, TASK_RESTARTS_MAX, &again);
            again.remove_all(&lost);
            self.add_ended(TaskOutcome::Lost, &lost);
            let mut first_time = again.clone();
            for times in (1..TASK_RESTARTS_MAX).rev() {
                let those = among(&self.restarted, times, &again);
                first_time.remove_all(&those);
                self.set_restarted(times, &those);
            }
            self.set_restarted(0, &first_time);
            self.restarts = self.restarts.saturating_add(again.len());
        }
        self.waiting_count += again.len();
        self.waiting.insert_all(&again);
    }

    /// These tasks, which were begun again `times` times, are begun once more.
    fn set_restarted(&mut self, times: u32, tasks: &TaskSet) {
        if tasks.is_empty() {
            return;
        }
        if let Some(before) = self.restarted.get_mut(&times) {
            before.remove_all(tasks);
        }
        self.restarted.retain(|_, tasks| !tasks.is_empty());
        self.restarted.entry(times + 1).or_default().insert_all(tasks);
    }

    /// Cancels these tasks, except those that have ended. Returns how many it cancelled, and how many
    /// had ended.
    pub fn cancel(&mut self, tasks: &TaskSet) -> (u32, u32) {
        let asked = TaskSet::first(self.total).and(tasks);
        let mut cancelled = self.waiting.and(&asked);
        self.waiting.remove_all(&cancelled);
        self.waiting_count -= cancelled.len();
        cancelled.insert_all(&self.take_awaiting(&asked));
        for (lane, lease) in &mut self.leases {
            let held = asked.and(&lease.tasks);
            if held.is_empty() {
                continue;
            }
            lease.tasks.remove_all(&held);
            self.leased_count -= held.len();
            self.revoked.insert(*lane);
            cancelled.insert_all(&held);
        }
        self.add_ended(TaskOutcome::Cancelled, &cancelled);
        (cancelled.len(), asked.len() - cancelled.len())
    }

    /// Cancels all tasks that have not ended.
    pub fn cancel_all(&mut self) {
        self.cancel_waiting();
        for (_, lease) in std::mem::take(&mut self.leases) {
            self.add_ended(TaskOutcome::Cancelled, &lease.tasks);
        }
        self.leased_count = 0;
        self.revoked.clear();
    }

    fn cancel_waiting(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        self.waiting_count = 0;
        if let Some(all) = &mut self.correspondence {
            waiting.insert_all(&all.take_all());
        }
        self.add_ended(TaskOutcome::Cancelled, &waiting);
    }

    /// Starts no task any more if more than `failures_max` have failed, or if it was stopped before.
    pub fn stop_if_due(&mut self, failures_max: Option<u32>) {
        if self.stopped.is_some() || failures_max.is_some_and(|most| self.failed > most) {
            self.cancel_waiting();
        }
    }

    /// A lane failed for this reason, and no task has ended in it. After too many of them in a row,
    /// no task is started any more.
    pub fn note_failed_lane(&mut self, reason: &EndReason) {
        self.failed_lanes += 1;
        if self.failed_lanes >= FAILED_LANES_MAX {
            self.stopped.get_or_insert_with(|| Box::new(reason.clone()));
        }
    }

    /// How the group ends; `None`: some of its tasks have not ended.
    pub fn end_reason(&self) -> Option<EndReason> {
        if self.unended_count() > 0 {
            return None;
        }
        Some(if let Some(why) = &self.stopped {
            (**why).clone()
        } else if self.failed > 0 {
            EndReason::TasksFailed { failed: self.failed, tasks: self.total }
        } else if self.completed > 0 {
            EndReason::Exited { code: 0 }
        } else {
            EndReason::Cancelled { by: self.cancelled_by.clone().unwrap_or_else(|| "quorum".to_owned()) }
        })
    }

    /// Whether all tasks have ended as [`TaskOutcome::Unmet`], so that none has run.
    pub fn is_unmet(&self) -> bool {
        let is_other = |outcome: &TaskOutcome| *outcome != TaskOutcome::Unmet;
        self.unended_count() == 0 && self.stopped.is_none() && !self.ended.is_empty() && !self.ended.keys().any(is_other)
    }

    /// Memory without leases and lanes: the number of lanes bounds both, and they go once the group has
    /// ended.
    pub fn bytes(&self) -> usize {
        let Self {
            total: _,
            waiting,
            waiting_count: _,
            leases: _,
            leased_count: _,
            ended,
            completed: _,
            failed: _,
            cancelled: _,
            restarted,
            restarts: _,
            placed,
            earlier,
            lanes: _,
            revoked: _,
            failed_lanes: _,
            stopped,
            cancelled_by,
            correspondence,
        } = self;
        let sets = ended.values().chain(restarted.values()).chain(earlier.values());
        let sets: usize = sets.map(|set| TASK_SET_BYTES + set.range_count() * TASK_RANGE_BYTES).sum();
        let stopped = stopped.as_deref().map_or(0, |why| REASON_BYTES + reason_bytes(why));
        let texts = stopped + cancelled_by.as_deref().map_or(0, text_bytes);
        let corresponding = correspondence.as_ref().map_or(0, |all| all.bytes());
        GROUP_TASKS_BYTES + waiting.range_count() * TASK_RANGE_BYTES + sets + placed.0.len() * TASK_PLACE_BYTES + texts + corresponding
    }

    /// The lanes that leased a task: the latest one last, the others by their number.
    pub fn lanes_of_task(&self, ordinal: u32) -> Vec<u32> {
        let earlier = self.earlier.iter().filter(|(_, tasks)| tasks.contains(ordinal)).map(|(lane, _)| *lane);
        let latest = self.placed.lane_of(ordinal);
        earlier.filter(|lane| Some(*lane) != latest).chain(latest).collect()
    }

    /// How many times a task was begun again.
    pub fn restarts_of(&self, ordinal: u32) -> u32 {
        self.restarted.iter().find(|(_, tasks)| tasks.contains(ordinal)).map_or(0, |(times, _)| *times)
    }
}

/// The lane that leased each task last, by ranges: adjacent tasks of one lane are one range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(u32, u32, u32)>", into = "Vec<(u32, u32, u32)>")]
pub struct TaskPlaces(BTreeMap<u32, (u32, u32)>);

impl TaskPlaces {
    /// The lane that leased this task last.
    pub fn lane_of(&self, ordinal: u32) -> Option<u32> {
        let (_, (last, lane)) = self.0.range(..=ordinal).next_back()?;
        (*last >= ordinal).then_some(*lane)
    }

    /// The parts of a range that were leased, each with the last lane.
    pub fn within(&self, range: &RangeInclusive<u32>) -> Vec<(RangeInclusive<u32>, u32)> {
        let (first, last) = (*range.start(), *range.end());
        let before = self.0.range(..first).next_back().filter(|(_, (to, _))| *to >= first);
        let parts = before.into_iter().chain(self.0.range(first..=last));
        parts.map(|(from, (to, lane))| ((*from).max(first)..=(*to).min(last), *lane)).collect()
    }

    /// The lane leases this range. Returns the parts that were leased before, each with the last lane.
    fn set(&mut self, range: RangeInclusive<u32>, lane: u32) -> Vec<(RangeInclusive<u32>, u32)> {
        let before = self.within(&range);
        let (mut first, mut last) = range.into_inner();
        if let Some((&from, &(to, other))) = self.0.range(..first).next_back().filter(|(_, (to, _))| *to >= first) {
            self.0.insert(from, (first - 1, other));
            if to > last {
                self.0.insert(last + 1, (to, other));
            }
        }
        let covered: Vec<u32> = self.0.range(first..=last).map(|(from, _)| *from).collect();
        for from in covered {
            if let Some((to, other)) = self.0.remove(&from)
                && to > last
            {
                self.0.insert(last + 1, (to, other));
            }
        }
        // Adjacent ranges of one lane become one.
        if let Some((&from, &(to, other))) = self.0.range(..first).next_back()
            && other == lane
            && to.saturating_add(1) == first
        {
            first = from;
        }
        if let Some(next) = last.checked_add(1)
            && let Some(&(to, other)) = self.0.get(&next)
            && other == lane
        {
            self.0.remove(&next);
            last = to;
        }
        self.0.insert(first, (last, lane));
        before
    }
}

impl From<Vec<(u32, u32, u32)>> for TaskPlaces {
    fn from(ranges: Vec<(u32, u32, u32)>) -> Self {
        let mut places = Self::default();
        for (first, last, lane) in ranges.into_iter().filter(|(first, last, _)| first <= last) {
            places.set(first..=last, lane);
        }
        places
    }
}

impl From<TaskPlaces> for Vec<(u32, u32, u32)> {
    fn from(places: TaskPlaces) -> Self {
        places.0.into_iter().map(|(first, (last, lane))| (first, last, lane)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(ranges: &[(u32, u32)]) -> TaskSet {
        TaskSet::from(ranges.to_vec())
    }

    fn leased(total: u32, lane: u32, count: u32) -> GroupTasks {
        let mut tasks = GroupTasks::new(total);
        tasks.open_lease(lane, Epoch(1));
        tasks.top_up(lane, count);
        tasks
    }

    #[test]
    fn a_task_is_begun_again_three_times_and_is_lost_then() {
        let mut tasks = GroupTasks::new(3);
        for lane in 0..4 {
            tasks.open_lease(lane, Epoch(lane.into()));
            tasks.top_up(lane, 2);
            tasks.give_back(lane, true);
        }
        assert_eq!((tasks.restarts, tasks.restarts_of(0), tasks.restarts_of(2)), (6, 3, 0));
        assert_eq!(tasks.ended, BTreeMap::from([(TaskOutcome::Lost, set(&[(0, 1)]))]));
        assert_eq!((tasks.waiting.clone(), tasks.waiting_count, tasks.failed), (set(&[(2, 2)]), 1, 2));
        assert_eq!((tasks.lanes_of_task(0), tasks.lanes_of_task(2)), (vec![0, 1, 2, 3], vec![]));
        assert_eq!(tasks.end_reason(), None);
    }

    #[test]
    fn a_task_that_had_not_begun_is_not_counted_as_begun_again() {
        let mut tasks = leased(5, 0, 4);
        tasks.end_leased(0, TaskOutcome::Exited(0), &set(&[(0, 0), (4, 4)]));
        tasks.give_back(0, false);
        assert_eq!((tasks.restarts, tasks.restarted.len(), tasks.completed), (0, 0, 1));
        assert_eq!((tasks.waiting.clone(), tasks.leased_count), (set(&[(1, 4)]), 0));
    }

    #[test]
    fn returned_tasks_wait_and_a_repetition_changes_nothing() {
        let mut tasks = leased(10, 0, 8);
        let returned = |number, ranges| LaneReturn { number, tasks: set(ranges) };
        tasks.accept_return(0, &returned(0, &[(3, 9)]));
        let held = |tasks: &GroupTasks| (tasks.lease(0).unwrap().tasks.clone(), tasks.leased_count, tasks.lease(0).unwrap().returns);
        assert_eq!((held(&tasks), tasks.waiting.clone(), tasks.waiting_count), ((set(&[(0, 2)]), 3, 1), set(&[(3, 9)]), 7));
        tasks.top_up(0, 5);
        tasks.accept_return(0, &returned(0, &[(3, 9)]));
        assert_eq!(held(&tasks), (set(&[(0, 4)]), 5, 1), "it holds two of them again");
        tasks.accept_return(0, &returned(1, &[(4, 4)]));
        tasks.accept_return(9, &returned(0, &[(0, 0)]));
        assert_eq!((held(&tasks), tasks.restarts, tasks.waiting_count), ((set(&[(0, 3)]), 4, 2), 0, 6));
    }

    #[test]
    fn a_cancelled_task_is_taken_from_the_lane_that_holds_it() {
        let mut tasks = leased(10, 7, 4);
        tasks.end_leased(7, TaskOutcome::Exited(3), &set(&[(0, 0)]));
        assert_eq!(tasks.cancel(&set(&[(0, 1), (3, 5), (9, 40)])), (5, 1));
        assert_eq!((tasks.revoked.clone(), tasks.lease(7).unwrap().tasks.clone()), (BTreeSet::from([7]), set(&[(2, 2)])));
        assert_eq!((tasks.waiting.clone(), tasks.waiting_count, tasks.leased_count), (set(&[(6, 8)]), 3, 1));
        assert_eq!(tasks.cancel(&set(&[(0, 1)])), (0, 2), "they have ended");
    }

    #[test]
    fn lanes_wait_for_tasks_that_wait_within_the_limit() {
        let mut tasks = GroupTasks::new(40);
        assert_eq!([None, Some(20), Some(1)].map(|most| tasks.lanes_wanted(most)), [32, 20, 1]);
        (0..30).for_each(|lane| tasks.lanes.set_phase(lane, LanePhase::Running));
        assert_eq!([None, Some(31), Some(20)].map(|most| tasks.lanes_wanted(most)), [10, 1, 0]);
        tasks.open_lease(0, Epoch(1));
        tasks.top_up(0, 37);
        assert_eq!(tasks.lanes_wanted(None), 3, "only three tasks wait");
        tasks.lanes.set_phase(0, LanePhase::Leaving);
        assert_eq!([31, 30].map(|most| tasks.lanes_wanted(Some(most))), [1, 0], "the task of a lane that has ended may still run");
        tasks.give_back(0, false);
        assert_eq!([31, 30].map(|most| tasks.lanes_wanted(Some(most))), [2, 1]);
    }

    #[test]
    fn a_group_whose_lanes_fail_one_after_another_is_stopped() {
        let mut tasks = GroupTasks::new(2);
        let why = EndReason::Exited { code: 126 };
        (1..FAILED_LANES_MAX).for_each(|_| tasks.note_failed_lane(&why));
        tasks.stop_if_due(None);
        assert_eq!(tasks.waiting_count, 2);
        tasks.note_failed_lane(&why);
        tasks.stop_if_due(None);
        assert_eq!((tasks.cancelled, tasks.end_reason()), (2, Some(why)));
    }

    #[test]
    fn tasks_that_wait_for_others_are_leased_when_these_have_succeeded() {
        let (of, mut tasks) = (AllocationId(uuid::Uuid::from_u128(5)), GroupTasks::new(10));
        tasks.await_tasks(of, &set(&[(0, 7)]));
        assert_eq!((tasks.waiting_count, tasks.awaiting_count(), tasks.unended_count(), tasks.lanes_wanted(None)), (2, 8, 10, 2));
        tasks.open_lease(0, Epoch(1));
        tasks.top_up(0, 9);
        assert_eq!(tasks.lease(0).unwrap().tasks, set(&[(8, 9)]));
        tasks.meet(of, &set(&[(2, 3), (9, 9)]));
        assert_eq!((tasks.waiting.clone(), tasks.awaiting_count()), (set(&[(2, 3)]), 6));
        tasks.give_up(of, &set(&[(3, 4)]));
        assert_eq!(tasks.ended, BTreeMap::from([(TaskOutcome::Unmet, set(&[(4, 4)]))]));
        assert_eq!((tasks.cancel(&set(&[(0, 0), (4, 4)])), tasks.cancelled), ((1, 1), 2));
        assert!(tasks.is_unleased(1) && tasks.is_unleased(2) && !tasks.is_unleased(4) && !tasks.is_unleased(8));
        tasks.stopped = Some(Box::new(EndReason::Exited { code: 126 }));
        tasks.stop_if_due(None);
        assert_eq!((tasks.waiting_count, tasks.awaiting_count(), tasks.leased_count, tasks.cancelled), (0, 0, 2, 8));
    }

    #[test]
    fn a_group_none_of_whose_tasks_could_begin_is_unmet() {
        let (of, mut tasks) = (AllocationId(uuid::Uuid::from_u128(5)), GroupTasks::new(2));
        tasks.await_tasks(of, &set(&[(0, 1)]));
        tasks.give_up(of, &set(&[(0, 0)]));
        assert!(!tasks.is_unmet() && tasks.end_reason().is_none());
        tasks.give_up(of, &set(&[(0, 1)]));
        assert!(tasks.is_unmet() && tasks.end_reason().is_some());
        assert!(!GroupTasks::new(0).is_unmet());
    }

    proptest! {
        #[test]
        fn places_are_those_of_the_latest_lease(leases in prop::collection::vec((0..40u32, 0..9u32, 0..4u32), 0..40)) {
            let (mut places, mut each) = (TaskPlaces::default(), BTreeMap::<u32, u32>::new());
            for (first, more, lane) in leases {
                let before = places.set(first..=first + more, lane);
                let replaced: BTreeMap<u32, u32> = before.into_iter().flat_map(|(range, lane)| range.map(move |task| (task, lane))).collect();
                let known: BTreeMap<u32, u32> = each.range(first..=first + more).map(|(task, lane)| (*task, *lane)).collect();
                prop_assert_eq!(replaced, known);
                (first..=first + more).for_each(|task| {
                    each.insert(task, lane);
                });
            }
            for task in 0..60 {
                prop_assert_eq!(places.lane_of(task), each.get(&task).copied());
            }
            let ranges: Vec<(u32, u32, u32)> = places.clone().into();
            let merged = |two: &[(u32, u32, u32)]| two[0].1 + 1 < two[1].0 || two[0].2 != two[1].2;
            prop_assert!(ranges.windows(2).all(merged), "{:?}", ranges);
            prop_assert_eq!(TaskPlaces::from(ranges), places);
        }
    }
}
