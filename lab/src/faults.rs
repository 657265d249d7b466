//! Breaking a cluster on purpose, and mending it. Only processes of the record are hit, each pinned by its start time.

use crate::cluster::{Cluster, Daemon};
use crate::gpus::{self, Fault};
use crate::lattice::Lattice;
use crate::networks::{Direction, From, Networks};
use crate::preload::Shared;
use crate::process::{Identity, ours_under, until};
use crate::up;
use anyhow::{Context, Result, bail};
use lattice_runtime::identity::descendants;
use nix::sys::signal::Signal;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

/// How long a daemon may take until it answers again.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long a change of the quorum's members may take.
const CHANGE_LIMIT: Duration = Duration::from_secs(60);

/// SIGKILL to a node's agent. Its work and shims are left alone: that is the point.
pub fn kill_node(dir: &Path, node: &str) -> Result<i32> {
    let _lock = Cluster::lock(dir)?;
    kill(&Cluster::load(dir)?.node(node)?.daemon)
}

/// SIGKILL to a node's agent, and to all that runs on the node: its shims with all their work. As though its machine were gone. Gives
/// the runs whose shims were killed, as ALLOCATION-EPOCH.
pub fn lose_node(dir: &Path, node: &str) -> Result<Vec<String>> {
    kill_node(dir, node)?;
    let mut lost = Vec::new();
    for shim in shims_of(&Cluster::load(dir)?, node) {
        // Before the shim: who is left by it has another parent.
        let below = descendants(shim.pid).into_iter().map(|(pid, _)| pid);
        for process in below.chain([shim.pid]).filter_map(|pid| Identity::of(pid).ok()) {
            process.kill()?;
        }
        lost.push(shim.run);
    }
    Ok(lost)
}

/// SIGKILL to the shim of one of a node's allocations, chosen by a number; its run as ALLOCATION-EPOCH, where the node has one.
pub fn kill_shim(dir: &Path, node: &str, number: usize) -> Result<Option<String>> {
    let shims = shims_of(&Cluster::load(dir)?, node);
    let Some(shim) = number.checked_rem(shims.len()).and_then(|at| shims.into_iter().nth(at)) else { return Ok(None) };
    // It may have ended by itself meanwhile.
    let hit = Identity::of(shim.pid).is_ok_and(|process| process.kill().unwrap_or(false));
    Ok(hit.then_some(shim.run))
}

/// A shim that runs.
struct Shim {
    pid: i32,
    /// The name of its folder: ALLOCATION-EPOCH.
    run: String,
}

/// The shims of a node's allocations, in the order of their ids.
fn shims_of(cluster: &Cluster, node: &str) -> Vec<Shim> {
    let state = cluster.run_dir.join(node).join("state");
    let running = ours_under(&[&state]).into_iter().filter(|(_, name)| name == "lattice-shim");
    let mut shims: Vec<Shim> = running
        .filter_map(|(pid, _)| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let dir = line.split(|b| *b == 0).nth(1)?;
            Some(Shim { pid, run: Path::new(std::str::from_utf8(dir).ok()?).file_name()?.to_str()?.to_owned() })
        })
        .collect();
    shims.sort_by(|a, b| a.run.cmp(&b.run));
    shims
}

/// SIGKILL to a member.
pub fn kill_member(dir: &Path, id: u64) -> Result<i32> {
    let _lock = Cluster::lock(dir)?;
    kill(&Cluster::load(dir)?.member(id)?.daemon)
}

fn kill(daemon: &Daemon) -> Result<i32> {
    let process = daemon.process.as_ref().with_context(|| format!("{} was never started", daemon.name))?;
    if !process.kill()? {
        bail!("{} does not run", daemon.name);
    }
    Ok(process.pid)
}

/// Starts a node's agent and waits until it answers on its socket, quorum or not.
pub fn start_node(dir: &Path, node: &str) -> Result<i32> {
    {
        let _lock = Cluster::lock(dir)?;
        let mut cluster = Cluster::load(dir)?;
        cluster.node(node)?;
        up::start(&mut cluster, node, &[], &[])?;
    }
    let cluster = Cluster::load(dir)?;
    let lattice = Lattice::to(&cluster, node)?;
    let daemon = &cluster.node(node)?.daemon;
    let answers = until(START_LIMIT, || !daemon.alive() || lattice.ok(&["node", "status"]).is_ok());
    if !answers || !daemon.alive() {
        bail!("{node} was started but does not answer; the end of {}:\n{}", daemon.log.display(), crate::process::tail(&daemon.log, 25));
    }
    Ok(daemon.process.as_ref().map_or(0, |p| p.pid))
}

