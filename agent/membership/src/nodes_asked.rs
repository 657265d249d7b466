//! Questions to the quorum about nodes.

use lattice_model::Node;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{Answer, Request};
use std::time::Duration;

/// Timeout of the quorum's answer.
const ANSWER: Duration = Duration::from_secs(2);

/// The nodes in a member's answer to this question. Any member answers from its own state, which is
/// new enough; no other member has to do anything for it. `None`: no member answered.
pub(crate) async fn ask(quorum: &QuorumClient, question: Request) -> Option<Vec<Node>> {
    let answer = match quorum.call(&Request::Stale(Box::new(question)), ANSWER).await {
        Ok(Answer::Stale { answer, .. }) => *answer,
        Ok(_) => return None,
        Err(error) => {
            tracing::debug!(%error, "no member answered a question about nodes");
            return None;
        }
    };
    if let Answer::Nodes(nodes) = answer { Some(nodes) } else { None }
}
