//! What is known of the tasks of a group: the answer to a query.

use lattice_model::{AllocationId, NodeId, TaskOutcome, TaskSet};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The tasks of one group, by state. Each task is in exactly one of the sets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStates {
    /// Those that no lane has leased.
    pub waiting: TaskSet,
    /// Those that lanes have leased: they run there, or are next.
    pub leased: TaskSet,
    /// Those that have ended, by outcome.
    pub ended: BTreeMap<TaskOutcome, TaskSet>,
    /// How many times a task was begun again, in all.
    pub restarts: u32,
    /// How many lanes have nodes.
    pub lanes_running: u32,
    /// How many lanes wait for nodes.
    pub lanes_waiting: u32,
    /// If one task was asked for: where it was leased, the latest last.
    pub places: Vec<TaskPlace>,
    /// If one task was asked for: how many times it was begun again.
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
