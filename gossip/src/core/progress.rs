//! The progress of joining the cluster and of comparing views.

use crate::peer::Peer;
use crate::sync::Range;
use lattice_model::NodeId;
use std::net::SocketAddr;

/// How many addresses are tried at once while nobody answers.
pub(super) const ANNOUNCES_AT_ONCE: usize = 3;

/// An address at which a node of the cluster may be.
pub(super) struct JoinAddress {
    pub addr: SocketAddr,
    /// The key of the member last seen there. It is looked up first, which saves searching all
    /// members.
    pub seen: Option<u64>,
}

/// The progress of comparing views.
#[derive(Default)]
pub(super) struct CatchUp {
    pub(super) asked: Option<Asked>,
    /// The name after which the next range begins.
    pub(super) after: Option<NodeId>,
    pub(super) pulled_ms: u64,
    /// Whether a comparison has reached the end of the view since anything new was found. Until
    /// then there is one at every tick; afterwards each range waits for its time, so that what a
    /// node sends does not grow with the cluster.
    pub(super) done: bool,
}

/// A pull that waits for its answer. There is one at a time; a later one replaces it.
pub(super) struct Asked {
    pub(super) to: Peer,
    pub(super) nonce: u64,
    pub(super) range: Range,
}
