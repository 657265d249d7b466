//! Creates everything that the tasks share; no other module sees all of it.

use super::base::Base;
use super::connections::Connections;
use crate::gpus::GpuWatching;
use crate::lane_reports::LaneReports;
use crate::slurm_names;
use anyhow::Context as _;
use lattice_accounting::Accounting;
use lattice_agent_checkpoint as checkpoint;
use lattice_agent_checkpoint::Checkpoints;
use lattice_agent_common::config::AgentConfig;
use lattice_agent_common::driver_queue::DriverQueue;
use lattice_agent_common::environment::slurm::SlurmSettings;
use lattice_agent_common::node_view::NodeView;
use lattice_agent_common::session_state::SessionState;
use lattice_agent_common::setup::Setup;
use lattice_agent_common::tasks::Tasks;
use lattice_agent_common::user_quota::UserQuota;
use lattice_allocation::adoption::Adoption;
use lattice_allocation::handles::Handles;
use lattice_allocation::latencies::Latencies;
use lattice_launch as launch;
use lattice_launch::{Launches, Parents};
use lattice_machine::bounds::Bounds;
use lattice_machine::conformance::Conformity;
use lattice_machine::data_plane::DataPlane;
use lattice_machine::devices::DeviceFilter;
use lattice_machine::facts::{self, Facts};
use lattice_machine::gpu_loads::GpuReadings;
use lattice_machine::health::Checks;
use lattice_machine::hooks::Hooks;
use lattice_machine::hwloc;
use lattice_machine::image_cache::ImageCache;
use lattice_machine::machine::Machine;
use lattice_membership::cluster::Cluster;
use lattice_membership::directory::Directory;
use lattice_membership::relay::RelayedAgents;
use lattice_meshd::context::Context;
use lattice_meshd::diagnosis_slots::DiagnosisSlots;
use lattice_model::fact::NodeFact;
use lattice_model::{NodeState, Resources};
use lattice_node::Event;
use lattice_observe::measuring::{self, Measuring};
use lattice_observe::traces::Traces;
use lattice_output::growth::Growth;
use lattice_output::log_store::LogStore;
use lattice_output::spool::{self, Spools};
use lattice_registry::Allocations;
use lattice_runtime::cgroup::Slice;
use lattice_runtime::shim::LogLimits;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// How many events are queued for the driver.
const EVENTS_QUEUE_LEN: usize = 1024;

/// Channels between tasks that begin later.
pub struct Channels {
    pub driver: DriverQueue,
    /// When the newest heartbeat was sent that the leader acknowledged.
    pub beats: watch::Sender<Option<u64>>,
    pub acknowledged: watch::Receiver<Option<u64>>,
    pub cluster_out: watch::Sender<Arc<Cluster>>,
    pub cluster: watch::Receiver<Arc<Cluster>>,
    /// The driver's published state of this node.
    pub view: watch::Receiver<Arc<NodeView>>,
    pub session_out: watch::Sender<SessionState>,
    pub session: watch::Receiver<SessionState>,
}

/// The driver's ends of the channels.
pub struct DriverEnds {
    pub queue: mpsc::Receiver<Event>,
    pub view: watch::Sender<Arc<NodeView>>,
}

impl Channels {
    /// `checkpoint_bytes_per_second`: the bandwidth of the checkpoint store, as configured.
    pub fn new(checkpoint_bytes_per_second: u64) -> (Self, DriverEnds) {
        let (driver, queue) = DriverQueue::new(EVENTS_QUEUE_LEN);
        let (beats, acknowledged) = watch::channel(None);
        let unknown = Cluster { checkpoint_bytes_per_second: Some(checkpoint_bytes_per_second as f64), ..Cluster::default() };
        let (cluster_out, cluster) = watch::channel(Arc::new(unknown));
        let (view_out, view) = watch::channel(Arc::new(NodeView::default()));
        let lost = SessionState::Lost { since: Instant::now(), why: "not connected yet".to_owned() };
        let (session_out, session) = watch::channel(lost);
        let channels = Self { driver, beats, acknowledged, cluster_out, cluster, view, session_out, session };
        (channels, DriverEnds { queue, view: view_out })
    }
}

