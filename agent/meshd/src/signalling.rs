//! Signals from users to their work. The agent that receives the request asks the agents of the
//! work's nodes, and their shims signal the processes.
//!
//! ```text
//!   lattice signal ──▶ agent ──mesh──▶ agents of its nodes ──ToShim::Signal──▶ shims ──kill──▶ ranks
//! ```
//!
//! The request carries the epoch that its agent knew, so a later attempt never gets the signal. A
//! failed request is not repeated, so no process gets a signal twice.

use crate::context::Shared;
use lattice_mesh::MeshError;
use lattice_mesh::frame::{self, FrameError};
use lattice_mesh::open::{Open, vouched};
use lattice_mesh::signal::{SignalAnswer, SignalOpen, WireSignalTarget};
use lattice_model::{AllocationId, Epoch, NodeId};
use lattice_registry::SignalError;
use lattice_runtime::shim::SignalTarget;
use quinn::SendStream;
use std::time::Duration;
use thiserror::Error;
use tokio::time::timeout;
use uuid::Uuid;

/// Timeout of another node's answer.
const NODE_TIMEOUT: Duration = Duration::from_secs(20);
/// The highest signal number.
const SIGNAL_MAX: i32 = 64;

/// Why a signal was not sent on a node, or why it is unknown whether it was.
#[derive(Debug, Error)]
pub enum SignallingError {
    #[error("there is no signal {0}")]
    NoSuchSignal(i32),
    #[error("allocation {} is not running on this node", .allocation.short())]
    NotHere { allocation: AllocationId },
    #[error("refused: the allocation belongs to somebody else")]
    NotTheOwner,
    #[error(transparent)]
    Send(#[from] SignalError),
    #[error("its mesh address is unknown: neither gossip nor the quorum has it")]
    NoAddress,
    #[error(transparent)]
    Open(#[from] MeshError),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("it does not answer in time")]
    Timeout,
    #[error("{why}")]
    RefusedThere { why: String },
}

/// Signals the work on `node`; returns how many processes got the signal.
pub async fn of_node(context: &Shared, node: &NodeId, address: Option<String>, open: SignalOpen) -> Result<u32, SignallingError> {
    if *node == context.setup.me {
        return signal_locally(context, &open).await;
    }
    let address = address.ok_or(SignallingError::NoAddress)?;
    let conversation = async {
        let (mut send, mut recv) = context.work.mesh.open(node, &address).await?;
        frame::write(&mut send, &Open::Signal(Box::new(open))).await?;
        Ok::<_, SignallingError>(frame::read::<SignalAnswer, _>(&mut recv).await?)
    };
    let answer = timeout(NODE_TIMEOUT, conversation).await.map_err(|_| SignallingError::Timeout)??;
    match answer {
        SignalAnswer::Sent { processes } => Ok(processes),
        SignalAnswer::Refused { why } => Err(SignallingError::RefusedThere { why: lattice_mesh::diagnosis::plain(&why) }),
    }
}

/// Answers the request of another agent.
pub async fn answer(context: &Shared, open: &SignalOpen, send: &mut SendStream) -> Result<(), FrameError> {
    let answer = signal_locally(context, open)
        .await
        .map_or_else(|error| SignalAnswer::Refused { why: error.to_string() }, |processes| SignalAnswer::Sent { processes });
    frame::write(send, &answer).await
}

async fn signal_locally(context: &Shared, open: &SignalOpen) -> Result<u32, SignallingError> {
    let allocation = AllocationId(Uuid::from_bytes(open.allocation));
    if !(1..=SIGNAL_MAX).contains(&open.signal) {
        return Err(SignallingError::NoSuchSignal(open.signal));
    }
    let handle = context.work.allocations.of_epoch(allocation, Epoch(open.epoch));
    let handle = handle.ok_or(SignallingError::NotHere { allocation })?;
    if !vouched(open.uid, &open.user).may_act_for(&handle.share.owner) {
        return Err(SignallingError::NotTheOwner);
    }
    let to = match open.to {
        WireSignalTarget::Ranks => SignalTarget::Ranks,
        WireSignalTarget::Launches => SignalTarget::Launches,
        WireSignalTarget::Script => SignalTarget::Script,
    };
    Ok(handle.signal(open.signal, to).await?)
}
