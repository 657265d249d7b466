//! Names whose certificates count no more.

use lattice_model::{Incarnation, NodeId, Revision, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// That a name's certificates count no more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// Those that were issued before this.
    pub before: Timestamp,
    /// Who said so, and why (which may be empty).
    pub by: String,
    pub reason: String,
    /// The log index of its last change.
    pub revision: Revision,
    /// The life that the node of this name was in; `None` where there is no such node, or it registered again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) life: Option<Incarnation>,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocations {
    pub(crate) names: BTreeMap<String, Revocation>,
    /// Whether a name was revoked behind the last new gossip key.
    pub(crate) rekey: bool,
}

impl Revocations {
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && !self.rekey
    }

    /// A new gossip key is brought in.
    pub fn rekeyed(&mut self) {
        self.rekey = false;
    }

    /// A node registers, with a certificate that counts.
    pub fn registered(&mut self, node: &NodeId) {
        if let Some(revocation) = self.names.get_mut(node.as_str()) {
            revocation.life = None;
        }
    }

    pub(crate) fn newest(&self) -> Timestamp {
        self.names.values().map(|revocation| revocation.before).max().unwrap_or_default()
    }
}
