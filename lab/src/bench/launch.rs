//! `bench launch`: how long it takes until a program that does nothing has run.

use super::figures::{Figure, Report, Samples, Target};
use super::slurm::Slurm;
use crate::cluster::{Cluster, Daemon};
use crate::down::{self, Guard};
use crate::lattice::{Lattice, text};
use crate::machine::{self, Machine};
use crate::process::{ours_under, until};
use crate::up::{self, Options as UpOptions};
use crate::{binaries::Binaries, interrupt};
use anyhow::{Context, Result, bail, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// No single try may take longer: what hangs is counted as failed.
const TRY_LIMIT: Duration = Duration::from_secs(20);
/// A whole job, in parts of what srun takes.
const WHOLE_JOB_RATIO: f64 = 0.35;
/// A whole job where no srun can be measured, in milliseconds.
const WHOLE_JOB_MS: f64 = 30.0;

/// How much is measured.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Rounds; each measures everything once, in an order of its own.
    #[arg(long, default_value_t = 15)]
    pub rounds: usize,
    /// Do not build the binaries first.
    #[arg(long)]
    pub no_build: bool,
    /// Leave Slurm out even where it is installed.
    #[arg(long)]
    pub no_slurm: bool,
}

/// One thing that is measured in each round.
struct Subject<'a> {
    name: &'static str,
    run: Box<dyn Fn() -> Result<Duration> + 'a>,
    values: Vec<f64>,
    failed: usize,
    why: Option<String>,
}

impl<'a> Subject<'a> {
    fn new(name: &'static str, run: impl Fn() -> Result<Duration> + 'a) -> Self {
        Self { name, run: Box::new(run), values: Vec::new(), failed: 0, why: None }
    }

    fn once(&mut self, counts: bool) {
        match (self.run)() {
            Ok(took) if counts => self.values.push(took.as_secs_f64() * 1000.0),
            Ok(_) => {}
            Err(e) => {
                self.failed += 1;
                self.why = Some(format!("{e:#}"));
            }
        }
    }
}

/// Starts what is needed, measures, and takes it away again.
pub fn run(dir: Option<&Path>, options: &Options) -> Result<Report> {
    ensure!((3..=1000).contains(&options.rounds), "--rounds {}: 3 to 1000 are possible", options.rounds);
    let machine = Machine::look();
    let binaries = Binaries::beside_lab()?;
    if !options.no_build {
        binaries.build()?;
    }
    let own = std::env::temp_dir().join(format!("lattice-bench-{}", std::process::id()));
    let dir = dir.unwrap_or(&own);
    interrupt::watch();
    let before = machine::cpu_pressure();
    let up_options = UpOptions { build: false, grace_seconds: 2, ..UpOptions::new(2, 3, dir) };
    let guard = Guard::new(dir);
    eprintln!("bench: starting three members and two agents");
    let cluster = up::up(&up_options)?;
    let mut notes = Vec::new();
    let measured = measure(&cluster, &machine, options, &mut notes);
    let report = guard.down(Duration::from_secs(10))?;
    down::require_gone(&report)?;
    let profile = binaries.dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    if profile == "debug" {
        notes.push("these are debug binaries: run the bench with --release before believing a miss".to_owned());
    }
    if machine.lacks().iter().any(|l| l.starts_with("not root")) {
        notes.push("not root: work runs without scope and mount, which is less than what a cluster does".to_owned());
    }
    Ok(Report { bench: "launch", profile, cpu_pressure: [before, machine::cpu_pressure()], machine, figures: measured?, notes })
}

fn measure(cluster: &Cluster, machine: &Machine, options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let lattice = Lattice::to(cluster, "n1")?;
    // At rest: registered, heartbeats only.
    std::thread::sleep(Duration::from_secs(2));
    let mut memory = vec![
        resident("agent at rest, resident memory", cluster.nodes.iter().map(|n| &n.daemon)),
        resident("quorum member at rest, resident memory", cluster.members.iter().map(|m| &m.daemon)),
    ];
    let held = lattice.ok(&["submit", "-o", "name", "--name", "held", "--nodes", "1", "--walltime", "1h", "--", "/bin/sleep", "3600"])?;
    let held = held.trim().to_owned();
    wait_running(&lattice, &held)?;
    memory.push(shim_memory(cluster));

    let slurm = start_slurm(cluster, machine, options, notes)?;
    if machine.hydra.is_none() {
        notes.push("mpiexec.hydra is not installed: not compared with it".to_owned());
    }
    let launch = |n: &'static str| {
        let (lattice, held) = (&lattice, &held);
        move || timed(&mut lattice.command(&["launch", "--alloc", held, "-n", n, "--", "/bin/true"]))
    };
    let mut subjects = vec![
        Subject::new("spawn 1", || spawn_plain(1)),
        Subject::new("spawn 32", || spawn_plain(32)),
        Subject::new("launch 1", launch("1")),
        Subject::new("launch 32", launch("32")),
        Subject::new("whole job", || timed(&mut lattice.command(&["launch", "-n", "1", "--", "/bin/true"]))),
    ];
    if let Some(hydra) = &machine.hydra {
        let run = |n: &'static str| move || timed(Command::new(hydra).args(["-n", n, "/bin/true"]));
        subjects.push(Subject::new("hydra 1", run("1")));
        subjects.push(Subject::new("hydra 32", run("32")));
    }
    if let Some(slurm) = &slurm {
        let inside =
            |n: &'static str| move || timed(slurm.command("srun").args(["--jobid", slurm.held(), "--overlap", "-O", "-n", n, "/bin/true"]));
        subjects.push(Subject::new("srun inside 1", inside("1")));
        subjects.push(Subject::new("srun inside 32", inside("32")));
        subjects.push(Subject::new("srun job", || timed(slurm.command("srun").args(["-N1", "-n1", "/bin/true"]))));
    }
    rounds(&mut subjects, options.rounds)?;
    for subject in subjects.iter().filter(|s| s.failed > 0) {
        notes.push(format!("{}: {} tries failed, last: {}", subject.name, subject.failed, subject.why.as_deref().unwrap_or("")));
    }
    let mut figures = figures(&subjects, slurm.is_some(), notes)?;
    figures.extend(memory.into_iter().flatten());
    Ok(figures)
}

