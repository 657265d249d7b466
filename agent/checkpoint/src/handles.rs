//! The parts of the agent that checkpoints need.

use super::Checkpoints;
use lattice_agent_common::driver_queue::DriverQueue;
use lattice_agent_common::node_problems::NodeProblems;
use lattice_agent_common::tasks::Tasks;
use lattice_machine::bounds::Bounds;
use lattice_membership::cluster::Cluster;
use lattice_membership::directory::Directory;
use lattice_mesh::Mesh;
use lattice_model::NodeId;
use lattice_registry::Allocations;
use lattice_runtime::cgroup::Slice;
use std::sync::Arc;
use tokio::sync::watch;

/// Shared by all checkpoints of the node.
pub struct Handles {
    /// This node's id.
    pub me: NodeId,
    pub checkpoints: Checkpoints,
    /// The allocations on this node.
    pub allocations: Allocations,
    pub slice: Option<Slice>,
    pub bounds: Bounds,
    pub mesh: Mesh,
    /// The addresses of other nodes.
    pub directory: Directory,
    /// Nodes and allocations as the quorum knows them.
    pub cluster: watch::Receiver<Arc<Cluster>>,
    /// Problems of this node.
    pub problems: NodeProblems,
    pub driver: DriverQueue,
    /// The tasks of heads, of parts, and of those who follow a checkpoint.
    pub tasks: Tasks,
}

/// Shared with tasks.
pub type Shared = Arc<Handles>;
