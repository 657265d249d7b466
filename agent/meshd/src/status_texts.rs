//! Status texts of work that is ending, from its node's agent. An agent that reports what a drain
//! waits for requests them from the drained node's agent.

use crate::context::Context;
use lattice_mesh::frame::{self, FrameError};
use lattice_mesh::open::{Open, StatusTexts, StatusTextsOpen};
use lattice_model::{AllocationId, NodeId};
use quinn::SendStream;
use std::time::Duration;
use uuid::Uuid;

/// How many allocations one request may name.
pub const ALLOCATIONS_MAX: usize = 64;
/// How long the other agent may take: the texts help, but the answer does not depend on them.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The status text of the allocation on this node; empty if there is none.
pub fn of(context: &Context, id: AllocationId) -> String {
    context.work.allocations.get(id).map(|handle| handle.detail.borrow().status_text()).unwrap_or_default()
}

/// Answers another agent.
pub async fn answer(context: &Context, open: &StatusTextsOpen, send: &mut SendStream) -> Result<(), FrameError> {
    let asked = open.allocations.iter().take(ALLOCATIONS_MAX).map(|id| AllocationId(Uuid::from_bytes(*id)));
    let texts = StatusTexts(asked.map(|id| of(context, id)).collect());
    frame::write(send, &texts).await
}

/// Asks another agent.
pub async fn ask(context: &Context, node: &NodeId, address: &str, asked: &[AllocationId]) -> Option<Vec<String>> {
    let open = Open::StatusTexts(StatusTextsOpen { allocations: asked.iter().take(ALLOCATIONS_MAX).map(|id| *id.0.as_bytes()).collect() });
    let conversation = async {
        let (mut send, mut recv) = context.work.mesh.open(node, address).await.ok()?;
        frame::write(&mut send, &open).await.ok()?;
        frame::read::<StatusTexts, _>(&mut recv).await.ok()
    };
    let StatusTexts(texts) = tokio::time::timeout(ANSWER_TIMEOUT, conversation).await.ok()??;
    (texts.len() == asked.len()).then_some(texts)
}
