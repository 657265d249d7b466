//! The fact: what gossip spreads about a node besides its liveness.

use crate::rows::Keyed;
use crate::suspicion::Accusation;
use bytes::Buf;
use lattice_model::{NodeId, NodeState};
use std::sync::Arc;
use thiserror::Error;

/// How many bytes [`Fact::encode`] may give, in this version or a later one.
pub const FACT_BYTES_MAX: usize = 48;

const HELD: u8 = 1;
const SCHEDULABLE: u8 = 2;
/// A flag of the broadcast item, beside the fact's own flags.
pub(crate) const CONTRADICTED: u8 = 4;

/// The offset of the flags in the output of [`Fact::encode`].
pub(crate) const FLAGS_AT: usize = 1;

/// What a node publishes about itself to all nodes. It is small because every node of the cluster
/// stores it; larger data is requested over the mesh when [`Fact::digest`] has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fact {
    /// The node's own view of its state.
    pub state: NodeState,
    /// Whether any hold keeps new work off the node.
    pub held: bool,
    /// Whether the node accepts any work.
    pub schedulable: bool,
    /// A digest of the node's full capacity fact, which differs between its versions.
    pub digest: u64,
}

/// Why bytes are not a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FactError {
    /// Too few bytes, or more than [`FACT_BYTES_MAX`].
    #[error("a fact has 10 to {FACT_BYTES_MAX} bytes, not {0}")]
    Length(usize),
    /// A state that this version does not know.
    #[error("{0} is not a node state")]
    State(u8),
}

impl Fact {
    /// The length of what [`Fact::encode`] gives.
    pub(crate) const BYTES: usize = 10;

    /// `state, flags, digest`: 10 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let state = match self.state {
            NodeState::Booting => 0,
            NodeState::Ready => 1,
            NodeState::Degraded => 2,
            NodeState::Down => 3,
            NodeState::Draining => 4,
            NodeState::Drained => 5,
            NodeState::Failed => 6,
        };
        let flags = if self.held { HELD } else { 0 } | if self.schedulable { SCHEDULABLE } else { 0 };
        let mut bytes = vec![state, flags];
        bytes.extend_from_slice(&self.digest.to_be_bytes());
        bytes
    }

    /// Decodes what [`Fact::encode`] wrote. Flags and bytes that a later version added are skipped.
    ///
    /// # Errors
    /// A wrong length or an unknown state.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, FactError> {
        if !(Self::BYTES..=FACT_BYTES_MAX).contains(&bytes.len()) {
            return Err(FactError::Length(bytes.len()));
        }
        let state = match bytes.get_u8() {
            0 => NodeState::Booting,
            1 => NodeState::Ready,
            2 => NodeState::Degraded,
            3 => NodeState::Down,
            4 => NodeState::Draining,
            5 => NodeState::Drained,
            6 => NodeState::Failed,
            other => return Err(FactError::State(other)),
        };
        let flags = bytes.get_u8();
        Ok(Self { state, held: flags & HELD != 0, schedulable: flags & SCHEDULABLE != 0, digest: bytes.get_u64() })
    }
}

/// Orders one node's facts: its life, then a count within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FactVersion {
    pub incarnation: u64,
    pub counter: u32,
}

/// A fact, with its node and version, as this node knows it.
#[derive(Clone, Debug)]
pub(crate) struct KnownFact {
    pub node: NodeId,
    /// The node's key: [`Peer::key`](crate::peer::Peer::key).
    pub key: u64,
    pub version: FactVersion,
    pub fact: Fact,
    /// Whether others have an incarnation or a fact of the node that it never published.
    pub contradicted: bool,
    /// The nodes that this node suspects after failed probes of its own.
    pub suspects: Vec<Accusation>,
    /// The item as its node encoded it. It is passed on unchanged, since a later version may have
    /// made it.
    pub item: Box<[u8]>,
}

impl Keyed for Arc<KnownFact> {
    fn key(&self) -> u64 {
        self.key
    }
}

/// How many suspicions a node publishes, the latest ones: they fit into [`FACT_BYTES_MAX`] beside
/// the fact.
pub(crate) const ACCUSATIONS_MAX: usize = 4;
