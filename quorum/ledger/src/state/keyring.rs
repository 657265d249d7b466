//! The keys that gossip is sealed with. How one follows another: the commands in `key_rotation.rs`.

use lattice_model::{Revision, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The key of the agents' configuration.
pub const CONFIGURED: u32 = 0;

/// What seals and opens. Shown by nobody: its `Debug` hides it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret(pub [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// The keys: two at most, the older one first. All of them open, one seals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keyring {
    /// With rising ids; none before the first rotation.
    pub keys: Vec<GossipKey>,
    /// The id of the one that seals.
    pub seals: u32,
    /// The log index of its last change.
    pub revision: Revision,
}

/// One key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GossipKey {
    /// No other key had it or will have it.
    pub id: u32,
    /// Where it is from.
    pub source: KeySource,
}

/// Where a key is from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeySource {
    /// The agents' configuration names a file with it.
    Configured,
    /// An operator asked for it.
    Made { secret: Secret, at: Timestamp, by: String },
}

impl Keyring {
    /// The newest one.
    pub fn newest(&self) -> u32 {
        self.keys.last().map_or(CONFIGURED, |key| key.id)
    }

    /// Whether one key is about to follow another.
    pub fn is_rotating(&self) -> bool {
        self.keys.len() > 1
    }

    /// Whether there is none, and agents use their configuration's.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn of(&self, wanted: &Secret) -> Option<u32> {
        let has = |key: &&GossipKey| matches!(&key.source, KeySource::Made { secret, .. } if secret == wanted);
        self.keys.iter().find(has).map(|key| key.id)
    }
}
