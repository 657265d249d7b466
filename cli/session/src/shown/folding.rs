//! Neighbours in a list that differ in nothing but their ids, as one line.

use super::state::{Part, part};
use super::values::{short, work_name};
use lattice_api::v1;

/// One line of a list.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// The allocation, or the first of those that the line stands for.
    pub first: &'a v1::Allocation,
    /// How many allocations the line stands for.
    pub count: usize,
}

/// A line for each allocation.
pub fn each(allocations: &[v1::Allocation]) -> Vec<Line<'_>> {
    allocations.iter().map(|first| Line { first, count: 1 }).collect()
}

/// A line for each group of neighbours that wait alike.
pub fn fold(allocations: &[v1::Allocation]) -> Vec<Line<'_>> {
    let groups = allocations.chunk_by(wait_alike);
    groups.filter_map(|group| group.first().map(|first| Line { first, count: group.len() })).collect()
}

/// Whether both wait, and a list shows the same for both, except for the id, the job number and the place in the queue.
fn wait_alike(a: &v1::Allocation, b: &v1::Allocation) -> bool {
    let (part_a, part_b) = (part(a), part(b));
    let waits = part_a == part_b && matches!(part_a, Part::InLine | Part::Waits);
    // The reason of work in line is only about its place; other reasons are shown, so they must be the same.
    let has_same_reason = part_a == Part::InLine || (message(a) == message(b) && a.reason == b.reason);
    waits
        && has_same_reason
        && (work_name(a), &a.owner, &a.state, &a.vcluster, &a.tenant) == (work_name(b), &b.owner, &b.state, &b.vcluster, &b.tenant)
        && (a.nodes_requested, a.nodes_requested_max, a.walltime_seconds, a.held)
            == (b.nodes_requested, b.nodes_requested_max, b.walltime_seconds, b.held)
        && (&a.uenv, &a.task_group, &a.tags, a.scaling.is_some()) == (&b.uenv, &b.task_group, &b.tags, b.scaling.is_some())
}

/// Its status message without its own id, which a hint in it may name.
fn message(a: &v1::Allocation) -> String {
    a.status_message.replace(short(&a.id), "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_api::test_builders::{pending, running};

    fn counts(allocations: &[v1::Allocation]) -> Vec<(&str, usize)> {
        fold(allocations).iter().map(|line| (line.first.id.as_str(), line.count)).collect()
    }

    #[test]
    fn neighbours_that_wait_alike_are_one_line_and_others_are_not() {
        let waits = |id: &str, queue_position, message: &str| v1::Allocation {
            id: id.into(),
            queue_position,
            status_message: message.into(),
            ..pending()
        };
        let line = [waits("a", 1, "next: wants 4 nodes"), waits("b", 2, "behind 1"), waits("c", 3, "behind 2")];
        assert_eq!(counts(&line), [("a", 3)]);
        let other = |change: fn(&mut v1::Allocation)| {
            let mut other = line[1].clone();
            change(&mut other);
            counts(&[line[0].clone(), other, line[2].clone()]).len()
        };
        assert_eq!(other(|a| a.name = "other".into()), 3);
        assert_eq!(other(|a| a.owner = "carl".into()), 3);
        assert_eq!(other(|a| a.walltime_seconds = 1), 3);
        assert_eq!(other(|a| a.nodes_requested = 1), 3);
        assert_eq!(other(|a| a.vcluster = "ml".into()), 3);
        assert_eq!(other(|a| a.queue_position = 0), 3, "it is not in line");
        let held = |id: &str| waits(id, 0, &format!("held: `lattice resume {id}`"));
        assert_eq!(counts(&[held("a0"), held("b0"), waits("c0", 0, "waits for x")]), [("a0", 2), ("c0", 1)]);
        assert_eq!(counts(&[running(), running()]).len(), 2, "running work has a line each");
        assert_eq!(each(&line).len(), 3);
    }
}
