//! The steps of an allocation, from its head: all other agents ask the head.

use crate::context::{Context, Shared};
use lattice_mesh::UnansweredNode;
use lattice_mesh::diagnosis::plain;
use lattice_mesh::frame::{self, FrameError};
use lattice_mesh::open::Open;
use lattice_mesh::steps::{StepsAnswer, StepsOpen};
use lattice_model::{AllocationId, Epoch, JobSteps, NodeId, with_causes};
use lattice_output::steps;
use lattice_runtime::shim::ShimDir;
use quinn::SendStream;
use std::io;
use std::time::Duration;
use thiserror::Error;
use tokio::task::JoinError;
use tokio::time::timeout;
use uuid::Uuid;

/// Timeout of another node's answer.
const NODE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the steps of an allocation are unknown.
#[derive(Debug, Error)]
pub enum StepsError {
    #[error(transparent)]
    Unanswered(#[from] UnansweredNode),
    #[error("the record of its steps cannot be read")]
    Read(#[from] io::Error),
    #[error(transparent)]
    Join(#[from] JoinError),
}

/// The steps that `node` recorded as the head, for a user who has been authorized. `None`: the node has
/// nothing of the allocation.
///
/// # Errors
/// The node does not answer, or cannot read its record.
pub async fn of_node(context: &Shared, node: &NodeId, address: Option<String>, open: StepsOpen) -> Result<Option<JobSteps>, StepsError> {
    if *node == context.setup.me {
        return read_locally(context, &open).await;
    }
    let address = address.ok_or(UnansweredNode::NoAddress)?;
    let conversation = async {
        let (mut send, mut recv) = context.work.mesh.open(node, &address).await?;
        frame::write(&mut send, &Open::Steps(Box::new(open))).await.map_err(UnansweredNode::Ask)?;
        frame::read::<StepsAnswer, _>(&mut recv).await.map_err(UnansweredNode::reading)
    };
    match timeout(NODE_TIMEOUT, conversation).await.map_err(|_| UnansweredNode::Timeout)?? {
        StepsAnswer::Here(steps) => Ok(Some(steps.checked().map_err(|_| UnansweredNode::UnknownForm)?)),
        StepsAnswer::NotHere => Ok(None),
        StepsAnswer::Refused { why } => Err(UnansweredNode::Refused { why: plain(&why) }.into()),
    }
}

/// Answers the request of another agent.
pub async fn answer(context: &Context, open: &StepsOpen, send: &mut SendStream) -> Result<(), FrameError> {
    let answer = match read_locally(context, open).await {
        Ok(Some(steps)) => StepsAnswer::Here(steps.into()),
        Ok(None) => StepsAnswer::NotHere,
        Err(error) => StepsAnswer::Refused { why: with_causes(&error) },
    };
    frame::write(send, &answer).await
}

async fn read_locally(context: &Context, open: &StepsOpen) -> Result<Option<JobSteps>, StepsError> {
    let (allocation, epoch) = (AllocationId(Uuid::from_bytes(open.allocation)), Epoch(open.epoch));
    let dir = ShimDir::of(&context.setup.state_dir, allocation, epoch);
    let reading = tokio::task::spawn_blocking(move || match dir.0.is_dir() {
        true => steps::read(&dir).map(Some),
        false => Ok(None),
    });
    Ok(reading.await??)
}
