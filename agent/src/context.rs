//! What every task of the agent needs to know, made once at the start.

use crate::adoption::Adoption;
use crate::diagnosis_slots::DiagnosisSlots;
use crate::latencies::Latencies;
use crate::places::Places;
use lattice_agent_checkpoint as checkpoint;
use lattice_agent_checkpoint::Checkpoints;
use lattice_agent_common::config::UserImages;
use lattice_agent_common::node_view::NodeView;
use lattice_agent_common::troubles::Troubles;
use lattice_launch::{Launches, Parents};
use lattice_machine::bounds::Bounds;
use lattice_machine::conformance::Conformity;
use lattice_machine::data_plane::DataPlane;
use lattice_machine::devices::DeviceFilter;
use lattice_machine::fabric::Fabric;
use lattice_machine::facts::Facts;
use lattice_machine::gpu_loads::GpuReadings;
use lattice_machine::gpu_standings::GpuStandings;
use lattice_machine::health::Checks;
use lattice_machine::hooks::Hooks;
use lattice_machine::hwloc;
use lattice_machine::image_cache::ImageCache;
use lattice_membership::cluster::{self, Cluster};
use lattice_membership::peers::Peers;
use lattice_membership::relay::Carried;
use lattice_mesh::Mesh;
use lattice_model::{DesiredShare, NodeId, NodeTopology};
use lattice_node::Event;
use lattice_observe::measuring::Measuring;
use lattice_observe::traces::Traces;
use lattice_output::growth::Growth;
use lattice_output::spool::Spools;
use lattice_registry::Allocations;
use lattice_runtime::cgroup::Slice;
use lattice_runtime::shim::LogRoom;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Shared by the tasks. Nothing in it changes but through the handles that it holds.
pub struct Context {
    /// This node.
    pub me: NodeId,
    /// Where allocations, journal and cache lie.
    pub state_dir: PathBuf,
    /// The shim's program.
    pub shim: PathBuf,
    /// The API's socket, as work on this node is to find it.
    pub socket: PathBuf,
    /// The slice for scopes; `None`: this machine has no usable v2 tree, and processes are found by their ancestry alone.
    pub slice: Option<Slice>,
    /// How much of this node an allocation's work may use.
    pub bounds: Bounds,
    /// How work is kept from GPUs that are not its own.
    pub device_filter: DeviceFilter,
    /// What this node is made of, with every GPU that it ever had in this life of the agent.
    pub topology: watch::Receiver<Arc<NodeTopology>>,
    /// The topology as hwloc has it, for ranks.
    pub hwloc: hwloc::Export,
    /// Whether work may run as root.
    pub allow_root: bool,
    /// Whether setuid programs give rights to work.
    pub work_may_gain_privileges: bool,
    /// Whether work may have images.
    pub user_images: UserImages,
    /// SIGTERM to SIGKILL.
    pub grace: Duration,
    /// What the site runs before and after an allocation.
    pub hooks: Hooks,
    /// Images for work.
    pub images: ImageCache,
    /// Home, scratch, output and mounts.
    pub data: DataPlane,
    /// Work that saves itself, and what it begins from.
    pub checkpoints: Checkpoints,
    /// What these need of this node.
    pub checkpoint_handles: Arc<checkpoint::Handles>,
    /// Keys for the fabric.
    pub fabric: Fabric,
    /// What is the matter with this node.
    pub troubles: Troubles,
    /// What its checks find.
    pub checks: Checks,
    /// What nodes say of themselves.
    pub facts: Facts,
    /// What is the matter with its GPUs.
    pub gpus: watch::Receiver<Arc<GpuStandings>>,
    /// How busy they are.
    pub gpu_readings: GpuReadings,
    /// What its software and firmware are.
    pub conformance: Conformity,
    /// What the work of allocations here uses.
    pub measuring: Measuring,
    /// What is kept of it in debug mode.
    pub traces: Traces,
    /// How long heartbeats and beginnings take.
    pub latencies: Latencies,
    /// How many may find out at once what is the matter with it.
    pub diagnosis_slots: DiagnosisSlots,
    /// The way to other agents.
    pub mesh: Mesh,
    /// Where other nodes were, for a start without the quorum.
    pub peers: Peers,
    /// Peers whose sessions this agent carries.
    pub carried: Carried,
    /// When the newest heartbeat was sent that the leader acknowledged: what run leases count from.
    pub acknowledged: watch::Receiver<Option<u64>>,
    /// The allocations on this node.
    pub workers: Allocations,
    /// Output that lies here, and its way into the log store.
    pub spools: Spools,
    /// How much room the log files of one running allocation may take.
    pub log_room: LogRoom,
    /// How far those of a former life are taken up again.
    pub adoption: Adoption,
    /// Growing log files.
    pub growth: Growth,
    /// The launches whose head this node is.
    pub launches: Launches,
    /// Who speaks to this node's parts of launches that are headed elsewhere.
    pub parents: Parents,
    /// Attached terminals, by user: those on this node, and those of its callers elsewhere.
    pub attached: Places,
    /// How many of them one user has at most.
    pub attach_max_concurrent: usize,
    /// What the quorum says of nodes, as last heard.
    pub cluster: watch::Receiver<Arc<Cluster>>,
    /// What the driver says of this node, as last written down.
    pub view: watch::Receiver<Arc<NodeView>>,
    /// The way to the driver.
    pub events: mpsc::Sender<Event>,
}

impl Context {
    /// What this node is made of.
    pub fn topology(&self) -> Arc<NodeTopology> {
        Arc::clone(&self.topology.borrow())
    }

    /// Where a node's mesh is: as it registered last, or as the allocation's list had it.
    pub fn mesh_address(&self, share: &DesiredShare, node: &NodeId) -> Option<String> {
        cluster::mesh_address(&self.cluster.borrow(), share, node)
    }

    /// Tells the driver. The queue is bounded: a task waits when the driver is behind.
    pub async fn tell(&self, event: Event) {
        // The driver ends last: a closed queue means that the agent has ended.
        let _ = self.events.send(event).await;
    }
}

/// What tasks hold.
pub type Shared = Arc<Context>;
