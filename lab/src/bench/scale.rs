//! `bench scale`: what the cluster costs as it grows, while the changes a second stay the same. Cost is to follow what
//! changed, not the size.
//!
//! ```text
//!   for each size:   three members + 2 real agents + N simulated agents   ◀── short allocations at a constant rate,
//!                    (processes)     (processes)     (processes of many)       on at most 50 of the N nodes
//! ```
//!
//! Members and the two real agents are the product's. A simulated agent ([`crate::quorum::agents`]) is real on the wire:
//! certificate, TLS connections, session, heartbeats, reports about its shares, and the watch that agents of its role
//! open. It does not run work, gossip, decode or store what its watch delivers. All processes share this machine's
//! processors.
//!
//! **Who follows what** is decided by [`size::Plan::followers`] alone. A follower has role `api` and an agent's default
//! `roles` (`api` and `scheduler`): it watches all nodes, all allocations, tenants, vClusters, domains and limits, and
//! asks for the scheduler's lease three times in its 5 s. All others have role `node`: they watch their own node and the
//! allocations on it.

mod load;
mod size;
mod sockets;

use super::chart::{Chart, Curve};
use super::figures::{Figure, Report, Samples, Target};
use super::options::Options;
use crate::binaries::Binaries;
use crate::down::{self, Guard};
use crate::interrupt;
use crate::machine::{self, Machine};
use crate::quorum::agents::OPENING_MAX;
use crate::quorum::members::Timers;
use anyhow::{Context, Result, ensure};
use lattice_agent_common::limits::raise_open_files;
use nix::sys::resource::{Resource, getrlimit};
use size::{HEARTBEAT_MS, Measured, PROCESS_AGENTS_MAX, Plan, REAL_AGENTS, WORKING_MAX};
use std::path::Path;
use std::time::Duration;

/// The default sizes, and the largest one: names of simulated nodes have five digits.
const SIZES: [u32; 4] = [100, 1000, 3000, 10_000];
const SIZE_MAX: u32 = 100_000;
/// Machines where users log in, and those that schedule.
const FOLLOWERS: u32 = 16;
const CHANGES: u32 = 50;
const SECONDS: u32 = 30;
/// Open files of a process besides the agents' connections.
const OTHER_FILES: u64 = 1000;
/// Connections of a follower: its session, its watch, and its requests to the leader.
const AGENT_CONNECTIONS: u64 = 3;

const MEMBERS_CORES: f64 = 1.0;
const RECEIVED_KB_S: f64 = 2.0;
const AGENT_KB: f64 = 300.0;
const READY_S: f64 = 60.0;

/// Starts a cluster of each size, one after the other, measures it, and removes it again.
pub fn run(dir: Option<&Path>, options: &Options) -> Result<Report> {
    let sizes = sizes(options)?;
    let plan = Plan {
        followers: options.scale.followers.unwrap_or(FOLLOWERS) as usize,
        changes: options.scale.changes.unwrap_or(CHANGES),
        lasts: Duration::from_secs(options.scale.seconds.unwrap_or(SECONDS).into()),
        timers: timers(),
    };
    raise_open_files();
    require_open_files(sizes[sizes.len() - 1])?;
    let machine = Machine::look();
    let binaries = Binaries::beside_lab()?;
    if !options.no_build {
        binaries.build()?;
    }
    let own = std::env::temp_dir().join(format!("lattice-bench-scale-{}", std::process::id()));
    let dir = dir.unwrap_or(&own);
    interrupt::watch();
    let before = machine::cpu_pressure();
    let mut notes = notes(&plan);
    let measured = measure_all(dir, &sizes, &plan, &mut notes)?;
    if let Some(folder) = &options.scale.svg {
        draw(folder, &measured)?;
    }
    let profile = binaries.profile();
    if profile == "debug" {
        notes.push("these are debug binaries: run the bench with --release before believing a miss".to_owned());
    }
    let figures = figures(&measured, sizes.len())?;
    Ok(Report { bench: "scale", profile, cpu_pressure: [before, machine::cpu_pressure()], machine, figures, notes })
}

/// The sizes in the order of their measurement.
fn sizes(options: &Options) -> Result<Vec<u32>> {
    let sizes = if options.nodes.is_empty() { SIZES.to_vec() } else { options.nodes.clone() };
    ensure!(sizes.iter().all(|size| (2..=SIZE_MAX).contains(size)), "--nodes {sizes:?}: sizes of 2 to {SIZE_MAX} are possible");
    ensure!(sizes.is_sorted_by(|one, next| one < next), "--nodes {sizes:?}: the sizes must grow");
    Ok(sizes)
}

/// The members' default timers.
fn timers() -> Timers {
    let defaults = lattice_quorum::config::QuorumConfig::default();
    Timers { heartbeat_ms: defaults.heartbeat_ms, election_ms: defaults.election_ms }
}

