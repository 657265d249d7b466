//! The keys of this node's gossip: the configured key until the quorum has a key ring, then that
//! ring. It is kept on disk, so that an agent that starts without a quorum can still gossip.
//!
//! ```text
//!   gossip-keys.json (mode 0600) ──at the start──▶ gossip ◀── in use ── ring ◀── session (Down::Keyring)
//!              ▲                                                         │
//!              └──────────────────── kept ───────────────────────────────┘   only then reported to the quorum
//! ```
//!
//! **After a recovery from a backup** the quorum's ring may be older than the key that the agents
//! seal with. Gossip among them must not stop: an agent whose sealing key is newer than the ring's
//! keys continues to seal with it, and also opens with the ring's keys, until a rotation has
//! brought all agents to the ring's next key. A key older than the ring's oldest one was retired by
//! all agents and is dropped.

use crate::Membership;
use lattice_agent_common::files;
use lattice_agent_common::node_problems::NodeProblems;
use lattice_gossip::{Key, Keyring, KeyringError};
use lattice_ledger::keyring::{self as agreed, CONFIGURED, KeySource, Secret};
use lattice_model::{Generation, Revision};
use lattice_quorum_client::wire::HeldKeys;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use thiserror::Error;

const VERSION: u32 = 1;
/// The subject in this node's problems.
const SUBJECT: &str = "gossip keys";

