//! What the agents of a launch's tree say to each other. One stream for each edge, opened by the parent.
//!
//! Whoever is connected again tells all that it knows (decision 4), so nothing here is acknowledged but standard input, which nobody
//! could tell again. Of calls the shims themselves see to it that they are answered.

use super::call::WireCall;
use super::frame::FrameError;
use super::input::{WirePiece, WireTaken};
use super::launch::{ToHead, WireLaunch};
use super::shape::WireShape;
use lattice_pmi::{FANOUT_MAX, FANOUT_MIN, Subtree};
use rkyv::{Archive, Deserialize, Serialize};

/// A subtree of a launch, for the agent of its first part.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct BranchOpen {
    pub launch: WireLaunch,
    pub shape: WireShape,
    /// The head's: all agents of a launch reckon with the same.
    pub fanout: u32,
    pub first: u32,
    pub end: u32,
}

impl BranchOpen {
    /// The subtree, within the launch's parts, and the fan-out.
    pub fn subtree(&self) -> Result<(Subtree, u32), FrameError> {
        let subtree = Subtree { first: self.first, end: self.end };
        let whole = Subtree::whole(u32::try_from(self.launch.nodes.len()).unwrap_or(u32::MAX));
        if subtree.is_empty() || !whole.contains(subtree) || !(FANOUT_MIN..=FANOUT_MAX).contains(&self.fanout) {
            return Err(FrameError::Malformed);
        }
        Ok((subtree, self.fanout))
    }
}

/// From a parent: for the whole subtree.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum Down {
    /// Every part came to this fence. `packed_from`: so many bytes, of which `blob` is the zstd.
    FenceDone { number: u32, blob: Vec<u8>, packed_from: Option<u32> },
    /// A fence waits too long: who of each node's ranks has not come?
    NameAbsent,
    /// Bring the ranks down.
    Abort { code: i32, why: String },
    /// The launch is over and its end was told: it need not be remembered.
    Forget,
    /// Standard input, for those parts that have ranks which read it.
    Input(Box<WirePiece>),
    /// For the server of one part.
    Call(Box<WireCall>),
}

/// From the agent that serves a subtree.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum Up {
    /// It is served. Said first.
    Serving,
    /// Of one part.
    Said { part: u32, said: ToHead },
    /// All of the subtree came to this fence.
    Fence { number: u32, blob: Vec<u8> },
    /// Parts of the subtree that cannot be reached now, or have not told yet all that they know; until this is said, all.
    Away { parts: Vec<u32> },
    /// Parts of the subtree that others of it wait for.
    Absent { number: u32, parts: Vec<u32> },
    /// Another parent has this subtree now. Nothing follows.
    Replaced,
    /// Its agent does not have the allocation under this epoch: it has not taken its work up yet, or its share ended by itself, which
    /// the quorum is told. It is asked again, until the quorum says what becomes of the allocation. Nothing follows.
    NotHere { why: String },
    /// A part of the subtree, whose agent is not reached from the one above it: perhaps the head reaches it. Said again from time to time.
    Unreached { part: u32 },
    /// How much of standard input every rank of the subtree took that reads it; not said before all such parts have told. `again`:
    /// what is beyond is to be sent.
    Input { taken: WireTaken, again: bool },
}
