//! `lattice-lab`: see the library.

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use lattice_lab::cluster::Cluster;
use lattice_lab::networks::{Direction, From};
use lattice_lab::quorum::agent_process;
use lattice_lab::{
    asked, bench_program, call, demo, down, endpoint, fabric, faults, fences, gpus, http_server, interrupt, lattice, networks, ring,
    streams, torture, up,
};
use lattice_model::gpu_load::GpuLoad;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Start clusters of Lattice on one machine, break them on purpose, measure them, and remove them again
#[derive(Parser)]
#[command(name = "lattice-lab", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a cluster; ends when every node is Ready
    Up(Up),
    /// Kill, start, stop or cut off the agent of a node
    #[command(subcommand)]
    Node(NodeCommand),
    /// Kill, start, add or remove members of the quorum
    #[command(subcommand)]
    Quorum(QuorumCommand),
    /// Show which daemons of a cluster run, and what else belongs to it on this machine
    Status(Dir),
    /// Remove a cluster with all of its processes, mounts, loop devices, scopes and files
    Down(Down),
    /// Show a job on three nodes that survives the loss of its agent and of the quorum's leader
    Demo(Demo),
    /// Measure Lattice, compared with other programs or lower bounds in the same run; exit code 3 when a target is
    /// missed
    #[command(disable_help_flag = true)]
    Bench(Passed),
    /// Simulate thousands of agents in virtual time; exit code 1 when a target is missed
    #[command(disable_help_flag = true)]
    Sim(Passed),
    /// Run the scheduler in virtual time on a trace or on generated jobs, under several weights, or beside reference
    /// schedulers on the same jobs
    #[command(disable_help_flag = true)]
    Replay(Passed),
    /// Cause random faults under a stream of jobs, heal them, and check every promise; exit code 1 when one is broken
    Torture(torture::Options),
    /// Run one rank of the work of `torture`
    #[command(hide = true)]
    TortureWork(torture::work::Options),
    /// Be one rank of a ring that speaks PMI-1 (for `lattice launch` and `lattice submit`)
    PmiRing(ring::Options),
    /// Run one of the ranks whose fences `bench mpi` measures
    #[command(hide = true)]
    PmiFence(fences::Options),
    /// Run one of the ranks that send only the bytes of a fence
    #[command(hide = true)]
    PmiStreams(streams::Options),
    /// Be the simulated manager of a fabric (for `fabric_manager.url` of agents)
    FabricManager(fabric::Options),
    /// Print the reference page of all metrics (docs/metrics.md)
    Metrics,
    /// Run one process of the work that `bench checkpoint` asks to save its state
    #[command(hide = true)]
    Asked(asked::Options),
    /// Be an application that is asked through its own port to save its state (for `lattice submit --checkpoint-port`)
    Endpoint(endpoint::Options),
    /// Be one replica of a service that scales: an HTTP server that leaves at SIGUSR1 once requests have ceased
    HttpServer(http_server::Options),
    /// Be some of the simulated agents of `bench scale`
    #[command(hide = true)]
    SimulatedAgents(agent_process::Options),
    /// Call methods of an agent's API with given bytes
    #[command(hide = true)]
    Call(call::Options),
    /// Hold the networks of `up --netns`
    #[command(hide = true)]
    KeepNetworks { parties: u8 },
}

#[derive(Args)]
struct Dir {
    /// The cluster's folder
    #[arg(long)]
    dir: PathBuf,
}

#[derive(Args)]
struct Up {
    /// Number of agents
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    nodes: u32,
    /// Number of members of the quorum: 1, 3 or 5
    #[arg(long, default_value_t = 3)]
    quorum: u32,
    /// The cluster's folder, which is empty or does not exist yet
    #[arg(long)]
    dir: PathBuf,
    /// The folder of the agents' sockets and state [default: in the cluster's folder]
    #[arg(long, value_name = "DIR")]
    agents_dir: Option<PathBuf>,
    /// Do not build the binaries first
    #[arg(long)]
    no_build: bool,
    /// Seconds between SIGTERM and SIGKILL when work is ended
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    grace: u64,
    /// Seconds that a fence waits for its last node at most
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    fence_timeout: u64,
    /// Milliseconds between an agent's heartbeats
    #[arg(long, default_value_t = 500)]
    heartbeat_ms: u64,
    /// Milliseconds without a heartbeat until a node is Degraded
    #[arg(long, default_value_t = 3_000)]
    degraded_after_ms: u64,
    /// Further milliseconds without a heartbeat until it is Down
    #[arg(long, default_value_t = 60_000)]
    down_after_ms: u64,
    /// Give every daemon its own network, which `node cut` can cut off (needs root)
    #[arg(long)]
    netns: bool,
    /// Let `node clock` and `quorum clock` change the time of day of single daemons (needs a C compiler)
    #[arg(long)]
    clocks: bool,
    /// Simulated GPUs on each node: device files without a driver (needs root)
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=i64::from(gpus::NODE_MAX)))]
    gpus: u32,
    /// Let the agents serve the API on the network too: `api` of each node in DIR/cluster.json
    #[arg(long)]
    network_api: bool,
}

