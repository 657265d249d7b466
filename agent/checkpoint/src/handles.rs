//! The parts of the agent that checkpoints need.

use super::Checkpoints;
use lattice_agent_common::tasks::Tasks;
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

/// Shared by all checkpoints of the node.
pub struct Handles {
    /// This node's id.
    pub me: NodeId,
    pub checkpoints: Checkpoints,
    /// The allocations on this node.
    pub workers: Allocations,
    pub slice: Option<Slice>,
    pub bounds: Bounds,
    pub mesh: Mesh,
    /// Nodes and allocations as the quorum knows them.
    pub cluster: watch::Receiver<Arc<Cluster>>,
    /// Problems of this node.
    pub troubles: Troubles,
    /// Queue of events for the driver.
    pub events: mpsc::Sender<Event>,
    /// Heads, parts, and those who follow them.
    pub tasks: Tasks,
}

/// Shared with tasks.
pub type Shared = Arc<Handles>;

impl Handles {
    /// A node's mesh address.
    pub fn mesh_address(&self, share: &DesiredShare, node: &NodeId) -> Option<String> {
        cluster::mesh_address(&self.cluster.borrow(), share, node)
    }

    /// Sends an event to the driver; waits while its queue is full.
    pub async fn tell(&self, event: Event) {
        // The driver stops last, so a closed queue means that the agent has stopped.
        let _ = self.events.send(event).await;
    }
}
