//! The protocol between the shim and `lattice-pmix`, the process beside it that serves PMIx with
//! the machine's library.
//!
//! ```text
//!   shim ── ToBridge ──▶ lattice-pmix      length (u32, little endian, at most FRAME_BYTES_MAX) + MessagePack
//!        ◀─ FromBridge ─
//! ```
//!
//! A shim survives upgrades and starts the bridge of the installed version, so fields are encoded
//! with names, and later fields need defaults. The bridge runs as the user, so the shim reads its
//! messages with limits, and an invalid message ends only the bridge's own launch.

use crate::blob::BLOB_BYTES_MAX;
use lattice_model::{LaunchSpec, NodeId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::marker::PhantomData;
use std::ops::Range;
use thiserror::Error;

/// Largest size of a frame in bytes, without its length: a fence's data and the message around it.
const FRAME_BYTES_MAX: usize = BLOB_BYTES_MAX + 1024;

/// Messages to the bridge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToBridge {
    /// The launch to serve; sent once, first.
    Serve(BridgeJob),
    /// The fence in which its ranks wait is complete; contains every node's data in the order of
    /// the nodes.
    Fenced {
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// The answer to a question ([`FromBridge::Ask`]). `found`: the values found by a lookup.
    Answered { id: u64, status: AnswerStatus, found: Vec<Published> },
    /// The data that a rank of another node has put ([`Question::Modex`]). `status` comes from that
    /// node's library.
    Modex {
        id: u64,
        status: i32,
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// Another node requests the data of a rank of this node, as soon as the rank has put it:
    /// answered by [`FromBridge::Modex`].
    GiveModex { from: u32, number: u64, rank: u32 },
    /// The shim has received [`FromBridge::Finalized`] or [`FromBridge::Aborted`] of this rank: the
    /// rank may continue.
    Left { rank: u32 },
    /// A rank of the launch died, here or elsewhere: notify the ranks that registered for it.
    /// `code` is its exit code, or 128 + signal.
    Died { rank: u32, code: i32 },
}

/// A rank's question about data in its launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    Publish(Published),
    Lookup {
        keys: Vec<String>,
    },
    Unpublish {
        keys: Vec<String>,
    },
    /// The data that a rank of another node has put.
    Modex {
        rank: u32,
    },
}

/// A published value in the library's representation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    pub key: String,
    pub rank: u32,
    /// The library's number for its type.
    pub data_type: u16,
    #[serde(with = "serde_bytes")]
    pub value: Vec<u8>,
}

/// The result of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AnswerStatus {
    Done,
    /// Some of several keys were not found.
    Partly,
    NotFound,
    Duplicate,
    Full,
    NotSupported,
}

/// Messages from the bridge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromBridge {
    /// It is ready: the library's version, and for each rank in the order of [`BridgeNode::ranks`]
    /// the variables by which it finds the server.
    Ready { library: String, env: Vec<Vec<(String, String)>> },
    /// It cannot serve, and exits.
    Failed { why: String },
    /// A rank is connected.
    Joined { rank: u32 },
    /// A rank announced a normal end.
    Finalized { rank: u32 },
    /// A rank requests the abort of the launch.
    Aborted { rank: u32, code: i32, message: String },
    /// A rank asks a question; `id` is assigned by the bridge.
    Ask { id: u64, question: Question },
    /// The data that a rank of this node has put, for another node.
    Modex {
        from: u32,
        number: u64,
        status: i32,
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// All ranks of this node wait in a fence, with this node's data.
    Fence {
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// A rank's connection ended without an announced end. Its process may still live, such as a
    /// shell that started the rank.
    Lost { rank: u32 },
}

/// Status for [`ToBridge::Modex`] when the request is invalid: `PMIX_ERR_NOT_SUPPORTED`.
pub const MODEX_NOT_SUPPORTED: i32 = -47;
/// Status when the data is too long: `PMIX_ERR_OUT_OF_RESOURCE`.
pub const MODEX_TOO_LONG: i32 = -29;

/// One launch from the viewpoint of one node's bridge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgeJob {
    /// The launch's name, the same on every node.
    pub namespace: String,
    /// All nodes, in the order in which their data is concatenated.
    pub nodes: Vec<BridgeNode>,
    /// The index of this node in `nodes`.
    pub here: u32,
    /// Number of ranks of each program; the first program has the lowest ranks.
    pub programs: Vec<u32>,
    /// A directory owned by the launch's user, for temporary files of the library and the ranks.
    pub directory: String,
}

/// One node of a launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgeNode {
    pub name: String,
    /// Its ranks, ascending: the first is local rank 0.
    pub ranks: Vec<u32>,
}

impl BridgeJob {
    /// The job for `node`; `None` if the launch has no ranks there.
    pub fn new(spec: &LaunchSpec, namespace: &str, node: &NodeId, directory: &str) -> Option<Self> {
        let with_ranks = spec.nodes_with_ranks();
        let here = with_ranks.iter().position(|n| &n.node == node)?;
        let empty = spec.nodes.len() - with_ranks.len();
        let mut nodes: Vec<_> = with_ranks.iter().map(|n| BridgeNode { name: n.node.to_string(), ranks: Vec::new() }).collect();
        for run in spec.runs() {
            nodes.get_mut(run.node.checked_sub(empty)?)?.ranks.extend(run.first..run.first + run.count);
        }
        let behind = spec.shape.programs.iter().map(|program| program.ranks);
        let first = behind.clone().fold(spec.size(), u32::saturating_sub);
        Some(Self {
            namespace: namespace.to_owned(),
            nodes,
            here: u32::try_from(here).ok()?,
            programs: [first].into_iter().chain(behind).collect(),
            directory: directory.to_owned(),
        })
    }