/// The stores on the disk and in object storage.
pub struct Stores {
    pub checkpoints: Checkpoints,
    pub traces: Traces,
    pub spools: Spools,
    pub images: ImageCache,
}

impl Stores {
    /// Opens the configured stores.
    pub fn open(base: &Base) -> anyhow::Result<Self> {
        let config = &base.config;
        let checkpoints = Checkpoints::open(config, base.credentials.material())?;
        let log_store = LogStore::configured(config)?;
        let of_output = spool::Settings {
            state_dir: config.state_dir.clone(),
            flush: Duration::from_secs(config.logs.flush_seconds),
            bytes_max: config.logs.spool_max_bytes,
        };
        let traces = Traces::open(&config.state_dir, log_store.clone(), of_output.flush);
        let spools = Spools::new(log_store, of_output, base.tasks.clone(), base.stop.child_token());
        let images = ImageCache::new(&config.state_dir, config.images.cache_max_bytes);
        Ok(Self { checkpoints, traces, spools, images })
    }
}

/// The handles from which subsystems take theirs.
pub struct Wiring<'a> {
    pub base: &'a Base,
    pub gpus: &'a GpuWatching,
    pub connections: &'a Connections,
    pub channels: &'a Channels,
    pub slice: Option<Slice>,
    pub bounds: Bounds,
    pub size: Resources,
    pub checks: Checks,
    pub conformance: Conformity,
    pub stores: Stores,
}

/// The configuration of the variables that Slurm sets.
fn slurm_settings(config: &AgentConfig) -> SlurmSettings {
    // An address that stands for all addresses names no host.
    let address = config.mesh.advertise().parse::<SocketAddr>().ok().map(|address| address.ip());
    SlurmSettings {
        cluster: config.cluster.clone(),
        names: slurm_names::read(&config.work.slurm_names),
        for_all_work: config.work.slurm_env,
        address: address.filter(|address| !address.is_unspecified()),
    }
}

