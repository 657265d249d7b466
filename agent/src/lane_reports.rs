//! How lanes of task groups on this node call the quorum.

use futures::FutureExt;
use futures::future::BoxFuture;
use lattice_allocation::lane_quorum::{LaneQuorum, NotAdvanced};
use lattice_model::{AllocationId, Epoch, LaneReport, LaneWork, NodeId, with_causes};
use lattice_quorum_client::wire::{Answer, Refusal, Request};
use lattice_quorum_client::{CallError, QuorumClient};
use std::time::Duration;

/// Timeout of one call, over all members together; the lane calls again after that.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// The lanes' access to the quorum.
pub struct LaneReports {
    me: NodeId,
    quorum: QuorumClient,
}

impl LaneReports {
    /// Access for the lanes whose head is `me`.
    pub fn new(me: NodeId, quorum: QuorumClient) -> Self {
        Self { me, quorum }
    }
}

impl LaneQuorum for LaneReports {
    fn advance(&self, lane: AllocationId, epoch: Epoch, report: LaneReport) -> BoxFuture<'_, Result<LaneWork, NotAdvanced>> {
        async move {
            let request = Request::AdvanceLane { id: lane, epoch, node: self.me.clone(), report };
            match self.quorum.call(&request, ANSWER_TIMEOUT).await {
                Ok(Answer::LaneWork(work)) => Ok(work),
                Ok(_) => Err(NotAdvanced::Unavailable("a member gave an answer to another question".to_owned())),
                Err(CallError::Refused(
                    refusal @ (Refusal::StaleEpoch { .. } | Refusal::NotRunning { .. } | Refusal::NoSuchAllocation { .. }),
                )) => Err(NotAdvanced::ClaimOver(refusal.to_string())),
                Err(CallError::Refused(
                    refusal @ (Refusal::NotALane { .. } | Refusal::NotATaskGroup { .. } | Refusal::Malformed { .. }),
                )) => Err(NotAdvanced::Refused(refusal.to_string())),
                Err(error) => Err(NotAdvanced::Unavailable(with_causes(&error))),
            }
        }
        .boxed()
    }
}
