//! Sealing: only holders of the cluster's keys can read or make what a node sends.
//!
//! ```text
//!   key 0:        1 │ cluster 8          │ sender: node 8, incarnation 8, salt 8 │ counter 8 ║ sealed body │ tag 16
//!   another key:  2 │ key 4 │ cluster 4  │ sender: node 8, incarnation 8, salt 8 │ counter 8 ║ sealed body │ tag 16
//!                 └──────────────────────── in clear, authenticated ────────────────────────┘
//! ```
//!
//! Each sender seals with subkeys of its own, HKDF-SHA256(key of the ring; layout, cluster name,
//! sender), so a counter suffices as nonce: it rises with each datagram of a sender, and no two
//! senders share a subkey (the salt is drawn anew at each start and each rejoin). The cipher is
//! ChaCha20-Poly1305, nonce = 4 zero bytes and the counter. The receiver keeps a replay window for
//! each stream (`streams.rs`); only a datagram that opens changes it.
//!
//! **All nodes share each key**: its holder can seal in any node's name. So a sealed datagram
//! proves no order of lives. A life ahead of the clock is refused here; the core decides which of
//! two lives counts (`core/lives.rs`, decision 0066).
//!
//! **A change of the key** changes neither sender nor counter, so no nonce is used twice, and each
//! key has its own replay windows. When a key leaves the ring, the windows of its streams are
//! dropped: nothing sealed with it is accepted any more. The second layout is as long as the first.
//! It gets the bytes for the key's id from a shorter cluster tag: the cluster's full name is part
//! of every sender's subkey, and the tag in clear only serves the counters.

use crate::counters::Refusal;
use crate::keyring::{CONFIGURED, Key, Keyring};
use crate::peer::Peer;
use crate::rows::{Keyed, Rows};
use crate::streams::{SENDER_BYTES, Sender, StreamId, Streams};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::digest::{SHA256, digest};
use ring::hkdf;
use std::collections::BTreeMap;

/// The first byte of a datagram that is sealed with the configured key.
const LAYOUT_CONFIGURED: u8 = 1;
/// The first byte of a datagram that names its key.
const LAYOUT_NAMED: u8 = 2;
const PREFIX_BYTES: usize = 1 + 8 + SENDER_BYTES;
const HEADER_BYTES: usize = PREFIX_BYTES + 8;
const TAG_BYTES: usize = 16;

/// For how many senders subkeys are stored. With more senders, datagrams from each are too rare to
/// justify the memory.
const SUBKEYS_MAX: usize = 1_024;

/// How many bytes longer a sealed datagram is than its body.
pub const SEAL_BYTES: usize = HEADER_BYTES + TAG_BYTES;

/// Derives each sender's subkey from one of the cluster's keys.
struct Subkeys {
    root: hkdf::Prk,
    label: &'static [u8],
    cluster: String,
}

impl Subkeys {
    fn new(id: u32, key: &Key, cluster: &str) -> Self {
        // Both labels are equally long: the subkey's derivation below relies on it.
        let label: &[u8] = if id == CONFIGURED { b"lattice gossip 1" } else { b"lattice gossip 2" };
        Self { root: hkdf::Salt::new(hkdf::HKDF_SHA256, label).extract(key.bytes()), label, cluster: cluster.to_owned() }
    }

    fn of(&self, sender: &Sender) -> [u8; 32] {
        struct KeyBytes;
        impl hkdf::KeyType for KeyBytes {
            fn len(&self) -> usize {
                32
            }
        }
        let sender = sender.bytes();
        // The label and the sender have fixed lengths, so bytes of the name between them cannot
        // count as either.
        let info = [self.label, self.cluster.as_bytes(), &sender];
        let mut subkey = [0; 32];
        self.root.expand(&info, KeyBytes).and_then(|okm| okm.fill(&mut subkey)).expect("HKDF-SHA256 can give 32 bytes");
        subkey
    }
}

/// Seals what this node sends.
pub(crate) struct Sealer {
    ring: Keyring,
    cluster: String,
    sender: Sender,
    prefix: [u8; PREFIX_BYTES],
    key: LessSafeKey,
    counter: u64,
}

impl Sealer {
    pub fn new(ring: &Keyring, cluster: &str, me: &Peer, seed: u64) -> Self {
        let sender = Sender { node: me.key, incarnation: me.incarnation, salt: salt(seed) };
        let (prefix, key) = prefix_and_subkey(ring, cluster, &sender);
        Self { ring: ring.clone(), cluster: cluster.to_owned(), sender, prefix, key, counter: 0 }
    }

