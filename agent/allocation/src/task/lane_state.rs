//! What a lane of a task group has to report to the quorum.

use lattice_model::{EndReason, LaneReport, TaskOutcome, TaskSet};
use std::collections::BTreeMap;

/// The state of a lane on its head.
#[derive(Default)]
pub(super) struct LaneState {
    /// Whether a call to the quorum is under way.
    pub(super) is_asking: bool,
    /// Whether that call reports ends.
    pub(super) is_reporting: bool,
    /// What to report once the present call is answered.
    pub(super) next: Option<LaneReport>,
    /// How long a task takes here on average, in microseconds, as the shim last reported it.
    pub(super) mean_us: u64,
    /// Whether the lane is open in its shim.
    pub(super) is_open: bool,
    pub(super) claim: Claim,
    /// Set when its shim is lost, until the ends that the shim recorded are reported.
    pub(super) lost: Option<LostLane>,
}

/// What the quorum's latest answer shows about the lane's claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Claim {
    /// The claim lives, as far as is known.
    #[default]
    Live,
    /// The quorum does not have the claim. A quorum that was recovered from a backup may adopt it later.
    Over,
    /// The quorum will never answer this lane.
    Refused,
}

impl LaneState {
    /// Whether the lane waits for the quorum to confirm ends of tasks.
    pub(super) fn has_unconfirmed_ends(&self) -> bool {
        match self.claim {
            Claim::Live => self.is_reporting || self.lost.is_some() || self.next.as_ref().is_some_and(|next| !next.ended.is_empty()),
            Claim::Over | Claim::Refused => false,
        }
    }
}

/// A lane whose shim is lost.
pub(super) struct LostLane {
    /// The ends in the shim's file.
    pub(super) recorded: BTreeMap<TaskOutcome, TaskSet>,
    /// Whether the recorded ends of leased tasks were reported.
    pub(super) is_reported: bool,
    /// Why the lane ends.
    pub(super) reason: EndReason,
}
