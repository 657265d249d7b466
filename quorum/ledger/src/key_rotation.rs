//! How one gossip key follows another without a gap.
//!
//! ```text
//!   settled ──AddKey──▶ brought in ──SealWithKey──▶ sealing ──RetireKey──▶ settled
//!   1 seals             1 seals, 2 opens            2 seals, 1 opens       2 seals
//! ```
//!
//! At the beginning there is no ring: agents seal with the key of their configuration, which is key 0 of the first rotation.
//! An operator adds a key; whoever proposes that has drawn it. The steps behind it are the leader's, who hears from the
//! agents which keys they have (see `rotation`): none is taken before everybody that can be heard is ready for it.
//! A second rotation waits for the end of the first.

use super::refusal::Refusal;
use super::state::keyring::{CONFIGURED, GossipKey, KeySource, Keyring, Secret};
use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_model::AuditAction;

impl Ledger {
    /// The gossip keys.
    pub fn keyring(&self) -> &Keyring {
        &self.keyring
    }

    /// Adds a key, or names the one that is being brought in: a rotation goes on to its end.
    pub(super) fn add_key(&mut self, context: &mut ApplyContext, secret: &Secret, by: &str) -> Result<Outcome, Refusal> {
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
        let source = KeySource::Made { secret: secret.clone(), at: context.at, by: by.to_owned() };
        self.keyring.keys.push(GossipKey { id, source });
        let detail = format!("key {id} opens beside key {}, which seals", self.keyring.seals);
        self.keyring_changed(context, by, AuditAction::GossipKeyAdded, detail);
        Ok(Outcome::KeyAdded { id })
    }

    /// The newest key seals from now on.
    pub(super) fn seal_with_key(&mut self, context: &mut ApplyContext, id: u32) -> Result<Outcome, Refusal> {
        if self.keyring.seals == id {
            return Ok(Outcome::Done);
        }
        if self.keyring.newest() != id {
            return Err(Refusal::Malformed { why: format!("key {id} is not the newest of the ring, which alone may seal next") });
        }
        let detail = format!("key {id} seals, key {} opens", self.keyring.seals);
        self.keyring.seals = id;
        self.keyring_changed(context, "quorum", AuditAction::GossipKeySeals, detail);
        Ok(Outcome::Done)
    }

    /// Forgets a key that does not seal any more.
    pub(super) fn retire_key(&mut self, context: &mut ApplyContext, id: u32) -> Result<Outcome, Refusal> {
        if !self.keyring.keys.iter().any(|key| key.id == id) {
            return Ok(Outcome::Done);
        }
        if id >= self.keyring.seals {
            return Err(Refusal::Malformed { why: format!("key {id} seals or is to, and stays in the ring") });
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
