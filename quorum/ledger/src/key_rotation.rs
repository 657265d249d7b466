//! Rotation of the gossip keys without interruption.
//!
//! ```text
//!   settled ──AddKey──▶ introduced ──SealWithKey──▶ in use ──RetireKey─────▶ settled
//!   key 1 encrypts      1 encrypts, 2 decrypts         2 encrypts, 1 decrypts   2 encrypts
//! ```
//!
//! At the beginning there is no keyring: agents encrypt with the key of their configuration, which
//! is key 0 of the first rotation. An operator adds a key, which the proposing member has
//! generated. The leader takes the further steps: agents report which keys they have (see
//! `rotation` in `lattice-quorum`), and a step is taken only when all reachable agents are ready
//! for it. A second rotation waits for the end of the first.

use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_ledger_state::keyring::{CONFIGURED, GossipKey, KeySource, Keyring, Secret};
use lattice_ledger_state::refusal::Refusal;
use lattice_model::AuditAction;

impl Ledger {
    /// The gossip keys.
    pub fn keyring(&self) -> &Keyring {
        &self.keyring
    }

    /// Adds a key. If a key is already being introduced, returns that one: a rotation runs to its
    /// end.
    pub(super) fn add_key(&mut self, context: &mut ApplyContext, secret: &Secret, by: &str) -> Result<Outcome, Refusal> {
        let under_way = self.keyring.is_rotating().then(|| self.keyring.newest());
        if let Some(id) = self.keyring.of(secret).or(under_way) {
            return Ok(Outcome::KeyAdded { id });
        }
        // The generation is 1, or after a recovery from a backup the time of the recovery: agents
        // may have keys that are not in the backup, and their ids must not be used again.
        let next = (u64::from(self.keyring.newest()) + 1).max(self.generation.0);
        let most = || Refusal::TooMany { what: "gossip keys".to_owned(), most: u64::from(u32::MAX) };
        let id = u32::try_from(next).map_err(|_| most())?;
        if self.keyring.is_empty() {
            self.keyring.keys.push(GossipKey { id: CONFIGURED, source: KeySource::Configured });
        }
        self.revocations.rekeyed();
        let source = KeySource::Made { secret: secret.clone(), at: context.at, by: by.to_owned() };
        self.keyring.keys.push(GossipKey { id, source });
        let detail = format!("key {id} opens beside key {}, which seals", self.keyring.seals);
        self.keyring_changed(context, by, AuditAction::GossipKeyAdded, detail);
        Ok(Outcome::KeyAdded { id })
    }

    /// The newest key encrypts from now on.
    pub(super) fn seal_with_key(&mut self, context: &mut ApplyContext, id: u32) -> Result<Outcome, Refusal> {
        if self.keyring.seals == id {
            return Ok(Outcome::Done);
        }
        if self.keyring.newest() != id {
            return Err(Refusal::Malformed { why: format!("key {id} is not the newest key, and only that one may encrypt next") });
        }
        let detail = format!("key {id} seals, key {} opens", self.keyring.seals);
        self.keyring.seals = id;
        self.keyring_changed(context, "quorum", AuditAction::GossipKeySeals, detail);
        Ok(Outcome::Done)
    }

    /// Deletes a key that no longer encrypts.
    pub(super) fn retire_key(&mut self, context: &mut ApplyContext, id: u32) -> Result<Outcome, Refusal> {
        if !self.keyring.keys.iter().any(|key| key.id == id) {
            return Ok(Outcome::Done);
        }
        if id >= self.keyring.seals {
            return Err(Refusal::Malformed { why: format!("key {id} encrypts now or will next, so it stays") });
        }
        self.keyring.keys.retain(|key| key.id != id);
        let detail = format!("key {id} opens no more, key {} seals", self.keyring.seals);
        self.keyring_changed(context, "quorum", AuditAction::GossipKeyRetired, detail);
        Ok(Outcome::Done)
    }

    fn keyring_changed(&mut self, context: &mut ApplyContext, actor: &str, action: AuditAction, detail: String) {
        self.keyring.revision = context.revision;
        context.changed.keyring = true;
        self.record(context, actor, action, Subject::default(), detail);
    }
}
