//! An agent's handles on an empty machine, for tests of this crate and of crates that use it.
//!
//! All parts are real. The machine has no cgroups, GPUs, hooks or stores, no quorum answers, and
//! the mesh listens on a free port. The test holds the other ends of its channels.

use crate::adoption::Adoption;
use crate::handles::{Handles, Shared};
use crate::lane_quorum::{LaneQuorum, NotAdvanced};
use crate::latencies::Latencies;
use futures::FutureExt;
use futures::future::BoxFuture;
use lattice_agent_checkpoint as checkpoint;
use lattice_agent_checkpoint::Checkpoints;
use lattice_agent_common::config::AgentConfig;
use lattice_agent_common::config::data::ScratchSettings;
use lattice_agent_common::driver_queue::DriverQueue;
use lattice_agent_common::environment::slurm::SlurmSettings;
use lattice_agent_common::node_problems::NodeProblems;
use lattice_agent_common::node_view::NodeView;
use lattice_agent_common::setup::Setup;
use lattice_agent_common::tasks::Tasks;
use lattice_launch as launch;
use lattice_launch::Launches;
use lattice_machine::bounds::Bounds;
use lattice_machine::conformance::Conforming;
use lattice_machine::data_plane::DataPlane;
use lattice_machine::devices::DeviceFilter;
use lattice_machine::fabric::Fabric;
use lattice_machine::facts::{self, Facts};
use lattice_machine::gpu_loads::GpuReadings;
use lattice_machine::gpu_statuses::GpuStatuses;
use lattice_machine::health::Checking;
use lattice_machine::hooks::Hooks;
use lattice_machine::hwloc::Export;
use lattice_machine::image_cache::ImageCache;
use lattice_machine::machine::Machine;
use lattice_membership::cluster::Cluster;
use lattice_membership::directory::Directory;
use lattice_membership::peers::Peers;
use lattice_mesh::{Incoming, Mesh};
use lattice_model::fact::NodeFact;
use lattice_model::topology::MemoryTopology;
use lattice_model::{AllocationId, Epoch, LaneReport, LaneWork, NodeId, NodeState, NodeTopology, Resources};
use lattice_node::Event;
use lattice_observe::measuring::{self, Measuring};
use lattice_observe::traces::Traces;
use lattice_output::spool::{self, Spools};
use lattice_pki::ca;
use lattice_pki::credentials::Credentials;
use lattice_pki::identity::Role;
use lattice_pki::tls::TlsFiles;
use lattice_quorum_client::QuorumClient;
use lattice_registry::Allocations;
use lattice_runtime::cgroup::controllers::Controllers;
use lattice_runtime::shim::LogLimits;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The name of the node in [`Bench`].
pub const ME: &str = "n1";

/// An agent's handles, and the other ends of their channels. Needs a tokio runtime.
pub struct Bench {
    pub handles: Shared,
    /// The address of its mesh.
    pub address: String,
    /// What its tasks report to the driver.
    pub events: mpsc::Receiver<Event>,
    pub cluster: watch::Sender<Arc<Cluster>>,
    pub view: watch::Sender<Arc<NodeView>>,
    pub acknowledged: watch::Sender<Option<u64>>,
    /// The requests of its lanes to the quorum. The test answers them.
    pub lane_calls: mpsc::Receiver<LaneCall>,
    /// Streams that peers open.
    pub incoming: mpsc::Receiver<Incoming>,
    stop: CancellationToken,
    dir: Dir,
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A lane's request to the quorum.
#[derive(Debug)]
pub struct LaneCall {
    pub lane: AllocationId,
    pub epoch: Epoch,
    pub report: LaneReport,
    pub answer: oneshot::Sender<Result<LaneWork, NotAdvanced>>,
}

/// Passes the requests of lanes to the test.
struct LaneCalls(mpsc::Sender<LaneCall>);

impl LaneQuorum for LaneCalls {
    fn advance(&self, lane: AllocationId, epoch: Epoch, report: LaneReport) -> BoxFuture<'_, Result<LaneWork, NotAdvanced>> {
        async move {
            let (answer, answered) = oneshot::channel();
            let _unread = self.0.send(LaneCall { lane, epoch, report, answer }).await;
            answered.await.unwrap_or_else(|_| Err(NotAdvanced::Unavailable("nobody answers".to_owned())))
        }
        .boxed()
    }
}

