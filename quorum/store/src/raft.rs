//! The types with which openraft is used.

pub use crate::roster::{LogId, Peer, StoredMembership};

use bytes::Bytes;
use lattice_ledger::{Command, Outcome, Refusal};
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
/// A disk failure in openraft's form.
pub type StorageError = openraft::StorageError<u64>;
/// The metadata of a snapshot.
pub type SnapshotMeta = openraft::SnapshotMeta<u64, Peer>;

/// Commands that are committed together: one entry, one sync. The proposing member encodes them
/// once; the log and the network use the same bytes.
#[derive(Clone)]
pub struct Proposal {
    /// The encoded commands.
    bytes: Bytes,
    /// The decoded commands, if this process encoded them and has not applied them yet: so the
    /// proposing member need not decode them.
    known: Arc<Mutex<Option<Vec<Command>>>>,
}

impl Proposal {
    /// Encodes commands.
    pub fn new(commands: Vec<Command>) -> Result<Self, lattice_api::pack::PackError> {
        let bytes = lattice_api::pack::to_bytes(&commands)?.into();
        Ok(Self { bytes, known: Arc::new(Mutex::new(Some(commands))) })
    }

    /// A proposal from bytes that were encoded elsewhere.
    pub fn encoded(bytes: Bytes) -> Self {
        Self { bytes, known: Arc::default() }
    }

    /// The commands to apply. Drops the decoded commands; a later call decodes the bytes again.
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

/// The results of the commands of one entry, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replies(pub Vec<Result<Outcome, Refusal>>);
