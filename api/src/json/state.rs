//! What an allocation's state means.

use super::values::filled;
use crate::allocation::state_from_name;
use crate::v1;
use lattice_model::AllocationState;

/// Whether it has nodes now.
pub fn has_nodes(a: &v1::Allocation) -> bool {
    matches!(state_from_name(&a.state), Ok(AllocationState::Staging | AllocationState::Running))
}

/// Why it ended or waits; `None` if that only repeats the state.
pub fn end_reason(a: &v1::Allocation) -> Option<&str> {
    filled(&a.reason).filter(|reason| !reason.eq_ignore_ascii_case(&a.state))
}

/// The end of its walltime, if it runs and has one. A task group has none: each of its tasks has.
pub fn ends_by_ms(a: &v1::Allocation) -> Option<u64> {
    let runs = a.started_at_ms != 0 && has_nodes(a) && a.walltime_seconds > 0 && a.task_group.is_empty();
    runs.then(|| a.started_at_ms.saturating_add(a.walltime_seconds.saturating_mul(1000)))
}
