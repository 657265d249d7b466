//! The facts in foca's encoding, and the store of the known ones.

use crate::fact::{ACCUSATIONS_MAX, CONTRADICTED, FLAGS_AT, Fact, FactVersion, KnownFact};
use crate::known::Known;
use crate::malformed::Malformed;
use crate::rows::Rows;
use crate::suspicion::Accusation;
use crate::wire::{Name, put_node_name};
use bytes::{Buf, BufMut};
use foca::{BroadcastHandler, Invalidates};
use lattice_model::NodeId;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Encodes one node's fact for foca: `name, incarnation, counter, fact`, followed by the nodes that
/// it found silent itself: `count 1, accusation 8 × n`. A version that does not know the appended
/// part skips it and passes it on.
pub(crate) fn encode_item(node: &NodeId, version: FactVersion, fact: &Fact, contradicted: bool, suspects: &[Accusation]) -> Vec<u8> {
    let mut item = Vec::new();
    put_node_name(node, &mut item);
    item.put_u64(version.incarnation);
    item.put_u32(version.counter);
    let mut fact = fact.encode();
    fact[FLAGS_AT] |= if contradicted { CONTRADICTED } else { 0 };
    item.put_slice(&fact);
    if !suspects.is_empty() {
        let latest = &suspects[suspects.len().saturating_sub(ACCUSATIONS_MAX)..];
        item.put_u8(latest.len() as u8);
        latest.iter().for_each(|accusation| item.put_u64(accusation.0));
    }
    item
}

fn decode_item(item: &[u8], all: &Known) -> Result<Arc<KnownFact>, Malformed> {
    let mut rest = item;
    let name = Name::read(&mut rest)?;
    let name = name.text()?.ok_or(Malformed("a fact without a node name"))?;
    all.fact(name, item, |key, node| {
        let incarnation = rest.try_get_u64().map_err(|_| Malformed("a truncated fact"))?;
        let counter = rest.try_get_u32().map_err(|_| Malformed("a truncated fact"))?;
        let fact = Fact::decode(rest).map_err(|_| Malformed("an unreadable fact"))?;
        let contradicted = rest[FLAGS_AT] & CONTRADICTED != 0;
        let mut appended = &rest[Fact::BYTES..];
        let count = if appended.has_remaining() { usize::from(appended.get_u8()) } else { 0 };
        let suspects = appended.chunks_exact(8).take(count.min(ACCUSATIONS_MAX));
        let suspects = suspects.map(|mut eight| Accusation(eight.get_u64())).collect();
        let version = FactVersion { incarnation, counter };
        Ok(KnownFact { node, key, version, fact, contradicted, suspects, item: item.into() })
    })
}

/// Every known fact, shared between the core and the foca inside it: foca owns its broadcast
/// handler and does not lend it out. Both are in one `Core`, so the lock is never contended.
#[derive(Clone)]
pub(crate) struct Facts(Arc<Mutex<FactBook>>);

/// See [`Facts`].
pub(crate) struct FactBook {
    /// This node. Facts about it are accepted from itself only.
    me: NodeId,
    /// The life that this node is in.
    life: u64,
    /// The latest life that is accepted from any node.
    newest_life: u64,
    /// The highest life in facts about this node that it never published.
    claimed: Option<u64>,
    /// The number of facts refused because their life is ahead of the clock.
    refused: u64,
    /// By [`Peer::key`](crate::peer::Peer::key).
    known: Rows<Arc<KnownFact>>,
    known_max: usize,
    all: Known,
    /// The facts that changed since [`FactBook::take_changed`].
    changed: Vec<Arc<KnownFact>>,
    /// Whether so many changes are pending that the first fact of a node is not passed on.
    many_changes: bool,
}

impl Facts {
    pub fn new(me: NodeId, life: u64, known_max: usize, all: Known) -> Self {
        let known = Rows::default();
        let (newest_life, claimed, refused, changed, many_changes) = (0, None, 0, Vec::new(), false);
        Self(Arc::new(Mutex::new(FactBook { me, life, newest_life, claimed, refused, known, known_max, all, changed, many_changes })))
    }

    pub fn book(&self) -> MutexGuard<'_, FactBook> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FactBook {
    /// The fact of the node with this [`Peer::key`](crate::peer::Peer::key).
    pub fn get(&self, key: u64) -> Option<&Arc<KnownFact>> {
        self.known.get(key)
    }