#[derive(Subcommand)]
enum NodeCommand {
    /// Kill the agent (SIGKILL); its work continues
    Kill(NodeArgs),
    /// Start the agent again; ends when it answers
    Start(NodeArgs),
    /// End the agent (SIGTERM) and start it again, as an upgrade does
    Restart(NodeArgs),
    /// Stop the agent (SIGSTOP): it exists, but does nothing
    Stop(NodeArgs),
    /// Let a stopped agent continue (SIGCONT)
    Cont(NodeArgs),
    /// Drop all packets between the node and others (needs up --netns)
    Cut(CutArgs),
    /// Stop dropping packets of the node
    Heal(NodeArgs),
    /// Change the agent's time of day (needs up --clocks)
    Clock(ClockArgs),
    /// Cause a fault of a simulated GPU (needs up --gpus)
    Gpu(GpuArgs),
}

#[derive(Args)]
struct GpuArgs {
    /// The node: n1, n2, ...
    node: String,
    #[command(flatten)]
    dir: Dir,
    /// The number of the GPU on its node, from 0
    #[arg(long, default_value_t = 0, global = true)]
    gpu: u32,
    #[command(subcommand)]
    what: GpuFault,
}

#[derive(Subcommand)]
enum GpuFault {
    /// The GPU disappears from the bus
    Remove,
    /// The GPU appears on the bus again, as a new one
    Add,
    /// Its driver reports this error
    Xid { number: u32 },
    /// It counts this many uncorrectable memory errors
    Ecc { errors: u64 },
    /// This many of its four links to other GPUs are up
    Nvlink { up: u32 },
    /// Its clocks are throttled for these reasons; without a reason: no longer throttled
    Throttle { why: Vec<String> },
    /// It has this many degrees Celsius: it slows down at 87 and switches itself off at 92
    Hot { degrees: u32 },
    /// It reports this load, as JSON: utilization (0 to 1), memory_used_bytes, power_watts, energy_joules, throttled, …
    Load {
        #[arg(value_parser = gpu_load)]
        load: Box<GpuLoad>,
    },
    /// It never answers a query of its load
    Hang,
}

fn gpu_load(text: &str) -> Result<Box<GpuLoad>, String> {
    serde_json::from_str(text).map_err(|e| e.to_string())
}

#[derive(Args)]
struct CutArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// From whom the node is cut off: `all`, `quorum`, a node (n2) or a member (member-1)
    #[arg(long, default_value = "all", value_name = "WHOM")]
    from: From,
    /// Which packets of the node are dropped
    #[arg(long, value_enum, default_value_t = Direction::Both)]
    direction: Direction,
}

#[derive(Args)]
struct ClockArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// By how many seconds the clock is wrong; 0 corrects it
    #[arg(allow_negative_numbers = true)]
    seconds: i64,
}

#[derive(Args)]
struct NodeArgs {
    /// The node: n1, n2, ...
    node: String,
    #[command(flatten)]
    dir: Dir,
}

#[derive(Subcommand)]
enum QuorumCommand {
    /// Kill a member (SIGKILL)
    Kill(QuorumArgs),
    /// Start a member again; ends when it accepts connections
    Start(QuorumArgs),
    /// Add a member; ends when it votes
    Join(Dir),
    /// Remove a member; ends when it has stopped
    Leave(LeaveArgs),
    /// Change a member's time of day (needs up --clocks)
    Clock(MemberClockArgs),
}

#[derive(Args)]
struct MemberClockArgs {
    /// The member: 1, 2, ...
    id: u64,
    #[command(flatten)]
    dir: Dir,
    /// By how many seconds the clock is wrong; 0 corrects it
    #[arg(allow_negative_numbers = true)]
    seconds: i64,
}

#[derive(Args)]
struct LeaveArgs {
    /// The member: 1, 2, ...
    id: u64,
    #[command(flatten)]
    dir: Dir,
}

