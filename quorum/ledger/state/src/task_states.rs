//! The states of a group's tasks: the answer to a query.

use crate::task_groups::GroupTasks;
use lattice_model::{AllocationId, NodeId, TaskOutcome, TaskSet};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Largest number of ranges in the answer to [`WhichTasks::Ranges`].
pub const TASK_RANGES_MAX: u32 = 10_000;

/// Which tasks of a group are requested. A group may have as many ranges as tasks, so a regular query
/// never requests [`Self::All`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WhichTasks {
    /// None: only how many are in each state.
    Counts,
    /// The task with this ordinal, and where it ran.
    One(u32),
    /// The first ranges of tasks in the same state, at most this many and [`TASK_RANGES_MAX`].
    Ranges { most: u32 },
    /// All tasks, to choose those that run once more.
    All,
}

/// How many tasks of a group are in each state, and how many lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskCounts {
    /// Tasks that no lane holds.
    pub waiting: u32,
    /// The waiting tasks that cannot be leased yet, because they wait for tasks of other groups.
    pub awaiting: u32,
    /// Tasks that lanes hold.
    pub leased: u32,
    /// Tasks that have succeeded.
    pub completed: u32,
    /// Tasks that have failed.
    pub failed: u32,
    /// Tasks that were cancelled.
    pub cancelled: u32,
    /// The number of all restarts of tasks.
    pub restarts: u32,
    /// How many lanes have nodes.
    pub lanes_running: u32,
    /// How many lanes wait for nodes.
    pub lanes_waiting: u32,
}

/// Why a group gets no more lanes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LanesObstacle {
    /// After a recovery, some nodes have not reported yet what they run.
    Recovery,
    /// The cluster has the largest number of allocations that have not ended.
    TooManyLive,
    /// The largest number of lanes of its user waits: a group gets a lane only if none of its lanes waits.
    TooManyOfUser,
}

/// The requested tasks of one group, by state. Each is in exactly one of the sets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStates {
    /// The numbers of all tasks.
    pub counts: TaskCounts,
    /// Why no lane is created now, if one is missing.
    pub obstacle: Option<LanesObstacle>,
    /// Tasks that no lane holds.
    pub waiting: TaskSet,
    /// Tasks that lanes hold: they run there, or are next.
    pub leased: TaskSet,
    /// Tasks that have ended, by outcome.
    pub ended: BTreeMap<TaskOutcome, TaskSet>,
    /// If ranges were requested: whether there are more.
    pub is_cut: bool,
    /// If one task was requested: the lanes that leased it, the latest last.
    pub places: Vec<TaskPlace>,
    /// If one task was requested: how many times it was begun again.
    pub task_restarts: u32,
}

/// A lane that leased a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskPlace {
    /// The lane.
    pub lane: AllocationId,
    /// Its head node; `None`: its record was dropped.
    pub node: Option<NodeId>,
}

impl TaskStates {
    /// All fields that the record of a group has: all but places and the obstacle.
    pub fn of(tasks: &GroupTasks, which: WhichTasks) -> Self {
        match which {
            WhichTasks::Counts => Self { counts: counts(tasks), ..Self::default() },
            WhichTasks::One(ordinal) => {
                let one = |set: &TaskSet| if set.contains(ordinal) { TaskSet::from(vec![(ordinal, ordinal)]) } else { TaskSet::default() };
                Self { task_restarts: tasks.restarts_of(ordinal), ..Self::picked(tasks, one) }
            }
            WhichTasks::Ranges { most } => Self::first_ranges(tasks, most.min(TASK_RANGES_MAX) as usize),
            WhichTasks::All => Self::picked(tasks, TaskSet::clone),
        }
    }

    /// The tasks that `pick` takes out of each set.
    fn picked(tasks: &GroupTasks, pick: impl Fn(&TaskSet) -> TaskSet) -> Self {
        let mut leased = TaskSet::default();
        tasks.leases.values().for_each(|lease| leased.insert_all(&pick(&lease.tasks)));
        let ended = tasks.ended.iter().map(|(outcome, set)| (*outcome, pick(set))).filter(|(_, set)| !set.is_empty()).collect();
        let mut waiting = pick(&tasks.waiting);
        tasks.awaiting().iter().for_each(|awaiting| waiting.insert_all(&pick(awaiting)));
        Self { counts: counts(tasks), waiting, leased, ended, ..Self::default() }
    }

