//! Starts a cluster: certificates, configuration, members, agents. Returns when every node is Ready and the cluster's
//! level is as high as its members support.

use crate::binaries::Binaries;
use crate::cluster::{Cluster, Daemon, Member, Node};
use crate::lattice::Lattice;
use crate::networks::Networks;
use crate::options::CERTIFICATE_SECONDS;
use crate::ports::Ports;
use crate::preload::{self, Shared};
use crate::process::{spawn_detached, tail, until};
use crate::small_disks::SmallDisk;
use crate::{configs, down, gpus, interrupt};
use anyhow::{Context, Result, anyhow, bail};
use lattice_pki::ca;
use lattice_pki::identity::Role;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use crate::options::{Host, Options};

/// The name in the audit log for actions with the lab's credential.
const OPERATOR: &str = "root";
/// The `node_admission` of members that register only admitted nodes.
pub const LISTED: &str = "listed";

/// Starts the cluster. If that fails, nothing is left running; configuration and logs stay for reading.
pub fn up(options: &Options) -> Result<Cluster> {
    options.validate()?;
    let binaries = Binaries::beside_lab()?;
    if options.build {
        binaries.build()?;
    } else {
        binaries.check()?;
    }
    let started = lay_out(options, &binaries).and_then(|cluster| start_all(cluster, options, &binaries));
    started.map_err(|error| {
        // Without a record nothing was started.
        let Ok(cluster) = Cluster::load(&options.dir) else { return error };
        let error = anyhow!("{error:#}{}", explain(&cluster.dir));
        let left = match down::stop(&cluster, Duration::ZERO) {
            Ok(report) if report.stuck.is_empty() => String::new(),
            Ok(report) => format!("\nthese could not be removed: {}", report.stuck.join(", ")),
            Err(e) => format!("\nand it could not be stopped: {e:#}"),
        };
        error.context(format!(
            "the cluster did not come up; it was stopped, its files stay in {} until `lattice-lab down`{left}",
            cluster.dir.display()
        ))
    })
}

/// Makes directories, networks, disks, certificates and configuration. No daemon runs yet.
fn lay_out(options: &Options, binaries: &Binaries) -> Result<Cluster> {
    let mut cluster = Cluster::new(&options.dir, options.agents_dir.as_deref(), &binaries.dir)?;
    if cluster.run_dir != cluster.dir && cluster.run_dir.exists() {
        bail!("{} exists already, and the sockets of {} would be made there", cluster.run_dir.display(), cluster.dir.display());
    }
    for dir in cluster.folders() {
        make_dir(dir)?;
    }
    // The record is written first: from here on `down` knows what to remove.
    cluster.save()?;
    let mut ports = Ports::new(u64::from(std::process::id()) * 251 + clock_ms());
    if options.netns {
        cluster.networks = Some(Networks::make(&binaries.lab(), &cluster.dir, options.nodes, options.quorum)?);
        cluster.save()?;
    }
    if options.clocks {
        preload::build(&cluster.dir)?;
    }
    let mut hosts = options.hosts.iter().cloned();
    for id in 1..=u64::from(options.quorum) {
        let given = hosts.next().unwrap_or_default();
        let name = format!("member-{id}");
        let mut host = host_of(&cluster, &name)?.unwrap_or(given);
        make_dir(&cluster.dir.join(&name))?;
        if options.clocks {
            host.launcher = [Shared::make(&clock_file(&cluster, &name))?.launcher(&cluster.dir), host.launcher].concat();
        }
        let member = member(&cluster, id, binaries, &mut ports, &host)?;
        cluster.members.push(member);
    }
    for i in 1..=options.nodes {
        let id = format!("n{i}");
        let dir = cluster.dir.join(&id);
        make_dir(&dir)?;
        let run = cluster.run_dir.join(&id);
        make_dir(&run)?;
        for folder in &options.node_folders {
            make_dir(&run.join(folder))?;
        }
        let mut host = host_of(&cluster, &id)?.unwrap_or_default();
        if options.clocks {
            let shared = Shared::make(&clock_file(&cluster, &id))?;
            host.launcher = [shared.launcher(&cluster.dir), host.launcher].concat();
        }
        let mut address = || ports.take().map(|port| format!("{}:{port}", host.address));
        let daemon = daemon(&id, binaries.agent(), &dir.join("agent.yaml"), dir.join("log"), &host);
        cluster.nodes.push(Node {
            id,
            socket: run.join("agent.sock"),
            mesh: address()?,
            gossip: address()?,
            metrics: address()?,
            api: address()?,
            daemon,
        });
    }
    cluster.save()?;
    small_disks(&mut cluster, options)?;
    certificates(&cluster, options)?;
    gossip_key(&cluster.dir.join("gossip.key"))?;
    configure_members(&cluster, options)?;
    for n in &cluster.nodes {
        let root = format!("{}/{}/workload.slice", cluster.cgroup_root, n.id);
        let devices = gpus::make(&cluster.dir.join(&n.id), &n.id, options.simulated_gpus)?;
        let text = configs::agent(&cluster, n, options, &root, &gpus::config(&devices))?;
        write(&cluster.dir.join(&n.id).join("agent.yaml"), &text)?;
    }
    shared_cli(&cluster, binaries)?;
    Ok(cluster)
}

