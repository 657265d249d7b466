//! What every task of the agent needs, made once at the start.

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

/// Shared by all tasks. Nothing in it changes except through its handles.
pub struct Context {
    /// This node.
    pub me: NodeId,
    /// The directory of allocations, journal and cache.
    pub state_dir: PathBuf,
    /// The shim's program.
    pub shim: PathBuf,
    /// The API's socket, by the path that work on this node uses.
    pub socket: PathBuf,
    /// The slice for scopes; `None`: this machine has no usable cgroup v2 tree, and processes are
    /// found by their ancestry alone.
    pub slice: Option<Slice>,
    /// How much of this node an allocation's work may use.
    pub bounds: Bounds,
    /// How work is denied GPUs that are not its own.
    pub device_filter: DeviceFilter,
    /// This node's topology, with every GPU that it has had in this life of the agent.
    pub topology: watch::Receiver<Arc<NodeTopology>>,
    /// The topology in hwloc's format, for ranks.
    pub hwloc: hwloc::Export,
    /// Whether work may run as root.
    pub allow_root: bool,
    /// Whether work may gain privileges by setuid programs.
    pub work_may_gain_privileges: bool,
    /// Which images users may bring.
    pub user_images: UserImages,
    /// The time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// The site's prologue and epilogue.
    pub hooks: Hooks,
    /// The cache of images.
    pub images: ImageCache,
    /// Home, scratch, output and mounts.
    pub data: DataPlane,
    /// Checkpoints: saving work, and what work begins from.
    pub checkpoints: Checkpoints,
    /// The handles that checkpoints need of this node.
    pub checkpoint_handles: Arc<checkpoint::Handles>,
    /// Keys for the network fabric.
    pub fabric: Fabric,
    /// The problems of this node.
    pub troubles: Troubles,
    /// The results of the node's checks.
    pub checks: Checks,
    /// The facts that nodes publish about themselves.
    pub facts: Facts,
    /// The state of the node's GPUs.
    pub gpus: watch::Receiver<Arc<GpuStandings>>,
    /// The load of the node's GPUs.
    pub gpu_readings: GpuReadings,
    /// The node's software and firmware.
    pub conformance: Conformity,
    /// The measurement of what allocations here use.
    pub measuring: Measuring,
    /// The records of work in debug or audit mode.
    pub traces: Traces,
    /// Latencies of heartbeats and of starting work.
    pub latencies: Latencies,
    /// Limits how many diagnoses run at once.
    pub diagnosis_slots: DiagnosisSlots,
    /// The connections to other agents.
    pub mesh: Mesh,
    /// The last known addresses of other nodes, for a start without the quorum.
    pub peers: Peers,
    /// Peers whose sessions with the quorum this agent carries.
    pub carried: Carried,
    /// When the newest heartbeat was sent that the leader acknowledged: run leases count from
    /// there.
    pub acknowledged: watch::Receiver<Option<u64>>,
    /// The allocations on this node.
    pub workers: Allocations,
    /// The output on this node, and its transfer into the log store.
    pub spools: Spools,
    /// How many bytes the log files of one running allocation may take.
    pub log_room: LogRoom,
    /// The progress of adopting the allocations of an earlier life.
    pub adoption: Adoption,
    /// Growing log files.
    pub growth: Growth,
    /// The launches of which this node is the head.
    pub launches: Launches,
    /// The parent connections of this node's parts of launches with heads elsewhere.
    pub parents: Parents,
    /// Attached terminals by user: those on this node, and those of callers of this agent
    /// elsewhere.
    pub attached: Places,
    /// How many terminals one user may have attached.
    pub attach_max_concurrent: usize,
    /// The quorum's last known state of nodes and allocations.
    pub cluster: watch::Receiver<Arc<Cluster>>,
    /// The driver's last published state of this node.
    pub view: watch::Receiver<Arc<NodeView>>,
    /// The driver's event queue.
    pub events: mpsc::Sender<Event>,
}

impl Context {
    /// This node's topology.
    pub fn topology(&self) -> Arc<NodeTopology> {
        Arc::clone(&self.topology.borrow())
    }

    /// The address of a node's mesh: from its last registration, or from the allocation's list.
    pub fn mesh_address(&self, share: &DesiredShare, node: &NodeId) -> Option<String> {
        cluster::mesh_address(&self.cluster.borrow(), share, node)
    }

    /// Sends an event to the driver. The queue is bounded: a task waits while the driver is behind.
    pub async fn tell(&self, event: Event) {
        // The driver ends last, so a closed queue means that the agent has ended.
        let _ = self.events.send(event).await;
    }
}

/// The context as tasks hold it.
pub type Shared = Arc<Context>;