/// Why the key file cannot be used.
#[derive(Debug, Error)]
enum UnusableRing {
    #[error("it cannot be read: {0}")]
    Read(#[source] std::io::Error),
    #[error("it is not JSON: {0}")]
    NoJson(#[source] serde_json::Error),
    #[error("its version is {found}, this agent's {VERSION}")]
    Version { found: serde_json::Value },
    #[error("it does not match its checksum")]
    Checksum,
    #[error("{0}")]
    Form(#[source] serde_json::Error),
    #[error(transparent)]
    Keyring(#[from] KeyringError),
}

/// A key ring, as the agent uses and stores it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Ring {
    /// Order among the quorum's rings: the newest one counts.
    generation: Generation,
    revision: Revision,
    seals: u32,
    /// `None`: the configured key.
    keys: BTreeMap<u32, Option<Secret>>,
}

impl Ring {
    /// The ring before the quorum has one: the configured key alone.
    fn configured() -> Self {
        Self { generation: Generation(0), revision: Revision(0), seals: CONFIGURED, keys: BTreeMap::from([(CONFIGURED, None)]) }
    }

    fn of(generation: Generation, ring: &agreed::Keyring) -> Self {
        let secret = |source: &KeySource| match source {
            KeySource::Configured => None,
            KeySource::Made { secret, .. } => Some(secret.clone()),
        };
        let keys = ring.keys.iter().map(|key| (key.id, secret(&key.source))).collect();
        Self { generation, revision: ring.revision, seals: ring.seals, keys }
    }

    /// The ring to use after the quorum has sent `next`; see the module's last paragraph.
    fn followed_by(&self, mut next: Self) -> Self {
        if next.keys.first_key_value().is_some_and(|(oldest, _)| self.seals > *oldest)
            && let Some(key) = self.keys.get(&self.seals)
        {
            next.keys.entry(self.seals).or_insert_with(|| key.clone());
            next.seals = next.seals.max(self.seals);
        }
        next
    }

    fn keyring(&self, configured: &Key) -> Result<Keyring, KeyringError> {
        let key = |secret: &Option<Secret>| secret.as_ref().map_or_else(|| configured.clone(), |secret| Key::from_bytes(secret.0));
        Keyring::new(self.keys.iter().map(|(id, secret)| (*id, key(secret))).collect(), self.seals)
    }

    fn held(&self) -> HeldKeys {
        HeldKeys { opens: self.keys.keys().copied().collect(), seals: self.seals }
    }

    fn read(bytes: &[u8]) -> Result<Self, UnusableRing> {
        let json: serde_json::Value = serde_json::from_slice(bytes).map_err(UnusableRing::NoJson)?;
        if json["version"] != VERSION {
            return Err(UnusableRing::Version { found: json["version"].clone() });
        }
        if json["checksum"] != files::checksum(&json["ring"]) {
            return Err(UnusableRing::Checksum);
        }
        serde_json::from_value(json["ring"].clone()).map_err(UnusableRing::Form)
    }

    fn written(&self) -> serde_json::Result<Vec<u8>> {
        let ring = serde_json::to_value(self)?;
        let checksum = files::checksum(&ring);
        serde_json::to_vec(&serde_json::json!({ "version": VERSION, "checksum": checksum, "ring": ring }))
    }
}

/// The keys in use and their file.
pub struct GossipKeys {
    path: PathBuf,
    configured: Key,
    ring: Ring,
    keyring: Keyring,
    /// The ring that is in use and on disk: this one is reported to the quorum.
    kept: Ring,
    problems: NodeProblems,
}

impl GossipKeys {
    /// Loads the stored ring, or else the configured key. An unusable file is set aside and
    /// reported in `notes`: without the ring, other nodes ignore this node's gossip until the
    /// quorum has sent it again.
    pub fn open(state_dir: &Path, configured: Key, problems: NodeProblems, notes: &mut Vec<String>) -> Self {
        let path = state_dir.join("gossip-keys.json");
        let found = match std::fs::read(&path) {
            Ok(bytes) => Ring::read(&bytes).and_then(|ring| Ok((ring.keyring(&configured)?, ring))).map(|(keyring, ring)| (ring, keyring)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok((Ring::configured(), Keyring::configured(configured.clone()))),
            Err(error) => Err(UnusableRing::Read(error)),
        };
        let (ring, keyring) = found.unwrap_or_else(|why| {
            let kept = match files::set_file_aside(&path) {
                Ok(kept) => format!("It is kept as {}; remove it when nobody needs it", kept.display()),
                Err(error) => format!("It cannot be moved aside ({error})"),
            };
            let note = format!(
                "gossip keys: {} is not usable ({why}). {kept}. Until the quorum has sent the keys again, other nodes may ignore this node's gossip",
                path.display()
            );
            tracing::error!("{note}");
            notes.push(note);
            (Ring::configured(), Keyring::configured(configured.clone()))
        });
        Self { path, configured, kept: ring.clone(), ring, keyring, problems }
    }

    /// The keys that gossip starts with.
    pub fn keyring(&self) -> &Keyring {
        &self.keyring
    }

    /// The keys that this node has, as reported to the quorum.
    pub fn held(&self) -> HeldKeys {
        self.kept.held()
    }

    /// Takes the quorum's ring, unless a newer one is known: first into use, then onto the disk.
    pub async fn accept_ring(&mut self, generation: Generation, ring: &agreed::Keyring, membership: &Membership) {
        if (generation, ring.revision) <= (self.ring.generation, self.ring.revision) {
            return;
        }
        let next = self.ring.followed_by(Ring::of(generation, ring));
        let keyring = match next.keyring(&self.configured) {
            Ok(keyring) => keyring,
            Err(error) => {
                tracing::error!(%error, "the quorum's gossip keys are invalid; the present ones stay in use");
                return;
            }
        };
        tracing::info!(keys = ?next.keys.keys().collect::<Vec<_>>(), seals = next.seals, "the gossip keys have changed");
        membership.rekey(keyring.clone()).await;
        (self.ring, self.keyring) = (next, keyring);
        self.store();
    }

    /// Writes the ring to disk unless that is done. If the disk is full, a later call tries again.
    pub fn store(&mut self) {
        if self.kept == self.ring {
            return;
        }
        let written = self.ring.written().map_err(std::io::Error::other);
        match written.and_then(|text| files::replace(&self.path, &text)) {
            Ok(()) => {
                self.kept = self.ring.clone();
                self.problems.clear(SUBJECT);
            }
            Err(error) => {
                let why = format!("{} cannot be written ({error}); until it is, a rotation waits for this node", self.path.display());
                tracing::warn!(why, "gossip keys");
                self.problems.set(SUBJECT, why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(generation: u64, revision: u64, keys: &[u32], seals: u32) -> Ring {
        let secret = |id: u32| (id != CONFIGURED).then_some(Secret([id as u8; 32]));
        let keys = keys.iter().map(|id| (*id, secret(*id))).collect();
        Ring { generation: Generation(generation), revision: Revision(revision), seals, keys }
    }

    fn ids(ring: &Ring) -> (Vec<u32>, u32) {
        (ring.keys.keys().copied().collect(), ring.seals)
    }

    #[test]
    fn the_quorums_ring_is_taken_as_it_is_while_its_keys_follow_each_other() {
        let mut now = Ring::configured();
        for (keys, seals) in [(&[0, 1][..], 0), (&[0, 1], 1), (&[1], 1), (&[1, 2], 1), (&[1, 2], 2), (&[2], 2)] {
            let next = ring(1, 9, keys, seals);
            now = now.followed_by(next.clone());
            assert_eq!(now, next);
        }
        // The agent missed two rotations.
        assert_eq!(ids(&ring(1, 1, &[0], 0).followed_by(ring(1, 9, &[2, 3], 2))), (vec![2, 3], 2));
        assert_eq!(ids(&ring(1, 1, &[1, 2], 1).followed_by(ring(1, 9, &[3], 3))), (vec![3], 3));
    }

    #[test]
    fn a_recovered_quorums_older_ring_keeps_the_sealing_key_until_the_next_key_seals() {
        for oldest in [0, 1] {
            let mut now = ring(1, 50, &[2], 2);
            now = now.followed_by(ring(9, 5, &[oldest, 9], oldest));
            assert_eq!(ids(&now), (vec![oldest, 2, 9], 2), "it opens the ring's keys, and is heard by those that have not taken it yet");
            now = now.followed_by(ring(9, 6, &[oldest, 9], 9));
            assert_eq!(ids(&now), (vec![oldest, 2, 9], 9), "it opens what the others may still seal with");
            now = now.followed_by(ring(9, 7, &[9], 9));
            assert_eq!(ids(&now), (vec![9], 9));
        }
        assert_eq!(ids(&ring(1, 50, &[2], 2).followed_by(ring(9, 5, &[1], 1))), (vec![1, 2], 2));
    }

    #[test]
    fn stored_keys_are_read_again_and_a_damaged_file_is_moved_aside_and_reported() {
        use std::os::unix::fs::PermissionsExt;
        let dir = std::env::temp_dir().join(format!("lattice-gossip-keys-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let (mut notes, configured) = (Vec::new(), Key::from_bytes([7; 32]));
        let mut open = || GossipKeys::open(&dir, configured.clone(), NodeProblems::default(), &mut notes);
        let mut keys = open();
        assert_eq!((keys.held(), keys.keyring().clone()), (Ring::configured().held(), Keyring::configured(configured.clone())));
        keys.ring = ring(1, 9, &[1, 2], 1);
        keys.store();
        let file = dir.join("gossip-keys.json");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let again = open();
        assert_eq!((again.ring.clone(), again.held()), (keys.ring.clone(), HeldKeys { opens: vec![1, 2], seals: 1 }));
        let whole = std::fs::read(&file).unwrap();
        let empty = ring(1, 9, &[], 1).written().unwrap();
        for bad in [&whole[..whole.len() - 9], b"", &empty, String::from_utf8(whole.clone()).unwrap().replace('2', "3").as_bytes()] {
            std::fs::write(&file, bad).unwrap();
            assert_eq!(open().ring, Ring::configured());
            assert!(!file.exists());
        }
        assert_eq!(notes.len(), 4);
        assert!(notes[0].contains("is kept as") && !notes.concat().contains("[2,2,2"), "{notes:?}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