/// One warm-up that does not count, then each round in another order, so that nothing always follows the same.
fn rounds(subjects: &mut [Subject], rounds: usize) -> Result<()> {
    for subject in subjects.iter_mut() {
        subject.once(false);
    }
    for round in 0..rounds {
        for place in 0..subjects.len() {
            interrupt::check()?;
            let index = (place + round) % subjects.len();
            subjects[index].once(true);
        }
        eprintln!("bench: round {} of {rounds}", round + 1);
    }
    Ok(())
}

fn figures(subjects: &[Subject], slurm: bool, notes: &[String]) -> Result<Vec<Figure>> {
    let of = |name: &str| {
        let subject = subjects.iter().find(|s| s.name == name)?;
        Samples::of(subject.values.clone(), subject.failed)
    };
    let need = |name: &str| of(name).with_context(|| format!("{name}: every try failed: {}", notes.join("; ")));
    let whole_target = if slurm {
        Target::RatioTo { peer: "srun -N1 -n1".to_owned(), at_most: WHOLE_JOB_RATIO }
    } else {
        Target::AtMost { value: WHOLE_JOB_MS, why: "no Slurm here to compare with: the bound stands in for it".to_owned() }
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

fn start_slurm(cluster: &Cluster, machine: &Machine, options: &Options, notes: &mut Vec<String>) -> Result<Option<Slurm>> {
    if options.no_slurm {
        notes.push("Slurm was left out, as asked".to_owned());
        return Ok(None);
    }
    if machine.srun.is_none() {
        notes.push("Slurm (slurmctld, slurmd, munged, srun) is not installed".to_owned());
        return Ok(None);
    }
    if !machine.root {
        notes.push("Slurm is installed, but its daemons need root here".to_owned());
        return Ok(None);
    }
    eprintln!("bench: starting Slurm with two nodes");
    Slurm::start(&cluster.dir.join("slurm")).map(Some).context("Slurm is installed but does not start")
}

fn wait_running(lattice: &Lattice, id: &str) -> Result<()> {
    let mut now = serde_json::Value::Null;
    let running = until(Duration::from_secs(15), || {
        now = lattice.allocation(id).unwrap_or_default();
        text(&now, "state") == "Running" || interrupt::came().is_some()
    });
    interrupt::check()?;
    if running { Ok(()) } else { bail!("the allocation that is held for the bench does not run: {now}") }
}

/// From start to end of a command that must succeed, to the microsecond: its pidfd is waited for, not polled.
fn timed(command: &mut Command) -> Result<Duration> {
    let began = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().context("cannot start it")?;
    // SAFETY: pidfd_open takes a pid and flags; the child is ours and not yet waited for, so its pid is its own.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) };
    ensure!(fd >= 0, "pidfd_open: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptor was just opened and nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(i32::try_from(fd)?) };
    let limit = PollTimeout::try_from(TRY_LIMIT).unwrap_or(PollTimeout::MAX);
    let ready = poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], limit);
    let took = began.elapsed();
    if ready != Ok(1) {
        child.kill()?;
        child.wait()?;
        interrupt::check()?;
        bail!("not ended after {} s", TRY_LIMIT.as_secs());
    }
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    Ok(took)
}

/// The floor: fork and exec of so many at once, and waiting for all.
fn spawn_plain(n: usize) -> Result<Duration> {
    let began = Instant::now();
    let mut children = Vec::with_capacity(n);
    for _ in 0..n {
        children.push(Command::new("/bin/true").stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);
    }
    for mut child in children {
        ensure!(child.wait()?.success(), "/bin/true failed");
    }
    Ok(began.elapsed())
}

fn resident<'a>(name: &str, daemons: impl Iterator<Item = &'a Daemon>) -> Option<Figure> {
    memory_figure(name, daemons.filter_map(|d| d.process.as_ref()).map(|p| p.pid).collect())
}

fn shim_memory(cluster: &Cluster) -> Option<Figure> {
    let shims = ours_under(&cluster.folders()).into_iter().filter(|(_, n)| n == "lattice-shim").map(|(p, _)| p).collect();
    memory_figure("shim of a running allocation, resident memory", shims)
}

fn memory_figure(name: &str, pids: Vec<i32>) -> Option<Figure> {
    let mib = |bytes: u64| bytes as f64 / (1024.0 * 1024.0);
    let (rss, pss): (Vec<f64>, Vec<f64>) = pids.into_iter().filter_map(machine::memory_of).map(|(r, p)| (mib(r), mib(p))).unzip();
    Some(Figure::new(name, "MiB", Samples::of(rss, 0)?, vec![("its proportional share (PSS)", Samples::of(pss, 0))], None))
}