impl Wiring<'_> {
    /// The context that all tasks hold.
    pub fn context(self, shim: PathBuf, device_filter: DeviceFilter, hwloc: hwloc::Export, data: DataPlane) -> anyhow::Result<Context> {
        let (allocations, gpu_readings, tasks) = (Allocations::default(), GpuReadings::default(), Tasks::default());
        let directory = self.directory();
        let facts = Facts::new(self.own_fact(), self.for_facts(&directory));
        let config = &self.base.config;
        let for_measuring = self.for_measuring(&allocations, &gpu_readings);
        let measuring = Measuring::new(config.alerts.clone(), config.measuring.window_smoothing, for_measuring);
        let launches = Launches::new(self.for_launches(&allocations, &directory, &tasks));
        let checkpoint = Arc::new(self.for_checkpoints(&allocations, &directory, &tasks));
        let Self { base, gpus, connections, channels, slice, bounds, checks, conformance, stores, .. } = self;
        let Stores { traces, spools, images, .. } = stores;
        let setup = Arc::new(Setup {
            me: base.me.clone(),
            host: config.mesh.advertise().parse::<SocketAddr>().context("mesh.advertise")?.ip(),
            state_dir: config.state_dir.clone(),
            shim,
            socket: config.socket.clone(),
            allow_root: config.work.allow_root,
            work_may_gain_privileges: config.work.may_gain_privileges,
            images_from_users: config.images.from_users,
            grace: Duration::from_secs(config.work.grace_seconds),
            log_limits: LogLimits { ring_bytes: config.logs.ring_bytes, spool_bytes_max: config.logs.spool_max_bytes },
            attach_max_concurrent: config.work.attach_max_concurrent,
            slurm: slurm_settings(config),
        });
        let machine = Arc::new(Machine {
            slice,
            bounds,
            device_filter,
            topology: gpus.topology(),
            hwloc,
            hooks: Hooks::of(config),
            images,
            data,
            fabric: connections.fabric.clone(),
            checks,
            facts,
            gpus: gpus.statuses(),
            gpu_readings,
            conformance,
        });
        let work = Arc::new(Handles {
            setup: Arc::clone(&setup),
            machine: Arc::clone(&machine),
            allocations,
            spools,
            checkpoint,
            launches,
            lanes: Arc::new(LaneReports::new(base.me.clone(), connections.quorum.clone())),
            measuring,
            latencies: Latencies::default(),
            adoption: Adoption::default(),
            mesh: connections.mesh.clone(),
            cluster: channels.cluster.clone(),
            directory,
            view: channels.view.clone(),
            problems: connections.problems.clone(),
            acknowledged: channels.acknowledged.clone(),
            driver: channels.driver.clone(),
            tasks,
        });
        Ok(Context {
            setup,
            machine,
            work,
            traces,
            diagnosis_slots: DiagnosisSlots::default(),
            carried: RelayedAgents::new(config.relay_max, channels.session.clone()),
            growth: Growth::start().context("inotify")?,
            parents: Parents::default(),
            accounting: Accounting::default(),
            attached: UserQuota::default(),
        })
    }

    /// The constant part of this node's fact.
    fn own_fact(&self) -> NodeFact {
        let config = &self.base.config;
        NodeFact {
            node: self.base.me.clone(),
            state: NodeState::Booting,
            reason: String::new(),
            holds: Vec::new(),
            schedulable: config.schedulable,
            cores: self.size.cores,
            memory_bytes: self.size.memory_bytes,
            gpus: BTreeMap::new(),
            topology_group: config.known_topology_group(),
            features: Vec::new(),
            fingerprint: None,
            images: Vec::new(),
            images_count: 0,
        }
    }

    fn directory(&self) -> Directory {
        let Connections { quorum, peers, membership, .. } = &self.connections;
        Directory::new(quorum.clone(), self.channels.cluster.clone(), membership.watch(), peers.clone())
    }

    fn for_facts(&self, directory: &Directory) -> facts::Handles {
        facts::Handles {
            me: self.base.me.clone(),
            mesh: self.connections.mesh.clone(),
            cluster: self.channels.cluster.clone(),
            directory: directory.clone(),
            view: self.channels.view.clone(),
            checks: self.checks.clone(),
            conformance: self.conformance.clone(),
            topology: self.gpus.topology(),
            gpus: self.gpus.statuses(),
            images: self.stores.images.clone(),
        }
    }

    fn for_measuring(&self, allocations: &Allocations, gpu_readings: &GpuReadings) -> measuring::Handles {
        measuring::Handles {
            me: self.base.me.clone(),
            state_dir: self.base.config.state_dir.clone(),
            slice: self.slice.clone(),
            bounds: self.bounds.clone(),
            allocations: allocations.clone(),
            view: self.channels.view.clone(),
            topology: self.gpus.topology(),
            gpus: self.gpus.statuses(),
            gpu_readings: gpu_readings.clone(),
            traces: self.stores.traces.clone(),
            problems: self.connections.problems.clone(),
            mesh: self.connections.mesh.clone(),
        }
    }

    fn for_launches(&self, allocations: &Allocations, directory: &Directory, tasks: &Tasks) -> launch::Handles {
        let config = &self.base.config;
        launch::Handles {
            me: self.base.me.clone(),
            mesh: self.connections.mesh.clone(),
            directory: directory.clone(),
            allocations: allocations.clone(),
            fabric: self.connections.fabric.clone(),
            fence_timeout: Duration::from_secs(config.launch.fence_timeout_seconds),
            fanout: (config.launch.fanout > 0).then_some(config.launch.fanout),
            tasks: tasks.clone(),
        }
    }

    fn for_checkpoints(&self, allocations: &Allocations, directory: &Directory, tasks: &Tasks) -> checkpoint::Handles {
        checkpoint::Handles {
            me: self.base.me.clone(),
            checkpoints: self.stores.checkpoints.clone(),
            allocations: allocations.clone(),
            slice: self.slice.clone(),
            bounds: self.bounds.clone(),
            mesh: self.connections.mesh.clone(),
            directory: directory.clone(),
            cluster: self.channels.cluster.clone(),
            problems: self.connections.problems.clone(),
            driver: self.channels.driver.clone(),
            tasks: tasks.clone(),
        }
    }
}
