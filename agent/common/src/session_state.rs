//! How the session with the quorum stands.

use lattice_model::NodeId;
use std::time::Instant;

/// How the session stands.
#[derive(Clone, Debug)]
pub enum SessionState {
    /// Registered with this member; `through`: the peer that carries the session.
    Connected { member: String, through: Option<NodeId> },
    /// None since then, for this reason.
    Lost { since: Instant, why: String },
}

impl SessionState {
    /// Whether the quorum can be asked by way of it; an error says why not, for people.
    pub fn ready(&self) -> Result<(), String> {
        match self {
            Self::Connected { .. } => Ok(()),
            Self::Lost { since, why } => Err(format!("no session for {} s ({why})", since.elapsed().as_secs())),
        }
    }
}

/// With whom the session is, for people.
pub fn told(member: &str, through: Option<&NodeId>) -> String {
    let carried = through.map(|peer| format!(", carried by {peer}: this node reaches no member itself"));
    format!("session with {member}{}", carried.unwrap_or_default())
}
