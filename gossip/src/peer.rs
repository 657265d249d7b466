//! Who is who, for foca: one node's one life at one address.

use lattice_model::NodeId;
use ring::digest::{SHA256, digest};
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;

/// Who this node is when its core starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The node. Unique in the cluster.
    pub node: NodeId,
    /// Where the others send datagrams to: never a wildcard address.
    pub addr: SocketAddr,
    /// The agent's life: the milliseconds of its machine's clock at its start, or one more than that of the start
    /// before, whichever is higher. A node that others know in a later life chooses one above that; a life that is
    /// ahead of others' clocks by more than [`LIFE_AHEAD_MS_MAX`](crate::LIFE_AHEAD_MS_MAX) is refused by them.
    pub incarnation: u64,
}

/// foca's identity: a node's life. Of two with one name the later life wins; within a life, the one that was renewed more often.
///
/// Small, since foca searches its list of all for every datagram: all copies share the life itself, see [`Known`](crate::known::Known).
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// [`node_key`] of the name: what foca compares most.
    pub key: u64,
    life: Arc<Life>,
}

/// What a [`Peer`] is in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    /// Starts over, within one life, after having been declared Down.
    pub renewal: u32,
    /// See [`Identity::incarnation`].
    pub incarnation: u64,
    /// See [`Identity::addr`].
    pub addr: SocketAddr,
    /// See [`Identity::node`].
    pub node: NodeId,
}

impl Deref for Peer {
    type Target = Life;

    fn deref(&self) -> &Life {
        &self.life
    }
}

impl PartialEq for Peer {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && (Arc::ptr_eq(&self.life, &other.life) || self.life == other.life)
    }
}

impl Eq for Peer {}

impl Peer {
    pub fn new(node: NodeId, addr: SocketAddr, incarnation: u64, renewal: u32) -> Self {
        Self::of_life(node_key(node.as_str()), Life { renewal, incarnation, addr: plain(addr), node })
    }

    /// `key` is the key of the life's node.
    pub fn of_life(key: u64, life: Life) -> Self {
        Self { key, life: Arc::new(life) }
    }

    pub fn renewed(&self) -> Self {
        Self::of_life(self.key, Life { renewal: self.renewal.saturating_add(1), ..(*self.life).clone() })
    }

    /// The first identity of this node's life of that number.
    pub fn in_life(&self, incarnation: u64) -> Self {
        Self::of_life(self.key, Life { renewal: 0, incarnation, ..(*self.life).clone() })
    }

    /// Which of two with one name came later. The address only breaks ties between two machines that claim one name.
    fn rank(&self) -> (u64, u32, SocketAddr) {
        (self.incarnation, self.renewal, self.addr)
    }

    /// Whether this life of a node is to be believed before that one.
    pub fn outranks(&self, other: &Self) -> bool {
        self.rank() > other.rank()
    }

    /// Whether this is a later life of the same node as `me` than the one that it is in.
    pub fn outranks_own(&self, me: &Self) -> bool {
        self.key == me.key && self.outranks(me)
    }
}

impl From<Identity> for Peer {
    fn from(me: Identity) -> Self {
        Self::new(me.node, me.addr, me.incarnation, 0)
    }
}

/// An IPv6 scope or flow label means nothing to another machine, and would be lost on the way.
fn plain(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip(), addr.port())
}

impl foca::Identity for Peer {
    type Addr = u64;

    /// Never by foca itself: two machines with one name would declare each other Down as fast as the network allows.
    /// The core renews with a growing pause, see `Core::rejoin`.
    fn renew(&self) -> Option<Self> {
        None
    }

    fn addr(&self) -> u64 {
        self.key
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        self.outranks(adversary)
    }
}

/// The first 8 bytes of the SHA-256 of a node's name.
pub(crate) fn node_key(node: &str) -> u64 {
    let hash = digest(&SHA256, node.as_bytes());
    hash.as_ref()[..8].iter().fold(0, |key, byte| key << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use foca::Identity as _;

    #[test]
    fn a_later_life_wins_over_any_number_of_renewals() {
        let old = Peer::new("a".parse().unwrap(), "10.0.0.1:1".parse().unwrap(), 4, 9);
        let new = Peer::new("a".parse().unwrap(), "10.0.0.9:1".parse().unwrap(), 5, 0);
        assert!(new.win_addr_conflict(&old) && !old.win_addr_conflict(&new));
        assert!(old.renewed().win_addr_conflict(&old));
        assert_eq!(old.addr(), new.addr());
    }
}
