//! What a lane of a task group has to report to the quorum.

use lattice_model::{EndReason, LaneReport, TaskOutcome, TaskSet};
use std::collections::BTreeMap;

/// See the module.
#[derive(Default)]
pub(super) struct LaneState {
    /// Whether a call to the quorum is under way.
    pub(super) is_asking: bool,
    /// What to report when the present call was answered.
    pub(super) next: Option<LaneReport>,
    /// How long a task takes here on average, in microseconds, as the shim last reported it.
    pub(super) mean_us: u64,
    /// Whether it has ended, or its claim has: it asks nothing more.
    pub(super) is_over: bool,
    /// Set when its shim is lost, until the ends that the shim recorded are reported.
    pub(super) lost: Option<LostLane>,
}

/// A lane whose shim is lost.
pub(super) struct LostLane {
    /// The ends in its file.
    pub(super) recorded: BTreeMap<TaskOutcome, TaskSet>,
    /// Whether those of them that are still leased were reported.
    pub(super) is_reported: bool,
    /// Why the lane ends.
    pub(super) reason: EndReason,
}
