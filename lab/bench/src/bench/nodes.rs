//! `bench nodes`: many agents, each with its own network: their cost at rest, and when a killed one is Degraded and
//! Down.
//!
//! Two clusters, one after the other. At rest the timers are the documented ones. Where agents are killed, heartbeats
//! are sent twice a second: silence counts from a node's last heartbeat, whose time the benchmark does not see.

use super::figures::{Figure, Report, Samples, Target};
use super::options::Options;
use anyhow::{Context, Result, ensure};
use lattice_lab::cluster::Cluster;
use lattice_lab::down::{self, Guard};
use lattice_lab::lattice::Lattice;
use lattice_lab::machine::{self, Machine};
use lattice_lab::up::{self, Options as UpOptions};
use lattice_lab::{binaries::Binaries, faults, interrupt};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// Members.
const MEMBERS: u32 = 3;
/// The default number of agents.
const NODES: u32 = 64;
/// How long agents settle, and how long they are measured.
const SETTLE_TIME: Duration = Duration::from_secs(20);
const IDLE_TIME: Duration = Duration::from_secs(60);
/// The documented timers, in milliseconds.
const HEARTBEAT_MS: u64 = 10_000;
const DEGRADED_AFTER_MS: u64 = 30_000;
const SCHEDULER_LEASE_MS: u64 = 5_000;
/// The timers of the cluster with killed agents.
const FAST_HEARTBEAT_MS: u64 = 500;
const FAST_DEGRADED_AFTER_MS: u64 = 10_000;
const FAST_DOWN_AFTER_MS: u64 = 20_000;
/// Percent of one core that an agent may use.
const AGENT_PERCENT: f64 = 0.3;
/// Seconds by which a change of state may be earlier or later than configured.
const DEVIATION_S_MAX: f64 = 1.0;
/// One agent in this many is killed: so few that the leader does not hold back their states as a mass outage.
const KILLED_PART: u32 = 16;
/// Interval between two kills, and between two checks.
const KILL_INTERVAL: Duration = Duration::from_millis(700);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long a large cluster may take to start.
const READY_WITHIN: Duration = Duration::from_secs(180);

/// Starts one cluster after the other, measures, and removes them again.
pub fn run(dir: Option<&Path>, options: &Options) -> Result<Report> {
    let machine = Machine::look();
    ensure!(machine.root, "bench nodes makes network namespaces: run it as root");
    let binaries = Binaries::beside_lab()?;
    if !options.no_build {
        binaries.build()?;
    }
    let own = std::env::temp_dir().join(format!("lattice-bench-nodes-{}", std::process::id()));
    let dir = dir.unwrap_or(&own);
    interrupt::watch();
    let before = machine::cpu_pressure();
    let nodes = options.agents()?.unwrap_or(NODES);
    let rest = UpOptions {
        heartbeat_ms: HEARTBEAT_MS,
        degraded_after_ms: DEGRADED_AFTER_MS,
        scheduler_lease_ms: SCHEDULER_LEASE_MS,
        ..cluster(nodes, dir)
    };
    eprintln!("bench: {nodes} agents at rest, {} s", IDLE_TIME.as_secs());
    let mut figures = with(&rest, at_rest)?;
    let killed = UpOptions {
        heartbeat_ms: FAST_HEARTBEAT_MS,
        degraded_after_ms: FAST_DEGRADED_AFTER_MS,
        down_after_ms: FAST_DOWN_AFTER_MS,
        ..cluster(nodes, dir)
    };
    eprintln!("bench: some of {nodes} agents are killed");
    figures.extend(with(&killed, |cluster| when_killed(cluster, nodes))?);
    let notes = vec![format!(
        "{nodes} agents in namespaces, {MEMBERS} members. At rest: heartbeats every {} s. Killed: heartbeats every {FAST_HEARTBEAT_MS} ms, \
         Degraded after {} s of silence, Down after {} s more",
        HEARTBEAT_MS / 1000,
        FAST_DEGRADED_AFTER_MS / 1000,
        FAST_DOWN_AFTER_MS / 1000
    )];
    let cpu_pressure = [before, machine::cpu_pressure()];
    Ok(Report { bench: "nodes", profile: binaries.profile(), cpu_pressure, machine, figures, notes })
}

fn cluster(nodes: u32, dir: &Path) -> UpOptions {
    let options = UpOptions { build: false, netns: true, ready_within: READY_WITHIN, ..UpOptions::new(nodes, MEMBERS, dir) };
    options.with_audit_as_documented()
}

