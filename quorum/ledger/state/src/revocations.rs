//! Revoked names.

use lattice_model::{Incarnation, NodeId, Revision, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The revocation of a name's certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// Certificates issued before this time are invalid.
    pub before: Timestamp,
    /// Who revoked it, and the reason (may be empty).
    pub by: String,
    pub reason: String,
    /// The log index of the latest change.
    pub revision: Revision,
    /// The incarnation of the node with this name at that time; `None`: there is no such node, or
    /// it has registered again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life: Option<Incarnation>,
}

/// All revocations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocations {
    pub names: BTreeMap<String, Revocation>,
    /// Whether a name was revoked after the last new gossip key.
    pub rekey: bool,
}

impl Revocations {
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && !self.rekey
    }

    /// A new gossip key was introduced.
    pub fn rekeyed(&mut self) {
        self.rekey = false;
    }

    /// A node registered with a valid certificate.
    pub fn registered(&mut self, node: &NodeId) {
        if let Some(revocation) = self.names.get_mut(node.as_str()) {
            revocation.life = None;
        }
    }

    pub fn newest(&self) -> Timestamp {
        self.names.values().map(|revocation| revocation.before).max().unwrap_or_default()
    }
}
