//! What launches need of their node.

use lattice_machine::fabric::Fabric;
use lattice_membership::cluster::{self, Cluster};
use lattice_mesh::Mesh;
use lattice_model::{DesiredShare, NodeId};
use lattice_registry::Allocations;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The same for all launches.
pub struct Handles {
    /// This node.
    pub me: NodeId,
    pub mesh: Mesh,
    /// What the quorum says of nodes.
    pub cluster: watch::Receiver<Arc<Cluster>>,
    /// The allocations on this node.
    pub workers: Allocations,
    /// Keys for the fabric.
    pub fabric: Fabric,
    /// How long a fence may wait while all its nodes are connected.
    pub fence_timeout: Duration,
    /// How many agents of a launch one of them speaks to, where the site says so; else by the launch's size.
    pub fanout: Option<u32>,
}

impl Handles {
    /// Where a node's mesh is.
    pub fn mesh_address(&self, share: &DesiredShare, node: &NodeId) -> Option<String> {
        cluster::mesh_address(&self.cluster.borrow(), share, node)
    }
}
