//! The agent's configuration: one YAML file, read once.

pub mod checkpoint;
pub mod conformance;
pub mod health;

use crate::file_system;
use checkpoint::{CheckpointSettings, CheckpointSettingsError, NoCheckpoints};
use conformance::{ConformanceSettings, ConformanceSettingsError};
use health::{HealthSettings, HealthSettingsError};
use lattice_model::NodeId;
use lattice_model::constraint::is_feature;
use lattice_model::fact::TOPOLOGY_GROUP_BYTES_MAX;
use lattice_pki::tls::TlsFiles;
use lattice_pmi::{FANOUT_MAX, FANOUT_MIN};
use lattice_runtime::cgroup::controllers::Controller;
use lattice_runtime::topology::SimulatedGpu;
use lattice_telemetry::alert::AlertSettings;
use lattice_telemetry::query::{self, QueryAddressError};
use lattice_telemetry::settings::{AGENT_PORT, TelemetrySettings, TelemetrySettingsError};
use lattice_telemetry::window::smoothing::Smoothing;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Component, Path, PathBuf};
use thiserror::Error;

/// How many features a site may give to a node.
const FEATURES_MAX: usize = 16;

/// `/etc/lattice/agent.yaml`. Unknown keys are refused.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentConfig {
    /// This node's name. The certificate's common name must be the same.
    pub node_id: String,
    /// The cluster's name: gossip from other clusters is ignored.
    pub cluster: String,
    /// Directory of journal, image cache, logs and shims. Local and durable; at least a few GiB.
    pub state_dir: PathBuf,
    /// The readable checkpoint of the node's state; empty: `agent-state.json` in `state_dir`.
    pub state_file: PathBuf,
    /// The API's Unix socket, mode 0666: callers are identified by their peer credentials.
    pub socket: PathBuf,
    /// Service addresses of the quorum's members, `host:port`; at least one.
    pub quorum: Vec<String>,
    /// The agent's certificate (CN = node id, OU = `api` or `node`) and the cluster's CA. Read
    /// again when the files change. Where a member has the authority's key, the agent renews the
    /// certificate by itself and keeps the new one in `state_dir`.
    pub tls: TlsFiles,
    /// Address on which the mesh listens (QUIC over UDP); empty: `mesh_advertise`, and no other
    /// address.
    pub mesh_listen: String,
    /// Address at which other agents reach the mesh; empty: `mesh_listen`.
    pub mesh_advertise: String,
    /// Address on which gossip listens (UDP); empty: `gossip_advertise`, and no other address.
    pub gossip_listen: String,
    /// Address at which other agents reach gossip, an IP address and port; empty: `gossip_listen`.
    pub gossip_advertise: String,
    /// A file of mode 0600 with the cluster's gossip key, 64 hexadecimal digits. The key is in use
    /// until the quorum has other ones; a new node uses it until it has registered.
    pub gossip_key_file: PathBuf,
    /// How many sessions with the quorum this agent relays at once for peers that reach no member;
    /// 0 to 1000. 0: none.
    pub relay_max: usize,
    /// Agents to join gossip through, `host:port`, besides those that the quorum names.
    pub gossip_seeds: Vec<String>,
    /// Timers of gossip.
    pub gossip: lattice_gossip::Config,
    /// What this agent does besides running its node: `api` authenticates users of this machine,
    /// `scheduler` places work while it holds the lease.
    pub roles: Vec<Role>,
    /// Whether work is placed here. A login node sets false.
    pub schedulable: bool,
    /// What the work of allocations on this node may do at the agent's socket, see [`WorkMay`].
    pub work_may: WorkMay,
    /// Whether users see only id, state, nodes, share, queue and times of other users' allocations:
    /// neither name nor owner, tenant or reason. Operators see everything. Set it alike on all
    /// agents with the role `api`.
    pub private: bool,
    /// Whether work may use images, see [`UserImages`].
    pub user_images: UserImages,
    /// Whether work may run as root. Only for `dev` and the lab.
    pub allow_root: bool,
    /// Whether setuid and setgid programs and programs with file capabilities (`sudo`, `ping`,
    /// `fusermount`) gain privileges in work. `false`: all work, including its terminals, runs with
    /// `NoNewPrivs`. In both cases no program in work can act on the whole machine (load modules,
    /// set the clock, make device files).
    pub work_may_gain_privileges: bool,
    /// The slice for allocations, as a path below the root of the cgroup v2 tree; delegated to the
    /// agent.
    pub cgroup_root: PathBuf,
    /// The directory of the cgroup v2 tree that was delegated to the agent and contains
    /// `cgroup_root`. The agent enables controllers from here on down, and writes nothing above.
    /// Empty: `cgroup_root` itself; `/`: the whole tree, for machines without systemd.
    pub cgroup_delegated: PathBuf,
    /// Controllers that may be used from cgroup version 1 if the v2 tree lacks them: cpu, cpuset,
    /// memory, pids, io. Memory is not in the default: version 1 counts it at a price, and cannot
    /// kill a launch as a whole.
    pub cgroup_v1_controllers: Vec<Controller>,
    /// Processes and threads at once of an allocation that has the whole node; a share gets its
    /// part, by cores. 64 to 4,194,304.
    pub pids_max: u64,
    /// Bytes of main memory that are reserved for the system and not registered; at most a quarter
    /// of it is. Work can use at most what is registered.
    pub memory_reserved_bytes: u64,
    /// Limits of block devices for work that has the whole node; a share gets its part, by cores.
    pub io_max: Vec<IoMax>,
    /// Simulated GPUs, for labs: each counts in capacity and assignment, and is shown as simulated.
    pub simulated_gpus: Vec<SimulatedGpu>,
    /// The shim's program; empty: `lattice-shim` in the directory of the agent's own program.
    pub shim: PathBuf,
    /// Seconds between SIGTERM and SIGKILL when the agent ends work; 0 to 3600.
    pub grace_seconds: u64,
    /// Seconds that a fence may wait for its last node while all nodes are connected; 1 to 3600. A
    /// fence without data has no timeout.
    pub fence_timeout_seconds: u64,
    /// How many other agents each agent of a launch connects to, for launches whose head is here; 2
    /// to 64. 0: by the launch's size, 16 to 32.
    pub launch_fanout: u32,
    /// Bytes of logs on this node: of all ended allocations together, and of each running one as
    /// long as the log store lacks them. Beyond it, the oldest are removed. At least
    /// `log_ring_bytes`.
    pub log_spool_max_bytes: u64,
    /// Bytes of images that stay in the cache (`images` in `state_dir`) while no work here uses
    /// them; beyond it, the least recently used are removed. 0: half of that file system. Images
    /// are also removed while less than a fifth of the file system is free, or less than 8 GiB of a
    /// large one.
    pub image_cache_max_bytes: u64,
    /// Terminals that one user may have attached at once, on this node or through it; 1 to 1000.
    pub attach_max_concurrent: usize,
    /// Bytes of a running allocation's logs that stay on this node for live reading after the log
    /// store has them; 64 KiB to `log_spool_max_bytes`.
    pub log_ring_bytes: u64,
    /// The object store for output: `file:///DIR`, `s3://BUCKET/PREFIX`, `gs://…`, `az://…`. Set it
    /// alike on all agents. Empty: none; output then stays on its node, within
    /// `log_spool_max_bytes`.
    pub log_store: String,
    /// Settings of the log store (`endpoint`, `region`, `allow_http`, …).
    pub log_store_options: BTreeMap<String, String>,
    /// A file of mode 0600 with further settings of the log store (`access_key_id`,
    /// `secret_access_key`, …); empty: none.
    pub log_store_credentials: PathBuf,
    /// The object store for checkpoints, in the forms of `log_store`. Set it alike on all agents.
    /// Empty: `log_store`, with its settings; if that is empty as well, this node takes no work
    /// that asks for checkpoints.
    pub checkpoint_store: String,
    /// Settings of the checkpoint store.
    pub checkpoint_store_options: BTreeMap<String, String>,
    /// A file of mode 0600 with further settings of the checkpoint store; empty: none.
    pub checkpoint_store_credentials: PathBuf,
    /// The directory on this node into which work saves itself (`LATTICE_CHECKPOINT_DIR`), and in
    /// which it finds the checkpoint that it starts from. Absolute; owned by root and writable by
    /// nobody else; with room for the checkpoints of all that runs here. Empty: `checkpoints` in
    /// `state_dir`.
    pub checkpoint_dir: PathBuf,
    /// When the broker asks work for checkpoints, and how long they are retained, see
    /// [`CheckpointSettings`].
    pub checkpoint: CheckpointSettings,
    /// Seconds that output may wait before it is flushed to the log store; 1 to 3600.
    pub log_flush_seconds: u64,
    /// Log streams that one user may have open at this agent; 1 to 10,000.
    pub logs_max_concurrent: usize,
    /// Absolute path of the site's program that runs before each allocation on this node; empty:
    /// none. See `docs/reference/hooks.md`.
    pub prologue: PathBuf,
    /// Timeout of the prologue in seconds; 1 to 86,400.
    pub prologue_timeout_seconds: u64,
    /// Absolute path of the site's program that runs after each allocation on this node; empty:
    /// none.
    pub epilogue: PathBuf,
    /// Timeout of the epilogue in seconds; 1 to 86,400.
    pub epilogue_timeout_seconds: u64,
    /// Absolute path of the site's program that wipes this node (`lattice node wipe`); empty: none,
    /// and the node cannot be wiped.
    pub wipe_hook: PathBuf,
    /// Timeout of the wipe program in seconds; 1 to 86,400.
    pub wipe_timeout_seconds: u64,
    /// Features of this node that work may require (`--constraint`), besides those that the agent
    /// detects itself (`nvme_scratch`, `gpu`, `gpu_type=…`, `unified_memory`): words, or
    /// `key=value`. At most 16.
    pub features: Vec<String>,
    /// The part of the network that this node is in, as the site names it: a dragonfly group, a
    /// leaf switch. At most 64 bytes; empty: unknown.
    pub topology_group: String,
    /// Absolute path of the directory for allocations' scratch on a disk of this node. Owned by
    /// root, writable by nobody else, and used by this agent alone: the agent removes whatever is
    /// named like an allocation in it. Empty: scratch is in memory.
    pub scratch_dir: PathBuf,
    /// Path of in-memory scratch inside allocations; created if it is missing.
    pub scratch_tmpfs_dir: PathBuf,
    /// Bytes of memory for the scratch of one allocation; 0: a quarter of the machine's memory.
    pub scratch_tmpfs_max_bytes: u64,
    /// The directory that is mounted as a user's home, `{user}` for the account's name; empty: the
    /// machine's own home.
    pub home_source: String,
    /// Directory in which `<tenant>/<project>/<allocation>` is created for each allocation, and
    /// stays; empty: none.
    pub output_dir: PathBuf,
    /// Directories below which the targets of `--data-mount` must lie.
    pub mount_roots: Vec<PathBuf>,
    /// URL of the fabric manager, which makes keys for work in a network domain: `https://HOST/…`
    /// or `http://HOST/…`. Set it alike on all agents. Empty: none, and work gets only the number
    /// (VNI) of its domain.
    pub fabric_manager: String,
    /// A file of mode 0600 with the token for the fabric manager; empty: none.
    pub fabric_manager_token: PathBuf,
    /// Authorities, in PEM, that the fabric manager's certificate is verified with; empty: the
    /// system's.
    pub fabric_manager_ca: PathBuf,
    /// How long the scheduler's lease is valid without renewal, in milliseconds; 500 to 60,000. A
    /// dead scheduler is replaced after it.
    pub scheduler_lease_ms: u64,
    /// Health checks of this node, see [`HealthSettings`].
    pub health: HealthSettings,
    /// Which software and firmware of this node must match other nodes, see
    /// [`ConformanceSettings`].
    pub conformance: ConformanceSettings,
    /// Metrics and traces of this agent, its node and its allocations, see [`TelemetrySettings`].
    pub telemetry: TelemetrySettings,
    /// Count in the kernel, with eBPF, what the work of each allocation does: context switches,
    /// waits for processors, block requests, packets. `false`: nothing is loaded, and the metrics
    /// that need these programs are absent.
    pub kernel_probes: bool,
    /// How windows of 30 s are exported (`/metrics` and remote write): `none`, each window
    /// unchanged as soon as it is over; `cubic`, two windows later, its mean smoothed over itself
    /// and two windows on each side. `lattice top`, `watch` and alerts are never smoothed.
    pub window_smoothing: Smoothing,
    /// Give ranks the machine's topology for hwloc (`HWLOC_XMLFILE`, version 1 of its format);
    /// otherwise MPI libraries discover it in each rank.
    pub hwloc_xml: bool,
    /// Where the metrics store answers PromQL, for `lattice compare` and `lattice top`: the URL
    /// before `/api/v1/query_range`. Empty: that of `telemetry.tsdb_endpoint` (without its path),
    /// if that is VictoriaMetrics. Token and authority are those of `telemetry`.
    pub metrics_query_url: String,
    /// Which conditions of allocations' work on this node raise alerts, see [`AlertSettings`].
    pub alerts: AlertSettings,
    /// The folder from which NVIDIA's dcgm-exporter reads which job uses which GPU (its
    /// `--hpc-job-mapping-dir`): one file with the allocation's id for each GPU in use. Empty: no
    /// files are written.
    pub gpu_job_mapping_dir: PathBuf,
}

