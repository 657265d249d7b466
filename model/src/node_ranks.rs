//! The number of a launch's ranks on one node.

use crate::ids::NodeId;
use serde::{Deserialize, Serialize};

/// One node's ranks. Their numbers follow from all nodes of the launch and its shape
/// ([`LaunchSpec::ranks_on`](crate::LaunchSpec::ranks_on)).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRanks {
    /// The node.
    pub node: NodeId,
    /// Its lowest global rank.
    pub first: u32,
    /// Number of ranks. 0 on a launch's first node alone, which coordinates the launch.
    pub count: u32,
}
