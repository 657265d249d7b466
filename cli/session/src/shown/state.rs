//! What an allocation's state means in a list: its group, its position, and the reason.

use super::values::queue;
use lattice_api::allocation::state_from_name;
use lattice_api::json::end_reason;
use lattice_api::v1;
use lattice_model::AllocationState;

/// Sorts living allocations first: those with nodes, then those in line, in the order in which they are expected to
/// begin, then those that wait for something else. Ended ones follow. The other groups are sorted newest first.
pub fn live_first(allocations: &mut [v1::Allocation]) {
    allocations.sort_by(|a, b| {
        let newest_first = || (b.submitted_at_ms, &b.id).cmp(&(a.submitted_at_ms, &a.id));
        let in_line = || (queue(&a.vcluster), a.queue_position).cmp(&(queue(&b.vcluster), b.queue_position));
        part(a).cmp(&part(b)).then_with(|| if part(a) == Part::InLine { in_line() } else { newest_first() })
    });
}

/// The groups of a list of allocations, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    HasNodes,
    InLine,
    Waits,
    Ended,
}

/// The group to which it belongs.
pub fn part(a: &v1::Allocation) -> Part {
    match state_from_name(&a.state) {
        Ok(AllocationState::Staging | AllocationState::Running) => Part::HasNodes,
        Ok(AllocationState::Pending | AllocationState::Suspended) if a.queue_position > 0 => Part::InLine,
        Ok(AllocationState::Pending | AllocationState::Suspended) => Part::Waits,
        Ok(AllocationState::Completed | AllocationState::Failed | AllocationState::Cancelled) | Err(_) => Part::Ended,
    }
}

/// The reason for its state; without one, its preemption.
pub fn reason(a: &v1::Allocation) -> String {
    match end_reason(a) {
        None if a.reason.is_empty() => a.preemption.clone(),
        reason => reason.unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::values::short;
    use super::*;
    use lattice_api::test_builders::{pending, running};

    #[test]
    fn live_allocations_come_first_and_waiting_ones_in_the_order_of_the_queue() {
        let ended = v1::Allocation { id: "e".into(), state: "Failed".into(), submitted_at_ms: 99, ..Default::default() };
        let waits = |id: &str, queue_position| v1::Allocation { id: id.into(), queue_position, ..pending() };
        let mut all = [ended, waits("q2", 2), waits("never", 0), waits("q1", 1), running()];
        live_first(&mut all);
        assert_eq!(all.each_ref().map(|a| short(&a.id)), ["1f0c9a4e", "q1", "q2", "never", "e"]);
    }
}