/// Mounts the small disks. Each is recorded first, so that `down` removes it.
fn small_disks(cluster: &mut Cluster, options: &Options) -> Result<()> {
    for (daemon, mib) in &options.small_disks {
        let at = if cluster.nodes.iter().any(|node| node.id == *daemon) {
            cluster.run_dir.join(daemon).join("state")
        } else if cluster.members.iter().any(|member| member.daemon.name == *daemon) {
            cluster.dir.join(daemon).join("data")
        } else {
            bail!("there is no {daemon} here that could get a small disk");
        };
        cluster.small_disks.push(SmallDisk { daemon: daemon.clone(), at: at.clone() });
        cluster.save()?;
        SmallDisk::mount(daemon, &at, *mib)?;
    }
    Ok(())
}

fn member(cluster: &Cluster, id: u64, binaries: &Binaries, ports: &mut Ports, host: &Host) -> Result<Member> {
    let name = format!("member-{id}");
    let dir = cluster.dir.join(&name);
    make_dir(&dir)?;
    let daemon = daemon(&name, binaries.quorum(), &dir.join("quorum.yaml"), dir.join("log"), host);
    let mut address = || ports.take().map(|port| format!("{}:{port}", host.address));
    Ok(Member { id, service: address()?, raft: address()?, metrics: address()?, daemon })
}

/// Adds a further member to the record, with its directory, certificate and configuration; it does not run yet. Returns
/// its id, which no member of this cluster had before.
pub fn lay_out_member(cluster: &mut Cluster) -> Result<u64> {
    let binaries = Binaries { dir: cluster.binaries.clone() };
    let of = cluster.members.first().context("the cluster has no member")?;
    let of = std::fs::read_to_string(cluster.dir.join(&of.daemon.name).join("quorum.yaml")).context("the first member's configuration")?;
    let id = (1..).find(|id| !cluster.dir.join(format!("member-{id}")).exists()).unwrap_or_default();
    let member = member(cluster, id, &binaries, &mut Ports::new(clock_ms()), &Host::default())?;
    issue(cluster, &member.daemon.name, Role::Quorum, CERTIFICATE_SECONDS)?;
    write(&cluster.dir.join(&member.daemon.name).join("quorum.yaml"), &configs::joining(cluster, &member, &of))?;
    cluster.members.push(member);
    cluster.save()?;
    Ok(id)
}

/// Writes the members' configuration; they read it when they start.
pub fn configure_members(cluster: &Cluster, options: &Options) -> Result<()> {
    let mut members = cluster.members.iter();
    members.try_for_each(|m| write(&cluster.dir.join(&m.daemon.name).join("quorum.yaml"), &configs::member(cluster, m, options)))
}

/// The file that sets a daemon's clock wrong and its disk slow, if the cluster supports that: see [`crate::preload`].
pub fn clock_file(cluster: &Cluster, daemon: &str) -> PathBuf {
    cluster.dir.join(daemon).join("clock")
}

/// The host of a daemon with its own network.
fn host_of(cluster: &Cluster, name: &str) -> Result<Option<Host>> {
    let of = |networks: &Networks| Ok(Host { address: networks.address(name)?, launcher: networks.launcher(name)? });
    cluster.networks.as_ref().map(of).transpose()
}

fn daemon(name: &str, program: PathBuf, config: &Path, log: PathBuf, host: &Host) -> Daemon {
    let mut line = host.launcher.iter().cloned().chain([program.to_string_lossy().into_owned()]);
    let program = line.next().map(PathBuf::from).unwrap_or_default();
    let args = line.chain(["--config".to_owned(), config.to_string_lossy().into_owned()]).collect();
    Daemon { name: name.to_owned(), program, args, log, process: None }
}

