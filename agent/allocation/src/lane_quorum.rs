//! The one question that a lane of a task group asks the quorum.

use futures::future::BoxFuture;
use lattice_model::{AllocationId, Epoch, LaneReport, LaneWork};
use thiserror::Error;

/// The quorum, as lanes on this node see it.
pub trait LaneQuorum: Send + Sync {
    /// Reports what has ended in the lane, and gets what it may run. May be repeated.
    ///
    /// # Errors
    /// [`NotAdvanced`]
    fn advance(&self, lane: AllocationId, epoch: Epoch, report: LaneReport) -> BoxFuture<'_, Result<LaneWork, NotAdvanced>>;
}

/// Why a lane got no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotAdvanced {
    /// The quorum does not have its claim: it is over, or a recovered quorum has not adopted it yet.
    #[error("{0}")]
    ClaimOver(String),
    /// No later question will be answered.
    #[error("{0}")]
    Refused(String),
    /// It may ask again later.
    #[error("{0}")]
    Unavailable(String),
}
