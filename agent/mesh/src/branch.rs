//! Messages between the agents of a launch's tree. Each edge has one stream, opened by the parent.
//!
//! After a reconnect an agent sends everything that it knows (decision 4), so nothing here is
//! acknowledged, except standard input, which cannot be read a second time. Calls need no
//! acknowledgement: the shims repeat them until they are answered.

use super::call::WireCall;
use super::frame::FrameError;
use super::input::{WireInputAck, WireInputChunk};
use super::launch::{ToHead, WireLaunch};
use super::shape::WireShape;
use lattice_pmi::{FANOUT_MAX, FANOUT_MIN, Subtree};
use rkyv::{Archive, Deserialize, Serialize};

/// A subtree of a launch, for the agent that runs its first part.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct BranchOpen {
    pub launch: WireLaunch,
    pub shape: WireShape,
    /// The head's fan-out: all agents of a launch compute the tree with the same one.
    pub fanout: u32,
    pub first: u32,
    pub end: u32,
}

impl BranchOpen {
    /// The subtree and the fan-out; an error if the subtree is empty or not within the launch's
    /// parts, or if the fan-out is out of bounds.
    pub fn subtree(&self) -> Result<(Subtree, u32), FrameError> {
        let subtree = Subtree { first: self.first, end: self.end };
        let whole = Subtree::whole(u32::try_from(self.launch.nodes.len()).unwrap_or(u32::MAX));
        if subtree.is_empty() || !whole.contains(subtree) || !(FANOUT_MIN..=FANOUT_MAX).contains(&self.fanout) {
            return Err(FrameError::Malformed);
        }
        Ok((subtree, self.fanout))
    }
}

/// From a parent to the whole subtree.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum Down {
    /// Every part has reached this fence. `packed_from`: `blob` is zstd-compressed, and has this
    /// many bytes when decompressed.
    FenceDone { number: u32, blob: Vec<u8>, packed_from: Option<u32> },
    /// A fence has waited too long: report the ranks that have not reached it.
    NameAbsent,
    /// End the ranks.
    Abort { code: i32, why: String },
    /// The launch has ended and the end was reported: the subtree may forget it.
    Forget,
    /// Standard input for the parts that have ranks which read it.
    Input(Box<WireInputChunk>),
    /// A call for the server of one part.
    Call(Box<WireCall>),
}

/// From the agent that serves a subtree.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum Up {
    /// The agent serves the subtree. Sent first.
    Serving,
    /// A message of one part.
    FromPart { part: u32, message: ToHead },
    /// All parts of the subtree have reached this fence.
    Fence { number: u32, blob: Vec<u8> },
    /// Parts of the subtree that are unreachable now, or have not yet sent all that they know.
    /// Until the first such message, all parts count as unreachable.
    UnreachableParts { parts: Vec<u32> },
    /// Parts that have not reached a fence in which others of the subtree wait.
    Absent { number: u32, parts: Vec<u32> },
    /// Another parent serves this subtree now. Nothing follows.
    Replaced,
    /// The agent does not have the allocation under this epoch: either it has not adopted its work
    /// yet, or its share ended by itself, and the agent reports that to the quorum. The parent
    /// retries until the quorum decides about the allocation. Nothing follows.
    NotHere { why: String },
    /// The agent above this part cannot reach the part's agent; perhaps the head can. Repeated from
    /// time to time.
    Unreached { part: u32 },
    /// How much of standard input every reading rank of the subtree has taken; first sent when all
    /// parts with such ranks have reported. `again`: send what follows that position.
    Input { taken: WireInputAck, again: bool },
}
