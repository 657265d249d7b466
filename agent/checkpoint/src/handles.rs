//! What checkpoints need of their node.

use super::Checkpoints;
use lattice_agent_common::troubles::Troubles;
use lattice_machine::bounds::Bounds;
use lattice_membership::cluster::{self, Cluster};
use lattice_mesh::Mesh;
use lattice_model::{DesiredShare, NodeId};
use lattice_node::Event;
use lattice_registry::Allocations;
use lattice_runtime::cgroup::Slice;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// The same for all checkpoints.
pub struct Handles {
    /// This node.
    pub me: NodeId,
    pub checkpoints: Checkpoints,
    /// The allocations on this node.
    pub workers: Allocations,
    pub slice: Option<Slice>,
    pub bounds: Bounds,
    pub mesh: Mesh,
    /// What the quorum says of nodes and allocations.
    pub cluster: watch::Receiver<Arc<Cluster>>,
    /// What is the matter with this node.
    pub troubles: Troubles,
    /// The way to the driver.
    pub events: mpsc::Sender<Event>,
}

/// What tasks hold.
pub type Shared = Arc<Handles>;

impl Handles {
    /// Where a node's mesh is.
    pub fn mesh_address(&self, share: &DesiredShare, node: &NodeId) -> Option<String> {
        cluster::mesh_address(&self.cluster.borrow(), share, node)
    }

    /// Tells the driver, and waits while it is behind.
    pub async fn tell(&self, event: Event) {
        // The driver ends last: a closed queue means that the agent has ended.
        let _ = self.events.send(event).await;
    }
}