/// Limits of one block device.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IoMax {
    /// The device, such as `/dev/nvme0n1`; not a partition.
    pub device: PathBuf,
    /// Bytes read a second, at least 1; absent: no limit.
    #[serde(default)]
    pub read_bytes_per_second: Option<u64>,
    /// Bytes written a second, at least 1; absent: no limit.
    #[serde(default)]
    pub write_bytes_per_second: Option<u64>,
}

/// Directories that must look the same to everybody on a machine.
const SYSTEM: [&str; 15] =
    ["/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/opt", "/proc", "/root", "/run", "/sbin", "/sys", "/usr", "/var"];

/// Whether a path lies in a directory that must look the same to everybody on a machine.
pub fn is_system(path: &Path) -> bool {
    SYSTEM.iter().any(|s| path.starts_with(s))
}

/// What the work of an allocation may do at the agent's socket. Operators' requests are refused to
/// it in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkMay {
    /// Whatever its owner may: submit, and act on every allocation of that user.
    AsOwner,
    /// Act on its own allocation only.
    OwnAllocation,
}

/// Whether work may use SquashFS images (`--uenv`). The kernel mounts them, so it parses whatever
/// users bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UserImages {
    /// Any image that the allocation's user may read.
    Allow,
    /// No image: this agent refuses submissions that name one, and this node starts no work with
    /// one.
    Refuse,
}

