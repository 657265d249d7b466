//! How many ranks of a launch a node has.

use crate::ids::NodeId;
use serde::{Deserialize, Serialize};

/// One node's ranks. Which these are follows from all nodes of the launch and its shape ([`LaunchSpec::ranks_on`](crate::LaunchSpec::ranks_on)).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRanks {
    /// The node.
    pub node: NodeId,
    /// Its first global rank.
    pub first: u32,
    /// How many ranks, at least 1.
    pub count: u32,
}
