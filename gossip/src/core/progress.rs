//! How far the core has come with joining the cluster and with comparing its view with others'.

use crate::peer::Peer;
use crate::sync::Range;
use lattice_model::NodeId;
use std::net::SocketAddr;

/// How many addresses are tried at once while nobody answers.
pub(super) const ANNOUNCES_AT_ONCE: usize = 3;

/// Where a node of the cluster may be reached.
pub(super) struct JoinAddress {
    pub addr: SocketAddr,
    /// Who was last seen there: asked about first, so that not all members are gone through again and again.
    pub seen: Option<u64>,
}

/// How far comparing has come.
#[derive(Default)]
pub(super) struct CatchUp {
    pub(super) asked: Option<Asked>,
    /// Where the next stretch begins.
    pub(super) after: Option<NodeId>,
    pub(super) pulled_ms: u64,
    /// Whether a comparison came to the end of the view since anything new was found; until then there is one at every tick,
    /// afterwards each stretch waits for its time: what one sends does not grow with the cluster.
    pub(super) done: bool,
}

/// A pull that waits for its answer. There is one at a time; a later one takes its place.
pub(super) struct Asked {
    pub(super) to: Peer,
    pub(super) nonce: u64,
    pub(super) range: Range,
}
