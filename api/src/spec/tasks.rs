//! Task groups.

use crate::v1;
use lattice_model::spec::check_task_walltime;
use lattice_model::task_group::NoSuchIndices;
use lattice_model::{AllocationSpec, IndexRun, RequeuePolicy, SpecError, TaskGroup, TaskIndices};

pub(super) fn to_model(group: &v1::TaskGroup) -> Result<TaskGroup, SpecError> {
    let v1::TaskGroup { indices, concurrency, max_failures } = group;
    let invalid = |error: NoSuchIndices| SpecError::Invalid { field: "task-group", why: error.to_string() };
    Ok(TaskGroup {
        indices: task_indices(indices).map_err(invalid)?,
        // 0: as many as get nodes.
        concurrent_max: (*concurrency > 0).then_some(*concurrency),
        failures_max: *max_failures,
    })
}

/// Not rules of the model: the specification of a lane has more than twice the walltime, and updates
/// and recovery check specifications again.
pub(super) fn check(model: &AllocationSpec) -> Result<(), SpecError> {
    if model.tasks.is_none() {
        return Ok(());
    }
    // Its tasks begin anew by themselves when a node is lost, and never for their own failures.
    if model.requeue == RequeuePolicy::Always {
        let why = "always is not for a task group: leave it out, and run the tasks that failed once more with `lattice retry`";
        return Err(SpecError::Invalid { field: "requeue", why: why.to_owned() });
    }
    check_task_walltime(model.walltime)
}

pub(super) fn from_model(group: &TaskGroup) -> v1::TaskGroup {
    let TaskGroup { indices, concurrent_max, failures_max } = group;
    v1::TaskGroup {
        indices: indices.runs().iter().copied().map(index_run).collect(),
        concurrency: concurrent_max.unwrap_or_default(),
        max_failures: *failures_max,
    }
}

/// The indices in these runs.
///
/// # Errors
/// There are none, too many, or a run is malformed.
pub fn task_indices(runs: &[v1::IndexRun]) -> Result<TaskIndices, NoSuchIndices> {
    // 0 means 1.
    TaskIndices::new(runs.iter().map(|run| IndexRun { first: run.first, last: run.last, step: run.step.max(1) }))
}

/// Encodes a run of indices.
pub fn index_run(IndexRun { first, last, step }: IndexRun) -> v1::IndexRun {
    v1::IndexRun { first, last, step }
}
