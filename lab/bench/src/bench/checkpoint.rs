//! `bench checkpoint`: how soon work notices a request to save itself, how fast its files reach the store, and how soon
//! preempted nodes are free.
//!
//! ```text
//!   n1 … n4   one allocation of 64 processes, which is preempted and resumed
//!   n5, n6    one allocation for each mode of asking, and one that saves a large file
//! ```
//!
//! The time of a request is taken directly before the call, on an open channel; the program itself records when it
//! noticed ([`lattice_lab::asked`]). Both use one clock: all of it is one machine.

mod asked;
mod bulk;

use super::figures::{Figure, Report, Target};
use super::options::Options;
use super::subject::{self, Subject};
use anyhow::{Context, Result, ensure};
use asked::{Asked, WIDE_NODES};
use bulk::Bulk;
use lattice_lab::asked::Mode;
use lattice_lab::binaries::Binaries;
use lattice_lab::cluster::Cluster;
use lattice_lab::down::{self, Guard};
use lattice_lab::interrupt;
use lattice_lab::machine::{self, Machine};
use lattice_lab::up::{self, Options as UpOptions};
use std::path::Path;
use std::time::Duration;

/// From the request until the program notices, in milliseconds.
const SHMEM_MS: f64 = 1.0;
const SIGNAL_MS: f64 = 2.0;
const GRPC_MS: f64 = 5.0;
/// Allowed in addition if the request goes to an agent that does not run the work.
const ELSEWHERE_MS: f64 = 10.0;
/// Limit of the time of a checkpoint, relative to cp and then zstd: 80 % of their rate.
const BULK_RATIO: f64 = 1.0 / 0.8;
/// From a preemption until its nodes are free, in milliseconds.
const FREED_MS: f64 = 500.0;
/// Processes of the preempted allocation on each node.
const WIDE_TASKS: usize = 16;
/// Nodes for the other allocations.
const MORE_NODES: u32 = 2;
/// Default size of the large file, in millions of bytes.
const MEGABYTES: u32 = 1000;
/// Figures that take milliseconds are measured this many times more often than those that take seconds.
const QUICK: usize = 4;

/// Starts the cluster, measures, and removes it again.
pub fn run(dir: Option<&Path>, options: &Options) -> Result<Report> {
    options.validate()?;
    let machine = Machine::look();
    ensure!(machine.root, "bench checkpoint makes scopes, which identify callers: run it as root");
    let zstd = machine::find("zstd").context("zstd (Debian's package zstd) is not installed; the bench compares with it")?;
    let binaries = Binaries::beside_lab()?;
    if !options.no_build {
        binaries.build()?;
    }
    let own = std::env::temp_dir().join(format!("lattice-bench-checkpoint-{}", std::process::id()));
    let dir = dir.unwrap_or(&own);
    interrupt::watch();
    let before = machine::cpu_pressure();
    let nodes = WIDE_NODES + MORE_NODES;
    let guard = Guard::new(dir);
    eprintln!("bench: starting a member and {nodes} agents");
    let cluster = up::up(&UpOptions { build: false, grace_seconds: 2, ..UpOptions::new(nodes, 1, dir) }.with_audit_as_documented())?;
    let megabytes = options.megabytes.unwrap_or(MEGABYTES);
    let mut notes = vec![
        "zstd compresses as the agent does: level 3, one thread, from file to file. The agent also hashes all of it; the peer BLAKE3 only \
         hashes. All files are on one file system. When a measurement begins, earlier writes are on the disk; when it ends, its result is"
            .to_owned(),
    ];
    let measured = measure(&cluster, &zstd, megabytes, options, &mut notes);
    down::require_gone(&guard.down(Duration::from_secs(10))?)?;
    let profile = binaries.profile();
    if profile == "debug" {
        notes.push("these are debug binaries: run the bench with --release before believing a miss".to_owned());
    }
    Ok(Report { bench: "checkpoint", profile, cpu_pressure: [before, machine::cpu_pressure()], machine, figures: measured?, notes })
}

