//! The properties of a requested cluster.

use crate::gpus;
use anyhow::{Context, Result, bail};
use lattice_quorum::config::QuorumConfig;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Default lifetime of certificates.
pub(crate) const CERTIFICATE_SECONDS: u64 = 90 * 86_400;

/// The properties of a requested cluster. Timers are far shorter than a real cluster's.
#[derive(Clone, Debug)]
pub struct Options {
    /// Agents, 0 to 64.
    pub nodes: u32,
    /// Members: 1, 3 or 5.
    pub quorum: u32,
    /// A directory that does not exist or is empty.
    pub dir: PathBuf,
    /// The directory for the agents' sockets and state; `None`: in `dir`.
    pub agents_dir: Option<PathBuf>,
    /// Whether the binaries are built first.
    pub build: bool,
    /// Seconds between SIGTERM and SIGKILL of work.
    pub grace_seconds: u64,
    /// Timeout of a fence, in seconds.
    pub fence_timeout_seconds: u64,
    /// Interval of an agent's heartbeats, in milliseconds.
    pub heartbeat_ms: u64,
    /// Silence after which a node is Degraded, in milliseconds.
    pub degraded_after_ms: u64,
    /// Further silence after which it is Down, in milliseconds. Long, because tests stop agents for a while.
    pub down_after_ms: u64,
    /// The members' `node_admission`.
    pub node_admission: &'static str,
    /// Interval of a leader's heartbeats, in milliseconds.
    pub raft_heartbeat_ms: u64,
    /// Lifetime of a scheduler's lease that is not renewed, in milliseconds.
    pub scheduler_lease_ms: u64,
    /// How often the head of the audit chain is signed, and how often the records after the archive's last complete
    /// segment are uploaded again. Each second in the lab, so that tests see it; benchmarks use the defaults
    /// ([`Options::with_audit_as_documented`]).
    pub audit_sign_seconds: u64,
    pub audit_archive_seconds: u64,
    /// Silence of a leader until an election, in milliseconds.
    pub raft_election_ms: u64,
    /// Further lines of every member's configuration; `{dir}` is the cluster's folder.
    pub member_lines: String,
    /// The hosts of the members, in their order; members without an entry run on this machine.
    pub hosts: Vec<Host>,
    /// Whether every daemon has its own network, which can be cut. Needs root.
    pub netns: bool,
    /// Whether the daemons' time of day can be set wrong, and the members' disks can be made slow. Needs a C compiler.
    pub clocks: bool,
    /// Daemons with their own small file system, and its MiB: for an agent's state or a member's data. Needs root.
    pub small_disks: Vec<(String, u32)>,
    /// Lifetime in seconds of the daemons' first certificates, and of those that members sign.
    pub certificate_seconds: u64,
    /// Simulated GPUs on each node, at most 16: device files without a driver, two islands. Needs root.
    pub simulated_gpus: u32,
    /// Whether every agent serves the API on the network too, at [`crate::cluster::Node::api`].
    pub network_api: bool,
    /// The agents' settings of logs, as YAML; without them, a log store in the lab's directory. `{dir}` as above.
    pub log_lines: String,
    /// Further settings of every agent, as YAML; they win over all others. `{dir}` is the cluster's folder, `{run}` the
    /// node's run folder.
    pub agent_lines: String,
    /// Further settings of single nodes' agents, by their names, as YAML; they win over those of every agent.
    pub node_lines: Vec<(String, String)>,
    /// Further lines of every daemon's `telemetry`, each after two spaces; `{dir}` as above.
    pub telemetry_lines: String,
    /// Directories that are made in every node's run directory before its agent is started.
    pub node_folders: Vec<String>,
    /// Timeout of the start, after the build.
    pub ready_within: Duration,
}

/// The host of one daemon.
#[derive(Clone, Debug)]
pub struct Host {
    /// The address at which it listens.
    pub address: String,
    /// A command that runs the daemon: its program and arguments are appended.
    pub launcher: Vec<String>,
}

impl Default for Host {
    fn default() -> Self {
        Self { address: "127.0.0.1".to_owned(), launcher: Vec::new() }
    }
}

impl Options {
    /// The defaults for a cluster of this size in `dir`.
    pub fn new(nodes: u32, quorum: u32, dir: &Path) -> Self {
        Self {
            nodes,
            quorum,
            dir: dir.to_owned(),
            agents_dir: None,
            build: true,
            grace_seconds: 30,
            fence_timeout_seconds: 60,
            heartbeat_ms: 500,
            degraded_after_ms: 3_000,
            down_after_ms: 60_000,
            node_admission: "automatic",
            scheduler_lease_ms: 2_000,
            audit_sign_seconds: 1,
            audit_archive_seconds: 1,
            raft_heartbeat_ms: 50,
            raft_election_ms: 300,
            simulated_gpus: 0,
            network_api: false,
            log_lines: String::new(),
            agent_lines: String::new(),
            node_lines: Vec::new(),
            telemetry_lines: String::new(),
            member_lines: String::new(),
            hosts: Vec::new(),
            netns: false,
            clocks: false,
            small_disks: Vec::new(),
            certificate_seconds: CERTIFICATE_SECONDS,
            node_folders: Vec::new(),
            ready_within: Duration::from_secs(60),
        }
    }

    /// The same options with the members' default intervals of signing and archiving: a bench writes thousands of
    /// records a second, and each second would archive them again.
    pub fn with_audit_as_documented(self) -> Self {
        let QuorumConfig { audit_sign_seconds, audit_archive_seconds, .. } = QuorumConfig::default();
        Self { audit_sign_seconds, audit_archive_seconds, ..self }
    }

    pub(crate) fn validate(&self) -> Result<()> {
        if self.nodes > 64 {
            bail!("--nodes {}: at most 64 are possible", self.nodes);
        }
        if ![1, 3, 5].contains(&self.quorum) {
            bail!("--quorum {}: 1, 3 or 5 are possible (an even number tolerates no more failures than one less)", self.quorum);
        }
        if self.simulated_gpus > gpus::NODE_MAX {
            bail!("{} simulated GPUs on a node: at most {} are possible", self.simulated_gpus, gpus::NODE_MAX);
        }
        if self.heartbeat_ms == 0 || self.degraded_after_ms <= self.heartbeat_ms {
            bail!("--degraded-after-ms must be more than --heartbeat-ms ({}), and that more than 0", self.heartbeat_ms);
        }
        let mut entries = match std::fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e).with_context(|| format!("cannot use {}", self.dir.display())),
        };
        if self.dir.join("cluster.json").exists() {
            bail!("{} holds a lab cluster already; `lattice-lab down --dir {}` removes it", self.dir.display(), self.dir.display());
        }
        if entries.next().is_some() {
            bail!("{} is not empty: `down` removes the whole folder, so it must be the lab's own", self.dir.display());
        }
        Ok(())
    }
}