    fn first_ranges(tasks: &GroupTasks, most: usize) -> Self {
        // Adjacent tasks are one range, whichever lanes have leased them.
        let mut leased = TaskSet::default();
        tasks.leases.values().for_each(|lease| leased.insert_all(&lease.tasks));
        let sets = [&tasks.waiting, &leased].into_iter().chain(tasks.awaiting()).chain(tasks.ended.values());
        let mut firsts: Vec<u32> = sets.flat_map(|set| set.ranges().take(most + 1).map(|range| *range.start())).collect();
        firsts.sort_unstable();
        // Ranges do not overlap, so those that begin before this one also end before it.
        let next = firsts.get(most).copied();
        let before = |set: &TaskSet| {
            let ranges = set.ranges().take_while(|range| next.is_none_or(|next| *range.start() < next));
            TaskSet::from(ranges.map(RangeInclusive::into_inner).collect::<Vec<_>>())
        };
        Self { is_cut: next.is_some(), ..Self::picked(tasks, before) }
    }
}

fn counts(tasks: &GroupTasks) -> TaskCounts {
    TaskCounts {
        waiting: tasks.waiting_count + tasks.awaiting_count(),
        awaiting: tasks.awaiting_count(),
        leased: tasks.leased_count,
        completed: tasks.completed,
        failed: tasks.failed,
        cancelled: tasks.cancelled,
        restarts: tasks.restarts,
        lanes_running: tasks.lanes_running(),
        lanes_waiting: tasks.lanes_waiting(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: TaskOutcome = TaskOutcome::Exited(0);

    fn set(ranges: &[(u32, u32)]) -> TaskSet {
        ranges.to_vec().into()
    }

    /// Two lanes have leased the tasks 0 to 5, of which every second one has ended; 6 to 9 wait.
    fn some() -> GroupTasks {
        let mut tasks = GroupTasks::new(10);
        for lane in [0, 1] {
            tasks.open_lease(lane, lattice_model::Epoch(1));
            tasks.top_up(lane, 3);
        }
        tasks.end_leased(0, DONE, &set(&[(1, 1)]));
        tasks.end_leased(1, TaskOutcome::Exited(1), &set(&[(5, 5)]));
        tasks
    }

    #[test]
    fn tasks_that_wait_for_others_wait() {
        let mut tasks = some();
        tasks.await_tasks(AllocationId(uuid::Uuid::from_u128(1)), &set(&[(7, 8)]));
        let all = TaskStates::of(&tasks, WhichTasks::All);
        assert_eq!((all.waiting.clone(), all.counts.waiting, all.counts.awaiting), (set(&[(6, 9)]), 4, 2));
        let first = TaskStates::of(&tasks, WhichTasks::Ranges { most: u32::MAX });
        assert_eq!((first.waiting, first.is_cut), (all.waiting, false));
    }

    #[test]
    fn an_answer_has_the_tasks_that_were_asked_for_and_the_numbers_of_all() {
        let tasks = some();
        let counts = TaskCounts { waiting: 4, leased: 4, completed: 1, failed: 1, ..TaskCounts::default() };
        let none = TaskStates { counts, ..TaskStates::default() };
        assert_eq!(TaskStates::of(&tasks, WhichTasks::Counts), none);
        let ended = |ranges: &[(TaskOutcome, (u32, u32))]| ranges.iter().map(|(outcome, range)| (*outcome, set(&[*range]))).collect();
        let one = |ordinal| TaskStates::of(&tasks, WhichTasks::One(ordinal));
        assert_eq!(one(1), TaskStates { ended: ended(&[(DONE, (1, 1))]), ..none.clone() });
        assert_eq!(one(4), TaskStates { leased: set(&[(4, 4)]), ..none.clone() });
        assert_eq!(one(9), TaskStates { waiting: set(&[(9, 9)]), ..none.clone() });
        assert_eq!(one(10), none);
        let all = TaskStates {
            waiting: set(&[(6, 9)]),
            leased: set(&[(0, 0), (2, 4)]),
            ended: ended(&[(DONE, (1, 1)), (TaskOutcome::Exited(1), (5, 5))]),
            ..none.clone()
        };
        assert_eq!(TaskStates::of(&tasks, WhichTasks::All), all);
        let first = |most| TaskStates::of(&tasks, WhichTasks::Ranges { most });
        assert_eq!((first(5), first(u32::MAX)), (all.clone(), all.clone()));
        let (leased, is_cut) = (all.leased.clone(), true);
        assert_eq!(first(3), TaskStates { leased, is_cut, ended: ended(&[(DONE, (1, 1))]), ..none.clone() });
        assert_eq!(first(0), TaskStates { is_cut, ..none });
    }
}