fn start_all(mut cluster: Cluster, options: &Options, binaries: &Binaries) -> Result<Cluster> {
    let names: Vec<String> =
        cluster.members.iter().map(|m| m.daemon.name.clone()).chain(cluster.nodes.iter().map(|n| n.id.clone())).collect();
    for name in names {
        interrupt::check()?;
        let first = name == "member-1";
        start(&mut cluster, &name, if first { &["--bootstrap"] } else { &[] }, &[])?;
    }
    if options.node_admission == LISTED {
        admit(&cluster, options.ready_within)?;
    }
    wait_ready(&cluster, options.ready_within)?;
    wait_level(&cluster, options.ready_within)?;
    write(&cluster.dir.join("env"), &environment(&cluster, binaries))?;
    Ok(cluster)
}

/// Starts one daemon of the record, with additional arguments and variables, and records its process.
pub fn start(cluster: &mut Cluster, name: &str, more: &[&str], env: &[(&str, &str)]) -> Result<()> {
    let daemon = cluster.daemon_mut(name).with_context(|| format!("there is no {name} here"))?;
    if daemon.alive() {
        bail!("{name} runs already, as process {}", daemon.process.as_ref().map_or(0, |p| p.pid));
    }
    let args: Vec<String> = daemon.args.iter().cloned().chain(more.iter().map(|a| (*a).to_owned())).collect();
    daemon.process = Some(spawn_detached(&daemon.program, &args, env, &daemon.log)?);
    cluster.save()
}

/// Waits until every node is Ready and the quorum has a leader; fails at once when a daemon ends meanwhile. Without
/// nodes there is no agent to ask, so it does not wait.
pub fn wait_ready(cluster: &Cluster, limit: Duration) -> Result<()> {
    if cluster.nodes.is_empty() {
        return Ok(());
    }
    let mut last = Err(anyhow!("nothing answered yet"));
    let mut dead = None;
    let ready = until(limit, || {
        dead = cluster.daemons().find(|d| !d.alive()).map(|d| d.name.clone());
        if dead.is_some() || interrupt::came().is_some() {
            return true;
        }
        last = listed_nodes(cluster);
        last.as_ref().is_ok_and(|nodes| cluster.nodes.iter().all(|n| nodes.iter().any(|(id, state)| *id == n.id && state == "Ready")))
    });
    interrupt::check()?;
    if let Some(name) = dead {
        bail!("{name} ended by itself");
    }
    if ready {
        return Ok(());
    }
    match last {
        Ok(nodes) => {
            let seen: Vec<String> = nodes.iter().map(|(id, state)| format!("{id} {state}")).collect();
            bail!(
                "after {} s not every node is Ready: {} of {} known ({})",
                limit.as_secs(),
                nodes.len(),
                cluster.nodes.len(),
                seen.join(", ")
            )
        }
        Err(e) => Err(e.context(format!("the cluster did not answer within {} s", limit.as_secs()))),
    }
}

/// Every node's id and state. No command is started before the agent that it would ask can be reached.
fn listed_nodes(cluster: &Cluster) -> Result<Vec<(String, String)>> {
    let lattice = Lattice::to_any(cluster)?;
    if !lattice.is_reachable() {
        bail!("no agent accepts connections at {}", lattice.socket().display());
    }
    lattice.nodes()
}

/// Admits all nodes as an operator, when all of them wait for admission. The agent that forwards the request is not
/// registered either.
fn admit(cluster: &Cluster, limit: Duration) -> Result<()> {
    let admit = ["node", "admit"];
    let names: Vec<&str> = cluster.nodes.iter().map(|node| node.id.as_str()).collect();
    let mut last = Ok(String::new());
    let all_wait = until(limit, || {
        last = Lattice::to_any(cluster).and_then(|lattice| lattice.ok(&[&admit[..], &["--list", "-o", "name"]].concat()));
        let waiting = |listed: &String| names.iter().all(|name| listed.lines().any(|line| line == *name));
        interrupt::came().is_some() || last.as_ref().is_ok_and(waiting)
    });
    interrupt::check()?;
    if !all_wait {
        let listed = last.context("the nodes that wait for admission")?;
        bail!("after {} s only these nodes wait for admission: {}", limit.as_secs(), listed.replace('\n', " "));
    }
    Lattice::to_any(cluster)?.ok(&[&admit[..], &names].concat()).map(drop)
}

/// Waits until the cluster's level is the highest that all members support: until then commands of later levels are
/// refused.
fn wait_level(cluster: &Cluster, limit: Duration) -> Result<()> {
    if cluster.nodes.is_empty() {
        return Ok(());
    }
    let (mut last, mut supported) = (Ok(false), None);
    let risen = until(limit, || {
        last = Lattice::to_any(cluster).and_then(|lattice| has_risen(&lattice, cluster.members.len(), &mut supported));
        interrupt::came().is_some() || matches!(last, Ok(true))
    });
    interrupt::check()?;
    match last {
        _ if risen => Ok(()),
        Ok(_) => bail!("after {} s the cluster's level is still below the one that all its members support", limit.as_secs()),
        Err(error) => Err(error.context(format!("the quorum did not report its level within {} s", limit.as_secs()))),
    }
}