    /// Seals with the ring's sealing key from now on. The counter continues.
    pub fn rekey(&mut self, ring: &Keyring) {
        self.ring = ring.clone();
        (self.prefix, self.key) = prefix_and_subkey(ring, &self.cluster, &self.sender);
    }

    /// Seals as this life from now on, in a new stream.
    pub fn restart(&mut self, me: &Peer, seed: u64) {
        *self = Self::new(&self.ring, &self.cluster, me, seed);
    }

    /// Seals one datagram of `kind` and `body`.
    pub fn seal(&mut self, kind: u8, body: &[u8]) -> Vec<u8> {
        self.counter += 1;
        let mut bytes = Vec::with_capacity(SEAL_BYTES + 1 + body.len());
        bytes.extend_from_slice(&self.prefix);
        bytes.extend_from_slice(&self.counter.to_be_bytes());
        bytes.push(kind);
        bytes.extend_from_slice(body);
        let (header, plain) = bytes.split_at_mut(HEADER_BYTES);
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce(self.counter), Aad::from(&*header), plain)
            .expect("a datagram is far below ChaCha20-Poly1305's limit");
        bytes.extend_from_slice(tag.as_ref());
        bytes
    }
}

/// The prefix of each datagram, and the subkey that seals it.
fn prefix_and_subkey(ring: &Keyring, cluster: &str, sender: &Sender) -> ([u8; PREFIX_BYTES], LessSafeKey) {
    let (id, key) = ring.sealing_key();
    let tag = cluster_tag(cluster);
    let mut prefix = [0; PREFIX_BYTES];
    if id == CONFIGURED {
        prefix[0] = LAYOUT_CONFIGURED;
        prefix[1..9].copy_from_slice(&tag);
    } else {
        prefix[0] = LAYOUT_NAMED;
        prefix[1..5].copy_from_slice(&id.to_be_bytes());
        prefix[5..9].copy_from_slice(&tag[..4]);
    }
    prefix[9..].copy_from_slice(&sender.bytes());
    (prefix, aead(&Subkeys::new(id, key, cluster).of(sender)))
}

/// Opens what others sent.
pub(crate) struct Opener {
    name: String,
    cluster: [u8; 8],
    /// By key id.
    subkeys: BTreeMap<u32, Subkeys>,
    me: u64,
    streams: Streams,
    /// The subkeys in use: deriving one costs two digests.
    cached: Rows<CachedSubkey>,
}

/// An opened datagram.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    /// The key of the node in whose name it is sealed.
    pub node: u64,
    /// The life of that node.
    pub incarnation: u64,
    pub kind: u8,
    pub body: Vec<u8>,
}

/// The stream and the subkey of the last datagram from one sender.
struct CachedSubkey {
    stream: StreamId,
    subkey: [u8; 32],
}

impl Keyed for CachedSubkey {
    fn key(&self) -> u64 {
        self.stream.sender.node
    }
}

impl Opener {
    pub fn new(ring: &Keyring, cluster: &str, me: &Peer, nodes_max: usize) -> Self {
        let mut opener = Self {
            name: cluster.to_owned(),
            cluster: cluster_tag(cluster),
            subkeys: BTreeMap::new(),
            me: me.key,
            streams: Streams::new(nodes_max),
            cached: Rows::default(),
        };
        opener.rekey(ring);
        opener
    }

    /// Opens with these keys only from now on. Counters received under these keys stay marked.
    /// Returns whether a key has left the ring.
    pub fn rekey(&mut self, ring: &Keyring) -> bool {
        let before = std::mem::take(&mut self.subkeys);
        self.subkeys = ring.keys().map(|(id, key)| (id, Subkeys::new(id, key, &self.name))).collect();
        self.streams.retain_keys(|key| self.subkeys.contains_key(&key));
        self.cached = Rows::default();
        before.keys().any(|id| !self.subkeys.contains_key(id))
    }

