//! What the tasks of allocations need.

use crate::adoption::Adoption;
use crate::lane_quorum::LaneQuorum;
use crate::latencies::Latencies;
use lattice_agent_checkpoint as checkpoint;
use lattice_agent_common::driver_queue::DriverQueue;
use lattice_agent_common::node_problems::NodeProblems;
use lattice_agent_common::node_view::NodeView;
use lattice_agent_common::setup::Setup;
use lattice_agent_common::tasks::Tasks;
use lattice_launch::Launches;
use lattice_machine::machine::Machine;
use lattice_membership::cluster::Cluster;
use lattice_membership::directory::Directory;
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
    pub allocations: Allocations,
    /// The output that is stored on this node, and its upload to the log store.
    pub spools: Spools,
    /// How work saves itself, and which checkpoint it starts from.
    pub checkpoint: Arc<checkpoint::Handles>,
    /// The launches whose head this node is.
    pub launches: Launches,
    /// The quorum, for lanes of task groups whose head this node is.
    pub lanes: Arc<dyn LaneQuorum>,
    /// The measured resource use of allocations here.
    pub measuring: Measuring,
    /// How long heartbeats and starts of work take.
    pub latencies: Latencies,
    /// The progress of adopting the allocations of the agent's previous run.
    pub adoption: Adoption,
    /// Connections to other agents.
    pub mesh: Mesh,
    /// The last known state of the cluster, or of the part of it that concerns this node.
    pub cluster: watch::Receiver<Arc<Cluster>>,
    /// The addresses of other nodes.
    pub directory: Directory,
    /// The last state of this node that the driver published.
    pub view: watch::Receiver<Arc<NodeView>>,
    /// Problems of this node.
    pub problems: NodeProblems,
    /// When the newest heartbeat that the leader acknowledged was sent, in milliseconds since boot:
    /// run leases count from then.
    pub acknowledged: watch::Receiver<Option<u64>>,
    pub driver: DriverQueue,
    /// Tasks that end after the driver: those of allocations, launches and checkpoints, and of
    /// requests about them.
    pub tasks: Tasks,
}

/// The handles as tasks share them.
pub type Shared = Arc<Handles>;