fn measure(cluster: &Cluster, zstd: &Path, megabytes: u32, options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let asker = |mode| Asked::begin(cluster, &runtime, mode, &["--nodes", "1", "--cores", "1"], 1);
    // First, because it needs whole nodes.
    let tasks = WIDE_TASKS.to_string();
    let shape = ["--nodes".to_owned(), WIDE_NODES.to_string(), "--tasks-per-node".to_owned(), tasks];
    let wide = Asked::begin(
        cluster,
        &runtime,
        Mode::Signal,
        &shape.iter().map(String::as_str).collect::<Vec<_>>(),
        WIDE_NODES as usize * WIDE_TASKS,
    )?;
    let (shmem, signal, grpc) = (asker(Mode::Shmem)?, asker(Mode::Signal)?, asker(Mode::Grpc)?);
    // Before any large file is written, because its bytes are still going to the disk long afterwards.
    let mut quick = vec![
        Subject::new("shmem", || shmem.noticed(&shmem.here)),
        Subject::new("signal", || signal.noticed(&signal.here)),
        Subject::new("grpc", || grpc.noticed(&grpc.here)),
        Subject::new("shmem elsewhere", || shmem.noticed(&shmem.elsewhere)),
        Subject::new("signal elsewhere", || signal.noticed(&signal.elsewhere)),
        Subject::new("grpc elsewhere", || grpc.noticed(&grpc.elsewhere)),
        Subject::new("preempt", || wide.freed()),
    ];
    subject::rounds(&mut quick, options.rounds() * QUICK)?;
    let bulk = Bulk::new(cluster, zstd, megabytes, asker(Mode::Shmem)?)?;
    let mut large = vec![
        Subject::new("random", || bulk.saved(bulk.random())),
        Subject::new("random cp", || bulk.copied(bulk.random())),
        Subject::new("random zstd", || bulk.compressed(bulk.random())),
        Subject::new("random both", || bulk.both(bulk.random())),
        Subject::new("zeros", || bulk.saved(bulk.zeros())),
        Subject::new("zeros cp", || bulk.copied(bulk.zeros())),
        Subject::new("zeros zstd", || bulk.compressed(bulk.zeros())),
        Subject::new("zeros both", || bulk.both(bulk.zeros())),
        Subject::new("hashed", || bulk.hashed(bulk.random())),
    ];
    subject::rounds(&mut large, options.rounds())?;
    let subjects: Vec<Subject> = quick.into_iter().chain(large).collect();
    notes.extend(subject::failures(&subjects));
    figures(&subjects, megabytes, notes)
}

fn figures(subjects: &[Subject], megabytes: u32, notes: &[String]) -> Result<Vec<Figure>> {
    let of = |name: &str| subject::samples(subjects, name);
    let need = |name: &str| of(name).with_context(|| format!("{name}: every try failed: {}", notes.join("; ")));
    let at_most = |value, why: &str| Some(Target::AtMost { value, why: why.to_owned() });
    let mut figures = Vec::new();
    for (way, here, elsewhere, ms) in [
        ("shared memory", "shmem", "shmem elsewhere", SHMEM_MS),
        ("a signal", "signal", "signal elsewhere", SIGNAL_MS),
        ("a call", "grpc", "grpc elsewhere", GRPC_MS),
    ] {
        let name = format!("asked by {way}, until the program notices");
        figures.push(Figure::new(&name, "ms", need(here)?, vec![], at_most(ms, "the request is at its own agent")));
        let name = format!("the same through another agent, by {way}");
        let peers = vec![("at its own agent", of(here))];
        figures.push(Figure::new(&name, "ms", need(elsewhere)?, peers, at_most(ms + ELSEWHERE_MS, "10 ms more")));
    }
    let both = "cp, and zstd of the copy";
    for (what, subject) in [("that nothing packs", "random"), ("seven eighths zeros", "zeros")] {
        let peer = |name: &str| of(&format!("{subject} {name}"));
        let mut peers = vec![(both, peer("both")), ("cp alone", peer("cp")), ("zstd alone", peer("zstd"))];
        if subject == "random" {
            peers.push(("BLAKE3 alone", of("hashed")));
        }
        let name = format!("{megabytes} MB, {what}, from saved until complete");
        let target = Target::RatioTo { peer: both.to_owned(), at_most: BULK_RATIO };
        figures.push(Figure::new(&name, "ms", need(subject)?, peers, Some(target)));
    }
    let name = format!("preempted until its nodes are free, {} processes on {WIDE_NODES} nodes", WIDE_NODES as usize * WIDE_TASKS);
    figures.push(Figure::new(&name, "ms", need("preempt")?, vec![], at_most(FREED_MS, "they save themselves at once")));
    Ok(figures)
}
