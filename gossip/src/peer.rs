//! Who is who, for foca: one node's one life at one address.

use lattice_model::NodeId;
use ring::digest::{SHA256, digest};
use std::net::SocketAddr;

/// Who this node is when its core starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The node. Unique in the cluster.
    pub node: NodeId,
    /// Where the others send datagrams to: never a wildcard address.
    pub addr: SocketAddr,
    /// The agent's life: persisted, higher at each start. A node that starts again with one that others have seen
    /// is not heard until they forget it.
    pub incarnation: u64,
}

/// foca's identity. Of two with one name the later life wins; within a life, the one that was renewed more often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// [`node_key`] of the name: what foca compares most. First, so that equality fails fast.
    pub key: u128,
    /// Starts over, within one life, after having been declared Down.
    pub renewal: u32,
    /// See [`Identity::incarnation`].
    pub incarnation: u64,
    /// See [`Identity::addr`].
    pub addr: SocketAddr,
    /// See [`Identity::node`].
    pub node: NodeId,
}

impl Peer {
    pub fn new(node: NodeId, addr: SocketAddr, incarnation: u64, renewal: u32) -> Self {
        // An IPv6 scope or flow label means nothing to another machine, and would be lost on the way.
        let addr = SocketAddr::new(addr.ip(), addr.port());
        Self { key: node_key(&node), renewal, incarnation, addr, node }
    }

    pub fn renewed(&self) -> Self {
        Self { renewal: self.renewal.saturating_add(1), ..self.clone() }
    }

    /// Which of two with one name came later. The address only breaks ties between two machines that claim one name.
    fn rank(&self) -> (u64, u32, SocketAddr) {
        (self.incarnation, self.renewal, self.addr)
    }
}

impl From<Identity> for Peer {
    fn from(me: Identity) -> Self {
        Self::new(me.node, me.addr, me.incarnation, 0)
    }
}

impl foca::Identity for Peer {
    type Addr = u128;

    /// Never by foca itself: two machines with one name would declare each other Down as fast as the network allows.
    /// The core renews with a growing pause, see `Core::rejoin`.
    fn renew(&self) -> Option<Self> {
        None
    }

    fn addr(&self) -> u128 {
        self.key
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        self.rank() > adversary.rank()
    }
}

/// The first 16 bytes of the SHA-256 of a node's name.
pub(crate) fn node_key(node: &NodeId) -> u128 {
    let hash = digest(&SHA256, node.as_str().as_bytes());
    hash.as_ref()[..16].iter().fold(0, |key, byte| key << 8 | u128::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use foca::Identity as _;

    #[test]
    fn a_later_life_wins_over_any_number_of_renewals() {
        let old = Peer { renewal: 9, ..Peer::new("a".parse().unwrap(), "10.0.0.1:1".parse().unwrap(), 4, 0) };
        let new = Peer::new("a".parse().unwrap(), "10.0.0.9:1".parse().unwrap(), 5, 0);
        assert!(new.win_addr_conflict(&old) && !old.win_addr_conflict(&new));
        assert!(old.renewed().win_addr_conflict(&old));
        assert_eq!(old.addr(), new.addr());
    }
}