/// Fails unless members and simulated agents may open as many connections as this many agents need.
fn require_open_files(agents: u32) -> Result<()> {
    let (_, limit) = getrlimit(Resource::RLIMIT_NOFILE).context("the limit of open files")?;
    let agents = u64::from(agents);
    // Sessions and watches are spread over the members; all requests go to the leader.
    let need = OTHER_FILES + agents.max(AGENT_CONNECTIONS * agents.min(PROCESS_AGENTS_MAX as u64));
    ensure!(
        limit >= need,
        "a process may open {limit} files and {agents} agents need {need}: raise the hard limit (`ulimit -Hn`), or give smaller --nodes"
    );
    Ok(())
}

fn notes(plan: &Plan) -> Vec<String> {
    let mut notes = vec![
        format!(
            "at most {} simulated agents have role api, the others role node, and each has the watch of its role. Simulated: the agents without work, gossip and memory of what they follow. Real: \
             three members, {REAL_AGENTS} agents of role api without role scheduler, all certificates and connections",
            plan.followers
        ),
        format!(
            "{} changes a second are wanted at each size: allocations of one core on at most {WORKING_MAX} nodes, submitted, claimed, \
             prepared, ended and released; all other agents are at rest. Measured for {} s, heartbeats every {} s",
            plan.changes,
            plan.lasts.as_secs(),
            HEARTBEAT_MS / 1000
        ),
        "received: messages as encoded, without gRPC, HTTP/2 and TLS; as TCP counts it: everything on the connections to members, and for \
         real agents only that (no gossip)"
            .to_owned(),
        format!("until all are Ready: at most {OPENING_MAX} agents of a process register or read their first list at the same time"),
    ];
    if sockets::program().is_none() {
        notes.push("`ss` is not installed: what TCP counts is left out".to_owned());
    }
    notes
}

/// Larger sizes are not tried after one that could not be measured.
fn measure_all(dir: &Path, sizes: &[u32], plan: &Plan, notes: &mut Vec<String>) -> Result<Vec<Measured>> {
    let mut measured = Vec::new();
    for size in sizes {
        let guard = Guard::new(dir);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime")?;
        let result = runtime.block_on(size::measure(dir, *size as usize, plan));
        drop(runtime);
        down::require_gone(&guard.down(Duration::ZERO)?)?;
        interrupt::check()?;
        match result {
            Ok(of_size) => {
                notes.extend(troubles(&of_size));
                measured.push(of_size);
            }
            Err(error) if measured.is_empty() => return Err(error.context(format!("{size} agents"))),
            Err(error) => {
                notes.push(format!("{size} agents could not be measured: {error:#}"));
                break;
            }
        }
    }
    Ok(measured)
}

/// What was unusual at one size.
fn troubles(of: &Measured) -> Vec<String> {
    let Measured { agents, load, lost: [sessions, watches, leases], .. } = of;
    let mut troubles = Vec::new();
    if let Some(why) = &load.why {
        troubles.push(format!("{agents} agents: {} submissions or claims failed, the last: {why}", load.failed));
    }
    if load.skipped > 0 {
        troubles.push(format!("{agents} agents: {} allocations were not begun, because too many commits were in flight", load.skipped));
    }
    if sessions + watches + leases > 0 {
        troubles.push(format!(
            "{agents} agents: {sessions} sessions and {watches} watches were lost and opened again, {leases} requests for a lease had no answer"
        ));
    }
    troubles
}

fn figures(measured: &[Measured], sizes: usize) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for of in measured {
        figures.extend(figures_of(of)?);
    }
    let all = Target::AtLeast { value: sizes as f64, why: "all that were wanted".to_owned() };
    figures.push(Figure::new("sizes that could be measured", "sizes", one(measured.len() as f64)?, vec![], Some(all)));
    Ok(figures)
}

fn figures_of(of: &Measured) -> Result<Vec<Figure>> {
    let agents = of.agents;
    let named = |what: &str| format!("{agents} agents: {what}");
    let at_most = |value, why: &str| Some(Target::AtMost { value, why: why.to_owned() });
    let some = |values: &[f64]| Samples::of(values.to_vec(), 0);
    let at_rest: Vec<f64> = of.followers_kb_s.iter().chain(&of.others_kb_s).copied().collect();
    let received = vec![
        ("those of role api", some(&of.followers_kb_s)),
        ("those of role node", some(&of.others_kb_s)),
        ("all simulated ones, as TCP counts it", of.tcp_kb_s.map(one).transpose()?),
        ("real agents, as TCP counts it", some(&of.real_tcp_kb_s)),
    ];
    let quantile = |part| one(of.load.quantile(part));
    Ok(vec![
        Figure::new(
            &named("processors of all members together"),
            "cores",
            one(of.members_cores)?,
            vec![("all simulated agents together", Some(one(of.agents_cores)?))],
            at_most(MEMBERS_CORES, "for 10,000 agents too"),
        ),
        Figure::new(&named("the largest memory of each member"), "MB", some(&of.member_mb).context("no member")?, vec![], None),
        Figure::new(
            &named("received by an agent at rest"),
            "KB/s",
            some(&at_rest).context("no agent is at rest")?,
            received,
            at_most(RECEIVED_KB_S, "nothing changes for it"),
        ),
        Figure::new(&named("a real agent at rest, of one core"), "%", some(&of.real_percent).context("no real agent")?, vec![], None),
        Figure::new(&named("a submission or claim, median"), "ms", quantile(0.5)?, vec![], None),
        Figure::new(&named("a submission or claim, 99 % of them"), "ms", quantile(0.99)?, vec![], None),
        Figure::new(&named("changes committed"), "/s", one(of.changes_per_s)?, vec![], None),
        Figure::new(
            &named("from their start until all are Ready"),
            "s",
            one(of.ready_s)?,
            vec![("until all have the first list of their watch", Some(one(of.listed_s)?))],
            at_most(READY_S, "10,000 agents too"),
        ),
        Figure::new(
            &named("memory of one simulated agent"),
            "KB",
            one(of.agent_kb)?,
            vec![],
            at_most(AGENT_KB, "members have the machine"),
        ),
    ])
}

