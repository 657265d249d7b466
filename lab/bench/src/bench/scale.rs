//! `bench scale`: what the cluster costs as it grows. Cost is to follow what changed, not the size.
//!
//! ```text
//!   for each size:   three members + 2 real agents + N simulated agents   ◀── short allocations at a constant rate,
//!                    (processes)     (processes)     (processes of many)       on at most 50 of the N nodes
//!                                                    --wide                ◀── allocations of all N nodes, and of a tenth
//!                    --storm: killed, restarted      --storm               ◀── a few submissions
//! ```
//!
//! Members and the two real agents are the product's. A simulated agent ([`lattice_lab::quorum::agents`]) is real on the wire:
//! certificate, TLS connections, session, heartbeats, reports about its shares, and the watch that agents of its role
//! open. It does not run work, gossip, decode or store what its watch delivers. All processes share this machine's
//! processors.
//!
//! **Who follows what** is decided by [`crowd::Plan::followers`] alone. A follower has role `api` and an agent's default
//! `roles` (`api` and `scheduler`): it watches all nodes, all allocations, tenants, vClusters, domains and limits, and
//! requests the scheduler's lease three times in the lease's 5 s. All others have role `node`: they watch their own node and the
//! allocations on it.

mod crowd;
mod drawing;
mod load;
pub(super) mod memory;
mod reached;
mod size;
mod sockets;
mod steady;
mod storm;
mod submissions;
mod trials;
mod wide;

use super::figures::{Figure, Report, Target};
use super::options::Options;
use anyhow::{Context, Result, ensure};
use crowd::{PROCESS_AGENTS_MAX, Plan, REAL_AGENTS};
use drawing::Drawing;
use lattice_agent_common::limits::raise_open_files;
use lattice_lab::binaries::Binaries;
use lattice_lab::down::{self, Guard};
use lattice_lab::interrupt;
use lattice_lab::machine::{self, Machine};
use lattice_lab::quorum::agents::OPENING_MAX;
use lattice_lab::quorum::members::Timers;
use nix::sys::resource::{Resource, getrlimit};
use reached::one;
use std::path::Path;
use std::time::Duration;

/// The default sizes, and the largest one: names of simulated nodes have five digits.
const SIZES: [u32; 4] = [100, 1000, 3000, 10_000];
const SIZE_MAX: u32 = 100_000;
/// By default, followers are the machines where users log in, and those that schedule.
const FOLLOWERS: u32 = 16;
const CHANGES: u32 = 50;
const SECONDS: u32 = 30;
/// Open files of a process besides the agents' connections.
const OTHER_FILES: u64 = 1000;
/// Connections of a follower: its session, its watch, and its requests to the leader.
const AGENT_CONNECTIONS: u64 = 3;

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
    let wanted = &options.scale;
    let (figures, drawings) = if wanted.wide || wanted.storm {
        notes.extend(trials::notes(wanted));
        let measure = async |size| trials::measure(dir, size, &plan, wanted).await;
        let measured = measure_all(dir, &sizes, &mut notes, measure, trials::troubles)?;
        (with_count(trials::figures(&measured)?, measured.len(), sizes.len())?, trials::drawings(&measured))
    } else {
        notes.extend(steady::notes(&plan));
        if sockets::program().is_none() {
            notes.push("`ss` is not installed: what TCP counts is left out".to_owned());
        }
        let measure = async |size| size::measure(dir, size, &plan).await;
        let measured = measure_all(dir, &sizes, &mut notes, measure, steady::troubles)?;
        let figures = measured.iter().map(steady::figures).collect::<Result<Vec<_>>>()?.concat();
        (with_count(figures, measured.len(), sizes.len())?, steady::drawings(&measured))
    };
    draw(options, drawings)?;
    let profile = binaries.profile();
    if profile == "debug" {
        notes.push("these are debug binaries: run the bench with --release before believing a miss".to_owned());
    }
    Ok(Report { bench: "scale", profile, cpu_pressure: [before, machine::cpu_pressure()], machine, figures, notes })
}

fn draw(options: &Options, drawings: Vec<Drawing>) -> Result<()> {
    options.svg.as_ref().map_or(Ok(()), |folder| drawing::write(folder, drawings))
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
    vec![
        format!(
            "at most {} simulated agents have role api, the others role node, and each has the watch of its role. Simulated: the agents without work, gossip and memory of what they follow. Real: \
             three members, {REAL_AGENTS} agents of role api without role scheduler, all certificates and connections",
            plan.followers
        ),
        format!("until all are Ready: at most {OPENING_MAX} agents of a process register or read their first list at the same time"),
    ]
}

/// Larger sizes are not tried after one that could not be measured.
fn measure_all<T>(
    dir: &Path,
    sizes: &[u32],
    notes: &mut Vec<String>,
    measure: impl AsyncFn(usize) -> Result<T>,
    troubles: impl Fn(&T) -> Vec<String>,
) -> Result<Vec<T>> {
    let mut measured = Vec::new();
    for size in sizes {
        let guard = Guard::new(dir);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime")?;
        let result = runtime.block_on(measure(*size as usize));
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

/// The figures, and last how many sizes could be measured.
fn with_count(mut figures: Vec<Figure>, measured: usize, sizes: usize) -> Result<Vec<Figure>> {
    let all = Target::AtLeast { value: sizes as f64, why: "all that were wanted".to_owned() };
    figures.push(Figure::new("sizes that could be measured", "sizes", one(measured as f64)?, vec![], Some(all)));
    Ok(figures)
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

    #[test]
    fn a_size_that_could_not_be_measured_is_a_missed_target() {
        let verdict = |sizes| with_count(vec![], 1, sizes).unwrap().last().unwrap().verdict;
        assert_eq!((verdict(1), verdict(2)), (super::super::Verdict::Met, super::super::Verdict::Missed));
    }

    #[test]
    fn the_constant_load_is_not_measured_beside_the_others() {
        let parsed = |arguments: &[&str]| Line::try_parse_from([&["bench"], arguments].concat()).map(|line| line.options.scale);
        let both = parsed(&["--wide", "--storm", "--followers", "4"]).unwrap();
        assert!(both.wide && both.storm && both.followers == Some(4));
        for wrong in [["--wide", "--changes", "20"], ["--storm", "--seconds", "3"], ["--wide", "--seconds", "3"]] {
            assert!(parsed(&wrong).is_err(), "{wrong:?}");
        }
    }
}
