//! The types with which openraft is used.

pub use crate::roster::{LogId, Peer, StoredMembership};

use bytes::Bytes;
use lattice_ledger::{Command, Outcome};
use lattice_quorum_client::wire::Refusal;
use openraft::TokioRuntime;
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::sync::Arc;

openraft::declare_raft_types!(
    /// Lattice's Raft.
    pub TypeConfig:
        D = Proposal,
        R = Replies,
        NodeId = u64,
        Node = Peer,
        Entry = openraft::Entry<TypeConfig>,
        SnapshotData = tokio::fs::File,
        AsyncRuntime = TokioRuntime
);

/// The handle to this member's Raft.
pub type Raft = openraft::Raft<TypeConfig>;
/// A log entry.
pub type Entry = openraft::Entry<TypeConfig>;
/// A vote.
pub type Vote = openraft::Vote<u64>;
/// A failure of the disk, as openraft takes it.
pub type StorageError = openraft::StorageError<u64>;
/// What a snapshot is of.
pub type SnapshotMeta = openraft::SnapshotMeta<u64, Peer>;

/// Commands that are committed together: one entry, one sync. Encoded once, by whoever proposes; the log and the
/// network carry the same bytes.
#[derive(Clone)]
pub struct Proposal {
    /// The commands, encoded.
    bytes: Bytes,
    /// The same, where this process encoded them and they are not applied yet: who proposed need not decode them.
    known: Arc<Mutex<Option<Vec<Command>>>>,
}

impl Proposal {
    /// Encodes commands.
    pub fn new(commands: Vec<Command>) -> Result<Self, lattice_api::pack::PackError> {
        let bytes = lattice_api::pack::to_bytes(&commands)?.into();
        Ok(Self { bytes, known: Arc::new(Mutex::new(Some(commands))) })
    }

    /// Of bytes that were encoded elsewhere.
    pub fn encoded(bytes: Bytes) -> Self {
        Self { bytes, known: Arc::default() }
    }

    /// The commands, to be applied.
    pub fn commands(&self) -> Result<Vec<Command>, lattice_api::pack::PackError> {
        let known = self.known.lock().take();
        known.map_or_else(|| lattice_api::pack::from_bytes(&self.bytes), Ok)
    }
}

impl PartialEq for Proposal {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Proposal {}

impl Serialize for Proposal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.bytes.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Proposal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Bytes::deserialize(deserializer).map(Self::encoded)
    }
}

impl std::fmt::Debug for Proposal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Proposal({} bytes)", self.bytes.len())
    }
}

/// What the commands of one entry were answered with, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replies(pub Vec<Result<Outcome, Refusal>>);
