//! The keys that gossip is sealed with, and how one follows another without a gap.
//!
//! ```text
//!   settled ──AddKey──▶ brought in ──SealWithKey──▶ sealing ──RetireKey──▶ settled
//!   1 seals             1 seals, 2 opens            2 seals, 1 opens       2 seals
//! ```
//!
//! At the beginning there is no ring: agents seal with the key of their configuration, which is key 0 of the first rotation.
//! An operator adds a key; whoever proposes that has drawn it. The steps behind it are the leader's, who hears from the
//! agents which keys they have (see [`crate::rotation`]): none is taken before everybody that can be heard is ready for it.
//! A second rotation waits for the end of the first.

use super::{Ledger, Outcome, Step, Subject};
use crate::wire::Refusal;
use lattice_model::{AuditAction, Revision, Timestamp};
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

    fn of(&self, wanted: &Secret) -> Option<u32> {
        let has = |key: &&GossipKey| matches!(&key.source, KeySource::Made { secret, .. } if secret == wanted);
        self.keys.iter().find(has).map(|key| key.id)
    }
}

impl Ledger {
    /// The gossip keys.
    pub fn keyring(&self) -> &Keyring {
        &self.keyring
    }

    /// Adds a key, or names the one that is being brought in: a rotation goes on to its end.
    pub(super) fn add_key(&mut self, step: &mut Step, secret: &Secret, by: &str) -> Result<Outcome, Refusal> {
        let under_way = self.keyring.is_rotating().then(|| self.keyring.newest());
        if let Some(id) = self.keyring.of(secret).or(under_way) {
            return Ok(Outcome::KeyAdded { id });
        }
        // The generation is 1, and after a recovery from a backup the time of that: agents may have keys of which the backup knows
        // nothing, and their ids must not be given to others.
        let next = (u64::from(self.keyring.newest()) + 1).max(self.generation.0);
        let most = || Refusal::TooMany { what: "gossip keys".to_owned(), most: u64::from(u32::MAX) };
        let id = u32::try_from(next).map_err(|_| most())?;
        if self.keyring.is_empty() {
            self.keyring.keys.push(GossipKey { id: CONFIGURED, source: KeySource::Configured });
        }
        self.revocations.rekeyed();
        let source = KeySource::Made { secret: secret.clone(), at: step.at, by: by.to_owned() };
        self.keyring.keys.push(GossipKey { id, source });
        let detail = format!("key {id} opens beside key {}, which seals", self.keyring.seals);
        self.keyring_changed(step, by, AuditAction::GossipKeyAdded, detail);
        Ok(Outcome::KeyAdded { id })
    }

    /// The newest key seals from now on.
    pub(super) fn seal_with_key(&mut self, step: &mut Step, id: u32) -> Result<Outcome, Refusal> {
        if self.keyring.seals == id {
            return Ok(Outcome::Done);
        }
        if self.keyring.newest() != id {
            return Err(Refusal::Malformed { why: format!("key {id} is not the newest of the ring, which alone may seal next") });
        }
        let detail = format!("key {id} seals, key {} opens", self.keyring.seals);
        self.keyring.seals = id;
        self.keyring_changed(step, "quorum", AuditAction::GossipKeySeals, detail);
        Ok(Outcome::Done)
    }

    /// Forgets a key that does not seal any more.
    pub(super) fn retire_key(&mut self, step: &mut Step, id: u32) -> Result<Outcome, Refusal> {
        if !self.keyring.keys.iter().any(|key| key.id == id) {
            return Ok(Outcome::Done);
        }
        if id >= self.keyring.seals {
            return Err(Refusal::Malformed { why: format!("key {id} seals or is to, and stays in the ring") });
        }
        self.keyring.keys.retain(|key| key.id != id);
        let detail = format!("key {id} opens no more, key {} seals", self.keyring.seals);
        self.keyring_changed(step, "quorum", AuditAction::GossipKeyRetired, detail);
        Ok(Outcome::Done)
    }

    fn keyring_changed(&mut self, step: &mut Step, actor: &str, action: AuditAction, detail: String) {
        self.keyring.revision = step.revision;
        step.changed.keyring = true;
        self.record(step, actor, action, Subject::default(), detail);
    }
}
