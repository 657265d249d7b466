//! How long an agent that was killed takes until it has taken up its work again.

use crate::binaries::Binaries;
use crate::cluster::Cluster;
use crate::down::{self, Guard};
use crate::lattice::{Lattice, text};
use crate::process::until;
use crate::up::{self, Options};
use crate::{faults, interrupt};
use anyhow::{Context, Result, bail, ensure};
use lattice_model::AllocationId;
use lattice_runtime::shim::{ShimConfig, ShimDir, start_shim};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long one start may take before it is given up.
const START_MAX: Duration = Duration::from_secs(60);
const NODE: &str = "n1";

/// Milliseconds from the start of a killed agent until it tells its service manager that each of so many allocations is
/// found, once a round. A machine has no room for a hundred allocations by its processors: one is submitted, the others
/// are shims like its own, which the agent takes up from what they wrote down; the quorum is away, so that it keeps them.
pub fn adoption(dir: &Path, allocations: usize, rounds: usize) -> Result<Vec<f64>> {
    let binaries = Binaries::beside_lab()?;
    let guard = Guard::new(dir);
    let cluster = up::up(&Options { build: false, grace_seconds: 1, ..Options::new(1, 1, dir) })?;
    let measured = measure(&cluster, &binaries, allocations, rounds);
    let report = guard.down(Duration::ZERO)?;
    down::require_gone(&report)?;
    measured
}

fn measure(cluster: &Cluster, binaries: &Binaries, allocations: usize, rounds: usize) -> Result<Vec<f64>> {
    let lattice = Lattice::to(cluster, NODE)?;
    let id = lattice.ok(&["submit", "-o", "name", "--", "/bin/sleep", "3600"])?;
    super::wait_running(&lattice, id.trim())?;
    let state = cluster.run_dir.join(NODE).join("state");
    let first = shim_dir(&state, id.trim())?;
    faults::kill_node(&cluster.dir, NODE)?;
    faults::kill_member(&cluster.dir, 1)?;
    let like: ShimConfig = serde_json::from_slice(&fs::read(first.join("shim.json"))?)?;
    for _ in 1..allocations {
        interrupt::check()?;
        let mut config = ShimConfig { allocation: AllocationId(uuid::Uuid::new_v4()), scope: None, v1_groups: Vec::new(), ..like.clone() };
        config.share.as_mut().context("the shim's share")?.allocation = config.allocation;
        start_shim(&binaries.shim(), &ShimDir::of(&state, config.allocation, config.epoch), &config)?;
    }
    for file in ["journal", "agent-state.json"] {
        fs::remove_file(state.join(file))?;
    }
    let manager = Manager::new(cluster)?;
    manager.start(cluster, allocations)?;
    let running = || {
        let status = lattice.json(&["node", "status"]).unwrap_or_default();
        let all = status["allocations"].as_array().cloned().unwrap_or_default();
        all.len() == allocations && all.iter().all(|a| text(a, "phase") == "Running" && text(a, "detail") == "running")
    };
    ensure!(until(START_MAX, running), "not all of {allocations} allocations run on their node");
    (0..rounds)
        .map(|_| {
            interrupt::check()?;
            faults::kill_node(&cluster.dir, NODE)?;
            manager.start(cluster, allocations)
        })
        .collect()
}

fn shim_dir(state: &Path, id: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(state.join("alloc"))?.flatten();
    let found = entries.map(|e| e.path()).find(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(id)));
    found.with_context(|| format!("{id} has no shim below {}", state.display()))
}

/// What systemd is to an agent.
struct Manager {
    socket: UnixDatagram,
    path: String,
}

impl Manager {
    fn new(cluster: &Cluster) -> Result<Self> {
        let path = cluster.run_dir.join("notify").to_string_lossy().into_owned();
        Ok(Self { socket: UnixDatagram::bind(&path)?, path })
    }

    /// Starts the agent; milliseconds until it is ready with all of them.
    fn start(&self, cluster: &Cluster, allocations: usize) -> Result<f64> {
        let began = Instant::now();
        faults::begin_node(&cluster.dir, NODE, &[], &[("NOTIFY_SOCKET", &self.path)])?;
        self.socket.set_read_timeout(Some(START_MAX))?;
        let mut bytes = [0; 4096];
        loop {
            let n = self.socket.recv(&mut bytes).context("the agent does not say that it is ready")?;
            let said = String::from_utf8_lossy(&bytes[..n]).into_owned();
            if !said.contains("READY=1") {
                continue;
            }
            let all = format!("{allocations} allocation(s) taken up again, 0 of them lost, 0 not answering");
            if !said.contains(&all) {
                bail!("the agent took up something else: {said}");
            }
            return Ok(began.elapsed().as_secs_f64() * 1e3);
        }
    }
}
