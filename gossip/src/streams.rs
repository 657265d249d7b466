//! The streams of datagrams of each node, and the replay window of each stream.
//!
//! A stream is what one sender seals with one key. Each has its own replay window, and no stream
//! has priority over another: a holder of a key can begin streams in any node's name, and must
//! neither outrank nor evict the node's own. A replay from a replaced stream comes from an earlier
//! life or renewal of its node, which the core ignores. All streams of a node are dropped if the
//! core forgets the node, or if there are too many nodes: then its old datagrams open again.

use crate::replay::Window;
use crate::rows::{Keyed, Rows};

/// The length of a sender in a datagram's header.
pub(crate) const SENDER_BYTES: usize = 24;

/// How many streams are stored of one node: two lives, each under two keys. A further stream
/// replaces the one that was silent longest.
const STREAMS_OF_NODE_MAX: usize = 4;

/// The sender in the header: one life of a node, from one start or rejoin to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sender {
    pub node: u64,
    pub incarnation: u64,
    pub salt: [u8; 8],
}

impl Sender {
    pub fn bytes(&self) -> [u8; SENDER_BYTES] {
        let mut bytes = [0; SENDER_BYTES];
        bytes[..8].copy_from_slice(&self.node.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.incarnation.to_be_bytes());
        bytes[16..].copy_from_slice(&self.salt);
        bytes
    }
}

/// The identity of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamId {
    pub sender: Sender,
    /// The id of the key.
    pub key: u32,
}

struct Stream {
    id: StreamId,
    window: Window,
    received_ms: u64,
}

/// The streams of one node: at least one, and rarely more.
struct Node {
    node: u64,
    latest: Stream,
    others: Vec<Stream>,
}

impl Keyed for Node {
    fn key(&self) -> u64 {
        self.node
    }
}

/// The streams of all nodes.
pub(crate) struct Streams {
    by_node: Rows<Node>,
    nodes_max: usize,
    evicted: u64,
}

impl Streams {
    pub fn new(nodes_max: usize) -> Self {
        Self { by_node: Rows::default(), nodes_max, evicted: 0 }
    }

    /// The number of nodes that have streams.
    pub fn nodes(&self) -> usize {
        self.by_node.len()
    }

    /// How many nodes were dropped because there were too many.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    pub fn window(&self, id: &StreamId) -> Option<&Window> {
        let node = self.by_node.get(id.sender.node)?;
        node.all().find(|stream| stream.id == *id).map(|stream| &stream.window)
    }

    /// Whether a stream of this sender's life is known.
    pub fn has_life(&self, sender: &Sender) -> bool {
        let node = self.by_node.get(sender.node);
        node.is_some_and(|node| node.all().any(|stream| stream.id.sender.incarnation == sender.incarnation))
    }

    /// Marks the counter of a datagram that was opened.
    pub fn mark(&mut self, now_ms: u64, id: StreamId, counter: u64) {
        let node = id.sender.node;
        if let Some(known) = self.by_node.get_mut(node) {
            known.mark(now_ms, id, counter);
            return;
        }
        if self.by_node.len() >= self.nodes_max
            && let Some(oldest) = self.by_node.iter().min_by_key(|node| (node.latest.received_ms, node.node)).map(Keyed::key)
        {
            self.by_node.remove(oldest);
            self.evicted += 1;
        }
        let mut first = Node { node, latest: Stream::begin(id), others: Vec::new() };
        first.mark(now_ms, id, counter);
        self.by_node.insert(first);
    }

    pub fn forget(&mut self, node: u64) {
        self.by_node.remove(node);
    }

    /// Forgets the streams under keys for which `keep` is false.
    pub fn retain_keys(&mut self, keep: impl Fn(u32) -> bool) {
        self.by_node.retain_mut(|node| {
            node.others.retain(|stream| keep(stream.id.key));
            if keep(node.latest.id.key) {
                return true;
            }
            let next = (0..node.others.len()).max_by_key(|at| node.others[*at].received_ms);
            next.map(|at| node.latest = node.others.swap_remove(at)).is_some()
        });
    }
}

impl Node {
    fn all(&self) -> impl Iterator<Item = &Stream> {
        std::iter::once(&self.latest).chain(&self.others)
    }

    fn mark(&mut self, now_ms: u64, id: StreamId, counter: u64) {
        if self.latest.id != id {
            let stream = match self.others.iter().position(|stream| stream.id == id) {
                Some(at) => self.others.swap_remove(at),
                None => Stream::begin(id),
            };
            self.others.push(std::mem::replace(&mut self.latest, stream));
            if self.others.len() == STREAMS_OF_NODE_MAX
                && let Some(oldest) = (0..self.others.len()).min_by_key(|at| self.others[*at].received_ms)
            {
                self.others.swap_remove(oldest);
            }
        }
        self.latest.received_ms = now_ms;
        self.latest.window.mark(counter);
    }
}

impl Stream {
    fn begin(id: StreamId) -> Self {
        Self { id, window: Window::default(), received_ms: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(salt: u8, key: u32) -> StreamId {
        StreamId { sender: Sender { node: 7, incarnation: 1, salt: [salt; 8] }, key }
    }

    #[test]
    fn streams_of_a_node_are_bounded_and_the_longest_silent_one_is_dropped() {
        let mut streams = Streams::new(10);
        streams.mark(1, id(0, 0), 5);
        for salt in 1..100 {
            streams.mark(2 * u64::from(salt), id(salt, 0), 1);
            streams.mark(2 * u64::from(salt) + 1, id(0, 0), 5 + u64::from(salt));
        }
        assert_eq!(streams.by_node.get(7).map(|node| node.all().count()), Some(STREAMS_OF_NODE_MAX));
        assert!(streams.window(&id(1, 0)).is_none() && streams.window(&id(99, 0)).is_some());
        let own = streams.window(&id(0, 0)).expect("it is received repeatedly");
        assert!(!own.is_fresh(104) && own.is_fresh(105), "however many streams others begin in its name");
    }

    #[test]
    fn streams_are_dropped_with_their_key() {
        let mut streams = Streams::new(10);
        for (now_ms, stream) in [(1, id(0, 1)), (2, id(0, 2)), (3, id(1, 1))] {
            streams.mark(now_ms, stream, 9);
        }
        streams.retain_keys(|key| key != 1);
        assert!(streams.window(&id(0, 1)).is_none() && streams.window(&id(1, 1)).is_none());
        assert!(streams.window(&id(0, 2)).is_some_and(|window| !window.is_fresh(9)));
        streams.retain_keys(|_| false);
        assert_eq!(streams.nodes(), 0);
    }
}
