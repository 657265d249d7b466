//! The tasks of a group in the form of the API: ranges of indices in the same state.

use lattice_api::spec::index_run;
use lattice_api::v1;
use lattice_ledger::{TaskCounts, TaskPlace, TaskStates};
use lattice_model::task_group::IndexRun;
use lattice_model::{AllocationState, TaskIndices, TaskOutcome, TaskSet};

/// The state of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskState {
    Waiting,
    /// A lane has leased it: it runs there, or is next.
    Leased,
    Ended(TaskOutcome),
}

impl TaskState {
    /// The state of the task with this ordinal; `None`: there is no such task.
    pub fn of(states: &TaskStates, ordinal: u32) -> Option<Self> {
        if states.waiting.contains(ordinal) {
            return Some(Self::Waiting);
        }
        if states.leased.contains(ordinal) {
            return Some(Self::Leased);
        }
        let ended = states.ended.iter().find(|(_, tasks)| tasks.contains(ordinal));
        ended.map(|(outcome, _)| Self::Ended(*outcome))
    }

    pub fn has_ended(self) -> bool {
        match self {
            Self::Ended(_) => true,
            Self::Waiting | Self::Leased => false,
        }
    }

    /// As the state of an allocation.
    pub fn shown(self) -> AllocationState {
        match self {
            Self::Waiting => AllocationState::Pending,
            Self::Leased => AllocationState::Running,
            Self::Ended(outcome) if outcome.is_success() => AllocationState::Completed,
            Self::Ended(outcome) if outcome.is_failure() => AllocationState::Failed,
            Self::Ended(_) => AllocationState::Cancelled,
        }
    }

    /// How it ended; empty: it has not.
    fn reason(self) -> String {
        match self {
            Self::Ended(outcome) => outcome.to_string(),
            Self::Waiting | Self::Leased => String::new(),
        }
    }

    fn exit_code(self) -> Option<i32> {
        match self {
            Self::Ended(TaskOutcome::Exited(code)) => Some(code),
            Self::Ended(TaskOutcome::WalltimeExceeded | TaskOutcome::Lost | TaskOutcome::Cancelled | TaskOutcome::Unmet)
            | Self::Waiting
            | Self::Leased => None,
        }
    }

    fn range(self, run: IndexRun) -> v1::TaskRange {
        v1::TaskRange {
            indices: Some(index_run(run)),
            state: self.shown().to_string(),
            reason: self.reason(),
            exit_code: self.exit_code(),
            ..Default::default()
        }
    }
}

/// How many tasks are in each state.
pub(crate) fn counts(counts: &TaskCounts) -> v1::TaskCounts {
    let TaskCounts { waiting, awaiting: _, leased, completed, failed, cancelled, restarts, lanes_running, lanes_waiting } = *counts;
    let total = waiting + leased + completed + failed + cancelled;
    v1::TaskCounts { total, waiting, running: leased, completed, failed, cancelled, restarts, lanes_running, lanes_waiting }
}

/// The tasks that failed.
pub(super) fn failed(states: &TaskStates) -> TaskSet {
    let mut failed = TaskSet::default();
    states.ended.iter().filter(|(outcome, _)| outcome.is_failure()).for_each(|(_, tasks)| failed.insert_all(tasks));
    failed
}

/// The first `most` ranges of tasks in the same state, by index; and whether there are more. Each range of ordinals
/// gives at least one range of indices, so `most` ranges of ordinals suffice.
pub(super) fn ranges(indices: &TaskIndices, states: &TaskStates, most: usize) -> (Vec<v1::TaskRange>, bool) {
    let ended = states.ended.iter().map(|(outcome, tasks)| (TaskState::Ended(*outcome), tasks));
    let sets = [(TaskState::Waiting, &states.waiting), (TaskState::Leased, &states.leased)].into_iter().chain(ended);
    let mut all: Vec<(u32, u32, TaskState)> = Vec::new();
    for (state, tasks) in sets {
        all.extend(tasks.ranges().map(|range| (*range.start(), *range.end(), state)));
    }
    all.sort_unstable_by_key(|(first, ..)| *first);
    let mut found = Vec::new();
    for (first, last, state) in all {
        // One range at a time: all of a state together may have more runs than a set of indices can have.
        let mut tasks = TaskSet::default();
        tasks.insert(first..=last);
        let of_range = indices.indices_of(&tasks);
        for run in of_range.iter().flat_map(TaskIndices::runs) {
            if found.len() == most {
                return (found, true);
            }
            found.push(state.range(*run));
        }
    }
    (found, states.is_cut)
}