    /// Number of ranks in the whole launch.
    pub fn size(&self) -> u32 {
        self.nodes.iter().map(|n| u32::try_from(n.ranks.len()).unwrap_or(u32::MAX)).fold(0, u32::saturating_add)
    }

    /// The ranks of this node.
    pub fn local(&self) -> &[u32] {
        self.nodes.get(self.here as usize).map_or(&[], |n| &n.ranks)
    }

    /// Each program's index and ranks.
    pub fn programs(&self) -> impl Iterator<Item = (u32, Range<u32>)> {
        let mut end = 0_u32;
        (0..).zip(&self.programs).map(move |(number, ranks)| {
            let first = end;
            end = end.saturating_add(*ranks);
            (number, first..end)
        })
    }

    /// The nodes' names in the library's format: `n0,n1`.
    pub fn node_names(&self) -> String {
        self.nodes.iter().map(|n| n.name.as_str()).collect::<Vec<_>>().join(",")
    }

    /// The nodes' ranks in the library's format: `0,1;2,3`.
    pub fn node_ranks(&self) -> String {
        self.nodes.iter().map(|n| listed(&n.ranks)).collect::<Vec<_>>().join(";")
    }
}

/// `2,3`
pub fn listed(ranks: &[u32]) -> String {
    ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Why bytes are not a valid frame.
#[derive(Debug, Error)]
pub enum BridgeError {
    #[error("a frame of {bytes} bytes; at most {FRAME_BYTES_MAX} are accepted")]
    TooLarge { bytes: usize },
    #[error("a frame cannot be read")]
    Malformed(#[source] rmp_serde::decode::Error),
    #[error("a frame cannot be written")]
    Encode(#[source] rmp_serde::encode::Error),
}

/// Encodes one message, with its length prefix.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, BridgeError> {
    let mut frame = vec![0; 4];
    rmp_serde::encode::write_named(&mut frame, message).map_err(BridgeError::Encode)?;
    let bytes = frame.len() - 4;
    let length = u32::try_from(bytes).ok().filter(|_| bytes <= FRAME_BYTES_MAX).ok_or(BridgeError::TooLarge { bytes })?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// Decodes a stream that arrives in arbitrary fragments.
#[derive(Debug)]
pub struct Frames<T> {
    pending: Vec<u8>,
    message: PhantomData<fn() -> T>,
}

impl<T> Default for Frames<T> {
    fn default() -> Self {
        Self { pending: Vec::new(), message: PhantomData }
    }
}

impl<T: DeserializeOwned> Frames<T> {
    /// Adds received bytes, and returns the messages that are now complete.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<T>, BridgeError> {
        self.pending.extend_from_slice(bytes);
        let (mut messages, mut taken) = (Vec::new(), 0);
        while let Some((head, rest)) = self.pending[taken..].split_first_chunk::<4>() {
            let bytes = u32::from_le_bytes(*head) as usize;
            if bytes > FRAME_BYTES_MAX {
                return Err(BridgeError::TooLarge { bytes });
            }
            let Some(body) = rest.get(..bytes) else { break };
            messages.push(rmp_serde::from_slice(body).map_err(BridgeError::Malformed)?);
            taken += 4 + bytes;
        }
        if taken == self.pending.len() {
            // Free the memory of a large frame.
            self.pending = Vec::new();
        } else {
            self.pending.drain(..taken);
        }
        Ok(messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_come_in_any_fragments() {
        let sent = [
            FromBridge::Ready { library: "4.2.2".to_owned(), env: vec![vec![("A".to_owned(), "b".to_owned())], Vec::new()] },
            FromBridge::Aborted { rank: 3, code: 7, message: "no".to_owned() },
            FromBridge::Fence { data: vec![7; 100_000] },
        ];
        let bytes: Vec<u8> = sent.iter().flat_map(|message| encode(message).unwrap()).collect();
        for fragment in [1, 3, 4096, bytes.len()] {
            let mut frames = Frames::<FromBridge>::default();
            let received: Vec<FromBridge> = bytes.chunks(fragment).flat_map(|part| frames.push(part).unwrap()).collect();
            assert_eq!(received, sent);
        }
    }

    #[test]
    fn a_frame_too_long_is_refused_by_its_length() {
        let mut frames = Frames::<FromBridge>::default();
        assert!(matches!(frames.push(&u32::MAX.to_le_bytes()), Err(BridgeError::TooLarge { .. })));
        assert!(matches!(encode(&FromBridge::Fence { data: vec![0; FRAME_BYTES_MAX] }), Err(BridgeError::TooLarge { .. })));
        encode(&FromBridge::Fence { data: vec![0; BLOB_BYTES_MAX] }).unwrap();
    }

    #[test]
    fn the_librarys_lists_of_nodes_and_ranks_are_correct() {
        let node = |name: &str, ranks: &[u32]| BridgeNode { name: name.to_owned(), ranks: ranks.to_vec() };
        let nodes = vec![node("n0", &[0, 2]), node("n1", &[1, 3]), node("n2", &[4])];
        let job = BridgeJob { namespace: "l".to_owned(), nodes, here: 1, programs: vec![2, 3], directory: String::new() };
        assert_eq!((job.size(), job.local()), (5, [1, 3].as_slice()));
        assert_eq!((job.node_names().as_str(), job.node_ranks().as_str()), ("n0,n1,n2", "0,2;1,3;4"));
        assert_eq!(job.programs().collect::<Vec<_>>(), [(0, 0..2), (1, 2..5)]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Frames::<FromBridge>::default().push(&bytes);
            let mut framed = u32::try_from(bytes.len()).unwrap().to_le_bytes().to_vec();
            framed.extend_from_slice(&bytes);
            let _ = Frames::<FromBridge>::default().push(&framed);
        }
    }
}
