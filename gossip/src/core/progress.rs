//! The progress of joining the cluster and of comparing views.

use crate::peer::Peer;
use crate::sync::Range;
use lattice_model::NodeId;
use std::net::SocketAddr;

/// To how many addresses a node that has not joined announces itself in each tick.
pub(super) const ANNOUNCES_AT_ONCE: usize = 3;

/// An address at which a node of the cluster may be.
pub(super) struct JoinAddress {
    pub addr: SocketAddr,
    /// The key of the member last seen there: looking it up is cheaper than searching all members.
    pub seen: Option<u64>,
}

/// The progress of comparing views.
#[derive(Default)]
pub(super) struct CatchUp {
    pub(super) pending_pull: Option<PendingPull>,
    /// The name after which the next range begins.
    pub(super) after: Option<NodeId>,
    /// When the last range was pulled.
    pub(super) pulled_ms: u64,
    /// Whether a comparison has reached the end of the view since one found something new. Until
    /// then there is a pull at every tick, and afterwards one each `sync_period_ms`: so traffic does
    /// not grow with the cluster.
    pub(super) done: bool,
}

/// A pull that waits for its answer. A later pull replaces it.
pub(super) struct PendingPull {
    pub(super) to: Peer,
    pub(super) nonce: u64,
    pub(super) range: Range,
}
