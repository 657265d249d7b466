//! The parts of the agent that launches need.

use lattice_agent_common::tasks::Tasks;
use lattice_machine::fabric::Fabric;
use lattice_membership::directory::Directory;
use lattice_mesh::Mesh;
use lattice_model::NodeId;
use lattice_registry::Allocations;
use std::time::Duration;

/// Shared by all launches of the node.
pub struct Handles {
    /// This node's id.
    pub me: NodeId,
    pub mesh: Mesh,
    /// The addresses of other nodes.
    pub directory: Directory,
    /// The allocations on this node.
    pub allocations: Allocations,
    /// Keys for the fabric.
    pub fabric: Fabric,
    /// How long a fence may wait while all its nodes are connected.
    pub fence_timeout: Duration,
    /// How many agents each agent of a launch's tree connects to; `None`: computed from the
    /// launch's size.
    pub fanout: Option<u32>,
    /// The heads, their lines, and the tasks that forget ended launches.
    pub tasks: Tasks,
}
