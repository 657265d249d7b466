//! Messages between agents about checkpoints.

use lattice_node::Saved;
use rkyv::{Archive, Deserialize, Serialize};

/// From an `api` agent, for a user or for the broker: make a checkpoint of the allocation, whose
/// head is here. A request with the id of this claim's last checkpoint follows that checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct CheckpointOpen {
    pub id: [u8; 16],
    pub allocation: [u8; 16],
    pub epoch: u64,
    /// Timeout of the checkpoint, in milliseconds.
    pub length_ms: u64,
    pub uid: u32,
    pub user: String,
}

/// Progress of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum CheckpointItem {
    /// The checkpoint was not begun.
    Refused { why: String },
    /// State of the checkpoint with this id; it is another id than the requested one if a
    /// checkpoint was already under way. `state` is the state's name; `detail` says what it waits
    /// for, for people.
    Progress { id: [u8; 16], state: String, detail: String },
    /// The checkpoint has ended. Nothing follows.
    Ended { id: [u8; 16], state: String, why: String, complete: bool, step: Option<u64>, bytes: u64 },
}

/// The allocations with their head on this node that are saving themselves now.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct SavingNow {
    /// At most 1000.
    pub allocations: Vec<[u8; 16]>,
}

/// From the allocation's head to each of its nodes: the node's part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct PartOpen {
    pub id: [u8; 16],
    pub allocation: [u8; 16],
    pub epoch: u64,
    pub round: u32,
    /// The application's deadline, in milliseconds since 1970.
    pub deadline_ms: u64,
}

/// From the head, after [`PartOpen`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum ToSaver {
    /// Every node can ask its work: ask it now.
    Go,
    /// The head has given this checkpoint up.
    Stop,
}

/// State of a node's part; the last message counts.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum FromSaver {
    /// The work on this node can be asked to save itself; `idle`: no process of the allocation runs
    /// there.
    Able { idle: bool },
    /// The application was asked.
    Saving,
    /// The node cannot save its part, or it failed.
    Failed { why: String },
    /// The part is in the store.
    Saved { files: u64, bytes: u64, step: Option<u64>, manifest: Option<String> },
    /// The application asks to be asked again after this time.
    Deferred { for_ms: u64 },
    /// Progress as the application reports it.
    Progressed { percent: Option<u8>, left_ms: Option<u64> },
}

impl From<Saved> for FromSaver {
    fn from(saved: Saved) -> Self {
        Self::Saved { files: saved.files, bytes: saved.bytes, step: saved.step, manifest: saved.manifest }
    }
}