fn with(options: &UpOptions, measure: impl FnOnce(&Cluster) -> Result<Vec<Figure>>) -> Result<Vec<Figure>> {
    let guard = Guard::new(&options.dir);
    let measured = measure(&up::up(options)?);
    down::require_gone(&guard.down(Duration::from_secs(10))?)?;
    measured
}

fn at_rest(cluster: &Cluster) -> Result<Vec<Figure>> {
    std::thread::sleep(SETTLE_TIME);
    interrupt::check()?;
    let pids: Vec<i32> = cluster.nodes.iter().filter_map(|n| n.daemon.process.as_ref()).map(|p| p.pid).collect();
    let used = |pids: &[i32]| pids.iter().map(|pid| machine::processor_time(*pid)).collect::<Result<Vec<_>>>();
    let (began, before) = (Instant::now(), used(&pids)?);
    std::thread::sleep(IDLE_TIME);
    interrupt::check()?;
    let (took, after) = (began.elapsed(), used(&pids)?);
    let percent = |(after, before): (&Duration, &Duration)| (*after - *before).as_secs_f64() / took.as_secs_f64() * 100.0;
    let each: Vec<f64> = after.iter().zip(&before).map(percent).collect();
    let worst = each.iter().copied().fold(0.0, f64::max);
    let at_most = || Some(Target::AtMost { value: AGENT_PERCENT, why: "of one core".to_owned() });
    Ok(vec![
        Figure::new("agents at rest, processor time of each", "%", Samples::of(each, 0).context("no agent")?, vec![], at_most()),
        Figure::new("the busiest of them", "%", Samples::of(vec![worst], 0).context("no agent")?, vec![], at_most()),
    ])
}

/// When an agent was killed, and when each state was first shown.
struct Killed {
    at: Instant,
    degraded: Option<Instant>,
    down: Option<Instant>,
}

fn when_killed(cluster: &Cluster, nodes: u32) -> Result<Vec<Figure>> {
    let lattice = Lattice::to(cluster, "n1")?;
    std::thread::sleep(SETTLE_TIME);
    let mut killed: BTreeMap<String, Killed> = BTreeMap::new();
    // Not the agent that answers.
    let names: Vec<&String> = cluster.nodes.iter().map(|n| &n.id).rev().take((nodes / KILLED_PART).max(1) as usize).collect();
    for name in names {
        faults::kill_node(&cluster.dir, name)?;
        killed.insert(name.clone(), Killed { at: Instant::now(), degraded: None, down: None });
        std::thread::sleep(KILL_INTERVAL);
    }
    let all = Duration::from_millis(FAST_DEGRADED_AFTER_MS + FAST_DOWN_AFTER_MS);
    let end = Instant::now() + all * 2;
    while Instant::now() < end && killed.values().any(|k| k.down.is_none()) {
        interrupt::check()?;
        let shown = lattice.nodes()?;
        let now = Instant::now();
        for (name, state) in &shown {
            let Some(known) = killed.get_mut(name) else {
                ensure!(state == "Ready", "{name} is {state}, and was not killed");
                continue;
            };
            match state.as_str() {
                "Degraded" => drop(known.degraded.get_or_insert(now)),
                "Down" => drop(known.down.get_or_insert(now)),
                _ => {}
            }
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let missed = |shown: fn(&Killed) -> Option<Instant>, due: Duration| -> (Vec<f64>, usize) {
        let seen = killed.values().filter_map(|k| Some((shown(k)? - k.at).as_secs_f64() - due.as_secs_f64()));
        let seen: Vec<f64> = seen.collect();
        let never = killed.len() - seen.len();
        (seen, never)
    };
    let degraded = missed(|k| k.degraded, Duration::from_millis(FAST_DEGRADED_AFTER_MS));
    let down = missed(|k| k.down, all);
    let mut figures = Vec::new();
    for (what, (seen, never)) in [("Degraded", degraded), ("Down", down)] {
        ensure!(never == 0, "{never} killed nodes were never shown as {what}");
        let worst = seen.iter().map(|s| s.abs()).fold(0.0, f64::max);
        let spread = Samples::of(seen, never).context("none was killed")?;
        let worst = Samples::of(vec![worst], never).context("none was killed")?;
        let at_most = Target::AtMost { value: DEVIATION_S_MAX, why: "earlier or later than configured".to_owned() };
        figures.push(Figure::new(&format!("a killed node is shown as {what}, from its time on"), "s", spread, vec![], None));
        figures.push(Figure::new(&format!("{what}: the farthest from it"), "s", worst, vec![], Some(at_most)));
    }
    Ok(figures)
}
