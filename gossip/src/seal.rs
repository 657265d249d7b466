//! Sealing: what leaves a node can be read and made only by those who hold the cluster's key.
//!
//! ```text
//!   version 1 │ cluster 8 │ sender: node 8, incarnation 8, salt 8 │ counter 8 ║ sealed body │ tag 16
//!   └──────────────── in clear, authenticated ─────────────────────────────┘
//! ```
//!
//! Each life of each sender seals with a key of its own, HKDF-SHA256(cluster key; version, cluster name, sender), so that a
//! counter is enough for a nonce: it rises with each datagram of a life and no two lives share a key (the salt comes from
//! the seed, which is drawn anew at each start). ChaCha20-Poly1305, nonce = 4 zero bytes and the counter. The receiver
//! keeps, per node, the latest life and a replay window; both change only when a datagram has opened.
//!
//! Rotation has its seam here: the version byte tells the layout, and a second key is a second [`Subkeys`].

use crate::counters::Refusal;
use crate::peer::Peer;
use crate::replay::Window;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::digest::{SHA256, digest};
use ring::hkdf;
use std::collections::BTreeMap;
use std::fmt;
use thiserror::Error;

const VERSION: u8 = 1;
const LABEL: &[u8] = b"lattice gossip 1";
const SENDER_BYTES: usize = 24;
const HEADER_BYTES: usize = 1 + 8 + SENDER_BYTES + 8;
const TAG_BYTES: usize = 16;

/// By how many bytes a sealed datagram is longer than its body.
pub const SEAL_BYTES: usize = HEADER_BYTES + TAG_BYTES;

/// The cluster's gossip key. Shown by nobody: its `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

/// Why a text is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a gossip key is 64 hexadecimal digits (32 bytes)")]
pub struct KeyError;

impl Key {
    /// From 32 bytes, drawn from the machine's randomness once per cluster.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// From 64 hexadecimal digits; white space around them is ignored.
    ///
    /// # Errors
    /// Anything else. The error does not repeat the text.
    pub fn from_hex(text: &str) -> Result<Self, KeyError> {
        let digits = text.trim().as_bytes();
        let mut bytes = [0; 32];
        if digits.len() != 64 {
            return Err(KeyError);
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let nibble = |digit: u8| char::from(digit).to_digit(16).ok_or(KeyError);
            *byte = (nibble(pair[0])? << 4 | nibble(pair[1])?) as u8;
        }
        Ok(Self(bytes))
    }

    /// As 64 hexadecimal digits, to be written where only the agent reads.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(hidden)")
    }
}

/// One life of one sender, as it stands in the header.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Sender {
    node: u64,
    incarnation: u64,
    salt: [u8; 8],
}

impl Sender {
    fn bytes(&self) -> [u8; SENDER_BYTES] {
        let mut bytes = [0; SENDER_BYTES];
        bytes[..8].copy_from_slice(&self.node.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.incarnation.to_be_bytes());
        bytes[16..].copy_from_slice(&self.salt);
        bytes
    }
}

/// Makes each sender's key from the cluster's.
struct Subkeys {
    root: hkdf::Prk,
    cluster: String,
}

impl Subkeys {
    fn new(key: &Key, cluster: &str) -> Self {
        Self { root: hkdf::Salt::new(hkdf::HKDF_SHA256, LABEL).extract(&key.0), cluster: cluster.to_owned() }
    }

    fn of(&self, sender: &Sender) -> [u8; 32] {
        struct KeyBytes;
        impl hkdf::KeyType for KeyBytes {
            fn len(&self) -> usize {
                32
            }
        }
        let sender = sender.bytes();
        // The label and the sender have fixed lengths, so the name between them cannot be shifted into either.
        let info = [LABEL, self.cluster.as_bytes(), &sender];
        let mut subkey = [0; 32];
        self.root.expand(&info, KeyBytes).and_then(|okm| okm.fill(&mut subkey)).expect("32 bytes are within HKDF-SHA256's reach");
        subkey
    }
}

/// Seals what this life sends.
pub(crate) struct Sealer {
    prefix: [u8; 1 + 8 + SENDER_BYTES],
    key: LessSafeKey,
    counter: u64,
}

