//! The fences of `bench mpi`: ranks that do nothing else, on many agents with their own networks, compared with the
//! same bytes down the same tree by the agents' own mesh ([`lattice_lab::streams`]).
//!
//! Each round launches both, on each number of nodes. All agents share the machine's processors, so many of them
//! take more time than on machines of their own; that holds for both measurements.

use super::figures::{Figure, Samples, Target};
use super::options::Options;
use super::surroundings::hold;
use anyhow::{Context, Result, ensure};
use lattice_lab::binaries::Binaries;
use lattice_lab::down::{self, Guard};
use lattice_lab::fences::{self, Wire};
use lattice_lab::interrupt;
use lattice_lab::lattice::Lattice;
use lattice_lab::streams;
use lattice_lab::up::{self, Options as UpOptions};
use lattice_pmi::fanout_for;
use serde::de::DeserializeOwned;
use std::path::Path;
use std::time::Duration;

/// The default number of agents.
const NODES: u32 = 64;
/// Ranks on each node.
const RANKS: u32 = 16;
/// Bytes of each rank: as many as MPICH's ranks.
const RANK_BYTES: u32 = 448;
/// Bytes of a pair in addition to its key and value.
const RECORD_BYTES: u32 = 4;
/// Limit relative to the bytes alone.
const STREAMS_RATIO: f64 = 3.0;
/// Bytes that an agent may receive, relative to the contributions of all ranks.
const RECEIVED_RATIO: f64 = 1.1;
/// How long one launch may take.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(60);
/// How long this many agents may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(180);
/// The documented timers, in milliseconds.
const HEARTBEAT_MS: u64 = 10_000;
const DEGRADED_AFTER_MS: u64 = 30_000;

/// The measurements on this many nodes.
#[derive(Default)]
struct Measured {
    nodes: u32,
    first_ms: Vec<f64>,
    last_ms: Vec<f64>,
    streams_ms: Vec<f64>,
    /// The most that one agent received, and sent, relative to the contributions of all ranks.
    received: Vec<f64>,
    sent: Vec<f64>,
    streams_received: Vec<f64>,
    streams_sent: Vec<f64>,
    failed: usize,
    why: Option<String>,
}

/// Starts many agents, measures, and removes them again.
pub fn measure(dir: &Path, options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let nodes = options.agents()?.unwrap_or(NODES);
    let clocks = UpOptions {
        build: false,
        netns: true,
        grace_seconds: 2,
        heartbeat_ms: HEARTBEAT_MS,
        degraded_after_ms: DEGRADED_AFTER_MS,
        ready_within: START_TIMEOUT,
        ..UpOptions::new(nodes, 1, dir)
    };
    let guard = Guard::new(dir);
    eprintln!("bench: starting a member and {nodes} agents");
    let cluster = up::up(&clocks.with_audit_as_documented())?;
    let measured = Lattice::to(&cluster, "n1").and_then(|lattice| rounds(&lattice, dir, nodes, options.rounds()));
    down::require_gone(&guard.down(Duration::from_secs(10))?)?;
    let measured = measured?;
    notes.push(format!(
        "fences of {RANKS} ranks on each node with {RANK_BYTES} bytes each, which cannot be packed; beside them the bytes of the whole fence \
         down the same tree by the agents' mesh, from processes of their own in the same networks. Bytes are those of a node's network, \
         with headers, acknowledgements and everything else that went over it"
    ));
    let failed =
        measured.iter().filter_map(|m| m.why.as_ref().map(|why| format!("fences on {} nodes: {} failed, last: {why}", m.nodes, m.failed)));
    notes.extend(failed);
    figures(&measured, nodes)
}

fn rounds(lattice: &Lattice, dir: &Path, most: u32, rounds: usize) -> Result<Vec<Measured>> {
    let alloc = hold(lattice, most)?;
    let sizes = (1..).map(|power| 2u32.pow(power)).take_while(|size| *size < most).chain([most]);
    let mut measured: Vec<Measured> = sizes.map(|nodes| Measured { nodes, ..Measured::default() }).collect();
    for round in 0..rounds {
        for of in &mut measured {
            interrupt::check()?;
            if let Err(error) = once(lattice, dir, &alloc, of) {
                of.failed += 1;
                of.why = Some(format!("{error:#}"));
            }
        }
        eprintln!("bench: round {} of {rounds} of fences", round + 1);
    }
    Ok(measured)
}