    pub fn forget(&mut self, key: u64) {
        self.known.remove(key);
    }

    /// This node is in another life from now on.
    pub fn set_life(&mut self, key: u64, life: u64) {
        self.life = life;
        if self.known.get(key).is_some_and(|known| known.version.incarnation > life) {
            self.known.remove(key);
        }
    }

    pub fn set_newest_life(&mut self, newest_life: u64) {
        self.newest_life = newest_life;
    }

    /// Takes what came since the last call: the highest life in facts about this node that it never
    /// published, and the number of refused facts.
    pub fn take_claimed(&mut self) -> (Option<u64>, u64) {
        (self.claimed.take(), std::mem::take(&mut self.refused))
    }

    pub fn take_changed(&mut self) -> Vec<Arc<KnownFact>> {
        std::mem::take(&mut self.changed)
    }

    pub fn set_many_changes(&mut self, many_changes: bool) {
        self.many_changes = many_changes;
    }

    /// Stores an item. Gives `Some` if it was new and must be passed on to others.
    pub fn learn(&mut self, item: &[u8], ours: bool) -> Result<Option<FactKey>, Malformed> {
        let fact = decode_item(item, &self.all)?;
        if !ours && self.contradicts(&fact) {
            self.claimed = self.claimed.max(Some(fact.version.incarnation));
        }
        if !self.is_new(&fact, ours) {
            return Ok(None);
        }
        if !ours && self.is_ahead(&fact) {
            self.refused += 1;
            return Ok(None);
        }
        let is_passed_on = ours || !self.many_changes || self.known.get(fact.key).is_some();
        let key = FactKey { node: fact.key, version: fact.version };
        self.changed.push(Arc::clone(&fact));
        self.known.insert(fact);
        Ok(is_passed_on.then_some(key))
    }

    /// Whether all facts at the end of a message are known. Their encoding is `length 2, item`,
    /// repeated.
    pub fn knows_all(&self, mut items: &[u8]) -> bool {
        while !items.is_empty() {
            let Ok(length) = items.try_get_u16().map(usize::from) else { return false };
            // foca itself must refuse an item that is truncated or empty.
            let Some((item, rest)) = items.split_at_checked(length).filter(|(item, _)| !item.is_empty()) else { return false };
            if decode_item(item, &self.all).map_or(true, |fact| self.is_new(&fact, false) || self.contradicts(&fact)) {
                return false;
            }
            items = rest;
        }
        true
    }

    /// Whether this is a fact about this node that it never published.
    fn contradicts(&self, fact: &KnownFact) -> bool {
        let published = self.known.get(fact.key);
        let is_published = |published: &Arc<KnownFact>| published.version > fact.version || published.item == fact.item;
        fact.node == self.me && fact.version.incarnation >= self.life && !published.is_some_and(is_published)
    }

    /// Whether the fact is of a life that is ahead of the clock, and no fact of that life was known
    /// before.
    fn is_ahead(&self, fact: &KnownFact) -> bool {
        let life = fact.version.incarnation;
        life > self.newest_life && self.known.get(fact.key).is_none_or(|known| known.version.incarnation != life)
    }

    fn is_new(&self, fact: &KnownFact, ours: bool) -> bool {
        let newer = match self.known.get(fact.key) {
            Some(known) => fact.version > known.version,
            None => self.known.len() < self.known_max,
        };
        newer && (fact.node == self.me) == ours
    }
}

/// The key by which a newer fact replaces an older one in foca's backlog.
pub(crate) struct FactKey {
    node: u64,
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
    use crate::fact::FACT_BYTES_MAX;
    use crate::peer::node_key;
    use lattice_model::NodeState;
    use proptest::prelude::*;

    fn facts() -> impl Strategy<Value = Fact> {
        let state = prop::sample::select(NodeState::ALL.to_vec());
        (state, any::<bool>(), any::<bool>(), any::<u64>()).prop_map(|(state, held, schedulable, digest)| Fact {
            state,
            held,
            schedulable,
            digest,
        })
    }

