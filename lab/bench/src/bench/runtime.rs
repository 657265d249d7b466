//! `bench runtime`: the cost of a node's runtime, each figure beside its lower bound or peer.

mod images;
mod lines;
mod output;

use super::figures::{Figure, Report, Samples, Target};
use super::options::Options;
use super::subject::{self, Subject};
use super::surroundings::{hold, slow_files};
use anyhow::{Context, Result, ensure};
use lattice_lab::cluster::Cluster;
use lattice_lab::down::{self, Guard};
use lattice_lab::lattice::Lattice;
use lattice_lab::machine::{self, Machine};
use lattice_lab::up::{self, Options as UpOptions};
use lattice_lab::{binaries::Binaries, interrupt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A start in an image, relative to the bare system calls.
const UENV_RATIO: f64 = 2.0;
/// Images mounted at once, each for its own allocation.
const MOUNTS: usize = 128;
/// Limit for all of them together, in milliseconds.
const MOUNTS_MS: f64 = 600.0;
/// 32 programs at once, and one, relative to Hydra.
const MANY_RATIO: f64 = 0.9;
const ONE_RATIO: f64 = 1.0;
/// Until a follower sees a line, in milliseconds.
const LINE_MS: f64 = 50.0;
/// Until the output of a program on an attached terminal arrives, in milliseconds.
const ATTACH_MS: f64 = 30.0;
/// A program's time with stored output, relative to a plain file.
const OUTPUT_RATIO: f64 = 1.05;
/// Allocations that a killed agent adopts again, and the limit for that, in milliseconds.
const ADOPTED_ALLOCATIONS: usize = 100;
const ADOPTED_MS: f64 = 1000.0;
/// An idle agent: megabytes, and percent of one core over this time, with the documented timers.
const AGENT_MB: f64 = 30.0;
const AGENT_PERCENT: f64 = 0.3;
const IDLE_TIME: Duration = Duration::from_secs(20);
const HEARTBEAT_MS: u64 = 10_000;
const DEGRADED_AFTER_MS: u64 = 30_000;
/// An agent's default.
const SCHEDULER_LEASE_MS: u64 = 5_000;
/// A shim, in megabytes.
const SHIM_MB: f64 = 3.0;
/// Until a shim has unmapped the pages that only its start used.
const SETTLE_TIME: Duration = Duration::from_secs(12);

/// Starts the cluster, measures, and removes it again.
pub fn run(dir: Option<&Path>, options: &Options) -> Result<Report> {
    options.validate()?;
    let machine = Machine::look();
    let binaries = Binaries::beside_lab()?;
    if !options.no_build {
        binaries.build()?;
    }
    let own = std::env::temp_dir().join(format!("lattice-bench-{}", std::process::id()));
    let dir = dir.unwrap_or(&own);
    interrupt::watch();
    let before = machine::cpu_pressure();
    let rest = at_rest()?;
    let up_options = options.cluster_options(3, 1, dir);
    let guard = Guard::new(dir);
    let cluster = up::up(&up_options)?;
    let mut notes = Vec::from_iter(slow_files(&cluster));
    let measured = measure(&cluster, &machine, options, &mut notes);
    let report = guard.down(Duration::from_secs(10))?;
    down::require_gone(&report)?;
    let mut measured = measured?;
    measured.splice(0..0, rest);
    eprintln!("bench: {ADOPTED_ALLOCATIONS} allocations taken up again");
    let own = std::env::temp_dir().join(format!("lattice-bench-adoption-{}", std::process::id()));
    let adopted = super::adoption(&own, ADOPTED_ALLOCATIONS, options.rounds())?;
    measured.push(Figure::new(
        "100 allocations taken up again, from the agent's start until it is ready",
        "ms",
        Samples::of(adopted, 0).context("a round at least")?,
        vec![],
        Some(at_most(ADOPTED_MS, "an upgrade that nobody notices")),
    ));
    Ok(Report {
        bench: "runtime",
        profile: binaries.profile(),
        cpu_pressure: [before, machine::cpu_pressure()],
        machine,
        figures: measured,
        notes,
    })
}

fn measure(cluster: &Cluster, machine: &Machine, options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    ensure!(machine.root, "bench runtime mounts images and makes scopes: run it as root");
    let lattice = Lattice::to(cluster, "n1")?;
    std::thread::sleep(Duration::from_secs(2));
    let mut figures: Vec<Figure> = Vec::new();

    let held = hold(&lattice, 1)?;
    std::thread::sleep(SETTLE_TIME);
    figures.extend(subject::memory_figure(
        "shim of a running allocation, resident memory",
        &subject::shims(cluster),
        Some(at_most(SHIM_MB, "resident")),
    ));
    let hydra = machine.hydra.as_deref();
    if hydra.is_none() {
        notes.push("mpiexec.hydra is not installed: not compared with it".to_owned());
    }
    let images = images::Images::new(cluster)?;
    let lines = lines::Lines::begin(&lattice, &cluster.dir)?;
    let launch = |n: &'static str| {
        let (lattice, held) = (&lattice, &held);
        move || subject::timed(&mut lattice.command(&["launch", "--alloc", held, "-n", n, "--", "/bin/true"]))
    };
    let mut subjects = vec![
        Subject::new("uenv", || images.one()),
        Subject::new("raw mount", || images.raw()),
        Subject::new("launch 1", launch("1")),
        Subject::new("launch 32", launch("32")),
        Subject::new("spawn 32", || subject::spawn_plain(32)),
        Subject::new("line", || lines.followed()),
        Subject::new("tail", || lines.tailed()),
        Subject::new("attach", || subject::first_byte(&mut lattice.command(&["attach", &held, "--", "/bin/echo", "here"]))),
    ];
    if let Some(hydra) = hydra {
        let run = |n: &'static str| move || subject::timed(Command::new(hydra).args(["-n", n, "/bin/true"]));
        subjects.push(Subject::new("hydra 1", run("1")));
        subjects.push(Subject::new("hydra 32", run("32")));
    }
    subject::rounds(&mut subjects, options.rounds())?;
    notes.extend(subject::failures(&subjects));
    let of = |name: &str| subject::samples(&subjects, name);
    let need = |name: &str| of(name).with_context(|| format!("{name}: every try failed: {}", notes.join("; ")));
    figures.extend([
        Figure::new(
            "uenv: from nothing to a shim that has the image mounted",
            "ms",
            need("uenv")?,
            vec![("unshare, loop, mount, exec by raw calls", of("raw mount"))],
            Some(ratio("unshare, loop, mount, exec by raw calls", UENV_RATIO)),
        ),
        Figure::new(
            "1 × /bin/true inside an allocation",
            "ms",
            need("launch 1")?,
            vec![("mpiexec.hydra -n 1", of("hydra 1"))],
            Some(ratio("mpiexec.hydra -n 1", ONE_RATIO)),
        ),
        Figure::new(
            "32 × /bin/true inside an allocation",
            "ms",
            need("launch 32")?,
            vec![("mpiexec.hydra -n 32", of("hydra 32")), ("plain fork+exec", of("spawn 32"))],
            Some(ratio("mpiexec.hydra -n 32", MANY_RATIO)),
        ),
        Figure::new(
            "a line until `logs -f` has shown it",
            "ms",
            need("line")?,
            vec![("tail -f of a file", of("tail"))],
            Some(at_most(LINE_MS, "as live")),
        ),
        Figure::new(
            "attach: from typing it to the first byte of the program",
            "ms",
            need("attach")?,
            vec![],
            Some(at_most(ATTACH_MS, "at once")),
        ),
    ]);
    drop(subjects);
    eprintln!("bench: {MOUNTS} images at once");
    figures.push(Figure::new(
        "128 allocations' images mounted at once",
        "ms",
        images.many(MOUNTS)?,
        vec![],
        Some(at_most(MOUNTS_MS, "published elsewhere: 1,870")),
    ));
    eprintln!("bench: output as fast as it can be written");
    figures.push(output::figure(&lattice, &cluster.dir, OUTPUT_RATIO)?);
    Ok(figures)
}

