//! The agent's configuration: one YAML file, read once.

pub mod accounting;
pub mod api;
pub mod cgroup;
pub mod checkpoint;
pub mod conformance;
pub mod data;
pub mod fabric_manager;
pub mod health;
pub mod hooks;
pub mod logs;
pub mod measuring;
pub mod network;
pub mod oidc;
pub mod setting;
pub mod work;

use crate::file_system;
use accounting::{AccountingSettings, AccountingSettingsError};
use api::{ApiSettings, ApiSettingsError};
use cgroup::CgroupSettings;
use checkpoint::{CHECKPOINT_STORE, CheckpointSettings, CheckpointSettingsError, NoCheckpoints};
use conformance::{ConformanceSettings, ConformanceSettingsError};
use data::{DataSettings, DataSettingsError, ScratchSettings};
use fabric_manager::FabricManagerSettings;
use health::{HealthSettings, HealthSettingsError};
use hooks::HookSettings;
use lattice_model::NodeId;
use lattice_model::constraint::is_feature;
use lattice_model::fact::{TOPOLOGY_GROUP_BYTES_MAX, is_topology_group};
use lattice_objects::SettingNames;
use lattice_pki::tls::TlsFiles;
use lattice_runtime::topology::SimulatedGpu;
use lattice_telemetry::alert::AlertSettings;
use lattice_telemetry::settings::{AGENT_PORT, TelemetrySettings, TelemetrySettingsError};
use logs::{LOGS_STORE, LogSettings, StoreSettings};
use measuring::{MeasuringSettings, MeasuringSettingsError};
use network::{GossipSettings, GossipSettingsError, MeshSettings};
use serde::Deserialize;
use setting::{SettingError, within};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use thiserror::Error;
use work::{ImageSettings, LaunchSettings, WorkSettings};

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
    /// The API on the network, see [`ApiSettings`].
    pub api: ApiSettings,
    /// The store of ended work, see [`AccountingSettings`].
    pub accounting: AccountingSettings,
    /// Service addresses of the quorum's members, `host:port`; at least one.
    pub quorum: Vec<String>,
    /// The agent's certificate (CN = node id, OU = `api` or `node`) and the cluster's CA. Read
    /// again when the files change. Where a member has the authority's key, the agent renews the
    /// certificate by itself and keeps the new one in `state_dir`.
    pub tls: TlsFiles,
    /// Where agents reach each other, see [`MeshSettings`].
    pub mesh: MeshSettings,
    /// Where and how agents gossip, see [`GossipSettings`].
    pub gossip: GossipSettings,
    /// How many sessions with the quorum this agent relays at once for peers that reach no member;
    /// 0 to 1000. 0: none.
    pub relay_max: usize,
    /// What this agent does besides running its node: `api` authenticates users of this machine,
    /// `scheduler` places work while it holds the lease, `accounting` stores ended work while it
    /// holds that lease.
    pub roles: Vec<Role>,
    /// Whether work is placed here. A login node sets false.
    pub schedulable: bool,
    /// Whether users see only id, state, nodes, share, queue and times of other users' allocations:
    /// neither name nor owner, tenant or reason. Operators see everything. Set it alike on all
    /// agents with the role `api`.
    pub private: bool,
    /// What work on this node may do, see [`WorkSettings`].
    pub work: WorkSettings,
    /// Images of software environments, see [`ImageSettings`].
    pub images: ImageSettings,
    /// Cgroups and limits of work, see [`CgroupSettings`].
    pub cgroup: CgroupSettings,
    /// Simulated GPUs, for labs: each counts in capacity and assignment, and is shown as simulated.
    pub simulated_gpus: Vec<SimulatedGpu>,
    /// The shim's program; empty: `lattice-shim` in the directory of the agent's own program.
    pub shim: PathBuf,
    /// Launches, see [`LaunchSettings`].
    pub launch: LaunchSettings,
    /// Output of work, see [`LogSettings`].
    pub logs: LogSettings,
    /// Where checkpoints are, when the broker asks work for them, and how long they are retained,
    /// see [`CheckpointSettings`].
    pub checkpoint: CheckpointSettings,
    /// The site's own programs, see [`HookSettings`].
    pub hooks: HookSettings,
    /// Features of this node that work may require (`--constraint`), besides those that the agent
    /// detects itself (`nvme_scratch`, `gpu`, `gpu_type=…`, `unified_memory`): words, or
    /// `key=value`. At most 16.
    pub features: Vec<String>,
    /// The part of the network that this node is in, as the site names it: a dragonfly group, a
    /// leaf switch. Work of several nodes gets nodes of as few groups as possible. At most 64 bytes;
    /// empty: unknown.
    pub topology_group: String,
    /// Where allocations' scratch is, see [`ScratchSettings`].
    pub scratch: ScratchSettings,
    /// Homes, output directories and mounts, see [`DataSettings`].
    pub data: DataSettings,
    /// The fabric manager, see [`FabricManagerSettings`].
    pub fabric_manager: FabricManagerSettings,
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
    /// How work is measured, see [`MeasuringSettings`].
    pub measuring: MeasuringSettings,
    /// Which conditions of allocations' work on this node raise alerts, see [`AlertSettings`].
    pub alerts: AlertSettings,
}

