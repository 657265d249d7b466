//! `bench launch`: the time until a program that does nothing has run.

use super::figures::{Figure, Report, Target};
use super::options::Options;
use super::slurm;
use super::subject::{self, Subject};
use super::surroundings::{hold, slow_files};
use anyhow::{Context, Result, ensure};
use lattice_lab::cluster::Cluster;
use lattice_lab::down::{self, Guard};
use lattice_lab::lattice::{Lattice, rows};
use lattice_lab::machine::{self, Machine};
use lattice_lab::process::until;
use lattice_lab::up;
use lattice_lab::{binaries::Binaries, interrupt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A whole job, relative to srun.
const WHOLE_JOB_RATIO: f64 = 0.35;
/// A whole job if srun cannot be measured, in milliseconds.
const WHOLE_JOB_MS: f64 = 30.0;

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
    let up_options = options.cluster_options(2, 3, dir);
    let guard = Guard::new(dir);
    eprintln!("bench: starting three members and two agents");
    let cluster = up::up(&up_options)?;
    let mut notes = Vec::from_iter(slow_files(&cluster));
    let measured = measure(&cluster, &machine, options, &mut notes);
    let report = guard.down(Duration::from_secs(10))?;
    down::require_gone(&report)?;
    let profile = binaries.profile();
    if profile == "debug" {
        notes.push("these are debug binaries: run the bench with --release before believing a miss".to_owned());
    }
    if machine.lacks().iter().any(|l| l.starts_with("not root")) {
        notes.push("not root: work runs without scope and mount, which is less than in a cluster".to_owned());
    }
    Ok(Report { bench: "launch", profile, cpu_pressure: [before, machine::cpu_pressure()], machine, figures: measured?, notes })
}

fn measure(cluster: &Cluster, machine: &Machine, options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let lattice = Lattice::to(cluster, "n1")?;
    // At rest: registered, only heartbeats.
    std::thread::sleep(Duration::from_secs(2));
    let members: Vec<i32> = cluster.members.iter().filter_map(|m| m.daemon.process.as_ref()).map(|p| p.pid).collect();
    let memory = subject::memory_figure("quorum member at rest, resident memory", &members, None);
    let held = hold(&lattice, 1)?;

    let slurm = slurm::start_with_held_node(cluster, machine, options, notes)?;
    if machine.hydra.is_none() {
        notes.push("mpiexec.hydra is not installed: not compared with it".to_owned());
    }
    let launch = |n: &'static str| {
        let (lattice, held) = (&lattice, &held);
        move || subject::timed(&mut lattice.command(&["launch", "--alloc", held, "-n", n, "--", "/bin/true"]))
    };
    let mut subjects = vec![
        Subject::new("spawn 1", || subject::spawn_plain(1)),
        Subject::new("spawn 32", || subject::spawn_plain(32)),
        Subject::new("launch 1", launch("1")),
        Subject::new("launch 32", launch("32")),
        Subject::new("whole job", || whole_job(&lattice)),
    ];
    if let Some(hydra) = &machine.hydra {
        let run = |n: &'static str| move || subject::timed(Command::new(hydra).args(["-n", n, "/bin/true"]));
        subjects.push(Subject::new("hydra 1", run("1")));
        subjects.push(Subject::new("hydra 32", run("32")));
    }
    if let Some(slurm) = &slurm {
        let inside = |n: &'static str| {
            move || subject::timed(slurm.command("srun").args(["--jobid", slurm.held(), "--overlap", "-O", "-n", n, "/bin/true"]))
        };
        subjects.push(Subject::new("srun inside 1", inside("1")));
        subjects.push(Subject::new("srun inside 32", inside("32")));
        subjects.push(Subject::new("srun job", || subject::timed(slurm.command("srun").args(["-N1", "-n1", "/bin/true"]))));
    }
    subject::rounds(&mut subjects, options.rounds())?;
    notes.extend(subject::failures(&subjects));
    let mut figures = figures(&subjects, slurm.is_some(), notes)?;
    figures.extend(memory);
    Ok(figures)
}

/// From submission to exit. It then waits for the cleanup without counting it, because the cleanup would slow the next
/// measurement.
fn whole_job(lattice: &Lattice) -> Result<Duration> {
    let took = subject::timed(&mut lattice.command(&["launch", "-n", "1", "--", "/bin/true"]))?;
    let free = |node: &serde_json::Value| node["allocations"].as_array().is_some_and(Vec::is_empty);
    let gone = until(Duration::from_secs(10), || {
        interrupt::came().is_some()
            || lattice.json(&["nodes"]).is_ok_and(|answer| rows(&answer, "nodes").is_some_and(|n| n.iter().any(free)))
    });
    interrupt::check()?;
    ensure!(gone, "the job's node is not free again after 10 s");
    Ok(took)
}

fn figures(subjects: &[Subject], slurm: bool, notes: &[String]) -> Result<Vec<Figure>> {
    let of = |name: &str| subject::samples(subjects, name);
    let need = |name: &str| of(name).with_context(|| format!("{name}: every try failed: {}", notes.join("; ")));
    let whole_target = if slurm {
        Target::RatioTo { peer: "srun -N1 -n1".to_owned(), at_most: WHOLE_JOB_RATIO }
    } else {
        Target::AtMost { value: WHOLE_JOB_MS, why: "no Slurm here to compare with: a fixed limit instead".to_owned() }
    };
    let peers = |n: &'static str| {
        vec![
            ("plain fork+exec", of(if n == "1" { "spawn 1" } else { "spawn 32" })),
            ("mpiexec.hydra", of(if n == "1" { "hydra 1" } else { "hydra 32" })),
            ("srun in an allocation", of(if n == "1" { "srun inside 1" } else { "srun inside 32" })),
        ]
    };
    let figures = vec![
        Figure::new("1 × /bin/true inside an allocation", "ms", need("launch 1")?, peers("1"), None),
        Figure::new("32 × /bin/true inside an allocation", "ms", need("launch 32")?, peers("32"), None),
        Figure::new(
            "a whole job: lattice launch -n 1 -- /bin/true from outside, three members",
            "ms",
            need("whole job")?,
            vec![("plain fork+exec", of("spawn 1")), ("srun -N1 -n1", of("srun job"))],
            Some(whole_target),
        ),
    ];
    Ok(figures)
}