fn once(lattice: &Lattice, dir: &Path, alloc: &str, of: &mut Measured) -> Result<()> {
    let data = of.nodes * RANKS * (RANK_BYTES + RECORD_BYTES);
    let (bytes, all) = (RANK_BYTES.to_string(), data.to_string());
    let fences: fences::RankReport = launch(lattice, alloc, of.nodes, RANKS, &["pmi-fence", "--bytes", &bytes])?;
    let streams: streams::RankReport =
        launch(lattice, alloc, of.nodes, 1, &["pmi-streams", "--bytes", &all, "--dir", &dir.to_string_lossy()])?;
    let most = |wire: &mut dyn Iterator<Item = &Wire>, way: fn(&Wire) -> u64, times: usize| {
        wire.map(way).max().unwrap_or(0) as f64 / times as f64 / f64::from(data)
    };
    let (times, stream_times) = (fences.fences.len(), streams.took_ms.len());
    ensure!(times > 0 && stream_times > 0, "nothing was measured");
    of.received.push(most(&mut fences.wire.values(), |wire| wire.received, times));
    of.sent.push(most(&mut fences.wire.values(), |wire| wire.sent, times));
    of.streams_received.push(most(&mut streams.wire.values(), |wire| wire.received, stream_times));
    of.streams_sent.push(most(&mut streams.wire.values(), |wire| wire.sent, stream_times));
    of.first_ms.extend(fences.fences.iter().map(|fence| fence.first_ms));
    of.last_ms.extend(fences.fences.iter().map(|fence| fence.last_ms));
    of.streams_ms.extend(streams.took_ms);
    Ok(())
}

/// The output of rank 0 of the lab's own ranks.
fn launch<T: DeserializeOwned>(lattice: &Lattice, alloc: &str, nodes: u32, ranks: u32, rank: &[&str]) -> Result<T> {
    let lab = Binaries::beside_lab()?.lab();
    let (nodes, ranks, lab) = (nodes.to_string(), ranks.to_string(), lab.to_string_lossy());
    let args = [&["launch", "--alloc", alloc, "-N", &nodes, "--tasks-per-node", &ranks, "--", &*lab], rank].concat();
    let done = lattice.run(&args, LAUNCH_TIMEOUT)?;
    ensure!(done.code() == 0, "{} ended with {}: {}", rank[0], done.code(), done.err().trim());
    serde_json::from_str(&done.out()).with_context(|| format!("{} printed {:?}", rank[0], done.out()))
}

fn figures(measured: &[Measured], most: u32) -> Result<Vec<Figure>> {
    let streams = "the bytes alone, down the same streams";
    let mut figures = Vec::new();
    for of in measured {
        let Measured { nodes, failed, .. } = of;
        let samples =
            |values: &[f64]| Samples::of(values.to_vec(), *failed).with_context(|| format!("no fence on {nodes} nodes: {:?}", of.why));
        let to = |at_most| (*nodes == most).then(|| Target::RatioTo { peer: streams.to_owned(), at_most });
        let beside = |values: &[f64]| vec![(streams, Samples::of(values.to_vec(), 0))];
        let name = format!("fence of {} ranks on {nodes} agents, until the last rank has its answer", nodes * RANKS);
        figures.push(Figure::new(&name, "ms", samples(&of.last_ms)?, beside(&of.streams_ms), to(STREAMS_RATIO)));
        let name = format!("the same on {nodes} agents, in rank 0");
        figures.push(Figure::new(&name, "ms", samples(&of.first_ms)?, beside(&of.streams_ms), to(STREAMS_RATIO)));
        let fanout = fanout_for(*nodes);
        let most_of = |value, why: String| (*nodes == most).then_some(Target::AtMost { value, why });
        let (received, sent) = (beside(&of.streams_received), beside(&of.streams_sent));
        let name = format!("what one of {nodes} agents receives at most");
        let why = "what all ranks bring".to_owned();
        figures.push(Figure::new(&name, "× the data", samples(&of.received)?, received, most_of(RECEIVED_RATIO, why)));
        let name = format!("what one of {nodes} agents sends at most");
        figures.push(Figure::new(
            &name,
            "× the data",
            samples(&of.sent)?,
            sent,
            most_of(f64::from(fanout), format!("the fan-out, {fanout}")),
        ));
    }
    Ok(figures)
}