#[derive(Args)]
#[group(id = "which", required = true, multiple = false, args = ["id", "all"])]
struct WhichMembers {
    /// The member: 1, 2, ...
    id: Option<u64>,
    /// Every member that the command applies to
    #[arg(long)]
    all: bool,
}

#[derive(Args)]
struct QuorumArgs {
    #[command(flatten)]
    which: WhichMembers,
    #[command(flatten)]
    dir: Dir,
}

#[derive(Args)]
struct Down {
    #[command(flatten)]
    dir: Dir,
    /// Seconds that cancelled work has to end by itself; with 0 it is killed at once
    #[arg(long, default_value_t = 10)]
    patience: u64,
}

#[derive(Args)]
struct Demo {
    /// The cluster's folder, removed afterwards [default: a temporary folder]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Do not build the binaries first
    #[arg(long)]
    no_build: bool,
}

/// What `lattice-lab-bench` parses.
#[derive(Args)]
struct Passed {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

fn main() -> ExitCode {
    match act(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("lattice-lab: {error:#}");
            interrupt::exit_code()
        }
    }
}

fn act(command: Command) -> Result<ExitCode> {
    match command {
        Command::Up(up) => start(up)?,
        Command::Node(command) => on_node(command)?,
        Command::Quorum(command) => on_quorum(command)?,
        Command::Status(d) => status(&Cluster::load(&d.dir)?),
        Command::Down(d) => {
            let report = down::down(&d.dir.dir, Duration::from_secs(d.patience))?;
            for id in &report.cancelled {
                println!("cancelled {id}");
            }
            for line in report.killed.iter().chain(&report.swept) {
                println!("swept {line}");
            }
            down::require_gone(&report)?;
            println!("removed {}", d.dir.dir.display());
        }
        Command::Demo(d) => demo::run(d.dir, !d.no_build)?,
        Command::Bench(passed) => match bench_program::replace_by("bench", &passed.arguments)? {},
        Command::Sim(passed) => match bench_program::replace_by("sim", &passed.arguments)? {},
        Command::Replay(passed) => match bench_program::replace_by("replay", &passed.arguments)? {},
        Command::Torture(options) => {
            if !torture::run(&options)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::TortureWork(options) => return torture::work::run(&options),
        Command::PmiRing(options) => ring::run(&options)?,
        Command::PmiFence(options) => fences::run(&options)?,
        Command::PmiStreams(options) => streams::run(&options)?,
        Command::FabricManager(options) => fabric::run(&options)?,
        Command::Metrics => print!("{}", lattice_telemetry::reference::page()),
        Command::Asked(options) => asked::run(&options)?,
        Command::Endpoint(options) => endpoint::run(&options)?,
        Command::HttpServer(options) => http_server::run(&options)?,
        Command::SimulatedAgents(options) => agent_process::run(&options)?,
        Command::Call(options) => call::run(&options)?,
        Command::KeepNetworks { parties } => match networks::keep(parties)? {},
    }
    Ok(ExitCode::SUCCESS)
}

fn on_node(command: NodeCommand) -> Result<()> {
    match command {
        NodeCommand::Kill(a) => {
            println!("{} killed (process {})", a.node, faults::kill_node(&a.dir.dir, &a.node)?);
        }
        NodeCommand::Start(a) => {
            println!("{} started (process {})", a.node, faults::start_node(&a.dir.dir, &a.node)?);
        }
        NodeCommand::Restart(a) => {
            println!("{} restarted (process {})", a.node, faults::restart_node(&a.dir.dir, &a.node)?);
        }
        NodeCommand::Stop(a) => {
            println!("{} stopped (process {})", a.node, faults::stop_node(&a.dir.dir, &a.node)?);
        }
        NodeCommand::Cont(a) => {
            println!("{} continues (process {})", a.node, faults::cont_node(&a.dir.dir, &a.node)?);
        }
        NodeCommand::Cut(CutArgs { node: a, from, direction }) => {
            show(&faults::cut_node(&a.dir.dir, &a.node, &from, direction)?, "is cut");
        }
        NodeCommand::Gpu(a) => {
            let fault = match a.what {
                GpuFault::Remove => gpus::Fault::Remove,
                GpuFault::Add => gpus::Fault::Add,
                GpuFault::Xid { number } => gpus::Fault::Xid(number),
                GpuFault::Ecc { errors } => gpus::Fault::Ecc(errors),
                GpuFault::Nvlink { up } => gpus::Fault::Nvlink(up),
                GpuFault::Throttle { why } => gpus::Fault::Throttle(why),
                GpuFault::Hot { degrees } => gpus::Fault::Hot(degrees),
                GpuFault::Load { load } => gpus::Fault::Load(load),
                GpuFault::Hang => gpus::Fault::Hang,
            };
            faults::gpu(&a.dir.dir, &a.node, a.gpu, &fault)?;
            println!("GPU {} of {}: {fault:?}", a.gpu, a.node);
        }
        NodeCommand::Clock(ClockArgs { node: a, seconds }) => {
            faults::shift_clock(&a.dir.dir, &a.node, seconds)?;
            println!("the clock of {} is wrong by {seconds} s", a.node);
        }
        NodeCommand::Heal(a) => show(&faults::heal_node(&a.dir.dir, &a.node)?, "is no longer cut"),
    }
    Ok(())
}

fn on_quorum(command: QuorumCommand) -> Result<()> {
    match command {
        QuorumCommand::Clock(a) => {
            faults::shift_member_clock(&a.dir.dir, a.id, a.seconds)?;
            println!("the clock of member {} is wrong by {} s", a.id, a.seconds);
        }
        QuorumCommand::Kill(a) => {
            for id in members(&a, true)? {
                println!("member {id} killed (process {})", faults::kill_member(&a.dir.dir, id)?);
            }
        }
        QuorumCommand::Start(a) => {
            for id in members(&a, false)? {
                println!("member {id} started (process {})", faults::start_member(&a.dir.dir, id)?);
            }
        }
        QuorumCommand::Join(d) => println!("member {} votes", faults::join_member(&d.dir)?),
        QuorumCommand::Leave(a) => {
            faults::leave_member(&a.dir.dir, a.id)?;
            println!("member {} has left", a.id);
        }
    }
    Ok(())
}

fn start(up: Up) -> Result<()> {
    interrupt::watch();
    let options = up::Options {
        agents_dir: up.agents_dir,
        build: !up.no_build,
        grace_seconds: up.grace,
        fence_timeout_seconds: up.fence_timeout,
        heartbeat_ms: up.heartbeat_ms,
        degraded_after_ms: up.degraded_after_ms,
        down_after_ms: up.down_after_ms,
        netns: up.netns,
        clocks: up.clocks,
        simulated_gpus: up.gpus,
        network_api: up.network_api,
        ..up::Options::new(up.nodes, up.quorum, &up.dir)
    };
    let began = std::time::Instant::now();
    let cluster = up::up(&options)?;
    let dir = cluster.dir.display();
    println!("{} node(s) Ready, {} member(s), after {:.1} s", up.nodes, up.quorum, began.elapsed().as_secs_f64());
    println!("  . {dir}/env                      # then `lattice nodes`, `lattice submit -- hostname`, ...");
    println!("  lattice-lab down --dir {dir}     # removes it");
    Ok(())
}

fn show(pairs: &[(String, String)], what: &str) {
    match pairs {
        [] => println!("nothing to do"),
        pairs => pairs.iter().for_each(|(from, to)| println!("{from} -> {to} {what}")),
    }
}

/// The selected member, or all members that run (`running`) or do not run.
fn members(args: &QuorumArgs, running: bool) -> Result<Vec<u64>> {
    match args.which.id {
        Some(id) => Ok(vec![id]),
        None => Ok(Cluster::load(&args.dir.dir)?.members.iter().filter(|m| m.daemon.alive() == running).map(|m| m.id).collect()),
    }
}

fn status(cluster: &Cluster) {
    let line = |name: &str, daemon: &lattice_lab::cluster::Daemon, reached: String| {
        let state = if daemon.alive() { "runs" } else { "dead" };
        let pid = daemon.process.as_ref().map_or(0, |p| p.pid);
        println!("{name:<10} {state:<5} {pid:>8}  {reached:<24} {}", daemon.log.display());
    };
    for m in &cluster.members {
        line(&m.daemon.name, &m.daemon, m.service.clone());
    }
    for n in &cluster.nodes {
        line(&n.id, &n.daemon, format!("mesh {}", n.mesh));
    }
    match lattice::Lattice::to_any(cluster).and_then(|l| l.nodes()) {
        Ok(nodes) => println!("nodes: {}", nodes.iter().map(|(id, s)| format!("{id} {s}")).collect::<Vec<_>>().join(", ")),
        Err(e) => println!("nodes: unknown ({e:#})"),
    }
    for (from, to) in cluster.networks.iter().flat_map(networks::Networks::cuts) {
        println!("cut: {from} -> {to}");
    }
    for left in down::leftovers(cluster) {
        println!("work: {left}");
    }
}
