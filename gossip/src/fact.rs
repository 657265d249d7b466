//! What travels about a node beside its liveness, and who knows it.

use crate::wire::{Malformed, node_name, put_node_name};
use bytes::{Buf, BufMut};
use foca::{BroadcastHandler, Invalidates};
use lattice_model::{NodeId, NodeState};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;

/// The most bytes that [`Fact::encode`] may take, of this version or a later one.
pub const FACT_BYTES_MAX: usize = 48;

const HELD: u8 = 1;
const SCHEDULABLE: u8 = 2;

/// What a node says about itself to everybody. Small: it is paid for by every node of the cluster; what is larger is
/// pulled over the mesh by whoever needs it, when [`Fact::digest`] has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fact {
    /// How the node sees its own state.
    pub state: NodeState,
    /// Whether any hold keeps new work off it.
    pub held: bool,
    /// Whether it takes work at all.
    pub schedulable: bool,
    /// Tells versions of the node's full capacity fact apart.
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
    /// `state, flags, digest`: 10 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let state = match self.state {
            NodeState::Booting => 0,
            NodeState::Ready => 1,
            NodeState::Degraded => 2,
            NodeState::Down => 3,
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
        if !(10..=FACT_BYTES_MAX).contains(&bytes.len()) {
            return Err(FactError::Length(bytes.len()));
        }
        let state = match bytes.get_u8() {
            0 => NodeState::Booting,
            1 => NodeState::Ready,
            2 => NodeState::Degraded,
            3 => NodeState::Down,
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
    pub version: FactVersion,
    pub fact: Fact,
    /// The item as its node wrote it, to be passed on whole: it may come from a later version than ours.
    pub item: Vec<u8>,
}

/// One node's fact as foca carries it: `name, incarnation, counter, fact`.
pub(crate) fn encode_item(node: &NodeId, version: FactVersion, fact: &Fact) -> Vec<u8> {
    let mut item = Vec::new();
    put_node_name(node, &mut item);
    item.put_u64(version.incarnation);
    item.put_u32(version.counter);
    item.put_slice(&fact.encode());
    item
}

fn decode_item(item: &[u8]) -> Result<(NodeId, KnownFact), Malformed> {
    let mut rest = item;
    let node = node_name(&mut rest)?.ok_or(Malformed("a fact about nobody"))?;
    let incarnation = rest.try_get_u64().map_err(|_| Malformed("a cut fact"))?;
    let counter = rest.try_get_u32().map_err(|_| Malformed("a cut fact"))?;
    let fact = Fact::decode(rest).map_err(|_| Malformed("an unreadable fact"))?;
    Ok((node, KnownFact { version: FactVersion { incarnation, counter }, fact, item: item.to_vec() }))
}

/// Every fact that is known, shared between the core and the foca inside it: foca owns its broadcast handler and does
/// not lend it out. Both live in one `Core`, so the lock is never waited for.
#[derive(Clone)]
pub(crate) struct Facts(Arc<Mutex<FactBook>>);

/// See [`Facts`].
pub(crate) struct FactBook {
    /// Ourselves: nobody else tells us about us.
    me: NodeId,
    known: BTreeMap<NodeId, KnownFact>,
    known_max: usize,
    /// Whose facts changed since the core last looked.
    changed: Vec<NodeId>,
}

impl Facts {
    pub fn new(me: NodeId, known_max: usize) -> Self {
        Self(Arc::new(Mutex::new(FactBook { me, known: BTreeMap::new(), known_max, changed: Vec::new() })))
    }

    pub fn book(&self) -> MutexGuard<'_, FactBook> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FactBook {
    pub fn get(&self, node: &NodeId) -> Option<&KnownFact> {
        self.known.get(node)
    }

    pub fn forget(&mut self, node: &NodeId) {
        self.known.remove(node);
    }

    pub fn take_changed(&mut self) -> Vec<NodeId> {
        std::mem::take(&mut self.changed)
    }

    /// Takes an item. `None`: nothing new. `Some`: it was, and should be told to others.
    pub fn learn(&mut self, item: &[u8], ours: bool) -> Result<Option<FactKey>, Malformed> {
        let (node, fact) = decode_item(item)?;
        let newer = match self.known.get(&node) {
            Some(known) => fact.version > known.version,
            None => self.known.len() < self.known_max,
        };
        if !newer || (node == self.me) != ours {
            return Ok(None);
        }
        let key = FactKey { node: node.clone(), version: fact.version };
        self.changed.push(node.clone());
        self.known.insert(node, fact);
        Ok(Some(key))
    }
}

/// Which fact replaces which in foca's backlog.
pub(crate) struct FactKey {
    node: NodeId,
    version: FactVersion,
}

impl Invalidates for FactKey {
    fn invalidates(&self, other: &Self) -> bool {
        self.node == other.node && self.version >= other.version
    }
}

impl<T> BroadcastHandler<T> for Facts {
    type Key = FactKey;
    type Error = Malformed;

    fn receive_item(&mut self, item: &[u8], sender: Option<&T>) -> Result<Option<FactKey>, Malformed> {
        self.book().learn(item, sender.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn facts() -> impl Strategy<Value = Fact> {
        let state = prop_oneof![Just(NodeState::Booting), Just(NodeState::Ready), Just(NodeState::Degraded), Just(NodeState::Down)];
        (state, any::<bool>(), any::<bool>(), any::<u64>()).prop_map(|(state, held, schedulable, digest)| Fact {
            state,
            held,
            schedulable,
            digest,
        })
    }

    proptest! {
        #[test]
        fn facts_and_items_round_trip(fact in facts(), incarnation: u64, counter: u32, later in proptest::collection::vec(any::<u8>(), 0..38)) {
            let bytes = fact.encode();
            prop_assert!(bytes.len() <= FACT_BYTES_MAX);
            prop_assert_eq!(Fact::decode(&bytes), Ok(fact));
            prop_assert_eq!(Fact::decode(&[bytes, later].concat()), Ok(fact));
            let (node, version) = ("n1".parse().unwrap(), FactVersion { incarnation, counter });
            let item = encode_item(&node, version, &fact);
            let (read, known) = decode_item(&item).unwrap();
            prop_assert_eq!((read, known.version, known.fact, known.item), (node, version, fact, item));
        }

        #[test]
        fn any_bytes_are_an_item_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Fact::decode(&bytes);
            let _ = decode_item(&bytes);
        }
    }

    #[test]
    fn only_newer_facts_are_taken_and_nobody_speaks_for_us() {
        let fact = Fact { state: NodeState::Ready, held: false, schedulable: true, digest: 1 };
        let item = |node: &str, incarnation, counter| encode_item(&node.parse().unwrap(), FactVersion { incarnation, counter }, &fact);
        let facts = Facts::new("me".parse().unwrap(), 2);
        let mut book = facts.book();
        let mut learn = |item: Vec<u8>, ours| book.learn(&item, ours).unwrap().is_some();
        assert!(learn(item("a", 1, 2), false));
        assert!(!learn(item("a", 1, 2), false) && !learn(item("a", 1, 1), false) && !learn(item("a", 0, 9), false));
        assert!(learn(item("a", 2, 0), false));
        assert!(!learn(item("me", 9, 9), false));
        assert!(learn(item("me", 1, 1), true));
        assert!(!learn(item("third", 1, 1), false), "bounded");
        assert!(learn(item("a", 3, 0), false), "a known one still changes");
    }
}