/// Starts a node's agent with more arguments and variables, and waits for nothing: it may well be meant to die.
pub fn begin_node(dir: &Path, node: &str, more: &[&str], env: &[(&str, &str)]) -> Result<i32> {
    let _lock = Cluster::lock(dir)?;
    let mut cluster = Cluster::load(dir)?;
    up::start(&mut cluster, node, more, env)?;
    Ok(cluster.node(node)?.daemon.process.as_ref().map_or(0, |p| p.pid))
}

/// From now on a node's agent is started from this program: another copy of it, or something that becomes it.
pub fn agent_program(dir: &Path, node: &str, program: &Path) -> Result<()> {
    let _lock = Cluster::lock(dir)?;
    let mut cluster = Cluster::load(dir)?;
    let daemon = cluster.daemon_mut(node).with_context(|| format!("there is no {node} here"))?;
    program.clone_into(&mut daemon.program);
    cluster.save()
}

/// SIGTERM as an upgrade does it, then a start.
pub fn restart_node(dir: &Path, node: &str) -> Result<i32> {
    {
        let _lock = Cluster::lock(dir)?;
        let cluster = Cluster::load(dir)?;
        if let Some(process) = &cluster.node(node)?.daemon.process {
            process.signal(Signal::SIGTERM)?;
            if !process.gone_within(START_LIMIT) {
                bail!("{node} (process {}) does not end within {} s of SIGTERM", process.pid, START_LIMIT.as_secs());
            }
        }
    }
    start_node(dir, node)
}

/// Starts a member and waits until it accepts connections.
pub fn start_member(dir: &Path, id: u64) -> Result<i32> {
    let (cluster, name) = {
        let _lock = Cluster::lock(dir)?;
        let mut cluster = Cluster::load(dir)?;
        let name = cluster.member(id)?.daemon.name.clone();
        up::start(&mut cluster, &name, &[], &[])?;
        (cluster, name)
    };
    let member = cluster.member(id)?;
    let address: SocketAddr = member.service.parse().with_context(|| format!("{} is no address", member.service))?;
    let connects = || TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok();
    let reached = || cluster.networks.as_ref().map_or_else(|| Ok(connects()), |networks| networks.within(connects));
    let accepts = until(START_LIMIT, || !member.daemon.alive() || reached().unwrap_or(false));
    if !accepts || !member.daemon.alive() {
        let log = &member.daemon.log;
        bail!("{name} was started but accepts nothing on {address}; the end of {}:\n{}", log.display(), crate::process::tail(log, 25));
    }
    Ok(member.daemon.process.as_ref().map_or(0, |p| p.pid))
}

/// Starts a further member, which waits to be taken in; its id.
pub fn begin_member(dir: &Path) -> Result<u64> {
    let id = {
        let _lock = Cluster::lock(dir)?;
        up::lay_out_member(&mut Cluster::load(dir)?)?
    };
    start_member(dir, id)?;
    Ok(id)
}

/// Starts a further member and lets it learn and vote; its id.
pub fn join_member(dir: &Path) -> Result<u64> {
    let id = begin_member(dir)?;
    let cluster = Cluster::load(dir)?;
    let member = cluster.member(id)?;
    let add = ["quorum", "add", &id.to_string(), "--service", &member.service, "--raft", &member.raft];
    let done = Lattice::to_any(&cluster)?.run(&add, CHANGE_LIMIT)?;
    if done.code() != 0 {
        bail!("`lattice {}` ended with {}: {}", add.join(" "), done.code(), done.err().trim());
    }
    Ok(id)
}

/// Takes a member out of the quorum and out of the record, and waits until it has ended by itself.
pub fn leave_member(dir: &Path, id: u64) -> Result<()> {
    let cluster = Cluster::load(dir)?;
    let daemon = cluster.member(id)?.daemon.clone();
    let runs = daemon.alive();
    let done = Lattice::to_any(&cluster)?.run(&["quorum", "remove", &id.to_string()], CHANGE_LIMIT)?;
    if done.code() != 0 {
        bail!("`lattice quorum remove {id}` ended with {}: {}", done.code(), done.err().trim());
    }
    if runs && !until(START_LIMIT, || !daemon.alive()) {
        bail!("member {id} was removed and goes on; the end of {}:\n{}", daemon.log.display(), crate::process::tail(&daemon.log, 25));
    }
    forget_member(dir, id)
}

/// Takes a member that has left the quorum out of the record.
pub fn forget_member(dir: &Path, id: u64) -> Result<()> {
    let _lock = Cluster::lock(dir)?;
    let mut cluster = Cluster::load(dir)?;
    cluster.members.retain(|m| m.id != id);
    cluster.save()
}

/// SIGSTOP to a node's agent: it is there, and does nothing.
pub fn stop_node(dir: &Path, node: &str) -> Result<i32> {
    signal(dir, Signal::SIGSTOP, |cluster| Ok(&cluster.node(node)?.daemon))
}

