//! What cluster is wanted.

use crate::gpus;
use anyhow::{Context, Result, bail};
use lattice_quorum::config::QuorumConfig;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long certificates live, where nothing else is wanted.
pub(crate) const CERTIFICATE_SECONDS: u64 = 90 * 86_400;

/// What cluster is wanted. Timers are far shorter than a real cluster's: a lab has no patience.
#[derive(Clone, Debug)]
pub struct Options {
    /// Agents, 0 to 64.
    pub nodes: u32,
    /// Members: 1, 3 or 5.
    pub quorum: u32,
    /// A folder that does not exist or is empty.
    pub dir: PathBuf,
    /// The folder below which agents have their sockets and their state; `None`: in `dir`.
    pub agents_dir: Option<PathBuf>,
    /// Whether the binaries are built first.
    pub build: bool,
    /// Between SIGTERM and SIGKILL of work, in seconds.
    pub grace_seconds: u64,
    /// How long a fence may wait, in seconds.
    pub fence_timeout_seconds: u64,
    /// Between an agent's heartbeats, in milliseconds.
    pub heartbeat_ms: u64,
    /// Silence after which a node is Degraded, in milliseconds.
    pub degraded_after_ms: u64,
    /// Further silence after which it is Down, in milliseconds. Long: tests hold agents down for a while.
    pub down_after_ms: u64,
    /// The members' `node_admission`.
    pub node_admission: &'static str,
    /// Between a leader's signs of life, in milliseconds.
    pub raft_heartbeat_ms: u64,
    /// How long a scheduler's lease lives that is not renewed, in milliseconds.
    pub scheduler_lease_ms: u64,
    /// How often the audit chain's head is signed, and how often the records behind the archive's last whole segment are put
    /// there again. Each second in the lab, so that a test sees it; what is measured has the defaults ([`Options::with_audit_as_documented`]).
    pub audit_sign_seconds: u64,
    pub audit_archive_seconds: u64,
    /// How long a leader is missed before another is elected, in milliseconds.
    pub raft_election_ms: u64,
    /// Further lines of every member's configuration; `{dir}` is the cluster's folder.
    pub member_lines: String,
    /// Where the members are, in their order; those that have none are here.
    pub hosts: Vec<Host>,
    /// Whether every daemon has a network of its own, which can be cut. Needs root.
    pub netns: bool,
    /// Whether the daemons' time of day can be made wrong, and the members' disks slow. Needs a C compiler.
    pub clocks: bool,
    /// Daemons whose files lie on a small file system of their own, and its MiB: of an agent its state, of a member its data. Needs root.
    pub small_disks: Vec<(String, u32)>,
    /// How long the daemons' first certificates live, and those that members sign, in seconds.
    pub certificate_seconds: u64,
    /// Simulated GPUs on each node, at most 16: device files without a driver, two islands. Needs root.
    pub simulated_gpus: u32,
    /// The agents' settings of logs, as lines of YAML; empty: a log store in the lab's folder.
    pub log_lines: String,
    /// Further lines of every agent's configuration; `{dir}` is the cluster's folder, `{run}` the node's run folder.
    pub agent_lines: String,
    /// Further lines of every daemon's `telemetry`, each after two spaces; `{dir}` as above.
    pub telemetry_lines: String,
    /// Folders made in every node's run folder before its agent is started.
    pub node_folders: Vec<String>,
    /// How long all of it may take once built.
    pub ready_within: Duration,
}

/// Where one daemon is.
#[derive(Clone, Debug)]
pub struct Host {
    /// Where it listens.
    pub address: String,
    /// A command that becomes the daemon: its program and arguments are appended.
    pub launcher: Vec<String>,
}

impl Default for Host {
    fn default() -> Self {
        Self { address: "127.0.0.1".to_owned(), launcher: Vec::new() }
    }
}

impl Options {
    /// The defaults for a cluster of that size in `dir`.
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
            log_lines: String::new(),
            agent_lines: String::new(),
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

    /// The same, signing and archiving as often as members do by themselves: a bench's thousands of records a second would be
    /// archived again each second.
    pub fn with_audit_as_documented(self) -> Self {
        let QuorumConfig { audit_sign_seconds, audit_archive_seconds, .. } = QuorumConfig::default();
        Self { audit_sign_seconds, audit_archive_seconds, ..self }
    }

    pub(crate) fn validate(&self) -> Result<()> {
        if self.nodes > 64 {
            bail!("--nodes {}: at most 64 are possible", self.nodes);
        }
        if ![1, 3, 5].contains(&self.quorum) {
            bail!("--quorum {}: 1, 3 or 5 are possible (an even number survives no more than one less)", self.quorum);
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
            bail!("{} holds a lab cluster already; `lattice-lab down --dir {}` takes it away", self.dir.display(), self.dir.display());
        }
        if entries.next().is_some() {
            bail!("{} is not empty: `down` removes the whole folder, so it must be the lab's own", self.dir.display());
        }
        Ok(())
    }
}
