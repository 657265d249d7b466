//! What the tasks of allocations need.

use crate::adoption::Adoption;
use crate::latencies::Latencies;
use lattice_agent_checkpoint as checkpoint;
use lattice_agent_common::driver_queue::DriverQueue;
use lattice_agent_common::node_view::NodeView;
use lattice_agent_common::setup::Setup;
use lattice_agent_common::tasks::Tasks;
use lattice_agent_common::troubles::Troubles;
use lattice_launch::Launches;
use lattice_machine::machine::Machine;
use lattice_membership::cluster::Cluster;
use lattice_mesh::Mesh;
use lattice_observe::measuring::Measuring;
use lattice_output::spool::Spools;
use lattice_registry::Allocations;
use std::sync::Arc;
use tokio::sync::watch;

/// Shared by the tasks of all allocations.
pub struct Handles {
    pub setup: Arc<Setup>,
    pub machine: Arc<Machine>,
    /// The allocations on this node.
    pub workers: Allocations,
    /// Output that lies here, and its way into the log store.
    pub spools: Spools,
    /// Work that saves itself, and what it begins from.
    pub checkpoint: Arc<checkpoint::Handles>,
    /// The launches whose head this node is.
    pub launches: Launches,
    /// What the work of allocations here uses.
    pub measuring: Measuring,
    /// How long heartbeats and beginnings take.
    pub latencies: Latencies,
    /// How far the allocations of a former life are taken up again.
    pub adoption: Adoption,
    /// The way to other agents.
    pub mesh: Mesh,
    /// What the quorum says of nodes, as last heard.
    pub cluster: watch::Receiver<Arc<Cluster>>,
    /// What the driver says of this node, as last written down.
    pub view: watch::Receiver<Arc<NodeView>>,
    /// What is the matter with this node.
    pub troubles: Troubles,
    /// When the newest heartbeat was sent that the leader acknowledged: what run leases count from.
    pub acknowledged: watch::Receiver<Option<u64>>,
    pub driver: DriverQueue,
    /// Tasks that end after the driver: those of allocations, launches and checkpoints, and of
    /// requests about them.
    pub tasks: Tasks,
}

/// What tasks hold.
pub type Shared = Arc<Handles>;
