//! `lattice-lab torture-work`: one rank of the work that a torture submits. It prints numbered lines, and records
//! traces of its runs.

use super::traces::{Mark, Part, Trace, now_ms};
use crate::ring::{self, Deed};
use anyhow::{Context, Result};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Its exit code if it could not print a line: its node's disk is full.
pub const CANNOT_PRINT: u8 = 74;
/// Its exit code if the ring with its neighbours broke, or a file was not as expected.
pub const CANNOT_GO_ON: u8 = 75;
/// Interval of the traces of a run.
const BEAT_INTERVAL: Duration = Duration::from_millis(500);

/// What one rank does.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The file of all traces
    #[arg(long)]
    traces: PathBuf,
    /// Which of an allocation's programs this is
    #[arg(long, value_enum, default_value_t = Part::Main)]
    part: Part,
    /// Lines to print
    #[arg(long)]
    lines: u32,
    /// Milliseconds before each line
    #[arg(long)]
    interval_ms: u64,
    /// Exit code
    #[arg(long, default_value_t = 0)]
    exit_code: u8,
    /// Print a line only after all ranks have agreed on it, in a ring that they found by PMI-1
    #[arg(long)]
    ring: bool,
    /// A file that must be there
    #[arg(long)]
    file: Option<PathBuf>,
}

/// Runs the rank.
pub fn run(options: &Options) -> Result<ExitCode> {
    let mut trace = who()?;
    trace.part = options.part;
    trace.append(&options.traces)?;
    let code = act(options, &trace);
    Trace { mark: Mark::End(i32::from(code)), at_ms: now_ms(), ..trace }.append(&options.traces)?;
    Ok(ExitCode::from(code))
}

fn who() -> Result<Trace> {
    let text = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set: this is work of an allocation"));
    let allocation = text("LATTICE_ALLOC_ID")?;
    // …/ALLOCATION-EPOCH.json: no other variable of the environment has the epoch.
    let topology = text("LATTICE_TOPOLOGY_FILE")?;
    let epoch = topology.rsplit_once('-').and_then(|(_, end)| end.strip_suffix(".json")?.parse().ok());
    let epoch = epoch.with_context(|| format!("LATTICE_TOPOLOGY_FILE={topology} names no epoch"))?;
    let rank = text("LATTICE_RANK")?.parse().context("LATTICE_RANK")?;
    let (node, pid) = (text("LATTICE_NODE")?, std::process::id());
    Ok(Trace { mark: Mark::Begin, allocation, epoch, part: Part::Main, rank, node, pid, at_ms: now_ms() })
}

/// Does the work and returns the exit code.
fn act(options: &Options, trace: &Trace) -> u8 {
    if options.file.as_ref().is_some_and(|file| !file.exists()) {
        return CANNOT_GO_ON;
    }
    let ended = if options.ring { in_a_ring(options) } else { alone(options, trace) };
    ended.map_or_else(|code| code, |()| options.exit_code)
}

fn in_a_ring(options: &Options) -> Result<(), u8> {
    let (lines, interval_ms) = (options.lines, options.interval_ms);
    let ring = ring::Options { lines, interval_ms, file: None, text: None, culprit: None, deed: Deed::Exit, at_line: 0, fence_every: 10 };
    ring::run(&ring).map_err(|error| {
        eprintln!("{error:#}");
        CANNOT_GO_ON
    })
}

fn alone(options: &Options, trace: &Trace) -> Result<(), u8> {
    let ranks = std::env::var("LATTICE_NPROCS").unwrap_or_else(|_| "?".to_owned());
    let mut beat = Instant::now();
    for line in 1..=options.lines {
        std::thread::sleep(Duration::from_millis(options.interval_ms));
        let mut out = std::io::stdout().lock();
        let printed = writeln!(out, "rank {} of {ranks} line {line} on {}", trace.rank, trace.node).and_then(|()| out.flush());
        if let Err(error) = printed {
            let _ = writeln!(std::io::stderr(), "line {line} cannot be printed: {error}");
            return Err(CANNOT_PRINT);
        }
        if beat.elapsed() >= BEAT_INTERVAL {
            beat = Instant::now();
            let _ = Trace { mark: Mark::Beat, at_ms: now_ms(), ..trace.clone() }.append(&options.traces);
        }
    }
    Ok(())
}