/// A role of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Api,
    Scheduler,
    Accounting,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            node_id: String::new(),
            cluster: "lattice".to_owned(),
            state_dir: "/var/lib/lattice".into(),
            state_file: PathBuf::new(),
            socket: "/run/lattice/agent.sock".into(),
            api: ApiSettings::default(),
            accounting: AccountingSettings::default(),
            quorum: Vec::new(),
            tls: TlsFiles::default(),
            mesh: MeshSettings::default(),
            gossip: GossipSettings::default(),
            relay_max: 16,
            roles: vec![Role::Api, Role::Scheduler],
            schedulable: true,
            private: false,
            work: WorkSettings::default(),
            images: ImageSettings::default(),
            cgroup: CgroupSettings::default(),
            simulated_gpus: Vec::new(),
            shim: PathBuf::new(),
            launch: LaunchSettings::default(),
            logs: LogSettings::default(),
            checkpoint: CheckpointSettings::default(),
            hooks: HookSettings::default(),
            features: Vec::new(),
            topology_group: String::new(),
            scratch: ScratchSettings::default(),
            data: DataSettings::default(),
            fabric_manager: FabricManagerSettings::default(),
            scheduler_lease_ms: 5000,
            health: HealthSettings::default(),
            conformance: ConformanceSettings::default(),
            telemetry: TelemetrySettings::default(),
            measuring: MeasuringSettings::default(),
            alerts: AlertSettings::default(),
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
    #[error("features: {feature:?} is not valid: use at most 16 words of letters, digits, _, - and ., or WORD=TEXT")]
    Feature { feature: String },
    #[error("topology_group: {group:?} is not valid: use at most {TOPOLOGY_GROUP_BYTES_MAX} bytes without control characters")]
    TopologyGroup { group: String },
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error(transparent)]
    Api(#[from] ApiSettingsError),
    #[error("api.listen: only an agent with the role api serves the API on the network: add it to `roles`, or unset api.listen")]
    ApiWithoutRole,
    #[error(transparent)]
    Gossip(#[from] GossipSettingsError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointSettingsError),
    #[error(transparent)]
    Data(#[from] DataSettingsError),
    #[error(transparent)]
    Health(#[from] HealthSettingsError),
    #[error(transparent)]
    Conformance(#[from] ConformanceSettingsError),
    #[error(transparent)]
    Telemetry(#[from] TelemetrySettingsError),
    #[error(transparent)]
    Measuring(#[from] MeasuringSettingsError),
    #[error(transparent)]
    Accounting(#[from] AccountingSettingsError),
    #[error("simulated_gpus: simulated GPUs are for labs, which set work.allow_root: remove them from this file")]
    SimulatedGpus,
    #[error("the role scheduler needs the role api beside it: it proposes claims with the api certificate")]
    SchedulerWithoutApi,
}

impl AgentConfig {
    /// The part of the network that the node is in, if the site configures it.
    pub fn known_topology_group(&self) -> Option<String> {
        Some(self.topology_group.clone()).filter(|group| !group.is_empty())
    }

    /// Checks ranges and forms.
    pub fn validate(&self) -> Result<(), AgentConfigError> {
        self.node()?;
        if self.quorum.is_empty() {
            return Err(AgentConfigError::NoQuorum);
        }
        within("relay_max", self.relay_max as u64, 0, 1000)?;
        within("scheduler_lease_ms", self.scheduler_lease_ms, 500, 60_000)?;
        if let Some((_, feature)) = self.features.iter().enumerate().find(|(number, f)| *number >= FEATURES_MAX || !is_feature(f)) {
            return Err(AgentConfigError::Feature { feature: feature.clone() });
        }
        if !self.topology_group.is_empty() && !is_topology_group(&self.topology_group) {
            return Err(AgentConfigError::TopologyGroup { group: self.topology_group.clone() });
        }
        if self.roles.contains(&Role::Scheduler) && !self.roles.contains(&Role::Api) {
            return Err(AgentConfigError::SchedulerWithoutApi);
        }
        if !self.simulated_gpus.is_empty() && !self.work.allow_root {
            return Err(AgentConfigError::SimulatedGpus);
        }
        if self.api.address().is_some() && !self.has(Role::Api) {
            return Err(AgentConfigError::ApiWithoutRole);
        }
        self.api.validate()?;
        self.mesh.validate()?;
        self.gossip.validate()?;
        self.work.validate()?;
        self.cgroup.validate()?;
        self.launch.validate()?;
        self.logs.validate()?;
        self.checkpoint.validate()?;
        self.hooks.validate()?;
        self.scratch.validate()?;
        self.data.validate()?;
        self.health.validate()?;
        self.conformance.validate()?;
        self.telemetry.validate()?;
        self.accounting.validate(self.has(Role::Accounting))?;
        Ok(self.measuring.validate()?)
    }

    /// The file that holds the certificate that the quorum renewed.
    pub fn certificate_file(&self) -> PathBuf {
        self.state_dir.join("certificate.json")
    }

    /// [`AgentConfig::node_id`], parsed.
    pub fn node(&self) -> Result<NodeId, lattice_model::ids::IdError> {
        self.node_id.parse()
    }

    /// Address on which `/metrics` is served; `None`: it is not served.
    pub fn metrics_listen(&self) -> Option<SocketAddr> {
        let mesh = self.mesh.listen().parse::<SocketAddr>().map_or(Ipv4Addr::LOCALHOST.into(), |at| at.ip());
        self.telemetry.listen((mesh, AGENT_PORT).into())
    }

    /// Path of the readable checkpoint of the node's state.
    pub fn state_file(&self) -> PathBuf {
        if self.state_file.as_os_str().is_empty() { self.state_dir.join("agent-state.json") } else { self.state_file.clone() }
    }

    /// The directory in which work saves its state.
    pub fn checkpoint_dir(&self) -> PathBuf {
        if self.checkpoint.dir.as_os_str().is_empty() { self.state_dir.join("checkpoints") } else { self.checkpoint.dir.clone() }
    }

    /// The object store for checkpoints, and the names of its settings in the configuration;
    /// `None`: there is none.
    pub fn checkpoint_store(&self) -> Option<(SettingNames, &StoreSettings)> {
        let both = [(CHECKPOINT_STORE, &self.checkpoint.store), (LOGS_STORE, &self.logs.store)];
        both.into_iter().find(|(_, store)| store.is_configured())
    }

    /// Whether the configuration sets anything for checkpoints itself. A `logs.store` alone, which
    /// would hold checkpoints too, does not count.
    pub fn wants_checkpoints(&self) -> bool {
        self.checkpoint.store.is_configured() || !self.checkpoint.dir.as_os_str().is_empty()
    }

    /// The store, as [`Self::checkpoint_store`], or why this agent cannot make checkpoints. They
    /// contain the memory of users' programs, so the store must not be open to others. The
    /// directory must belong to this node alone, so that requests and answers of two nodes are
    /// never mixed.
    pub fn makes_checkpoints(&self) -> Result<(SettingNames, &StoreSettings), NoCheckpoints> {
        let (names, store) = self.checkpoint_store().ok_or(NoCheckpoints::NoStore)?;
        if let Some((dir, mode)) = lattice_objects::open_to_others(&store.url) {
            return Err(NoCheckpoints::OthersEnterStore { setting: names.url, url: store.url.clone(), dir, mode });
        }
        self.saves_here()?;
        Ok((names, store))
    }

    /// Refuses a `checkpoint.dir` on a file system that other nodes may share.
    fn saves_here(&self) -> Result<(), NoCheckpoints> {
        let dir = self.checkpoint_dir();
        // A type that cannot be read counts as local. If the directory cannot be used, an error
        // follows when it is created.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(more: &str) -> AgentConfig {
        let text = format!("node_id: n1\nquorum: [\"m1:1\"]\nmesh: {{listen: \"10.0.0.1:1\"}}\ngossip: {{listen: \"10.0.0.1:2\"}}\n{more}");
        lattice_model::config::parse("agent.yaml", &text).unwrap()
    }

    #[test]
    fn invalid_settings_are_refused_by_their_dotted_path() {
        parsed("").validate().unwrap();
        let settings = [
            ("relay_max: 1001", "relay_max: 1001 "),
            ("work: {grace_seconds: 3601}", "work.grace_seconds: "),
            ("work: {attach_max_concurrent: 0}", "work.attach_max_concurrent: "),
            ("roles: []\napi: {listen: \"10.0.0.1:3\"}", "api.listen: only an agent with the role api "),
            ("api: {limits: {burst: 0}}", "api.limits.burst: "),
            ("cgroup: {pids_max: 63}", "cgroup.pids_max: "),
            ("cgroup: {io_max: [{device: /dev/a, read_bytes_per_second: 0}]}", "cgroup.io_max: "),
            ("launch: {fanout: 1}", "launch.fanout: "),
            ("launch: {fence_timeout_seconds: 0}", "launch.fence_timeout_seconds: "),
            ("logs: {ring_bytes: 2097152, spool_max_bytes: 1048576}", "logs.ring_bytes: "),
            ("logs: {max_concurrent: 0}", "logs.max_concurrent: "),
            ("checkpoint: {dir: here}", "checkpoint.dir: "),
            ("scratch: {tmpfs_dir: /}", "scratch.tmpfs_dir: "),
            ("data: {home_source: \"home/{user}\"}", "data.home_source: "),
            ("data: {mount_roots: [/etc]}", "data.mount_roots: "),
            ("measuring: {query_url: here}", "measuring.query_url: "),
            ("roles: [accounting]", "accounting.store: the role accounting needs it"),
            ("accounting: {store: \"mysql://x\"}", "accounting.store: "),
            ("measuring: {gpu_job_mapping_dir: here}", "measuring.gpu_job_mapping_dir: "),
        ];
        for (text, start) in settings {
            let refused = parsed(text).validate().unwrap_err().to_string();
            assert!(refused.starts_with(start), "{text}: {refused}");
        }
    }

    #[test]
    fn checkpoints_go_to_their_own_store_or_to_that_of_logs() {
        assert!(parsed("").checkpoint_store().is_none());
        let logs = "logs: {store: {url: \"s3://logs\"}}\n";
        let of = |more: &str| parsed(more).checkpoint_store().map(|(names, store)| (names.url, store.url.clone()));
        assert_eq!(of(logs), Some(("logs.store.url", "s3://logs".to_owned())));
        let own = format!("{logs}checkpoint: {{store: {{url: \"s3://own\"}}}}\n");
        assert_eq!(of(&own), Some(("checkpoint.store.url", "s3://own".to_owned())));
        assert!(!parsed(logs).wants_checkpoints() && parsed(&own).wants_checkpoints());
    }
}
