//! What the shim and `lattice-pmix` say to each other: the process beside it that serves PMIx with the machine's library.
//!
//! ```text
//!   shim ── ToBridge ──▶ lattice-pmix      length (u32, little endian, at most FRAME_BYTES_MAX) + MessagePack
//!        ◀─ FromBridge ─
//! ```
//!
//! A shim outlives upgrades and starts the bridge that is there then, so fields have names: one that comes later has a default. What
//! the bridge says is bytes of a process of the user's: it is read with limits, and what cannot be read ends its own launch.

use crate::blob::BLOB_BYTES_MAX;
use lattice_model::{LaunchSpec, NodeId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::marker::PhantomData;
use std::ops::Range;
use thiserror::Error;

/// The longest frame, in bytes, without its length: a fence's data and what is around it.
const FRAME_BYTES_MAX: usize = BLOB_BYTES_MAX + 1024;

/// What the bridge is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToBridge {
    /// The launch to be served, once and first.
    Serve(BridgeJob),
    /// The fence that its ranks wait in is complete, with every node's data joined in the nodes' order.
    Fenced {
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// What became of a question ([`FromBridge::Ask`]). `found`: what was looked up and is there.
    Answered { id: u64, status: AnswerStatus, found: Vec<Published> },
    /// What a rank of another node has put ([`Question::Modex`]). `status` is that node's library's own.
    Modex {
        id: u64,
        status: i32,
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// Another node wants what a rank of this one has put, once it has: answered by [`FromBridge::Modex`].
    GiveModex { from: u32, number: u64, rank: u32 },
    /// What was said of the end of a rank's part in it ([`FromBridge::Finalized`], [`FromBridge::Aborted`]) was heard: it may go on.
    Left { rank: u32 },
    /// A rank of the launch died, here or elsewhere: ranks that want to know are told. `code` is that of its end, 128 + signal.
    Died { rank: u32, code: i32 },
}

/// What a rank wants of what is published in its launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    Publish(Published),
    Lookup {
        keys: Vec<String>,
    },
    Unpublish {
        keys: Vec<String>,
    },
    /// What a rank of another node has put.
    Modex {
        rank: u32,
    },
}

/// A value that a rank published, as the library has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    pub key: String,
    pub rank: u32,
    /// The library's number of its type.
    pub data_type: u16,
    #[serde(with = "serde_bytes")]
    pub value: Vec<u8>,
}

/// How a question ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AnswerStatus {
    Done,
    /// Of several keys not all are there.
    Partly,
    NotFound,
    Duplicate,
    Full,
    NotSupported,
}