fn one(value: f64) -> Result<Samples> {
    Samples::of(vec![value], 0).context("nothing was measured")
}

/// Draws each quantity over the sizes: `scale-NAME.svg` in `folder`.
fn draw(folder: &Path, measured: &[Measured]) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let median = |values: &[f64]| Samples::of(values.to_vec(), 0).map(|samples| samples.median);
    let largest = |values: &[f64]| Samples::of(values.to_vec(), 0).map(|samples| samples.max);
    let curve = |name: &str, of: &dyn Fn(&Measured) -> Option<f64>| {
        let points = measured.iter().filter_map(|m| Some((m.agents as f64, of(m)?))).collect();
        Curve { name: name.to_owned(), points }
    };
    let charts = [
        ("processors", "Processors of all members together", "cores", vec![curve("three members", &|m| Some(m.members_cores))]),
        ("memory", "The largest memory of a member", "MB", vec![curve("the largest of three", &|m| largest(&m.member_mb))]),
        (
            "received",
            "Received by an agent at rest (encoded messages)",
            "KB/s",
            vec![curve("role api", &|m| median(&m.followers_kb_s)), curve("role node", &|m| median(&m.others_kb_s))],
        ),
        (
            "commits",
            "A submission or claim",
            "ms",
            vec![curve("median", &|m| Some(m.load.quantile(0.5))), curve("99 %", &|m| Some(m.load.quantile(0.99)))],
        ),
        (
            "ready",
            "From the agents' start",
            "s",
            vec![curve("until all are Ready", &|m| Some(m.ready_s)), curve("until all have their first list", &|m| Some(m.listed_s))],
        ),
    ];
    for (name, title, unit, mut curves) in charts {
        curves.retain(|curve| !curve.points.is_empty());
        let svg = Chart { title: title.to_owned(), size_name: "simulated agents", unit, curves }.svg()?;
        let file = folder.join(format!("scale-{name}.svg"));
        std::fs::write(&file, svg).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn sizes_of(arguments: &[&str]) -> Result<Vec<u32>> {
        sizes(&Line::try_parse_from([&["bench"], arguments].concat())?.options)
    }

    #[test]
    fn sizes_are_a_growing_list() {
        assert_eq!(sizes_of(&[]).unwrap(), SIZES);
        assert_eq!(sizes_of(&["--nodes", "6,12"]).unwrap(), [6, 12]);
        for wrong in ["12,6", "6,6", "0", "1,5", "200000", "x", "-4"] {
            assert!(sizes_of(&["--nodes", wrong]).is_err(), "{wrong}");
        }
    }

    fn measured(agents: usize) -> Measured {
        let load = load::Load { latencies_ms: vec![1.0, 2.0, 30.0], ..Default::default() };
        Measured {
            agents,
            members_cores: 0.5,
            member_mb: vec![40.0, 50.0, 45.0],
            followers_kb_s: vec![7.0; 3],
            others_kb_s: vec![0.2; 2],
            real_percent: vec![0.1, 0.2],
            ready_s: 1.5,
            listed_s: 2.0,
            load,
            ..Measured::default()
        }
    }

    #[test]
    fn a_size_that_could_not_be_measured_is_a_missed_target() {
        let verdict = |sizes| figures(&[measured(100)], sizes).unwrap().last().unwrap().verdict;
        assert_eq!((verdict(1), verdict(2)), (super::super::Verdict::Met, super::super::Verdict::Missed));
        let figures = figures(&[measured(100)], 1).unwrap();
        let received = figures.iter().find(|f| f.unit == "KB/s").unwrap();
        assert_eq!((received.samples.median, received.peers.len(), received.verdict), (7.0, 2, super::super::Verdict::Missed));
    }

    #[test]
    fn each_quantity_is_drawn_over_the_sizes() {
        let folder = std::env::temp_dir().join(format!("lattice-scale-svg-{}", std::process::id()));
        draw(&folder, &[measured(100), measured(1000)]).unwrap();
        for name in ["processors", "memory", "received", "commits", "ready"] {
            let svg = std::fs::read_to_string(folder.join(format!("scale-{name}.svg"))).unwrap();
            assert!(svg.matches("<circle").count() >= 2 && svg.contains(">1000</text>"), "{name}: {svg}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
