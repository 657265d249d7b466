//! The only request that a lane of a task group sends to the quorum.

use futures::future::BoxFuture;
use lattice_model::{AllocationId, Epoch, LaneReport, LaneWork};
use thiserror::Error;

/// The quorum, as lanes on this node see it.
pub trait LaneQuorum: Send + Sync {
    /// Reports the lane's ended tasks, and gets the tasks that it may run. May be repeated.
    ///
    /// # Errors
    /// [`NotAdvanced`]
    fn advance(&self, lane: AllocationId, epoch: Epoch, report: LaneReport) -> BoxFuture<'_, Result<LaneWork, NotAdvanced>>;
}

/// Why a lane got no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotAdvanced {
    /// The quorum does not have the lane's claim: the claim is over, or a recovered quorum has not
    /// adopted it yet.
    #[error("{0}")]
    ClaimOver(String),
    /// The quorum will refuse every later request as well.
    #[error("{0}")]
    Refused(String),
    /// The lane may retry later.
    #[error("{0}")]
    Unavailable(String),
}