impl Sealer {
    pub fn new(key: &Key, cluster: &str, me: &Peer, seed: u64) -> Self {
        let sender = Sender { node: node_tag(me.key), incarnation: me.incarnation, salt: salt(seed) };
        let mut prefix = [0; 1 + 8 + SENDER_BYTES];
        prefix[0] = VERSION;
        prefix[1..9].copy_from_slice(&cluster_tag(cluster));
        prefix[9..].copy_from_slice(&sender.bytes());
        Self { prefix, key: aead(&Subkeys::new(key, cluster).of(&sender)), counter: 0 }
    }

    /// One datagram around `kind` and `body`.
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

/// Opens what others sent.
pub(crate) struct Opener {
    subkeys: Subkeys,
    cluster: [u8; 8],
    me: u64,
    lives: BTreeMap<u64, Life>,
    lives_max: usize,
    evicted: u64,
}

/// The latest life of one node that we have heard.
struct Life {
    sender: Sender,
    subkey: [u8; 32],
    window: Window,
    heard_ms: u64,
}

impl Opener {
    pub fn new(key: &Key, cluster: &str, me: &Peer, lives_max: usize) -> Self {
        Self {
            subkeys: Subkeys::new(key, cluster),
            cluster: cluster_tag(cluster),
            me: node_tag(me.key),
            lives: BTreeMap::new(),
            lives_max,
            evicted: 0,
        }
    }

    /// Opens one datagram: its kind and body. Nothing changes when it is refused.
    pub fn open(&mut self, now_ms: u64, bytes: &[u8]) -> Result<(u8, Vec<u8>), Refusal> {
        // One byte at least is the kind.
        if bytes.len() <= SEAL_BYTES {
            return Err(Refusal::Truncated);
        }
        let (header, sealed) = bytes.split_at(HEADER_BYTES);
        if header[0] != VERSION {
            return Err(Refusal::Version);
        }
        if header[1..9] != self.cluster {
            return Err(Refusal::ForeignCluster);
        }
        let number = |at: usize| header[at..at + 8].iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        let salt = number(25).to_be_bytes();
        let (sender, counter) = (Sender { node: number(9), incarnation: number(17), salt }, number(33));
        if sender.node == self.me {
            return Err(Refusal::FromOurselves);
        }

        let known = self.lives.get(&sender.node);
        let (subkey, fresh) = match known {
            Some(life) if life.sender == sender => (life.subkey, life.window.is_fresh(counter)),
            Some(life) if life.sender.incarnation >= sender.incarnation => return Err(Refusal::StaleLife),
            Some(_) | None => (self.subkeys.of(&sender), counter > 0),
        };
        if !fresh {
            return Err(Refusal::Replayed);
        }
        let mut body = sealed.to_vec();
        let plain_bytes = aead(&subkey).open_in_place(nonce(counter), Aad::from(header), &mut body).map_err(|_| Refusal::NotSealed)?.len();
        body.truncate(plain_bytes);

        self.remember(now_ms, sender, subkey).mark(counter);
        let kind = body.remove(0);
        Ok((kind, body))
    }

    /// How many senders were dropped for want of room.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Forgets a node that is gone for good, so that it may come back even without its persisted incarnation.
    pub fn forget(&mut self, peer: &Peer) {
        self.lives.remove(&node_tag(peer.key));
    }

