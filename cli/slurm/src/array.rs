//! Arrays: a task group becomes a row for the tasks that wait, and one for each task that has begun.

use crate::job::{Job, Part, Task, is_array};
use lattice_api::allocation::state_from_name;
use lattice_api::v1;
use lattice_model::{AllocationState, IndexRun, TaskGroup, TaskIndices};
use std::rc::Rc;

/// The indices of a group, without its limit; `None`: it is no group, or a list has shortened them.
pub fn indices(a: &v1::Allocation) -> Option<TaskIndices> {
    TaskGroup::parse(&a.task_group).ok().map(|group| group.indices)
}

/// How many job numbers an allocation has.
pub fn number_count(a: &v1::Allocation) -> u64 {
    if !is_array(a) {
        return 1;
    }
    if let Some(indices) = indices(a) {
        return u64::from(indices.count());
    }
    // A list of many separate ranges ends in `... (N tasks)`.
    let count = a.task_group.rsplit_once('(').and_then(|(_, count)| count.strip_suffix(" tasks)")).and_then(|count| count.parse().ok());
    count.unwrap_or(1)
}

/// Whether its tasks may be in different states, so that its ranges are needed.
pub fn has_begun(a: &v1::Allocation) -> bool {
    is_array(a) && !matches!(state_from_name(&a.state), Ok(AllocationState::Pending)) && a.number > 0
}

/// The rows of an allocation. `ranges`: its tasks, if it is a group and some of them have begun. `each`: also a row for
/// each task that waits.
pub fn rows(allocation: v1::Allocation, ranges: &[v1::TaskRange], each: bool) -> Vec<Job> {
    let allocation = Rc::new(allocation);
    let whole = |allocation: &Rc<v1::Allocation>| Job { allocation: Rc::clone(allocation), part: Part::Whole, recorded: None };
    if !is_array(&allocation) {
        return vec![whole(&allocation)];
    }
    let known = indices(&allocation);
    let of_group: Vec<v1::TaskRange>;
    let ranges = match (&known, ranges) {
        (Some(known), []) => {
            let state = if has_begun(&allocation) { allocation.state.clone() } else { AllocationState::Pending.to_string() };
            let range = |run: &IndexRun| v1::TaskRange {
                indices: Some(v1::IndexRun { first: run.first, last: run.last, step: run.step }),
                state: state.clone(),
                reason: allocation.reason.clone(),
                ..Default::default()
            };
            of_group = known.runs().iter().map(range).collect();
            of_group.as_slice()
        }
        (_, ranges) => ranges,
    };
    let (mut waiting, mut rows, mut before) = (Vec::new(), Vec::new(), 0u32);
    for range in ranges {
        let Some(run) = range.indices.as_ref().and_then(run_of) else { continue };
        let is_waiting = range.state == AllocationState::Pending.name();
        if is_waiting && !each {
            waiting.push(run);
        } else {
            for at in 0..run.count() {
                let index = run.first + at * run.step;
                let ordinal = known.as_ref().and_then(|known| known.ordinal_of(index)).unwrap_or(before + at);
                let Task { state, reason, exit_code, nodes, .. } = Task::of(range);
                let task = Task { index, ordinal, state, reason, exit_code, nodes };
                rows.push(Job { allocation: Rc::clone(&allocation), part: Part::Task(Box::new(task)), recorded: None });
            }
        }
        before += run.count();
    }
    if !waiting.is_empty() {
        let limit = allocation.task_group.split_once('%').map(|(_, limit)| format!("%{limit}")).unwrap_or_default();
        let indices = waiting.iter().map(ToString::to_string).collect::<Vec<_>>().join(",") + &limit;
        rows.insert(0, Job { allocation: Rc::clone(&allocation), part: Part::Waiting { indices }, recorded: None });
    }
    if rows.is_empty() { vec![whole(&allocation)] } else { rows }
}

fn run_of(run: &v1::IndexRun) -> Option<IndexRun> {
    (run.first <= run.last).then_some(IndexRun { first: run.first, last: run.last, step: run.step.max(1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(state: &str) -> v1::Allocation {
        v1::Allocation { number: 12, state: state.into(), task_group: "0-9%2".into(), ..Default::default() }
    }

    fn range(first: u32, last: u32, state: &str) -> v1::TaskRange {
        v1::TaskRange { indices: Some(v1::IndexRun { first, last, step: 1 }), state: state.into(), ..Default::default() }
    }

    #[test]
    fn waiting_tasks_are_one_row_and_others_one_each() {
        let ranges = [range(0, 0, "Completed"), range(1, 2, "Running"), range(3, 9, "Pending")];
        let ids = |each| rows(group("Running"), &ranges, each).iter().map(|job| (job.id_text(), job.number())).collect::<Vec<_>>();
        let want = [("12_[3-9%2]", 12), ("12_0", 12), ("12_1", 13), ("12_2", 14)].map(|(id, number)| (id.to_owned(), number));
        assert_eq!(ids(false), want);
        assert_eq!((ids(true).len(), ids(true)[9].0.as_str()), (10, "12_9"));
    }

    #[test]
    fn a_group_without_ranges_is_as_it_was_submitted() {
        let ids = |state: &str| rows(group(state), &[], false).iter().map(Job::id_text).collect::<Vec<_>>();
        assert_eq!(ids("Pending"), ["12_[0-9%2]"]);
        assert_eq!(ids("Cancelled").len(), 10);
        let listed = v1::Allocation { task_group: "1,3,... (40 tasks)".into(), ..group("Pending") };
        assert_eq!((number_count(&listed), number_count(&group("Pending")), number_count(&v1::Allocation::default())), (40, 10, 1));
        assert_eq!(rows(listed, &[], false)[0].id_text(), "12_[1,3,...]");
    }
}
