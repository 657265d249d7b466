//! A signal to an allocation's work on a node, on the wire.

use rkyv::{Archive, Deserialize, Serialize};

/// Whose work gets which signal.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct SignalOpen {
    pub allocation: [u8; 16],
    pub epoch: u64,
    /// The user for whom the calling agent vouches.
    pub uid: u32,
    pub user: String,
    pub signal: i32,
    pub to: WireWhom,
}

/// As [`lattice_runtime::shim::SignalWhom`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum WireWhom {
    Ranks,
    Launches,
    Script,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum SignalAnswer {
    Refused {
        why: String,
    },
    /// To so many processes.
    Sent {
        processes: u32,
    },
}