/// What the bridge says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromBridge {
    /// It serves, by which library, and with which variables each rank finds it, in the order of [`BridgeNode::ranks`].
    Ready { library: String, env: Vec<Vec<(String, String)>> },
    /// It cannot serve, and ends.
    Failed { why: String },
    /// A rank is connected.
    Joined { rank: u32 },
    /// A rank said that it ends well.
    Finalized { rank: u32 },
    /// A rank wants the launch to end.
    Aborted { rank: u32, code: i32, message: String },
    /// A rank asks something; `id` is the bridge's own.
    Ask { id: u64, question: Question },
    /// What a rank of this node has put, for another node.
    Modex {
        from: u32,
        number: u64,
        status: i32,
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// All ranks of this node wait in a fence, with what they have to say to the others.
    Fence {
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// A rank's connection ended, and it had not said that it ends well. Its process may live: a shell that started it.
    Lost { rank: u32 },
}

/// [`ToBridge::Modex`] of what cannot be asked for: `PMIX_ERR_NOT_SUPPORTED`.
pub const MODEX_NOT_SUPPORTED: i32 = -47;
/// Of data that is too long: `PMIX_ERR_OUT_OF_RESOURCE`.
pub const MODEX_TOO_LONG: i32 = -29;

/// One launch as the bridge of one of its nodes needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgeJob {
    /// The launch's name, the same on every node.
    pub namespace: String,
    /// All nodes, in the order in which their data is joined.
    pub nodes: Vec<BridgeNode>,
    /// Which of them this is.
    pub here: u32,
    /// How many ranks each program has: the first one's come first.
    pub programs: Vec<u32>,
    /// A directory of the launch's user, for what the library and the ranks leave while they live.
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
    /// Of a launch that has ranks on `node`.
    pub fn new(spec: &LaunchSpec, namespace: &str, node: &NodeId, directory: &str) -> Option<Self> {
        let here = spec.nodes.iter().position(|n| &n.node == node)?;
        let mut nodes: Vec<_> = spec.nodes.iter().map(|n| BridgeNode { name: n.node.to_string(), ranks: Vec::new() }).collect();
        for run in spec.runs() {
            nodes.get_mut(run.node)?.ranks.extend(run.first..run.first + run.count);
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

    /// Ranks of the whole launch.
    pub fn size(&self) -> u32 {
        self.nodes.iter().map(|n| u32::try_from(n.ranks.len()).unwrap_or(u32::MAX)).fold(0, u32::saturating_add)
    }

    /// The ranks of this node.
    pub fn local(&self) -> &[u32] {
        self.nodes.get(self.here as usize).map_or(&[], |n| &n.ranks)
    }

    /// Each program's number and ranks.
    pub fn programs(&self) -> impl Iterator<Item = (u32, Range<u32>)> {
        let mut end = 0_u32;
        (0..).zip(&self.programs).map(move |(number, ranks)| {
            let first = end;
            end = end.saturating_add(*ranks);
            (number, first..end)
        })
    }

    /// The nodes' names as the library takes them: `n0,n1`.
    pub fn node_names(&self) -> String {
        self.nodes.iter().map(|n| n.name.as_str()).collect::<Vec<_>>().join(",")
    }

    /// The nodes' ranks as the library takes them: `0,1;2,3`.
    pub fn node_ranks(&self) -> String {
        self.nodes.iter().map(|n| listed(&n.ranks)).collect::<Vec<_>>().join(";")
    }
}

/// `2,3`
pub fn listed(ranks: &[u32]) -> String {
    ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Bytes that are no frame.
#[derive(Debug, Error)]
pub enum BridgeError {
    #[error("a frame of {bytes} bytes is more than the {FRAME_BYTES_MAX} that are taken")]
    TooLarge { bytes: usize },
    #[error("a frame cannot be read")]
    Malformed(#[source] rmp_serde::decode::Error),
    #[error("a frame cannot be written")]
    Encode(#[source] rmp_serde::encode::Error),
}

/// One message as the bytes to send, length first.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, BridgeError> {
    let mut frame = vec![0; 4];
    rmp_serde::encode::write_named(&mut frame, message).map_err(BridgeError::Encode)?;
    let bytes = frame.len() - 4;
    let length = u32::try_from(bytes).ok().filter(|_| bytes <= FRAME_BYTES_MAX).ok_or(BridgeError::TooLarge { bytes })?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// Turns a stream, in whatever fragments it comes, into messages.
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
    /// Takes what was read, and gives the messages that are whole by it.
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
            // A fence of many megabytes must not stay.
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
        let said = [
            FromBridge::Ready { library: "4.2.2".to_owned(), env: vec![vec![("A".to_owned(), "b".to_owned())], Vec::new()] },
            FromBridge::Aborted { rank: 3, code: 7, message: "no".to_owned() },
            FromBridge::Fence { data: vec![7; 100_000] },
        ];
        let bytes: Vec<u8> = said.iter().flat_map(|message| encode(message).unwrap()).collect();
        for fragment in [1, 3, 4096, bytes.len()] {
            let mut frames = Frames::<FromBridge>::default();
            let heard: Vec<FromBridge> = bytes.chunks(fragment).flat_map(|part| frames.push(part).unwrap()).collect();
            assert_eq!(heard, said);
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
    fn the_library_is_told_who_lies_where() {
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