/// `supported`: the highest level that all members support, which is asked for until each has reported.
fn has_risen(lattice: &Lattice, members: usize, supported: &mut Option<u64>) -> Result<bool> {
    if supported.is_none() {
        let rows = lattice.json(&["quorum", "members"])?;
        let each: Option<Vec<u64>> = rows.as_array().and_then(|rows| rows.iter().map(|member| member["level"].as_u64()).collect());
        *supported = each.filter(|each| each.len() == members).and_then(|each| each.into_iter().min());
    }
    Ok(supported.is_some() && lattice.json(&["quorum", "status"])?["level"].as_u64() == *supported)
}

/// The ends of the logs that explain a failed start best: of ended daemons, else of the first agent and member.
fn explain(dir: &Path) -> String {
    let Ok(cluster) = Cluster::load(dir) else { return String::new() };
    let started: Vec<&Daemon> = cluster.daemons().filter(|d| d.process.is_some()).collect();
    let dead: Vec<&Daemon> = started.iter().copied().filter(|d| !d.alive()).collect();
    let first = |members: bool| started.iter().copied().find(|d| d.name.starts_with("member-") == members);
    let shown = if dead.is_empty() { [first(false), first(true)].into_iter().flatten().collect() } else { dead };
    shown.into_iter().take(3).map(|d| format!("\n--- the end of {} ---\n{}", d.log.display(), tail(&d.log, 25))).collect()
}

/// Made in this process: the program `lattice quorum ca` would be started once for each.
fn certificates(cluster: &Cluster, options: &Options) -> Result<()> {
    ca::init(&cluster.dir.join("ca"))?;
    let members = cluster.members.iter().map(|m| (&m.daemon.name, Role::Quorum));
    let nodes = cluster.nodes.iter().map(|n| (&n.id, Role::Api));
    members.chain(nodes).try_for_each(|(name, role)| issue(cluster, name, role, options.certificate_seconds))?;
    operator(cluster)
}

/// Writes the operator's credential of the cluster's creator beside each agent's socket.
fn operator(cluster: &Cluster) -> Result<()> {
    let file = cluster.dir.join("operator.pem");
    ca::issue_operator(&cluster.dir.join("ca"), OPERATOR, &file, ca::OPERATOR_LIFETIME)?;
    for node in &cluster.nodes {
        let beside = node.socket.with_file_name("operator.pem");
        std::fs::copy(&file, &beside).with_context(|| beside.display().to_string())?;
    }
    Ok(())
}

fn issue(cluster: &Cluster, name: &str, role: Role, seconds: u64) -> Result<()> {
    let (ca, out) = (cluster.dir.join("ca"), cluster.dir.join(name));
    ca::issue(&ca, name, role, &["127.0.0.1".to_owned()], &out, Duration::from_secs(seconds))?;
    Ok(())
}

fn gossip_key(path: &Path) -> Result<()> {
    let mut bytes = [0u8; 32];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let mut file = std::fs::File::options().create_new(true).write(true).mode(0o600).open(path)?;
    std::io::Write::write_all(&mut file, format!("{hex}\n").as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}

/// `DIR/bin/lattice`: a copy of the CLI that every user can run, wherever the target directory is.
fn shared_cli(cluster: &Cluster, binaries: &Binaries) -> Result<()> {
    let bin = cluster.dir.join("bin");
    make_dir(&bin)?;
    let to = bin.join("lattice");
    if std::fs::hard_link(binaries.lattice(), &to).is_err() {
        std::fs::copy(binaries.lattice(), &to).with_context(|| format!("cannot copy the CLI to {}", to.display()))?;
    }
    Ok(())
}

fn environment(cluster: &Cluster, binaries: &Binaries) -> String {
    let socket = cluster.nodes.first().map(|n| n.socket.display().to_string()).unwrap_or_default();
    format!(
        "# `. {dir}/env`, then `lattice` talks to this cluster.\nexport LATTICE_ENDPOINT='unix:{socket}'\nexport LATTICE_LAB_DIR='{dir}'\nexport PATH='{bin}':\"$PATH\"\n",
        dir = cluster.dir.display(),
        bin = binaries.dir.display(),
    )
}

fn make_dir(dir: &Path) -> Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    // Processes of other users must reach the socket through this directory, whatever the umask is.
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).with_context(|| format!("cannot use {}", dir.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn clock_ms() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| u64::from(d.subsec_nanos()) / 1000 + d.as_secs())
}
