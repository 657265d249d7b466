//! Causes faults of a cluster, and repairs them. Only processes of the record are hit, each pinned by its start time.

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

/// SIGKILL to a node's agent. Its work and shims continue: that is the purpose.
pub fn kill_node(dir: &Path, node: &str) -> Result<i32> {
    let _lock = Cluster::lock(dir)?;
    kill(&Cluster::load(dir)?.node(node)?.daemon)
}

/// SIGKILL to a node's agent and to everything that runs on the node: its shims with all their work, as if its machine
/// were lost. Returns the runs whose shims were killed, as ALLOCATION-EPOCH.
pub fn lose_node(dir: &Path, node: &str) -> Result<Vec<String>> {
    kill_node(dir, node)?;
    let mut lost = Vec::new();
    for shim in shims_of(&Cluster::load(dir)?, node) {
        let Ok(process) = Identity::of(shim.pid) else { continue };
        // A running shim would record that its work was killed, which a lost machine does not do.
        process.signal(Signal::SIGSTOP)?;
        // Listed before the shim is killed: orphans get another parent.
        let below: Vec<Identity> = descendants(shim.pid).into_iter().filter_map(|(pid, _)| Identity::of(pid).ok()).collect();
        for process in std::iter::once(process).chain(below) {
            process.kill()?;
        }
        lost.push(shim.run);
    }
    Ok(lost)
}

/// SIGKILL to the shim of one of a node's allocations, chosen by a number; returns its run as ALLOCATION-EPOCH, if the
/// node has one.
pub fn kill_shim(dir: &Path, node: &str, number: usize) -> Result<Option<String>> {
    let shims = shims_of(&Cluster::load(dir)?, node);
    let Some(shim) = number.checked_rem(shims.len()).and_then(|at| shims.into_iter().nth(at)) else { return Ok(None) };
    // It may have ended by itself meanwhile.
    let hit = Identity::of(shim.pid).is_ok_and(|process| process.kill().unwrap_or(false));
    Ok(hit.then_some(shim.run))
}

/// A running shim.
struct Shim {
    pid: i32,
    /// When it was started, in ticks since boot.
    start_ticks: u64,
    /// The name of its directory: ALLOCATION-EPOCH.
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
            let start_ticks = Identity::of(pid).ok()?.start_ticks;
            Some(Shim { pid, start_ticks, run: Path::new(std::str::from_utf8(dir).ok()?).file_name()?.to_str()?.to_owned() })
        })
        .collect();
    // A process that a shim forked has the shim's command line until it becomes a rank: the oldest one is the shim.
    shims.sort_by(|a, b| (&a.run, a.start_ticks, a.pid).cmp(&(&b.run, b.start_ticks, b.pid)));
    shims.dedup_by(|a, b| a.run == b.run);
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

/// Starts a node's agent and waits until it answers on its socket, with or without a quorum.
pub fn start_node(dir: &Path, node: &str) -> Result<i32> {
    {
        let _lock = Cluster::lock(dir)?;
        let mut cluster = Cluster::load(dir)?;
        cluster.node(node)?;
        up::start(&mut cluster, node, &[], &[])?;
    }
    await_answer(&Cluster::load(dir)?, node)
}

/// Starts nodes' agents side by side and waits until each answers on its socket, with or without a quorum.
pub fn start_nodes<S: AsRef<str>>(dir: &Path, nodes: &[S]) -> Result<()> {
    for node in nodes {
        begin_node(dir, node.as_ref(), &[], &[])?;
    }
    let cluster = Cluster::load(dir)?;
    nodes.iter().try_for_each(|node| await_answer(&cluster, node.as_ref()).map(drop))
}

/// Waits until a node's agent, which was started, answers on its socket; returns its pid.
fn await_answer(cluster: &Cluster, node: &str) -> Result<i32> {
    let lattice = Lattice::to(cluster, node)?;
    let daemon = &cluster.node(node)?.daemon;
    let is_there = || lattice.is_reachable() && lattice.ok(&["node", "status"]).is_ok();
    let answers = until(START_LIMIT, || !daemon.alive() || is_there());
    if !answers || !daemon.alive() {
        bail!("{node} was started but does not answer; the end of {}:\n{}", daemon.log.display(), crate::process::tail(&daemon.log, 25));
    }
    Ok(daemon.process.as_ref().map_or(0, |p| p.pid))
}

/// Starts a node's agent with further arguments and variables, without waiting: it may be meant to die.
pub fn begin_node(dir: &Path, node: &str, more: &[&str], env: &[(&str, &str)]) -> Result<i32> {
    let _lock = Cluster::lock(dir)?;
    let mut cluster = Cluster::load(dir)?;
    up::start(&mut cluster, node, more, env)?;
    Ok(cluster.node(node)?.daemon.process.as_ref().map_or(0, |p| p.pid))
}

