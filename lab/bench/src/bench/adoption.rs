//! How long a killed agent takes until it has adopted its work again.

use anyhow::{Context, Result, bail, ensure};
use lattice_lab::binaries::Binaries;
use lattice_lab::cluster::Cluster;
use lattice_lab::down::{self, Guard};
use lattice_lab::lattice::{Lattice, text};
use lattice_lab::process::until;
use lattice_lab::up::{self, Options};
use lattice_lab::{faults, interrupt};
use lattice_model::AllocationId;
use lattice_runtime::cgroup::Scope;
use lattice_runtime::shim::{ShimConfig, ShimDir, start_shim};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Timeout of one start.
const START_MAX: Duration = Duration::from_secs(60);
pub(super) const NODE: &str = "n1";

/// Milliseconds from the start of a killed agent until it reports to its service manager that it adopted all
/// allocations; one value for each round. A machine does not have the processors for a hundred allocations: one is
/// submitted, and the others are copies of its shim, which the agent adopts from their files. There is no quorum, so
/// the agent keeps them.
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
    let manager = fill(cluster, binaries, allocations, 0, &["/bin/sleep", "3600"])?;
    manager.start(cluster, allocations)?;
    wait_all_running(cluster, allocations)?;
    (0..rounds)
        .map(|_| {
            interrupt::check()?;
            faults::kill_node(&cluster.dir, NODE)?;
            manager.start(cluster, allocations)
        })
        .collect()
}

/// Kills the agent and the quorum, and leaves this many allocations to be adopted. The first `gpus` of them have a GPU
/// each, and if `gpus` is not 0, all have cgroups. `work`: the program of each.
pub(super) fn fill(cluster: &Cluster, binaries: &Binaries, allocations: usize, gpus: u32, work: &[&str]) -> Result<Manager> {
    let lattice = Lattice::to(cluster, NODE)?;
    let wanted = gpus.to_string();
    let share = if gpus > 0 { vec!["--cores", "1", "--gpus", &wanted] } else { Vec::new() };
    let id = lattice.ok(&[&["submit", "-o", "name"], &share[..], &["--"], work].concat())?;
    super::surroundings::wait_running(&lattice, id.trim())?;
    let state = cluster.run_dir.join(NODE).join("state");
    let first = shim_dir(&state, id.trim())?;
    faults::kill_node(&cluster.dir, NODE)?;
    faults::kill_member(&cluster.dir, 1)?;
    let like: ShimConfig = serde_json::from_slice(&fs::read(first.join("shim.json"))?)?;
    let mut devices = like.assignment.as_ref().map(|assigned| assigned.gpus.clone()).unwrap_or_default().into_iter();
    let mut owns = |config: &mut ShimConfig| {
        if let Some(assigned) = &mut config.assignment {
            assigned.gpus = devices.next().into_iter().collect();
        }
    };
    let mut own = like.clone();
    owns(&mut own);
    fs::write(first.join("shim.json"), serde_json::to_vec(&own)?)?;
    let mut scopes: Vec<Scope> = own.scope.into_iter().map(Scope::at).collect();
    for _ in 1..allocations {
        interrupt::check()?;
        let allocation = AllocationId(uuid::Uuid::new_v4());
        let scope = match &like.scope {
            Some(scope) if gpus > 0 => Some(make_scope_like(scope, like.allocation, allocation)?),
            Some(_) | None => None,
        };
        scopes.extend(scope.clone().map(Scope::at));
        let mut config = ShimConfig { allocation, scope, v1_groups: Vec::new(), ..like.clone() };
        config.share.as_mut().context("the shim's share")?.allocation = config.allocation;
        owns(&mut config);
        start_shim(&binaries.shim(), &ShimDir::of(&state, config.allocation, config.epoch), &config)?;
    }
    for file in ["journal", "agent-state.json"] {
        fs::remove_file(state.join(file))?;
    }
    Manager::new(cluster, scopes)
}

/// Waits until the agent reports that this many run.
pub(super) fn wait_all_running(cluster: &Cluster, allocations: usize) -> Result<()> {
    let lattice = Lattice::to(cluster, NODE)?;
    let running = || {
        let status = lattice.json(&["node", "status"]).unwrap_or_default();
        let all = status["allocations"].as_array().cloned().unwrap_or_default();
        all.len() == allocations && all.iter().all(|a| text(a, "phase") == "Running" && text(a, "detail") == "running")
    };
    ensure!(until(START_MAX, running), "not all of {allocations} allocations run on their node");
    Ok(())
}

/// Makes a scope like the given one.
fn make_scope_like(scope: &Path, of: AllocationId, allocation: AllocationId) -> Result<PathBuf> {
    let name = scope.file_name().and_then(|name| name.to_str()).context("a scope has a name")?;
    let scope = scope.with_file_name(name.replace(&of.to_string(), &allocation.to_string()));
    let made = Scope::at(scope.clone());
    made.shim().create()?;
    made.work().create()?;
    Ok(scope)
}

fn shim_dir(state: &Path, id: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(state.join("alloc"))?.flatten();
    let found = entries.map(|e| e.path()).find(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(id)));
    found.with_context(|| format!("{id} has no shim below {}", state.display()))
}

/// Acts as systemd for an agent.
pub(super) struct Manager {
    socket: UnixDatagram,
    path: String,
    scopes: Vec<Scope>,
}

impl Manager {
    fn new(cluster: &Cluster, scopes: Vec<Scope>) -> Result<Self> {
        let path = cluster.run_dir.join("notify").to_string_lossy().into_owned();
        Ok(Self { socket: UnixDatagram::bind(&path)?, path, scopes })
    }

    /// The scopes of allocations that have cgroups.
    pub(super) fn scopes(&self) -> &[Scope] {
        &self.scopes
    }

    /// Starts the agent; returns the milliseconds until it is ready and has adopted all allocations.
    pub(super) fn start(&self, cluster: &Cluster, allocations: usize) -> Result<f64> {
        let began = Instant::now();
        faults::begin_node(&cluster.dir, NODE, &[], &[("NOTIFY_SOCKET", &self.path)])?;
        self.socket.set_read_timeout(Some(START_MAX))?;
        let mut bytes = [0; 4096];
        loop {
            let n = self.socket.recv(&mut bytes).context("the agent did not report that it is ready")?;
            let message = String::from_utf8_lossy(&bytes[..n]).into_owned();
            if !message.contains("READY=1") {
                continue;
            }
            let all = format!("{allocations} allocation(s) taken up again, 0 of them lost, 0 not answering");
            if !message.contains(&all) {
                bail!("the agent adopted something else: {message}");
            }
            return Ok(began.elapsed().as_secs_f64() * 1e3);
        }
    }
}
