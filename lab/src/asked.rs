//! `lattice-lab asked`: work that is asked to save itself, and records when it noticed (for `bench checkpoint`).
//!
//! ```text
//!   told      "ready" from each process that listens; from the one that saves, before it answers: NOTICED SAVED,
//!             in nanoseconds since 1970
//!   save      written by the bench: the path of a file that is linked as the saved one; absent: a few bytes are saved
//! ```
//!
//! All processes listen; the first one of each node saves and answers, at once.

use anyhow::{Context, Result, bail, ensure};
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_checkpoint::{Done, Listener};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Timeout of one wait for a request; it is repeated.
const REQUEST_WAIT_MAX: Duration = Duration::from_secs(3600);

/// How it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// By SIGUSR1, and a file
    Signal,
    /// Through shared memory
    Shmem,
    /// In a call
    Grpc,
}

impl Mode {
    /// The value of `lattice submit --checkpoint`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Signal => "signal",
            Self::Shmem => "shmem",
            Self::Grpc => "grpc",
        }
    }
}

/// The options of a process.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// How it is asked
    #[arg(long, value_enum)]
    mode: Mode,
    /// The folder for its reports
    #[arg(long)]
    dir: PathBuf,
}

/// The times of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTimes {
    /// When the program noticed, in nanoseconds since 1970.
    pub noticed_ns: u64,
    /// When it had saved itself, and was about to report that.
    pub saved_ns: u64,
}

/// From a directory: how many processes have reported that they listen, and the last request.
pub fn read_progress(dir: &Path) -> Result<(usize, Option<RequestTimes>)> {
    let text = match fs::read_to_string(dir.join("told")) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("{}", dir.display())),
    };
    let last = text.lines().rev().find_map(|line| line.split_once(' '));
    let last =
        last.map(|(noticed, saved)| anyhow::Ok(RequestTimes { noticed_ns: noticed.parse()?, saved_ns: saved.parse()? })).transpose()?;
    Ok((text.lines().filter(|line| *line == "ready").count(), last))
}

/// The wall clock, in nanoseconds since 1970. May be called in a signal handler.
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes one timespec, which is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Runs until it is ended.
pub fn run(options: &Options) -> Result<()> {
    match options.mode {
        Mode::Signal => by_signal(&options.dir),
        Mode::Shmem => through_memory(&options.dir),
        Mode::Grpc => tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(in_calls(&options.dir)),
    }
}

fn append_line(dir: &Path, line: &str) -> Result<()> {
    let path = dir.join("told");
    let mut file = File::options().append(true).create(true).open(&path).with_context(|| format!("{}", path.display()))?;
    Ok(file.write_all(format!("{line}\n").as_bytes())?)
}

/// Whether this process is the one of its node that saves.
fn is_saver() -> bool {
    std::env::var("LATTICE_LOCAL_RANK").is_ok_and(|rank| rank == "0")
}

/// Saves and records the times.
fn save(dir: &Path, into: &Path, noticed_ns: u64) -> Result<()> {
    match fs::read_to_string(dir.join("save")) {
        Ok(from) => fs::hard_link(from.trim(), into.join("bulk")).with_context(|| format!("{from} into {}", into.display()))?,
        Err(error) if error.kind() == ErrorKind::NotFound => fs::write(into.join("state"), "saved\n")?,
        Err(error) => return Err(error.into()),
    }
    append_line(dir, &format!("{noticed_ns} {}", now_ns()))
}

static NOTICED_NS: AtomicU64 = AtomicU64::new(0);

extern "C" fn notice(_: libc::c_int) {
    NOTICED_NS.store(now_ns(), Ordering::Relaxed);
}

fn by_signal(dir: &Path) -> Result<()> {
    let mut usr1 = SigSet::empty();
    usr1.add(Signal::SIGUSR1);
    // The signal is only delivered where it is waited for.
    usr1.thread_block()?;
    let action = SigAction::new(SigHandler::Handler(notice), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler reads a clock and writes an atomic, which a handler may.
    unsafe { sigaction(Signal::SIGUSR1, &action) }?;
    let at = PathBuf::from(std::env::var_os("LATTICE_CHECKPOINT_DIR").context("$LATTICE_CHECKPOINT_DIR is not set")?);
    append_line(dir, "ready")?;
    loop {
        SigSet::empty().suspend()?;
        let noticed_ns = NOTICED_NS.swap(0, Ordering::Relaxed);
        if noticed_ns == 0 || !is_saver() {
            continue;
        }
        let request = fs::read_to_string(at.join("request")).context("reading the request")?;
        let token = request.lines().next().context("an empty request")?;
        save(dir, &at.join(token), noticed_ns)?;
        let (new, answer) = (at.join(format!("{token}.new")), at.join(format!("{token}.done")));
        fs::write(&new, "step=1\n")?;
        fs::rename(new, answer)?;
    }
}

fn through_memory(dir: &Path) -> Result<()> {
    let listener = Listener::from_env()?.context("$LATTICE_CHECKPOINT_SHM is not set")?;
    append_line(dir, "ready")?;
    loop {
        let Some(request) = listener.wait(REQUEST_WAIT_MAX) else { continue };
        let noticed_ns = now_ns();
        ensure!(is_saver(), "a process that does not save was asked");
        save(dir, &request.directory, noticed_ns)?;
        request.done(Done { step: Some(1), ..Done::default() });
    }
}

async fn in_calls(dir: &Path) -> Result<()> {
    let endpoint = std::env::var("LATTICE_ENDPOINT").context("$LATTICE_ENDPOINT is not set")?;
    let mut client = Client::connect(&endpoint).await?.application();
    let mut asked = client.register(v1::RegisterRequest {}).await?.into_inner();
    append_line(dir, "ready")?;
    while let Some(request) = asked.message().await? {
        let noticed_ns = now_ns();
        ensure!(is_saver(), "a process that does not save was asked");
        save(dir, Path::new(&request.directory), noticed_ns)?;
        client.done(v1::SaveDone { token: request.token, step: Some(1), ..Default::default() }).await?;
    }
    bail!("the agent closed its stream of requests")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_request_is_read_and_ready_processes_are_counted() {
        let dir = std::env::temp_dir().join(format!("lattice-asked-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        assert_eq!(read_progress(&dir).unwrap(), (0, None));
        for line in ["ready", "1 2", "ready", "30 40"] {
            append_line(&dir, line).unwrap();
        }
        let read = read_progress(&dir);
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(read.unwrap(), (2, Some(RequestTimes { noticed_ns: 30, saved_ns: 40 })));
    }
}