/// One task, with the lanes that ran it.
pub(super) fn of_one(index: u32, state: TaskState, states: &TaskStates) -> v1::TaskRange {
    v1::TaskRange {
        lanes: states.places.iter().map(|place| place.lane.to_string()).collect(),
        nodes: states.places.iter().map(|TaskPlace { node, .. }| node.as_ref().map_or_else(String::new, ToString::to_string)).collect(),
        restarts: states.task_restarts,
        ..state.range(IndexRun { first: index, last: index, step: 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::AllocationId;

    fn set(ranges: &[(u32, u32)]) -> TaskSet {
        ranges.to_vec().into()
    }

    /// Of 20 tasks.
    fn some() -> TaskStates {
        TaskStates {
            waiting: set(&[(15, 19)]),
            leased: set(&[(10, 12)]),
            ended: [
                (TaskOutcome::Exited(0), set(&[(0, 3), (5, 8)])),
                (TaskOutcome::Exited(1), set(&[(4, 4)])),
                (TaskOutcome::WalltimeExceeded, set(&[(9, 9)])),
                (TaskOutcome::Cancelled, set(&[(13, 14)])),
            ]
            .into(),
            ..TaskStates::default()
        }
    }

    fn texts(ranges: &[v1::TaskRange]) -> Vec<String> {
        let text = |range: &v1::TaskRange| {
            let v1::IndexRun { first, last, step } = range.indices.unwrap_or_default();
            let code = range.exit_code.map_or_else(String::new, |code| format!(" ({code})"));
            format!("{first}-{last}:{step} {}{code} {}", range.state, range.reason).trim_end().to_owned()
        };
        ranges.iter().map(text).collect()
    }

    #[test]
    fn ranges_come_in_the_order_of_indices_and_no_more_than_were_asked_for() {
        let indices = TaskIndices::parse("0-198:2").unwrap();
        let (found, truncated) = ranges(&indices, &some(), 100);
        let wanted = [
            "0-6:2 Completed (0) completed",
            "8-8:1 Failed (1) exit_code 1",
            "10-16:2 Completed (0) completed",
            "18-18:1 Failed walltime_exceeded",
            "20-24:2 Running",
            "26-26:1 Cancelled cancelled",
            "28-28:1 Cancelled cancelled",
            "30-38:2 Pending",
        ];
        assert_eq!((texts(&found), truncated), (wanted.map(str::to_owned).to_vec(), false));
        let (found, truncated) = ranges(&indices, &some(), 8);
        assert_eq!((found.len(), truncated), (8, false));
        let (found, truncated) = ranges(&indices, &TaskStates { is_cut: true, ..some() }, 100);
        assert_eq!((found.len(), truncated), (8, true));
        let (found, truncated) = ranges(&indices, &some(), 2);
        assert_eq!((texts(&found), truncated), (wanted[..2].iter().map(|text| (*text).to_owned()).collect(), true));
    }

    #[test]
    fn a_range_that_spans_gaps_of_the_indices_is_several() {
        let indices = TaskIndices::parse("1-3,7,20-22").unwrap();
        let states = TaskStates { waiting: set(&[(0, 4)]), leased: set(&[(5, 6)]), ..TaskStates::default() };
        let (found, _) = ranges(&indices, &states, 100);
        assert_eq!(texts(&found), ["1-3:1 Pending", "7-7:1 Pending", "20-20:1 Pending", "21-22:1 Running"]);
    }

    #[test]
    fn each_task_counts_once() {
        let wanted = v1::TaskCounts {
            total: 20,
            waiting: 5,
            running: 3,
            completed: 8,
            failed: 2,
            cancelled: 2,
            restarts: 2,
            lanes_running: 3,
            lanes_waiting: 1,
        };
        let known = TaskCounts {
            waiting: 5,
            awaiting: 1,
            leased: 3,
            completed: 8,
            failed: 2,
            cancelled: 2,
            restarts: 2,
            lanes_running: 3,
            lanes_waiting: 1,
        };
        assert_eq!(counts(&known), wanted);
        assert_eq!(failed(&some()), set(&[(4, 4), (9, 9)]));
    }

    #[test]
    fn one_task_is_shown_with_the_lanes_that_ran_it() {
        let lane = |number| AllocationId(uuid::Uuid::from_u128(number));
        let places = vec![TaskPlace { lane: lane(1), node: None }, TaskPlace { lane: lane(2), node: Some("n2".parse().unwrap()) }];
        let states = TaskStates { places, task_restarts: 1, ..some() };
        let state = TaskState::of(&states, 4).unwrap();
        assert_eq!(state, TaskState::Ended(TaskOutcome::Exited(1)));
        let wanted = v1::TaskRange {
            indices: Some(v1::IndexRun { first: 8, last: 8, step: 1 }),
            state: "Failed".into(),
            reason: "exit_code 1".into(),
            exit_code: Some(1),
            lanes: vec![lane(1).to_string(), lane(2).to_string()],
            nodes: vec![String::new(), "n2".into()],
            restarts: 1,
        };
        assert_eq!(of_one(8, state, &states), wanted);
        let of = |ordinal| TaskState::of(&states, ordinal);
        assert_eq!((of(10), of(19), of(20)), (Some(TaskState::Leased), Some(TaskState::Waiting), None));
    }
}
