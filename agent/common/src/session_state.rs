//! The state of the session with the quorum.

use lattice_model::NodeId;
use std::time::Instant;
use thiserror::Error;

/// There is no session that could carry a request to the quorum.
#[derive(Debug, Error)]
#[error("no session for {for_s} s ({why})")]
pub struct NoSession {
    for_s: u64,
    why: String,
}

/// The state of the session with the quorum.
#[derive(Clone, Debug)]
pub enum SessionState {
    /// Registered with this member; `relay_node`: the peer that relays the session, if any.
    Connected { member: String, relay_node: Option<NodeId> },
    /// There has been no session since then, for this reason.
    Lost { since: Instant, why: String },
}

impl SessionState {
    /// Whether the session can carry a request to the quorum.
    pub fn ready(&self) -> Result<(), NoSession> {
        match self {
            Self::Connected { .. } => Ok(()),
            Self::Lost { since, why } => Err(NoSession { for_s: since.elapsed().as_secs(), why: why.clone() }),
        }
    }
}

/// Member and relaying peer as text for people.
pub fn describe(member: &str, relay_node: Option<&NodeId>) -> String {
    let carried = relay_node.map(|peer| format!(", carried by {peer}: this node reaches no member itself"));
    format!("session with {member}{}", carried.unwrap_or_default())
}