    fn remember(&mut self, now_ms: u64, sender: Sender, subkey: [u8; 32]) -> &mut Window {
        if !self.lives.contains_key(&sender.node)
            && self.lives.len() >= self.lives_max
            && let Some(oldest) = self.lives.iter().min_by_key(|(_, life)| life.heard_ms).map(|(node, _)| *node)
        {
            self.lives.remove(&oldest);
            self.evicted += 1;
        }
        let fresh = || Life { sender, subkey, window: Window::default(), heard_ms: now_ms };
        let life = self.lives.entry(sender.node).or_insert_with(fresh);
        if life.sender != sender {
            *life = fresh();
        }
        life.heard_ms = now_ms;
        &mut life.window
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

fn node_tag(key: u128) -> u64 {
    (key >> 64) as u64
}

fn cluster_tag(cluster: &str) -> [u8; 8] {
    first_eight(b"lattice cluster ", cluster.as_bytes())
}

/// The seed also drives whom we probe: what travels in clear should not give it away.
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

    fn key(byte: u8) -> Key {
        Key::from_bytes([byte; 32])
    }

    fn opener(lives_max: usize) -> Opener {
        Opener::new(&key(1), "c", &peer("me", 1), lives_max)
    }

    #[test]
    fn a_key_is_read_written_and_hidden() {
        let key = Key::from_hex(&format!(" {}\n", "0aF9".repeat(16))).unwrap();
        assert_eq!(key.to_hex(), "0af9".repeat(16));
        assert_eq!(format!("{key:?}"), "Key(hidden)");
        for bad in ["", "00", &"g".repeat(64), &"é".repeat(32), &"0".repeat(65)] {
            assert_eq!(Key::from_hex(bad), Err(KeyError));
        }
    }

    #[test]
    fn what_is_sealed_opens_once() {
        let mut sealer = Sealer::new(&key(1), "c", &peer("a", 1), 9);
        let mut opener = opener(10);
        let (one, two) = (sealer.seal(3, b"one"), sealer.seal(4, b""));
        assert_eq!(two.len(), SEAL_BYTES + 1);
        assert_eq!(opener.open(0, &two), Ok((4, vec![])));
        assert_eq!(opener.open(0, &one), Ok((3, b"one".to_vec())));
        assert_eq!(opener.open(0, &one), Err(Refusal::Replayed));
        assert_eq!(opener.open(0, &two), Err(Refusal::Replayed));
    }

    #[test]
    fn any_changed_or_missing_byte_is_refused_and_leaves_no_state() {
        let datagram = Sealer::new(&key(1), "c", &peer("a", 1), 9).seal(0, b"body");
        let mut opener = opener(10);
        for at in 0..datagram.len() {
            assert!(opener.open(0, &datagram[..at]).is_err());
            let mut bent = datagram.clone();
            bent[at] ^= 0x40;
            assert!(opener.open(0, &bent).is_err(), "byte {at}");
        }
        assert!(opener.lives.is_empty());
        assert!(opener.open(0, &datagram).is_ok());
    }

    #[test]
    fn refusals_say_why() {
        let mut opener = opener(10);
        let mut open = |key: Key, cluster: &str, node: &str| opener.open(0, &Sealer::new(&key, cluster, &peer(node, 1), 9).seal(0, b"x"));
        assert_eq!(open(key(2), "c", "a"), Err(Refusal::NotSealed));
        assert_eq!(open(key(1), "d", "a"), Err(Refusal::ForeignCluster));
        assert_eq!(open(key(1), "c", "me"), Err(Refusal::FromOurselves));
        assert_eq!(opener.open(0, &[9; 100]), Err(Refusal::Version));
        assert_eq!(opener.open(0, &[]), Err(Refusal::Truncated));
    }

    #[test]
    fn a_new_life_ends_the_old_one_and_shares_no_key_with_it() {
        let mut opener = opener(10);
        let mut old = Sealer::new(&key(1), "c", &peer("a", 1), 9);
        let mut new = Sealer::new(&key(1), "c", &peer("a", 2), 9);
        let (first, second) = (old.seal(0, b"same"), old.seal(0, b"same"));
        assert!(opener.open(0, &first).is_ok());
        let renewed = new.seal(0, b"same");
        assert_ne!(first[HEADER_BYTES..], renewed[HEADER_BYTES..]);
        assert!(opener.open(0, &renewed).is_ok());
        assert_eq!(opener.open(0, &second), Err(Refusal::StaleLife));
        let same_incarnation = Sealer::new(&key(1), "c", &peer("a", 2), 10).seal(0, b"x");
        assert_eq!(opener.open(0, &same_incarnation), Err(Refusal::StaleLife));
        opener.forget(&peer("a", 2));
        assert!(opener.open(0, &same_incarnation).is_ok());
    }

    #[test]
    fn senders_are_bounded_and_the_longest_silent_goes() {
        let mut opener = opener(2);
        for (now, node) in [(1, "a"), (2, "b"), (3, "a2"), (4, "b")] {
            let _ = opener.open(now, &Sealer::new(&key(1), "c", &peer(node, now), 9).seal(0, b"x"));
        }
        assert_eq!((opener.lives.len(), opener.evicted()), (2, 1));
        assert!(!opener.lives.contains_key(&node_tag(peer("a", 1).key)));
    }
}
