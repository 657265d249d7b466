//! What travels about a node beside its liveness.

use crate::rows::Keyed;
use crate::suspicion::Accusation;
use bytes::Buf;
use lattice_model::{NodeId, NodeState};
use std::sync::Arc;
use thiserror::Error;

/// The most bytes that [`Fact::encode`] may take, of this version or a later one.
pub const FACT_BYTES_MAX: usize = 48;

const HELD: u8 = 1;
const SCHEDULABLE: u8 = 2;
/// A flag of the item, beside those of the fact.
pub(crate) const CONTRADICTED: u8 = 4;

/// The offset of a fact's flags in [`Fact::encode`].
pub(crate) const FLAGS_AT: usize = 1;

/// What a node publishes about itself to all nodes. Small, because every node of the cluster stores it; what is larger is
/// pulled over the mesh by whoever needs it, when [`Fact::digest`] has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fact {
    /// How the node sees its own state.
    pub state: NodeState,
    /// Whether any hold keeps new work off it.
    pub held: bool,
    /// Whether it takes work at all.
    pub schedulable: bool,
    /// A digest of the node's full capacity fact, which differs between its versions.
    pub digest: u64,
}

/// Bytes that are no fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FactError {
    /// Too few bytes, or more than [`FACT_BYTES_MAX`].
    #[error("a fact has 10 to {FACT_BYTES_MAX} bytes, not {0}")]
    Length(usize),
    /// A state that this version does not know.
    #[error("{0} is no node state")]
    State(u8),
}

impl Fact {
    /// Of [`Fact::encode`].
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

    /// Reads what [`Fact::encode`] wrote. What a later version appends, and its flags, are skipped.
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

/// A fact as it is known.
#[derive(Clone, Debug)]
pub(crate) struct KnownFact {
    pub node: NodeId,
    /// Of the node: [`Peer::key`](crate::peer::Peer::key).
    pub key: u64,
    pub version: FactVersion,
    pub fact: Fact,
    /// Whether others have a life or a fact of the node that it never published.
    pub contradicted: bool,
    /// Whom the node has suspected by probes of its own.
    pub suspects: Vec<Accusation>,
    /// The item as its node wrote it, to be passed on whole: it may come from a later version than ours.
    pub item: Box<[u8]>,
}

impl Keyed for Arc<KnownFact> {
    fn key(&self) -> u64 {
        self.key
    }
}

/// The most suspicions that a node publishes, the latest ones: with the rest they fit into [`FACT_BYTES_MAX`].
pub(crate) const ACCUSATIONS_MAX: usize = 4;
