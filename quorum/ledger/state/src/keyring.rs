//! The gossip encryption keys. The commands in `key_rotation.rs` rotate them.

use lattice_model::{Revision, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The id of the key in the agents' configuration.
pub const CONFIGURED: u32 = 0;

/// A key's bytes. Never shown: `Debug` hides them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret(pub [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// The keys: at most two, the older one first. All of them decrypt, one encrypts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keyring {
    /// In order of increasing ids; empty before the first rotation.
    pub keys: Vec<GossipKey>,
    /// The id of the key that encrypts.
    pub seals: u32,
    /// The log index of the latest change.
    pub revision: Revision,
}

/// One key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GossipKey {
    /// Unique for ever.
    pub id: u32,
    /// The key's source.
    pub source: KeySource,
}

/// The source of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeySource {
    /// A file named in the agents' configuration.
    Configured,
    /// Created at the request of an operator.
    Made { secret: Secret, at: Timestamp, by: String },
}

impl Keyring {
    /// The id of the newest key.
    pub fn newest(&self) -> u32 {
        self.keys.last().map_or(CONFIGURED, |key| key.id)
    }

    /// Whether a rotation is in progress.
    pub fn is_rotating(&self) -> bool {
        self.keys.len() > 1
    }

    /// Whether it is empty, so that agents use the key of their configuration.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub fn of(&self, wanted: &Secret) -> Option<u32> {
        let has = |key: &&GossipKey| matches!(&key.source, KeySource::Made { secret, .. } if secret == wanted);
        self.keys.iter().find(has).map(|key| key.id)
    }
}