    /// Opens one datagram. A datagram of a life later than `newest_life` is refused unless a stream
    /// of that life is known. A refusal changes nothing.
    pub fn open(&mut self, now_ms: u64, newest_life: u64, bytes: &[u8]) -> Result<Opened, Refusal> {
        // The body has at least one byte, the kind.
        if bytes.len() <= SEAL_BYTES {
            return Err(Refusal::Truncated);
        }
        let (header, sealed) = bytes.split_at(HEADER_BYTES);
        let (key, ours) = match header[0] {
            LAYOUT_CONFIGURED => (CONFIGURED, header[1..9] == self.cluster),
            LAYOUT_NAMED => (header[1..5].iter().fold(0, |n, byte| n << 8 | u32::from(*byte)), header[5..9] == self.cluster[..4]),
            _ => return Err(Refusal::Version),
        };
        if !ours {
            return Err(Refusal::ForeignCluster);
        }
        // The configured key has a layout of its own; the other layout never names it.
        let named = header[0] == LAYOUT_NAMED;
        let subkeys = self.subkeys.get(&key).filter(|_| !named || key != CONFIGURED).ok_or(Refusal::UnknownKey)?;
        let number = |at: usize| header[at..at + 8].iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        let salt = number(25).to_be_bytes();
        let (sender, counter) = (Sender { node: number(9), incarnation: number(17), salt }, number(33));
        if sender.node == self.me {
            return Err(Refusal::FromOurselves);
        }

        let stream = StreamId { sender, key };
        let fresh = match self.streams.window(&stream) {
            Some(window) => window.is_fresh(counter),
            None if sender.incarnation > newest_life && !self.streams.has_life(&sender) => return Err(Refusal::LifeAhead),
            None => counter > 0,
        };
        if !fresh {
            return Err(Refusal::Replayed);
        }
        let cached = self.cached.get(sender.node).filter(|cached| cached.stream == stream).map(|cached| cached.subkey);
        let subkey = cached.unwrap_or_else(|| subkeys.of(&sender));
        let mut body = sealed.to_vec();
        let plain_bytes = aead(&subkey).open_in_place(nonce(counter), Aad::from(header), &mut body).map_err(|_| Refusal::NotSealed)?.len();
        body.truncate(plain_bytes);

        self.streams.mark(now_ms, stream, counter);
        if cached.is_none() {
            self.cache(CachedSubkey { stream, subkey });
        }
        let kind = body.remove(0);
        Ok(Opened { node: sender.node, incarnation: sender.incarnation, kind, body })
    }

    /// How many senders were dropped because there were too many.
    pub fn evicted(&self) -> u64 {
        self.streams.evicted()
    }

    /// Forgets a node that is gone for good.
    pub fn forget(&mut self, peer: &Peer) {
        self.streams.forget(peer.key);
    }

    fn cache(&mut self, cached: CachedSubkey) {
        if self.cached.len() >= SUBKEYS_MAX {
            self.cached = Rows::default();
        }
        if self.streams.nodes() <= SUBKEYS_MAX {
            self.cached.insert(cached);
        }
    }
}

fn aead(subkey: &[u8; 32]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, subkey).expect("32 bytes are a ChaCha20-Poly1305 key"))
}

fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 8..].copy_from_slice(&counter.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

fn cluster_tag(cluster: &str) -> [u8; 8] {
    first_eight(b"lattice cluster ", cluster.as_bytes())
}

/// A hash of the seed, since the salt is sent in clear and the seed also decides which nodes we
/// probe.
fn salt(seed: u64) -> [u8; 8] {
    first_eight(b"lattice salt ", &seed.to_be_bytes())
}

fn first_eight(label: &[u8], bytes: &[u8]) -> [u8; 8] {
    let hash = digest(&SHA256, &[label, bytes].concat());
    let mut first = [0; 8];
    first.copy_from_slice(&hash.as_ref()[..8]);
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(node: &str, incarnation: u64) -> Peer {
        Peer::new(node.parse().unwrap(), "10.0.0.1:7".parse().unwrap(), incarnation, 0)
    }

    fn configured(byte: u8) -> Keyring {
        Keyring::configured(Key::from_bytes([byte; 32]))
    }

    /// The bytes of each key are its id, and 9 for the configured one.
    fn ring(ids: &[u32], seals: u32) -> Keyring {
        let key = |id: u32| Key::from_bytes([if id == CONFIGURED { 9 } else { id as u8 }; 32]);
        Keyring::new(ids.iter().map(|id| (*id, key(*id))).collect(), seals).unwrap()
    }

    fn opener(nodes_max: usize) -> Opener {
        Opener::new(&configured(1), "c", &peer("me", 1), nodes_max)
    }

    impl Opener {
        /// Kind and body of what opens, with lives up to 1,000 accepted.
        fn read(&mut self, bytes: &[u8]) -> Result<(u8, Vec<u8>), Refusal> {
            self.open(0, 1_000, bytes).map(|opened| (opened.kind, opened.body))
        }
    }

    #[test]
    fn what_is_sealed_opens_once() {
        let mut sealer = Sealer::new(&configured(1), "c", &peer("a", 1), 9);
        let mut opener = opener(10);
        let (one, two) = (sealer.seal(3, b"one"), sealer.seal(4, b""));
        assert_eq!(two.len(), SEAL_BYTES + 1);
        assert_eq!(opener.read(&two), Ok((4, vec![])));
        assert_eq!(opener.read(&one), Ok((3, b"one".to_vec())));
        assert_eq!(opener.read(&one), Err(Refusal::Replayed));
        assert_eq!(opener.read(&two), Err(Refusal::Replayed));
    }

    #[test]
    fn any_changed_or_missing_byte_is_refused_and_leaves_no_state() {
        let datagram = Sealer::new(&configured(1), "c", &peer("a", 1), 9).seal(0, b"body");
        let mut opener = opener(10);
        for at in 0..datagram.len() {
            assert!(opener.read(&datagram[..at]).is_err());
            let mut bent = datagram.clone();
            bent[at] ^= 0x40;
            assert!(opener.read(&bent).is_err(), "byte {at}");
        }
        assert_eq!(opener.streams.nodes(), 0);
        assert!(opener.read(&datagram).is_ok());
    }

    #[test]
    fn each_refusal_has_its_reason() {
        let mut opener = opener(10);
        let mut open = |key: Keyring, cluster: &str, node: &str| opener.read(&Sealer::new(&key, cluster, &peer(node, 1), 9).seal(0, b"x"));
        assert_eq!(open(configured(2), "c", "a"), Err(Refusal::NotSealed));
        assert_eq!(open(configured(1), "d", "a"), Err(Refusal::ForeignCluster));
        assert_eq!(open(configured(1), "c", "me"), Err(Refusal::FromOurselves));
        assert_eq!(opener.read(&[9; 100]), Err(Refusal::Version));
        assert_eq!(opener.read(&[]), Err(Refusal::Truncated));
    }

    #[test]
    fn a_new_life_shares_no_key_with_the_old_one_and_neither_evicts_the_other() {
        let mut opener = opener(10);
        let mut old = Sealer::new(&configured(1), "c", &peer("a", 1), 9);
        let (first, second) = (old.seal(0, b"same"), old.seal(0, b"same"));
        assert!(opener.read(&first).is_ok());
        let mut new = old;
        new.restart(&peer("a", 2), 10);
        let renewed = new.seal(0, b"same");
        assert_ne!(first[HEADER_BYTES..], renewed[HEADER_BYTES..]);
        assert!(opener.read(&renewed).is_ok());
        assert!(opener.read(&second).is_ok(), "which life counts is not decided here");
        assert_eq!([&first, &renewed, &second].map(|seen| opener.read(seen)), [const { Err(Refusal::Replayed) }; 3]);
        new.restart(&peer("a", 2), 11);
        assert!(opener.read(&new.seal(0, b"same")).is_ok(), "a rejoin begins a stream of its own");
    }

    /// The attack of 58 bytes: a holder of the key sends, in another node's name, a life after
    /// which no other can follow.
    #[test]
    fn a_life_ahead_of_the_clock_is_refused_and_mutes_nobody() {
        let mut opener = opener(10);
        let mut victim = Sealer::new(&configured(1), "c", &peer("a", 1), 9);
        assert!(opener.read(&victim.seal(0, b"x")).is_ok());
        let attack = Sealer::new(&configured(1), "c", &peer("a", u64::MAX), 1).seal(0, b"");
        assert_eq!(attack.len(), 58);
        assert_eq!(opener.read(&attack), Err(Refusal::LifeAhead));
        let bounded = Sealer::new(&configured(1), "c", &peer("a", 1_000), 1).seal(0, b"");
        assert_eq!(opener.read(&bounded), Ok((0, vec![])));
        assert!(opener.read(&victim.seal(0, b"x")).is_ok());
        let restarted = Sealer::new(&configured(1), "c", &peer("a", 2), 9).seal(0, b"x");
        assert!(opener.read(&restarted).is_ok());
        for _ in 0..2 {
            assert!(opener.open(0, 0, &victim.seal(0, b"x")).is_ok(), "a life that is known stays known when the clock goes back");
            victim.restart(&peer("a", 1), 12);
        }
    }

    /// The other attack of 58 bytes: the victim's own sender, which is not encrypted, and a counter
    /// after which no other can follow.
    #[test]
    fn a_leap_of_the_counter_ends_with_the_next_rejoin_and_with_the_key() {
        let [before, after] = [ring(&[1, 2], 1), ring(&[2], 2)];
        let mut opener = Opener::new(&before, "c", &peer("me", 1), 10);
        let mut victim = Sealer::new(&before, "c", &peer("a", 1), 9);
        let mut thief = Sealer::new(&ring(&[1], 1), "c", &peer("a", 1), 9);
        thief.counter = u64::MAX - 1;
        assert!(opener.read(&thief.seal(0, b"")).is_ok());
        assert_eq!(opener.read(&victim.seal(0, b"x")), Err(Refusal::Replayed), "the leap has an effect");
        victim.rekey(&after);
        let taken = victim.seal(0, b"x");
        assert!(opener.read(&taken).is_ok(), "the thief does not have the new key");
        assert!(opener.rekey(&after) && !opener.rekey(&after));
        assert_eq!(opener.read(&taken), Err(Refusal::Replayed), "what was seen under the new key stays seen");
        thief.rekey(&before);
        victim.rekey(&before);
        opener.rekey(&before);
        assert!(opener.read(&victim.seal(0, b"x")).is_ok(), "nothing that was sealed with a retired key counts");
        thief.counter = u64::MAX - 1;
        assert!(opener.read(&thief.seal(0, b"")).is_ok());
        victim.restart(&peer("a", 1), 10);
        assert!(opener.read(&victim.seal(0, b"x")).is_ok());
    }

    #[test]
    fn senders_are_bounded_and_the_longest_silent_one_is_dropped() {
        let mut opener = opener(2);
        for (now, node) in [(1, "a"), (2, "b"), (3, "a2"), (4, "b")] {
            let _ = opener.open(now, 1_000, &Sealer::new(&configured(1), "c", &peer(node, 1), 9).seal(0, b"x"));
        }
        assert_eq!((opener.streams.nodes(), opener.evicted()), (2, 1));
        let again = Sealer::new(&configured(1), "c", &peer("a", 1), 9).seal(0, b"x");
        assert!(opener.read(&again).is_ok(), "nothing is known of it any more");
    }

    #[test]
    fn keys_change_without_a_refusal_and_replays_stay_refused() {
        let mut sealer = Sealer::new(&ring(&[0], 0), "c", &peer("a", 1), 9);
        let mut opener = Opener::new(&ring(&[0], 0), "c", &peer("me", 1), 10);
        let [first, late] = [(); 2].map(|()| sealer.seal(0, b"x"));
        assert!(opener.read(&first).is_ok());
        opener.rekey(&ring(&[0, 1], 0));
        sealer.rekey(&ring(&[0, 1], 1));
        let second = sealer.seal(0, b"x");
        assert_eq!((first[0], second[0], first.len()), (LAYOUT_CONFIGURED, LAYOUT_NAMED, second.len()));
        assert!(opener.read(&second).is_ok());
        assert!(opener.read(&late).is_ok(), "it was on the way");
        assert_eq!(opener.read(&first), Err(Refusal::Replayed), "each key has its window");
        assert_eq!(opener.read(&late), Err(Refusal::Replayed));
        opener.rekey(&ring(&[1], 1));
        assert_eq!(opener.read(&first), Err(Refusal::UnknownKey));
        assert_eq!(opener.read(&second), Err(Refusal::Replayed));
        sealer.rekey(&ring(&[1, 2], 2));
        opener.rekey(&ring(&[1, 2], 1));
        let third = sealer.seal(0, b"x");
        assert!(opener.read(&third).is_ok());
        opener.rekey(&ring(&[2], 2));
        assert_eq!((opener.read(&second), opener.read(&third)), (Err(Refusal::UnknownKey), Err(Refusal::Replayed)));
        assert_eq!(opener.streams.nodes(), 1);
    }

    #[test]
    fn a_key_that_is_not_in_the_ring_is_counted_as_unknown_and_leaves_no_state() {
        let mut opener = Opener::new(&ring(&[1, 2], 2), "c", &peer("me", 1), 10);
        let mut open = |ring: Keyring, cluster: &str| opener.read(&Sealer::new(&ring, cluster, &peer("a", 1), 9).seal(0, b"x"));
        assert_eq!(open(ring(&[0], 0), "c"), Err(Refusal::UnknownKey));
        assert_eq!(open(ring(&[3], 3), "c"), Err(Refusal::UnknownKey));
        assert_eq!(open(ring(&[1], 1), "d"), Err(Refusal::ForeignCluster));
        let another = Keyring::new([(1, Key::from_bytes([7; 32]))].into(), 1).unwrap();
        assert_eq!(open(another, "c"), Err(Refusal::NotSealed), "another secret under the same id");
        assert_eq!(opener.streams.nodes(), 0);
        // The key id is authenticated: a datagram is refused under any other id, even the
        // configured one's.
        let mut opener = Opener::new(&ring(&[0, 1], 1), "c", &peer("me", 1), 10);
        let mut datagram = Sealer::new(&ring(&[1], 1), "c", &peer("a", 1), 9).seal(0, b"x");
        datagram[4] = 0;
        assert_eq!(opener.read(&datagram), Err(Refusal::UnknownKey));
    }
}
