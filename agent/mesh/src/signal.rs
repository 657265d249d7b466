//! The wire form of a signal to an allocation's work on a node.

use rkyv::{Archive, Deserialize, Serialize};

/// A request to send a signal to an allocation's work.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct SignalOpen {
    pub allocation: [u8; 16],
    pub epoch: u64,
    /// The user who sends the signal; the calling agent vouches for them.
    pub uid: u32,
    pub user: String,
    pub signal: i32,
    pub to: WireSignalTarget,
}

/// The wire form of [`lattice_runtime::shim::SignalTarget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum WireSignalTarget {
    Ranks,
    Launches,
    Script,
}

/// The answer to [`SignalOpen`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum SignalAnswer {
    Refused {
        why: String,
    },
    /// The signal was sent to this many processes.
    Sent {
        processes: u32,
    },
}
