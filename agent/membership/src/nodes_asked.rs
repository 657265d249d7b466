//! Questions to the quorum about nodes.

use lattice_model::Node;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{Answer, Request};
use std::time::Duration;

/// Timeout of the quorum's answer.
const ANSWER: Duration = Duration::from_secs(2);

/// The nodes in a member's answer to this question. Any member answers from its own state: that is
/// new enough, and costs no other member anything. `None`: none answered.
pub(crate) async fn ask(quorum: &QuorumClient, question: Request) -> Option<Vec<Node>> {
    let answer = match quorum.call(&Request::Stale(Box::new(question)), ANSWER).await {
        Ok(Answer::Stale { answer, .. }) => *answer,
        Ok(_) => return None,
        Err(error) => {
            tracing::debug!(%error, "the quorum does not say where nodes are");
            return None;
        }
    };
    if let Answer::Nodes(nodes) = answer { Some(nodes) } else { None }
}
