//! Interactive sessions.

use super::values::time;
use crate::v1;
use serde::Serialize;
use utoipa::ToSchema;

/// An allocation with a terminal of its user.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Session)]
pub struct SessionJson {
    id: String,
    allocation: String,
    user: String,
    /// The node of its terminal.
    node: String,
    since: Option<String>,
}

impl From<&v1::InteractiveSession> for SessionJson {
    fn from(s: &v1::InteractiveSession) -> Self {
        Self { id: s.id.clone(), allocation: s.allocation.clone(), user: s.user.clone(), node: s.node.clone(), since: time(s.since_ms) }
    }
}
