//! Measurement in rounds: each subject once in each round, in a new order, so that no subject always follows the same
//! one.

use super::figures::{Figure, Samples, Target};
use anyhow::{Context, Result, bail, ensure};
use lattice_lab::cluster::Cluster;
use lattice_lab::process::ours_under;
use lattice_lab::{interrupt, machine};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Timeout of a single try: one that hangs counts as failed.
const TRY_TIMEOUT: Duration = Duration::from_secs(20);

/// One subject that is measured in each round.
pub struct Subject<'a> {
    pub name: &'static str,
    run: Box<dyn Fn() -> Result<Duration> + 'a>,
    values: Vec<f64>,
    pub failed: usize,
    pub why: Option<String>,
}

impl<'a> Subject<'a> {
    pub fn new(name: &'static str, run: impl Fn() -> Result<Duration> + 'a) -> Self {
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

/// The measurements of the subject with this name; `None` if every try failed.
pub fn samples(subjects: &[Subject], name: &str) -> Option<Samples> {
    let subject = subjects.iter().find(|s| s.name == name)?;
    Samples::of(subject.values.clone(), subject.failed)
}

/// The failures, for the report's notes.
pub fn failures(subjects: &[Subject]) -> Vec<String> {
    let failed = subjects.iter().filter(|s| s.failed > 0);
    failed.map(|s| format!("{}: {} tries failed, last: {}", s.name, s.failed, s.why.as_deref().unwrap_or(""))).collect()
}

/// One warm-up that does not count, then each round in another order.
pub fn rounds(subjects: &mut [Subject], rounds: usize) -> Result<()> {
    for subject in subjects.iter_mut() {
        subject.once(false);
    }
    // The orders are always the same: two runs differ only in their measurements.
    let mut rng = StdRng::seed_from_u64(1);
    let mut order: Vec<usize> = (0..subjects.len()).collect();
    for round in 0..rounds {
        order.shuffle(&mut rng);
        for index in &order {
            interrupt::check()?;
            subjects[*index].once(true);
        }
        eprintln!("bench: round {} of {rounds}", round + 1);
    }
    Ok(())
}

/// The time of a command that must succeed, to the microsecond: it waits for the pidfd and does not poll.
pub fn timed(command: &mut Command) -> Result<Duration> {
    let began = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().context("cannot start it")?;
    // SAFETY: pidfd_open takes a pid and flags; the child is ours and not yet waited for, so its pid is its own.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) };
    ensure!(fd >= 0, "pidfd_open: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptor was just opened and nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(i32::try_from(fd)?) };
    let limit = PollTimeout::try_from(TRY_TIMEOUT).unwrap_or(PollTimeout::MAX);
    let ready = poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], limit);
    let took = began.elapsed();
    if ready != Ok(1) {
        child.kill()?;
        child.wait()?;
        interrupt::check()?;
        bail!("not ended after {} s", TRY_TIMEOUT.as_secs());
    }
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    Ok(took)
}

/// From the start of a command until its first byte of output.
pub fn first_byte(command: &mut Command) -> Result<Duration> {
    let began = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("cannot start it")?;
    let out = child.stdout.as_ref().context("its output")?;
    let ready = poll(&mut [PollFd::new(out.as_fd(), PollFlags::POLLIN)], PollTimeout::try_from(TRY_TIMEOUT).unwrap_or(PollTimeout::MAX));
    let took = began.elapsed();
    if ready != Ok(1) {
        child.kill()?;
    }
    let output = child.wait_with_output()?;
    interrupt::check()?;
    ensure!(output.status.success() && !output.stdout.is_empty(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    Ok(took)
}

/// The lower bound: fork and exec of this many at once, and waiting for all.
pub fn spawn_plain(n: usize) -> Result<Duration> {
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

/// The pids of the shims of a cluster's allocations.
pub fn shims(cluster: &Cluster) -> Vec<i32> {
    ours_under(&cluster.folders()).into_iter().filter(|(_, n)| n == "lattice-shim").map(|(p, _)| p).collect()
}

/// Resident memory of these processes; `None` if none of them lives.
pub fn memory_figure(name: &str, pids: &[i32], target: Option<Target>) -> Option<Figure> {
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let (rss, pss): (Vec<f64>, Vec<f64>) = pids.iter().filter_map(|p| machine::memory_of(*p)).map(|(r, p)| (mb(r), mb(p))).unzip();
    Some(Figure::new(name, "MB", Samples::of(rss, 0)?, vec![("its proportional share (PSS)", Samples::of(pss, 0))], target))
}