    proptest! {
        #[test]
        fn facts_and_items_round_trip(
            fact in facts(), incarnation: u64, counter: u32,
            later in proptest::collection::vec(any::<u8>(), 0..38), suspects in proptest::collection::vec(any::<u64>(), 0..9), contradicted: bool,
        ) {
            let bytes = fact.encode();
            prop_assert!(bytes.len() <= FACT_BYTES_MAX);
            prop_assert_eq!(Fact::decode(&bytes), Ok(fact));
            prop_assert_eq!(Fact::decode(&[bytes, later].concat()), Ok(fact));
            let (node, version): (NodeId, _) = ("n1".parse().unwrap(), FactVersion { incarnation, counter });
            let suspects: Vec<Accusation> = suspects.into_iter().map(Accusation).collect();
            let item = encode_item(&node, version, &fact, contradicted, &suspects);
            let known = Known::default();
            let read = decode_item(&item, &known).unwrap();
            prop_assert_eq!((&read.node, read.key, read.version, read.fact), (&node, node_key("n1"), version, fact));
            prop_assert_eq!(read.contradicted, contradicted);
            prop_assert_eq!(&read.suspects[..], &suspects[suspects.len().saturating_sub(ACCUSATIONS_MAX)..]);
            prop_assert!(item.len() <= 3 + 12 + FACT_BYTES_MAX && *read.item == *item);
            prop_assert!(Arc::ptr_eq(&read, &decode_item(&item, &known).unwrap()), "read once");
        }

        #[test]
        fn any_bytes_are_an_item_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Fact::decode(&bytes);
            let _ = decode_item(&bytes, &Known::default());
        }
    }

    #[test]
    fn only_newer_facts_are_stored_and_nobody_speaks_for_us() {
        let fact = Fact { state: NodeState::Ready, held: false, schedulable: true, digest: 1 };
        let item =
            |node: &str, incarnation, counter| encode_item(&node.parse().unwrap(), FactVersion { incarnation, counter }, &fact, false, &[]);
        let facts = Facts::new("me".parse().unwrap(), 1, 2, Known::default());
        let mut book = facts.book();
        book.set_newest_life(9);
        let mut learn = |item: Vec<u8>, ours| book.learn(&item, ours).unwrap().is_some();
        assert!(learn(item("a", 1, 2), false));
        assert!(!learn(item("a", 1, 2), false) && !learn(item("a", 1, 1), false) && !learn(item("a", 0, 9), false));
        assert!(learn(item("a", 2, 0), false));
        assert!(!learn(item("me", 9, 9), false));
        assert!(learn(item("me", 1, 1), true));
        assert!(!learn(item("third", 1, 1), false), "bounded");
        assert!(learn(item("a", 3, 0), false), "the fact of a known node still changes");
    }

    #[test]
    fn a_fact_of_ours_that_we_never_published_is_a_claim_and_one_ahead_of_the_clock_is_refused() {
        let fact = |digest| Fact { state: NodeState::Ready, held: false, schedulable: true, digest };
        let item = |node: &str, incarnation, counter, digest| {
            encode_item(&node.parse().unwrap(), FactVersion { incarnation, counter }, &fact(digest), false, &[])
        };
        let facts = Facts::new("me".parse().unwrap(), 5, 9, Known::default());
        let mut book = facts.book();
        book.set_newest_life(9);
        assert!(book.learn(&item("me", 5, 2, 1), true).unwrap().is_some());
        for of_old in [item("me", 5, 2, 1), item("me", 5, 1, 8), item("me", 4, 99, 8)] {
            assert!(book.learn(&of_old, false).unwrap().is_none() && book.knows_all(&[&[0, of_old.len() as u8], &of_old[..]].concat()));
        }
        assert_eq!(book.take_claimed(), (None, 0));
        for (forged, life) in [(item("me", 5, 2, 8), 5), (item("me", 5, 3, 1), 5), (item("me", 7, 0, 1), 7)] {
            assert!(!book.knows_all(&[&[0, forged.len() as u8], &forged[..]].concat()), "it is not skipped");
            assert!(book.learn(&forged, false).unwrap().is_none());
            assert_eq!(book.take_claimed(), (Some(life), 0));
        }
        assert!(book.learn(&item("a", 10, 1, 1), false).unwrap().is_none());
        assert_eq!(book.take_claimed(), (None, 1));
        assert!(book.learn(&item("a", 9, 1, 1), false).unwrap().is_some());
        book.set_newest_life(8);
        assert!(book.learn(&item("a", 9, 2, 1), false).unwrap().is_some(), "what is known stays known when the clock goes back");
    }
}