/// SIGCONT to a node's agent.
pub fn cont_node(dir: &Path, node: &str) -> Result<i32> {
    signal(dir, Signal::SIGCONT, |cluster| Ok(&cluster.node(node)?.daemon))
}

/// SIGSTOP to a member.
pub fn stop_member(dir: &Path, id: u64) -> Result<i32> {
    signal(dir, Signal::SIGSTOP, |cluster| Ok(&cluster.member(id)?.daemon))
}

/// SIGCONT to a member.
pub fn cont_member(dir: &Path, id: u64) -> Result<i32> {
    signal(dir, Signal::SIGCONT, |cluster| Ok(&cluster.member(id)?.daemon))
}

fn signal(dir: &Path, signal: Signal, of: impl Fn(&Cluster) -> Result<&Daemon>) -> Result<i32> {
    let _lock = Cluster::lock(dir)?;
    let cluster = Cluster::load(dir)?;
    let daemon = of(&cluster)?;
    let process = daemon.process.as_ref().with_context(|| format!("{} was never started", daemon.name))?;
    if !process.signal(signal)? {
        bail!("{} does not run", daemon.name);
    }
    Ok(process.pid)
}

/// Lets something happen to a simulated GPU of a node.
pub fn gpu(dir: &Path, node: &str, index: u32, fault: &Fault) -> Result<()> {
    let _lock = Cluster::lock(dir)?;
    let cluster = Cluster::load(dir)?;
    let node = cluster.node(node)?;
    gpus::fault(&cluster.dir.join(&node.id), index, fault)
}

/// The time of day is wrong by so many seconds for a node's agent from now on, whether it runs or is started later.
pub fn shift_clock(dir: &Path, node: &str, seconds: i64) -> Result<()> {
    let cluster = Cluster::load(dir)?;
    cluster.node(node)?;
    shared(&cluster, node)?.shift_clock(seconds)
}

/// The same for a member.
pub fn shift_member_clock(dir: &Path, id: u64, seconds: i64) -> Result<()> {
    let cluster = Cluster::load(dir)?;
    shared(&cluster, &cluster.member(id)?.daemon.name)?.shift_clock(seconds)
}

/// Each sync of a member's files takes so much longer from now on.
pub fn slow_disk(dir: &Path, id: u64, by: Duration) -> Result<()> {
    let cluster = Cluster::load(dir)?;
    shared(&cluster, &cluster.member(id)?.daemon.name)?.slow_disk(by)
}

fn shared(cluster: &Cluster, daemon: &str) -> Result<Shared> {
    let shared = Shared::open(&up::clock_file(cluster, daemon))?;
    shared.context("the daemons' clocks and disks cannot be changed: make the cluster with `up --clocks`")
}

/// Fills the small file system of a daemon to the last byte.
pub fn fill_disk(dir: &Path, daemon: &str) -> Result<()> {
    Cluster::load(dir)?.small_disk(daemon)?.fill()
}

/// Gives the room back.
pub fn make_room(dir: &Path, daemon: &str) -> Result<()> {
    Cluster::load(dir)?.small_disk(daemon)?.make_room()
}

/// Cuts a node off from others: who sends nothing to whom any more that was not cut already.
pub fn cut_node(dir: &Path, node: &str, from: &From, direction: Direction) -> Result<Vec<(String, String)>> {
    with_networks(dir, |networks, dir| networks.cut(dir, node, from, direction))
}

/// Every packet of a node comes through again: who sent nothing to whom.
pub fn heal_node(dir: &Path, node: &str) -> Result<Vec<(String, String)>> {
    with_networks(dir, |networks, dir| networks.heal(dir, node))
}

fn with_networks<T>(dir: &Path, act: impl FnOnce(&mut Networks, &Path) -> Result<T>) -> Result<T> {
    let _lock = Cluster::lock(dir)?;
    let mut cluster = Cluster::load(dir)?;
    let networks = cluster.networks.as_mut().context("the cluster's daemons have no networks of their own: make it with `up --netns`")?;
    let done = act(networks, &cluster.dir)?;
    cluster.save()?;
    Ok(done)
}

/// Starts whatever of the cluster does not run and waits until all is Ready.
pub fn heal(dir: &Path, limit: Duration) -> Result<()> {
    let cluster = Cluster::load(dir)?;
    for member in cluster.members.iter().filter(|m| !m.daemon.alive()) {
        start_member(dir, member.id)?;
    }
    for node in cluster.nodes.iter().filter(|n| !n.daemon.alive()) {
        start_node(dir, &node.id)?;
    }
    up::wait_ready(&Cluster::load(dir)?, limit)
}