fn at_most(value: f64, why: &str) -> Target {
    Target::AtMost { value, why: why.to_owned() }
}

fn ratio(peer: &str, at_most: f64) -> Target {
    Target::RatioTo { peer: peer.to_owned(), at_most }
}

fn pid_of_n1(cluster: &Cluster) -> Result<i32> {
    Ok(cluster.node("n1")?.daemon.process.as_ref().context("n1's agent runs")?.pid)
}

/// Processor time and memory of an idle agent, in a cluster of its own: the lab's other clusters have faster timers.
fn at_rest() -> Result<Vec<Figure>> {
    eprintln!("bench: an agent at rest, {} s", IDLE_TIME.as_secs());
    let dir = std::env::temp_dir().join(format!("lattice-bench-rest-{}", std::process::id()));
    let clocks = UpOptions {
        heartbeat_ms: HEARTBEAT_MS,
        degraded_after_ms: DEGRADED_AFTER_MS,
        scheduler_lease_ms: SCHEDULER_LEASE_MS,
        ..UpOptions::new(3, 1, &dir)
    };
    let guard = Guard::new(&dir);
    let cluster = up::up(&UpOptions { build: false, ..clocks }.with_audit_as_documented())?;
    let measured = rest_of(&cluster);
    down::require_gone(&guard.down(Duration::from_secs(10))?)?;
    let (percent, memory) = measured?;
    let samples = Samples::of(vec![percent], 0).context("one value")?;
    let processor = Figure::new("agent at rest, processor time", "%", samples, vec![], Some(at_most(AGENT_PERCENT, "of one core")));
    Ok(vec![memory, processor])
}

fn rest_of(cluster: &Cluster) -> Result<(f64, Figure)> {
    let pid = pid_of_n1(cluster)?;
    std::thread::sleep(Duration::from_secs(2));
    let (began, used) = (Instant::now(), machine::processor_time(pid)?);
    std::thread::sleep(IDLE_TIME);
    interrupt::check()?;
    let percent = (machine::processor_time(pid)? - used).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0;
    let memory = subject::memory_figure("agent at rest, resident memory", &[pid], Some(at_most(AGENT_MB, "resident")));
    Ok((percent, memory.context("the agent's memory")?))
}
