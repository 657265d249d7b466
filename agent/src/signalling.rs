//! Signals that users send to their work: from the agent that was asked to the agents of its nodes, and by their
//! shims to its processes.
//!
//! ```text
//!   lattice signal ──▶ agent ──mesh──▶ agents of its nodes ──ToShim::Signal──▶ shims ──kill──▶ ranks
//! ```
//!
//! Each node's agent passes it on under the epoch that the caller saw, so that a later attempt never gets it. Nothing
//! sends it twice.

use crate::context::Shared;
use crate::mesh::frame::{self, FrameError};
use crate::mesh::open::{Open, vouched};
use crate::mesh::signal::{SignalAnswer, SignalOpen, WireWhom};
use lattice_model::{AllocationId, Epoch, NodeId};
use lattice_quorum::identity::{Caller, Role};
use lattice_runtime::shim::SignalWhom;
use quinn::SendStream;
use std::time::Duration;
use tokio::time::timeout;
use uuid::Uuid;

/// How long another node may take to answer.
const NODE_ANSWER: Duration = Duration::from_secs(20);
/// The signals that there are.
const SIGNAL_MAX: i32 = 64;

/// Signals the work on `node`, and gives how many processes got it.
pub async fn of_node(context: &Shared, node: &NodeId, address: Option<String>, open: SignalOpen) -> Result<u32, String> {
    if *node == context.me {
        return here(context, &open).await;
    }
    let address = address.ok_or("where its mesh is was never heard of the quorum")?;
    let conversation = async {
        let (mut send, mut recv) = context.mesh.open(node, &address).await.map_err(|e| e.to_string())?;
        frame::write(&mut send, &Open::Signal(Box::new(open))).await.map_err(|e| e.to_string())?;
        frame::read::<SignalAnswer, _>(&mut recv).await.map_err(|e| e.to_string())
    };
    let answer = timeout(NODE_ANSWER, conversation).await.map_err(|_| "it does not answer in time".to_owned())??;
    match answer {
        SignalAnswer::Sent { processes } => Ok(processes),
        SignalAnswer::Refused { why } => Err(crate::mesh::diagnosis::plain(&why)),
    }
}

/// Answers another agent.
pub async fn answer(context: &Shared, peer: &Caller, open: &SignalOpen, send: &mut SendStream) -> Result<(), FrameError> {
    // Only an agent that vouches for users may say who asks.
    let sent = if peer.role == Role::Api {
        here(context, open).await
    } else {
        Err("refused: the asking agent may not vouch for users".to_owned())
    };
    let answer = sent.map_or_else(|why| SignalAnswer::Refused { why }, |processes| SignalAnswer::Sent { processes });
    frame::write(send, &answer).await
}

async fn here(context: &Shared, open: &SignalOpen) -> Result<u32, String> {
    let allocation = AllocationId(Uuid::from_bytes(open.allocation));
    if !(1..=SIGNAL_MAX).contains(&open.signal) {
        return Err(format!("there is no signal {}", open.signal));
    }
    let worker = context.workers.of_epoch(allocation, Epoch(open.epoch));
    let worker = worker.ok_or_else(|| format!("allocation {} is not running on this node", allocation.short()))?;
    if !vouched(open.uid, &open.user).may_act_for(&worker.share.owner) {
        return Err("refused: the allocation belongs to somebody else".to_owned());
    }
    let to = match open.to {
        WireWhom::Ranks => SignalWhom::Ranks,
        WireWhom::Launches => SignalWhom::Launches,
        WireWhom::Script => SignalWhom::Script,
    };
    worker.signal(open.signal, to).await
}
