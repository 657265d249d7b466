//! What agents say to each other about checkpoints.

use lattice_node::Saved;
use rkyv::{Archive, Deserialize, Serialize};

/// From an `api` agent, for a user: save the allocation whose head you are. The same id again follows the checkpoint that there is.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct CheckpointOpen {
    pub id: [u8; 16],
    pub allocation: [u8; 16],
    pub epoch: u64,
    /// How long it may take, in milliseconds.
    pub length_ms: u64,
    pub uid: u32,
    pub user: String,
}

/// How it goes.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum CheckpointItem {
    /// It was not begun.
    Refused { why: String },
    /// The checkpoint of this id is that far; it is another one's where there was one under way. A word, and for people what is
    /// waited for.
    Stands { id: [u8; 16], word: String, detail: String },
    /// It is over. Nothing follows.
    Ended { id: [u8; 16], word: String, why: String, complete: bool, step: Option<u64>, bytes: u64 },
}

/// Work that saves itself now, whose head tells of it.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct SavingNow {
    /// At most 1000.
    pub allocations: Vec<[u8; 16]>,
}

/// From the allocation's head, to each of its nodes: its part of a round.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct PartOpen {
    pub id: [u8; 16],
    pub allocation: [u8; 16],
    pub epoch: u64,
    pub round: u32,
    /// By when, in milliseconds since 1970: for the application.
    pub deadline_ms: u64,
}

/// From the head, after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum ToSaver {
    /// Every node would hear: send the signal.
    Go,
    /// Nobody waits for this round any more.
    Stop,
}

/// What a node says of its part; the last word counts.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum FromSaver {
    /// What runs there would hear; `idle`: nothing of the allocation runs there.
    Able { idle: bool },
    /// It was asked.
    Saving,
    /// It cannot, or came to nothing.
    Failed { why: String },
    /// It is in the store.
    Saved { files: u64, bytes: u64, step: Option<u64>, manifest: Option<String> },
    /// The application wants to be asked again after so long.
    Deferred { for_ms: u64 },
    /// How far it says that it is.
    Progressed { percent: Option<u8>, left_ms: Option<u64> },
}

impl From<Saved> for FromSaver {
    fn from(saved: Saved) -> Self {
        Self::Saved { files: saved.files, bytes: saved.bytes, step: saved.step, manifest: saved.manifest }
    }
}