/// A temporary directory, removed on drop.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lattice-bench-{}-{number}", std::process::id()));
        let _old = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("a directory for a test");
        Self(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

/// A mesh with a certificate of `dir`'s authority, and its address.
fn listen(dir: &Path, name: &str, role: Role, stop: &CancellationToken) -> (Credentials, Mesh, mpsc::Receiver<Incoming>, String) {
    let (authority, day) = (dir.join("ca"), Duration::from_secs(86_400));
    let out = dir.join(format!("{name}-{role}"));
    let files = ca::issue(&authority, name, role, &[], &out, day).expect("a certificate");
    let files = TlsFiles { ca: authority.join("ca.crt"), cert: files.cert, key: files.key };
    let credentials = Credentials::new(files.read().expect("readable certificates")).expect("valid certificates");
    loop {
        let address = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
        // Another process may have taken the port meanwhile.
        if let Ok((mesh, incoming)) = Mesh::listen(address, &credentials, stop.clone()) {
            return (credentials, mesh, incoming, address.to_string());
        }
    }
}

impl Bench {
    /// # Panics
    /// If the directory cannot be made, or no port is free.
    pub fn new() -> Self {
        let dir = Dir::new();
        let me: NodeId = ME.parse().expect("a valid name");
        ca::init(&dir.0.join("ca")).expect("an authority");
        let config = AgentConfig {
            state_dir: dir.0.clone(),
            socket: dir.0.join("agent.sock"),
            scratch: ScratchSettings { dir: dir.0.join("no-scratch"), ..ScratchSettings::default() },
            ..AgentConfig::default()
        };
        let stop = CancellationToken::new();
        let (credentials, mesh, incoming, address) = listen(&dir.0, ME, Role::Api, &stop);
        let (driver, events) = DriverQueue::new(64);
        let (cluster, cluster_view) = watch::channel(Arc::new(Cluster::default()));
        let (view, node_view) = watch::channel(Arc::new(NodeView::default()));
        let (acknowledged, acknowledged_view) = watch::channel(None);
        let (lanes, lane_calls) = mpsc::channel(8);
        let (topology, gpus) =
            (watch::Sender::new(Arc::new(NodeTopology::default())), watch::Sender::new(Arc::new(GpuStatuses::default())));
        let (allocations, problems, gpu_readings) = (Allocations::default(), NodeProblems::default(), GpuReadings::default());
        let images = ImageCache::new(&dir.0, 0);
        let (_, checks) = Checking::new(config.health.clone(), &me, &dir.0, images.clone());
        let (_, conformance) = Conforming::new(config.conformance.clone(), &me);
        let controllers = Controllers::find(Path::new("lattice-bench"), None, Path::new(""), &BTreeSet::new());
        let bounds = Bounds::new(&config, controllers, Resources::default(), &MemoryTopology::default()).expect("no devices are limited");
        let fabric = Fabric::open(&config, problems.clone()).expect("no manager is configured");
        let quorum = QuorumClient::new(vec!["127.0.0.1:1".to_owned()], credentials.clone()).expect("an endpoint");
        let directory = Directory::new(quorum, cluster_view.clone(), watch::channel(Arc::default()).1, Peers::open(&dir.0));
        let facts = facts::Handles {
            me: me.clone(),
            mesh: mesh.clone(),
            cluster: cluster_view.clone(),
            directory: directory.clone(),
            view: node_view.clone(),
            checks: checks.clone(),
            conformance: conformance.clone(),
            topology: topology.subscribe(),
            gpus: gpus.subscribe(),
            images: images.clone(),
        };
        let measuring = measuring::Handles {
            me: me.clone(),
            state_dir: dir.0.clone(),
            slice: None,
            bounds: bounds.clone(),
            allocations: allocations.clone(),
            view: node_view.clone(),
            topology: topology.subscribe(),
            gpus: gpus.subscribe(),
            gpu_readings: gpu_readings.clone(),
            traces: Traces::open(&dir.0, None, Duration::from_secs(30)),
            problems: problems.clone(),
            mesh: mesh.clone(),
        };
        let tasks = Tasks::default();
        let launches = launch::Handles {
            me: me.clone(),
            mesh: mesh.clone(),
            directory: directory.clone(),
            allocations: allocations.clone(),
            fabric: fabric.clone(),
            fence_timeout: Duration::from_secs(60),
            fanout: None,
            tasks: tasks.clone(),
        };
        let checkpoint = checkpoint::Handles {
            me: me.clone(),
            checkpoints: Checkpoints::open(&config, credentials.material()).expect("no store is configured"),
            allocations: allocations.clone(),
            slice: None,
            bounds: bounds.clone(),
            mesh: mesh.clone(),
            directory: directory.clone(),
            cluster: cluster_view.clone(),
            problems: problems.clone(),
            driver: driver.clone(),
            tasks: tasks.clone(),
        };
        let of_output = spool::Settings { state_dir: dir.0.clone(), flush: Duration::from_secs(30), bytes_max: 1 << 20 };
        let machine = Machine {
            slice: None,
            bounds,
            device_filter: DeviceFilter::None { why: "a test has none".to_owned() },
            topology: topology.subscribe(),
            hwloc: Export::new(&dir.0),
            hooks: Hooks::of(&config),
            images,
            data: DataPlane::of(&config, 1 << 30, &mut Vec::new()),
            fabric,
            checks,
            facts: Facts::new(own_fact(&me), facts),
            gpus: gpus.subscribe(),
            gpu_readings,
            conformance,
        };
        let setup = Setup {
            me: me.clone(),
            host: Ipv4Addr::LOCALHOST.into(),
            state_dir: dir.0.clone(),
            shim: dir.0.join("no-shim"),
            socket: config.socket.clone(),
            allow_root: false,
            work_may_gain_privileges: false,
            images_from_users: config.images.from_users,
            grace: Duration::from_secs(30),
            log_limits: LogLimits { ring_bytes: 1 << 20, spool_bytes_max: 1 << 20 },
            attach_max_concurrent: 1,
            slurm: SlurmSettings::default(),
        };
        let handles = Handles {
            setup: Arc::new(setup),
            machine: Arc::new(machine),
            allocations,
            spools: Spools::new(None, of_output, TaskTracker::new(), stop.child_token()),
            checkpoint: Arc::new(checkpoint),
            launches: Launches::new(launches),
            lanes: Arc::new(LaneCalls(lanes)),
            measuring: Measuring::new(config.alerts.clone(), config.measuring.window_smoothing, measuring),
            latencies: Latencies::default(),
            adoption: Adoption::default(),
            mesh,
            cluster: cluster_view,
            directory,
            view: node_view,
            problems,
            acknowledged: acknowledged_view,
            driver,
            tasks,
        };
        let handles = Arc::new(handles);
        Self { handles, address, events, cluster, view, acknowledged, lane_calls, incoming, stop, dir }
    }

    /// Another agent of the same cluster.
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn peer(&self, name: &str, role: Role) -> Mesh {
        listen(&self.dir.0, name, role, &self.stop).1
    }
}

impl Default for Bench {
    fn default() -> Self {
        Self::new()
    }
}

fn own_fact(me: &NodeId) -> NodeFact {
    NodeFact {
        node: me.clone(),
        state: NodeState::Booting,
        reason: String::new(),
        holds: Vec::new(),
        schedulable: true,
        cores: 2,
        memory_bytes: 1 << 30,
        gpus: BTreeMap::new(),
        topology_group: None,
        features: Vec::new(),
        fingerprint: None,
        images: Vec::new(),
        images_count: 0,
    }
}
