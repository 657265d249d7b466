//! A node's identity in foca: one life of one node at one address.

use lattice_model::NodeId;
use ring::digest::{SHA256, digest};
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;

/// This node's identity when its core starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The node's name, unique in the cluster.
    pub node: NodeId,
    /// The address to which other nodes send datagrams: never a wildcard address.
    pub addr: SocketAddr,
    /// The address of its agent's mesh. Gossip only spreads it.
    pub mesh: SocketAddr,
    /// The agent's life: its machine's clock at its start in milliseconds, or one more than the
    /// life of the previous start, whichever is higher. If others know a later life of the node, it
    /// chooses a life above that. Other nodes refuse a life that is ahead of their clocks by more than
    /// [`LIFE_AHEAD_MS_MAX`](crate::LIFE_AHEAD_MS_MAX).
    pub incarnation: u64,
}

/// foca's identity: a node's life. Of two identities with one name the later life wins; within a
/// life, the identity that was renewed more often.
///
/// It is small, because foca searches its whole member list for every datagram: all copies share
/// one [`Life`], see [`Known`](crate::known::Known).
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// [`node_key`] of the name. foca compares keys most of all.
    pub key: u64,
    life: Arc<Life>,
}

/// The contents of a [`Peer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    /// How often the node rejoined within this life after it was declared Down.
    pub renewal: u32,
    /// See [`Identity::incarnation`].
    pub incarnation: u64,
    /// See [`Identity::addr`].
    pub addr: SocketAddr,
    /// See [`Identity::mesh`].
    pub mesh: SocketAddr,
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
    /// A peer whose mesh has its gossip's address.
    #[cfg(test)]
    pub fn new(node: NodeId, addr: SocketAddr, incarnation: u64, renewal: u32) -> Self {
        Self::of_life(node_key(node.as_str()), Life { renewal, incarnation, addr, mesh: addr, node })
    }

    /// `key` is the [`node_key`] of the life's node.
    pub fn of_life(key: u64, life: Life) -> Self {
        Self { key, life: Arc::new(life) }
    }

    pub fn renewed(&self) -> Self {
        Self::of_life(self.key, Life { renewal: self.renewal.saturating_add(1), ..(*self.life).clone() })
    }

    /// The first identity of this node in the life `incarnation`.
    pub fn in_life(&self, incarnation: u64) -> Self {
        Self::of_life(self.key, Life { renewal: 0, incarnation, ..(*self.life).clone() })
    }

    /// The order of two identities with one name. The addresses only break ties between two
    /// machines that claim one name.
    fn rank(&self) -> (u64, u32, SocketAddr, SocketAddr) {
        (self.incarnation, self.renewal, self.addr, self.mesh)
    }

    /// Whether this identity replaces `other`, which has the same name.
    pub fn outranks(&self, other: &Self) -> bool {
        self.rank() > other.rank()
    }

    /// Whether this is a later identity of the same node as `me`.
    pub fn outranks_own(&self, me: &Self) -> bool {
        self.key == me.key && self.outranks(me)
    }
}

impl From<Identity> for Peer {
    fn from(Identity { node, addr, mesh, incarnation }: Identity) -> Self {
        let life = Life { renewal: 0, incarnation, addr: plain(addr), mesh: plain(mesh), node };
        Self::of_life(node_key(life.node.as_str()), life)
    }
}

/// Drops an IPv6 scope or flow label: it means nothing on another machine, and the encoding has no
/// place for it.
fn plain(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip(), addr.port())
}

impl foca::Identity for Peer {
    type Addr = u64;

    /// foca never renews: two machines with one name would declare each other Down as fast as the
    /// network allows. The core renews after a growing pause, see `Core::rejoin`.
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
