//! The types with which openraft is used.

use crate::ledger::{Command, Outcome};
use crate::wire::Refusal;
use bytes::Bytes;
use openraft::TokioRuntime;
use serde::{Deserialize, Serialize};

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
/// A log entry's id: term, leader, index.
pub type LogId = openraft::LogId<u64>;
/// A log entry.
pub type Entry = openraft::Entry<TypeConfig>;
/// A vote.
pub type Vote = openraft::Vote<u64>;
/// A failure of the disk, as openraft takes it.
pub type StorageError = openraft::StorageError<u64>;
/// Who the members are, and since when.
pub type StoredMembership = openraft::StoredMembership<u64, Peer>;
/// What a snapshot is of.
pub type SnapshotMeta = openraft::SnapshotMeta<u64, Peer>;

/// Commands that are committed together: one entry, one sync. Encoded once, by whoever proposes; the log and the
/// network carry the same bytes.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Proposal(pub Bytes);

impl Proposal {
    /// Encodes commands.
    pub fn new(commands: &[Command]) -> Result<Self, crate::pack::PackError> {
        crate::pack::to_bytes(&commands).map(|bytes| Self(bytes.into()))
    }

    /// Decodes them again.
    pub fn commands(&self) -> Result<Vec<Command>, crate::pack::PackError> {
        crate::pack::from_bytes(&self.0)
    }
}

impl std::fmt::Debug for Proposal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Proposal({} bytes)", self.0.len())
    }
}

/// What the commands of one entry were answered with, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replies(pub Vec<Result<Outcome, Refusal>>);

/// Where a member is reached, as the Raft membership has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// By agents, `host:port`.
    pub service: String,
    /// By members, `host:port`.
    pub raft: String,
}