/// A role of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Api,
    Scheduler,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            node_id: String::new(),
            cluster: "lattice".to_owned(),
            state_dir: "/var/lib/lattice".into(),
            state_file: PathBuf::new(),
            socket: "/run/lattice/agent.sock".into(),
            quorum: Vec::new(),
            tls: TlsFiles::default(),
            mesh_listen: String::new(),
            mesh_advertise: String::new(),
            gossip_listen: String::new(),
            gossip_advertise: String::new(),
            gossip_key_file: "/etc/lattice/gossip.key".into(),
            gossip_seeds: Vec::new(),
            gossip: lattice_gossip::Config::default(),
            roles: vec![Role::Api, Role::Scheduler],
            schedulable: true,
            work_may: WorkMay::AsOwner,
            private: false,
            user_images: UserImages::Allow,
            allow_root: false,
            work_may_gain_privileges: false,
            cgroup_root: "workload.slice".into(),
            cgroup_delegated: PathBuf::new(),
            cgroup_v1_controllers: vec![Controller::Cpu, Controller::Cpuset, Controller::Pids, Controller::Io],
            pids_max: 32_768,
            memory_reserved_bytes: 512 << 20,
            io_max: Vec::new(),
            simulated_gpus: Vec::new(),
            shim: PathBuf::new(),
            grace_seconds: 30,
            fence_timeout_seconds: 60,
            launch_fanout: 0,
            log_spool_max_bytes: 1 << 30,
            image_cache_max_bytes: 0,
            relay_max: 16,
            attach_max_concurrent: 5,
            log_ring_bytes: 64 << 20,
            log_store: String::new(),
            log_store_options: BTreeMap::new(),
            log_store_credentials: PathBuf::new(),
            checkpoint_store: String::new(),
            checkpoint_store_options: BTreeMap::new(),
            checkpoint_store_credentials: PathBuf::new(),
            checkpoint_dir: PathBuf::new(),
            checkpoint: CheckpointSettings::default(),
            log_flush_seconds: 30,
            logs_max_concurrent: 10,
            prologue: PathBuf::new(),
            prologue_timeout_seconds: 300,
            epilogue: PathBuf::new(),
            epilogue_timeout_seconds: 300,
            wipe_hook: PathBuf::new(),
            wipe_timeout_seconds: 1800,
            features: Vec::new(),
            topology_group: String::new(),
            scratch_dir: PathBuf::new(),
            scratch_tmpfs_dir: "/scratch/tmp".into(),
            scratch_tmpfs_max_bytes: 0,
            home_source: String::new(),
            output_dir: PathBuf::new(),
            mount_roots: vec!["/data".into(), "/mnt".into()],
            fabric_manager: String::new(),
            fabric_manager_token: PathBuf::new(),
            fabric_manager_ca: PathBuf::new(),
            scheduler_lease_ms: 5000,
            health: HealthSettings::default(),
            conformance: ConformanceSettings::default(),
            telemetry: TelemetrySettings::default(),
            kernel_probes: true,
            window_smoothing: Smoothing::None,
            hwloc_xml: true,
            metrics_query_url: String::new(),
            alerts: AlertSettings::default(),
            gpu_job_mapping_dir: PathBuf::new(),
        }
    }
}

