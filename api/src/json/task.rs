//! Tasks of task groups.

use super::values::filled;
use crate::v1;
use lattice_model::task_group::{INDEX_MAX, IndexRun};
use serde::Serialize;
use utoipa::ToSchema;

/// How many tasks of a group are in each state.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = TaskCounts)]
pub struct TaskCountsJson {
    total: u32,
    waiting: u32,
    running: u32,
    completed: u32,
    failed: u32,
    cancelled: u32,
    restarts: u32,
    lanes_running: u32,
    lanes_waiting: u32,
}

impl From<&v1::TaskCounts> for TaskCountsJson {
    fn from(counts: &v1::TaskCounts) -> Self {
        Self {
            total: counts.total,
            waiting: counts.waiting,
            running: counts.running,
            completed: counts.completed,
            failed: counts.failed,
            cancelled: counts.cancelled,
            restarts: counts.restarts,
            lanes_running: counts.lanes_running,
            lanes_waiting: counts.lanes_waiting,
        }
    }
}

/// A run of indices as the model has it: an agent's numbers must not exceed the bounds of that type.
pub fn index_run(run: &v1::IndexRun) -> IndexRun {
    let first = run.first.min(INDEX_MAX);
    IndexRun { first, last: run.last.clamp(first, INDEX_MAX), step: run.step.max(1) }
}

/// Why tasks ended; `None` if that only repeats the state.
pub fn task_end_reason(range: &v1::TaskRange) -> Option<&str> {
    filled(&range.reason).filter(|reason| !reason.eq_ignore_ascii_case(&range.state))
}

/// The tasks of a group.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Tasks)]
pub struct TasksJson {
    id: String,
    counts: Option<TaskCountsJson>,
    ranges: Vec<TaskRangeJson>,
    /// Whether there are more ranges.
    truncated: bool,
}

/// Tasks in the same state: the indices `first`, `first + step`, … up to `last`.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = TaskRange)]
pub struct TaskRangeJson {
    first: u32,
    last: u32,
    step: u32,
    state: String,
    reason: Option<String>,
    exit_code: Option<i32>,
}

impl From<&v1::TaskRange> for TaskRangeJson {
    fn from(range: &v1::TaskRange) -> Self {
        let IndexRun { first, last, step } = index_run(&range.indices.unwrap_or_default());
        let reason = task_end_reason(range).map(str::to_owned);
        Self { first, last, step, state: range.state.clone(), reason, exit_code: range.exit_code }
    }
}

impl From<&v1::GetTasksResponse> for TasksJson {
    fn from(tasks: &v1::GetTasksResponse) -> Self {
        Self {
            id: tasks.id.clone(),
            counts: tasks.counts.as_ref().map(TaskCountsJson::from),
            ranges: tasks.ranges.iter().map(TaskRangeJson::from).collect(),
            truncated: tasks.truncated,
        }
    }
}

/// One task.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Task)]
pub struct TaskJson {
    /// Of its group.
    id: String,
    index: u32,
    state: String,
    reason: Option<String>,
    exit_code: Option<i32>,
    /// How many times it was begun again.
    restarts: u32,
    /// The lanes that ran it, the latest last.
    lanes: Vec<LaneJson>,
}

/// A lane that ran a task.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Lane)]
pub struct LaneJson {
    id: String,
    /// Null: it is not known any more.
    node: Option<String>,
}

impl TaskJson {
    /// The task with this index of this group. `known`: an agent's answer about this task.
    pub fn of(group: &str, index: u32, known: &v1::TaskRange) -> Self {
        Self {
            id: group.to_owned(),
            index,
            state: known.state.clone(),
            reason: task_end_reason(known).map(str::to_owned),
            exit_code: known.exit_code,
            restarts: known.restarts,
            lanes: lanes_of_task(known).map(|(id, node)| LaneJson { id: id.to_owned(), node: node.map(str::to_owned) }).collect(),
        }
    }
}

/// The lanes that ran a task, the latest last, each with its head node if that is still known.
pub fn lanes_of_task(known: &v1::TaskRange) -> impl DoubleEndedIterator<Item = (&str, Option<&str>)> {
    known.lanes.iter().enumerate().map(|(at, lane)| (lane.as_str(), known.nodes.get(at).and_then(|node| filled(node))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_ranges_and_one_task_has_its_lanes() {
        let indices = Some(v1::IndexRun { first: 3, last: 9, step: 0 });
        let range = v1::TaskRange { indices, state: "Failed".into(), reason: "failed".into(), exit_code: Some(1), ..Default::default() };
        let tasks = v1::GetTasksResponse { id: "1f".into(), counts: None, ranges: vec![range.clone()], truncated: true };
        assert_eq!(
            serde_json::to_value(TasksJson::from(&tasks)).unwrap(),
            serde_json::json!({
                "id": "1f", "counts": null, "truncated": true,
                "ranges": [{"first": 3, "last": 9, "step": 1, "state": "Failed", "reason": null, "exit_code": 1}],
            })
        );
        let ran = v1::TaskRange { lanes: vec!["2f".into(), "3f".into()], nodes: vec!["n1".into(), String::new()], ..range };
        let task = serde_json::to_value(TaskJson::of("1f", 3, &ran)).unwrap();
        assert_eq!(task["lanes"], serde_json::json!([{"id": "2f", "node": "n1"}, {"id": "3f", "node": null}]));
    }
}