/// From now on a node's agent is started from this program: another copy of it, or a program that executes it.
pub fn agent_program(dir: &Path, node: &str, program: &Path) -> Result<()> {
    let _lock = Cluster::lock(dir)?;
    let mut cluster = Cluster::load(dir)?;
    let daemon = cluster.daemon_mut(node).with_context(|| format!("there is no {node} here"))?;
    program.clone_into(&mut daemon.program);
    cluster.save()
}

/// SIGTERM, as in an upgrade, and then a start.
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
    let address: SocketAddr = member.service.parse().with_context(|| format!("{} is not an address", member.service))?;
    let connects = || TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok();
    let reached = || cluster.networks.as_ref().map_or_else(|| Ok(connects()), |networks| networks.within(connects));
    let accepts = until(START_LIMIT, || !member.daemon.alive() || reached().unwrap_or(false));
    if !accepts || !member.daemon.alive() {
        let log = &member.daemon.log;
        bail!("{name} was started but accepts nothing on {address}; the end of {}:\n{}", log.display(), crate::process::tail(log, 25));
    }
    Ok(member.daemon.process.as_ref().map_or(0, |p| p.pid))
}

/// Starts a further member, which waits to be added; returns its id.
pub fn begin_member(dir: &Path) -> Result<u64> {
    let id = {
        let _lock = Cluster::lock(dir)?;
        up::lay_out_member(&mut Cluster::load(dir)?)?
    };
    start_member(dir, id)?;
    Ok(id)
}

/// Starts a further member and adds it as a learner, then as a voter; returns its id.
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

/// Removes a member from the quorum and from the record, and waits until it has ended by itself.
pub fn leave_member(dir: &Path, id: u64) -> Result<()> {
    let cluster = Cluster::load(dir)?;
    let daemon = cluster.member(id)?.daemon.clone();
    let runs = daemon.alive();
    let done = Lattice::to_any(&cluster)?.run(&["quorum", "remove", &id.to_string()], CHANGE_LIMIT)?;
    if done.code() != 0 {
        bail!("`lattice quorum remove {id}` ended with {}: {}", done.code(), done.err().trim());
    }
    if runs && !until(START_LIMIT, || !daemon.alive()) {
        bail!("member {id} was removed but still runs; the end of {}:\n{}", daemon.log.display(), crate::process::tail(&daemon.log, 25));
    }
    forget_member(dir, id)
}

/// Removes a member that has left the quorum from the record.
pub fn forget_member(dir: &Path, id: u64) -> Result<()> {
    let _lock = Cluster::lock(dir)?;
    let mut cluster = Cluster::load(dir)?;
    cluster.members.retain(|m| m.id != id);
    cluster.save()
}

/// SIGSTOP to a node's agent: it exists, and does nothing.
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

/// Causes a fault of a simulated GPU of a node.
pub fn gpu(dir: &Path, node: &str, index: u32, fault: &Fault) -> Result<()> {
    let _lock = Cluster::lock(dir)?;
    let cluster = Cluster::load(dir)?;
    let node = cluster.node(node)?;
    gpus::fault(&cluster.dir.join(&node.id), index, fault)
}

/// From now on the time of day is wrong by this many seconds for a node's agent, whether it runs or is started later.
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

/// From now on each sync of a member's files takes this much longer.
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

/// Frees the space that [`fill_disk`] used.
pub fn empty_disk(dir: &Path, daemon: &str) -> Result<()> {
    Cluster::load(dir)?.small_disk(daemon)?.empty()
}

/// Cuts a node off from others; returns the new pairs of sender and receiver.
pub fn cut_node(dir: &Path, node: &str, from: &From, direction: Direction) -> Result<Vec<(String, String)>> {
    with_networks(dir, |networks, dir| networks.cut(dir, node, from, direction))
}

/// Ends all cuts of a node; returns the pairs of sender and receiver.
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

/// Starts every daemon of the cluster that does not run, and waits until all nodes are Ready.
pub fn heal(dir: &Path, limit: Duration) -> Result<()> {
    let cluster = Cluster::load(dir)?;
    for member in cluster.members.iter().filter(|m| !m.daemon.alive()) {
        start_member(dir, member.id)?;
    }
    let dead: Vec<&str> = cluster.nodes.iter().filter(|n| !n.daemon.alive()).map(|n| n.id.as_str()).collect();
    start_nodes(dir, &dead)?;
    up::wait_ready(&Cluster::load(dir)?, limit)
}