/// Why a configuration is invalid.
#[derive(Debug, Error)]
pub enum AgentConfigError {
    #[error("node_id: {0}")]
    NodeId(#[from] lattice_model::ids::IdError),
    #[error("quorum: at least one member's address (host:port) is needed")]
    NoQuorum,
    #[error("{field}: {value} is not within {min} and {max}")]
    OutOfRange { field: &'static str, value: u64, min: u64, max: u64 },
    #[error("{field}: {value:?} is not an IP address and port that others can reach")]
    Address { field: &'static str, value: String },
    #[error("{field}: {} must be an absolute path without \"..\"", path.display())]
    Path { field: &'static str, path: PathBuf },
    #[error(
        "mount_roots: {} cannot be one: users could hide from programs with root's rights what these rest on; choose a directory of its own \
         such as /data",
        path.display()
    )]
    MountRoot { path: PathBuf },
    #[error(
        "features: {feature:?} is not valid; allowed are a word of letters, digits, _, - and ., or such a word, = and a text; at most 16 of them"
    )]
    Feature { feature: String },
    #[error("topology_group: {group:?} is no name: at most {TOPOLOGY_GROUP_BYTES_MAX} bytes without control characters")]
    TopologyGroup { group: String },
    #[error(transparent)]
    Health(#[from] HealthSettingsError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointSettingsError),
    #[error(transparent)]
    Conformance(#[from] ConformanceSettingsError),
    #[error(transparent)]
    Telemetry(#[from] TelemetrySettingsError),
    #[error("metrics_query_url: {0}")]
    QueryUrl(#[from] QueryAddressError),
    #[error("gossip: {0}")]
    Gossip(#[from] lattice_gossip::ConfigError),
    #[error("simulated_gpus: they are for labs, and need allow_root; a node shows no GPU that is not there")]
    SimulatedGpus,
    #[error("the role scheduler needs the role api beside it: it proposes claims with the api certificate")]
    SchedulerWithoutApi,
}

impl AgentConfig {
    /// Checks ranges and forms.
    pub fn validate(&self) -> Result<(), AgentConfigError> {
        self.node()?;
        if self.quorum.is_empty() {
            return Err(AgentConfigError::NoQuorum);
        }
        let within = |field, value, min, max| {
            if (min..=max).contains(&value) { Ok(()) } else { Err(AgentConfigError::OutOfRange { field, value, min, max }) }
        };
        within("grace_seconds", self.grace_seconds, 0, 3600)?;
        within("fence_timeout_seconds", self.fence_timeout_seconds, 1, 3600)?;
        if self.launch_fanout != 0 {
            within("launch_fanout", self.launch_fanout.into(), FANOUT_MIN.into(), FANOUT_MAX.into())?;
        }
        within("attach_max_concurrent", u64::try_from(self.attach_max_concurrent).unwrap_or(u64::MAX), 1, 1000)?;
        within("relay_max", self.relay_max as u64, 0, 1000)?;
        within("prologue_timeout_seconds", self.prologue_timeout_seconds, 1, 86_400)?;
        within("epilogue_timeout_seconds", self.epilogue_timeout_seconds, 1, 86_400)?;
        within("wipe_timeout_seconds", self.wipe_timeout_seconds, 1, 86_400)?;
        self.validate_paths()?;
        within("scheduler_lease_ms", self.scheduler_lease_ms, 500, 60_000)?;
        within("pids_max", self.pids_max, 64, 4_194_304)?;
        for bytes in self.io_max.iter().flat_map(|io| [io.read_bytes_per_second, io.write_bytes_per_second]).flatten() {
            within("io_max", bytes, 1, u64::MAX)?;
        }
        if let Some((_, feature)) = self.features.iter().enumerate().find(|(number, f)| *number >= FEATURES_MAX || !is_feature(f)) {
            return Err(AgentConfigError::Feature { feature: feature.clone() });
        }
        if self.topology_group.len() > TOPOLOGY_GROUP_BYTES_MAX || self.topology_group.chars().any(char::is_control) {
            return Err(AgentConfigError::TopologyGroup { group: self.topology_group.clone() });
        }
        within("log_ring_bytes", self.log_ring_bytes, 64 << 10, self.log_spool_max_bytes)?;
        within("log_flush_seconds", self.log_flush_seconds, 1, 3600)?;
        within("logs_max_concurrent", self.logs_max_concurrent as u64, 1, 10_000)?;
        for (field, value) in [("mesh_listen", self.mesh_listen()), ("gossip_listen", self.gossip_listen())] {
            if value.parse::<SocketAddr>().is_err() {
                return Err(AgentConfigError::Address { field, value: value.to_owned() });
            }
        }
        for (field, value) in [("mesh_advertise", self.mesh_advertise()), ("gossip_advertise", self.gossip_advertise())] {
            let reachable = value.parse::<SocketAddr>().is_ok_and(|a| !a.ip().is_unspecified());
            if !reachable {
                return Err(AgentConfigError::Address { field, value: value.to_owned() });
            }
        }
        if self.roles.contains(&Role::Scheduler) && !self.roles.contains(&Role::Api) {
            return Err(AgentConfigError::SchedulerWithoutApi);
        }
        if !self.simulated_gpus.is_empty() && !self.allow_root {
            return Err(AgentConfigError::SimulatedGpus);
        }
        self.gossip.validate()?;
        self.health.validate()?;
        self.checkpoint.validate()?;
        self.conformance.validate()?;
        self.telemetry.validate()?;
        if !self.metrics_query_url.is_empty() {
            query::check(&self.metrics_query_url)?;
        }
        Ok(())
    }

    /// Checks the paths that are mounted, created or run.
    fn validate_paths(&self) -> Result<(), AgentConfigError> {
        let paths = [
            ("prologue", self.prologue.as_path()),
            ("epilogue", &self.epilogue),
            ("wipe_hook", &self.wipe_hook),
            ("scratch_dir", &self.scratch_dir),
            ("scratch_tmpfs_dir", &self.scratch_tmpfs_dir),
            ("home_source", Path::new(&self.home_source)),
            ("output_dir", &self.output_dir),
            ("checkpoint_dir", &self.checkpoint_dir),
            ("gpu_job_mapping_dir", &self.gpu_job_mapping_dir),
        ];
        let plain = |p: &Path| p.is_absolute() && p.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
        for (field, path) in paths.into_iter().filter(|(_, p)| !p.as_os_str().is_empty()) {
            if !plain(path) || path == Path::new("/") {
                return Err(AgentConfigError::Path { field, path: path.to_owned() });
            }
        }
        for root in &self.mount_roots {
            if !plain(root) || root == Path::new("/") || is_system(root) {
                return Err(AgentConfigError::MountRoot { path: root.clone() });
            }
        }
        Ok(())
    }

    /// The file that holds the certificate that the quorum renewed.
    pub fn certificate_file(&self) -> PathBuf {
        self.state_dir.join("certificate.json")
    }

    /// [`AgentConfig::node_id`], parsed.
    pub fn node(&self) -> Result<NodeId, lattice_model::ids::IdError> {
        self.node_id.parse()
    }

    /// Address on which the mesh listens.
    pub fn mesh_listen(&self) -> &str {
        if self.mesh_listen.is_empty() { &self.mesh_advertise } else { &self.mesh_listen }
    }

    /// Address on which `/metrics` is served; `None`: it is not served.
    pub fn metrics_listen(&self) -> Option<SocketAddr> {
        let mesh = self.mesh_listen().parse::<SocketAddr>().map_or(Ipv4Addr::LOCALHOST.into(), |at| at.ip());
        self.telemetry.listen((mesh, AGENT_PORT).into())
    }

    /// Address on which gossip listens.
    pub fn gossip_listen(&self) -> &str {
        if self.gossip_listen.is_empty() { &self.gossip_advertise } else { &self.gossip_listen }
    }

    /// Address at which other agents reach the mesh.
    pub fn mesh_advertise(&self) -> &str {
        if self.mesh_advertise.is_empty() { &self.mesh_listen } else { &self.mesh_advertise }
    }

    /// Address at which other agents reach gossip.
    pub fn gossip_advertise(&self) -> &str {
        if self.gossip_advertise.is_empty() { &self.gossip_listen } else { &self.gossip_advertise }
    }

    /// Path of the readable checkpoint of the node's state.
    pub fn state_file(&self) -> PathBuf {
        if self.state_file.as_os_str().is_empty() { self.state_dir.join("agent-state.json") } else { self.state_file.clone() }
    }

    /// Directory in which work saves itself.
    pub fn checkpoint_dir(&self) -> PathBuf {
        if self.checkpoint_dir.as_os_str().is_empty() { self.state_dir.join("checkpoints") } else { self.checkpoint_dir.clone() }
    }

    /// Whether the configuration sets anything for checkpoints itself. A `log_store` alone, which
    /// would hold checkpoints too, does not count.
    pub fn wants_checkpoints(&self) -> bool {
        !self.checkpoint_store.is_empty() || !self.checkpoint_dir.as_os_str().is_empty()
    }

    /// Whether this agent can make checkpoints, or why not. Checkpoints are the memory of users'
    /// programs: they need a store that nobody else can enter, and a directory of this node's own,
    /// so that requests and answers of two nodes never share one place.
    pub fn makes_checkpoints(&self) -> Result<(), NoCheckpoints> {
        let (setting, url) = match (self.checkpoint_store.as_str(), self.log_store.as_str()) {
            ("", "") => return Err(NoCheckpoints::NoStore),
            ("", url) => ("log_store", url),
            (url, _) => ("checkpoint_store", url),
        };
        match lattice_objects::open_to_others(url) {
            Some((dir, mode)) => Err(NoCheckpoints::OthersEnterStore { setting, url: url.to_owned(), dir, mode }),
            None => self.saves_here(),
        }
    }

    /// Whether `checkpoint_dir` is on a file system that no other node shares.
    fn saves_here(&self) -> Result<(), NoCheckpoints> {
        let dir = self.checkpoint_dir();
        // If the type cannot be read now, whoever creates the directory later reports the problem.
        match file_system::kind_of(&dir) {
            Ok(kind) if file_system::is_shared(&kind) => Err(NoCheckpoints::SharedDirectory { dir, kind }),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Path of the shim's program.
    pub fn shim_program(&self) -> std::io::Result<PathBuf> {
        if !self.shim.as_os_str().is_empty() {
            return Ok(self.shim.clone());
        }
        let own = std::env::current_exe()?;
        Ok(own.parent().unwrap_or(Path::new("/")).join("lattice-shim"))
    }

    /// Whether the agent has `role`.
    pub fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }
}
