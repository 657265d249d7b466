//! Processes that the lab started, identified by more than a pid, because pids are reused.

use anyhow::{Context, Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The identity of a process: its pid alone may be reused once it has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its pid.
    pub pid: i32,
    /// Field 22 of `/proc/<pid>/stat`: clock ticks between boot and its start.
    pub start_ticks: u64,
    /// `/proc/sys/kernel/random/boot_id` when it was started.
    pub boot_id: String,
}

impl Identity {
    /// The identity of a living process.
    pub fn of(pid: i32) -> Result<Self> {
        let (_, start_ticks) = stat(pid).with_context(|| format!("process {pid} has ended already"))?;
        Ok(Self { pid, start_ticks, boot_id: boot_id()? })
    }

    /// Whether exactly this process still runs. A process whose first thread has ended shows as a zombie, but has its
    /// locks and sockets as long as another thread runs.
    pub fn alive(&self) -> bool {
        // A child of ours must be reaped first; for other processes this changes nothing.
        let _ = waitpid(Pid::from_raw(self.pid), Some(WaitPidFlag::WNOHANG));
        self.pinned().is_some()
    }

    /// A pidfd of exactly this process, unless it has ended completely. It is opened before the start time is compared,
    /// so it cannot belong to a later process with the same pid.
    fn pinned(&self) -> Option<OwnedFd> {
        // SAFETY: pidfd_open takes a pid and flags and returns a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, self.pid, 0) };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
        // SAFETY: the descriptor was just opened and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let same = boot_id().is_ok_and(|b| b == self.boot_id) && stat(self.pid).is_some_and(|(_, start)| start == self.start_ticks);
        // Readable: the whole thread group has ended, and its resources are released.
        let ended = poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) != Ok(0);
        (same && !ended).then_some(fd)
    }

    /// Sends a signal to exactly this process; `false` if it is gone. No other process can be hit.
    pub fn signal(&self, signal: Signal) -> Result<bool> {
        let Some(fd) = self.pinned() else { return Ok(false) };
        let none = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open, the siginfo may be null, the flags must be 0.
        let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), signal as i32, none, 0) };
        if sent == 0 {
            return Ok(true);
        }
        match std::io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            e => Err(e).with_context(|| format!("cannot send {signal} to process {}", self.pid)),
        }
    }

    /// Sends SIGKILL and waits until it is gone.
    pub fn kill(&self) -> Result<bool> {
        let hit = self.signal(Signal::SIGKILL)?;
        if !self.gone_within(Duration::from_secs(10)) {
            bail!("process {} does not end after SIGKILL (is it in an uninterruptible wait?)", self.pid);
        }
        Ok(hit)
    }

    /// Waits at most `limit` for its end.
    pub fn gone_within(&self, limit: Duration) -> bool {
        until(limit, || !self.alive())
    }
}

/// How long [`until`] waits after a check that took no time.
const CHECK_GAP_MIN: Duration = Duration::from_millis(10);
/// How long it waits after one that took long.
const CHECK_GAP_MAX: Duration = Duration::from_millis(200);

/// Calls `done` until it returns true or the time is over; returns whether it did. Waits after each call twice as long as
/// the call took, but 10 ms at least and 200 ms at most: many checks start a program, and use a third of a processor so.
pub fn until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        let began = Instant::now();
        if done() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep((2 * began.elapsed()).clamp(CHECK_GAP_MIN, CHECK_GAP_MAX));
    }
}

/// State letter and start time of a process; `None` if there is none.
pub fn stat(pid: i32) -> Option<(char, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name is in parentheses and may contain anything, parentheses too.
    let mut fields = text[text.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let start = fields.nth(18)?.parse().ok()?;
    Some((state, start))
}

/// This boot's id.
pub fn boot_id() -> Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").context("/proc/sys/kernel/random/boot_id")?;
    Ok(text.trim().to_owned())
}

/// Starts a daemon in its own session, with its output appended to `log` and no input.
pub fn spawn_detached(program: &Path, args: &[String], env: &[(&str, &str)], log: &Path) -> Result<Identity> {
    let out: File = OpenOptions::new().create(true).append(true).open(log).with_context(|| format!("cannot open {}", log.display()))?;
    let err = out.try_clone()?;
    let mut command = Command::new(program);
    command.args(args).env("NO_COLOR", "1").envs(env.iter().copied()).current_dir("/").stdin(Stdio::null()).stdout(out).stderr(err);
    // SAFETY: setsid(2) is async-signal-safe, and nothing else is done between fork and exec.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid()?;
            Ok(())
        });
    }
    let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    Identity::of(i32::try_from(child.id()).context("pid")?)
}

/// Runs a command to its end, and kills it after `limit`; returns its whole output.
pub fn run(command: &mut Command, limit: Duration) -> Result<Finished> {
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
    let out = drain(child.stdout.take());
    let err = drain(child.stderr.take());
    let mut timed_out = false;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if started.elapsed() >= limit {
            timed_out = true;
            child.kill()?;
        }
        // Short at first: most commands end within milliseconds.
        std::thread::sleep(if started.elapsed() < Duration::from_millis(200) {
            Duration::from_millis(1)
        } else {
            Duration::from_millis(10)
        });
    };
    let took = started.elapsed();
    Ok(Finished { status, timed_out, stdout: out.join().unwrap_or_default(), stderr: err.join().unwrap_or_default(), took })
}

fn drain<R: Read + Send + 'static>(pipe: Option<R>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// A command that ended.
#[derive(Debug)]
pub struct Finished {
    /// Its exit status.
    pub status: std::process::ExitStatus,
    /// Whether it was killed because its time was over.
    pub timed_out: bool,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
    /// From start to end.
    pub took: Duration,
}

impl Finished {
    /// Its exit code; 128 + signal if a signal ended it, as in a shell.
    pub fn code(&self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// Its standard output as text.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Its standard error as text.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

impl From<Output> for Finished {
    fn from(o: Output) -> Self {
        Self { status: o.status, timed_out: false, stdout: o.stdout, stderr: o.stderr, took: Duration::ZERO }
    }
}

/// The last `lines` lines of a file, for people.
pub fn tail(path: &Path, lines: usize) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Processes of our programs with a path under `dirs` in `/proc/<pid>/cmdline` or as working directory: those that a
/// lab started and its record may have missed.
pub fn ours_under(dirs: &[&Path]) -> Vec<(i32, String)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|e| e.file_name().to_string_lossy().parse::<i32>().ok());
    pids.filter_map(|pid| {
        let cmdline = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let args: Vec<String> = cmdline.split(|b| *b == 0).map(|a| String::from_utf8_lossy(a).into_owned()).collect();
        let name = Path::new(args.first()?).file_name()?.to_string_lossy().into_owned();
        if !matches!(name.as_str(), "lattice-agent" | "lattice-quorum" | "lattice-shim") {
            return None;
        }
        let named = args.iter().any(|a| dirs.iter().any(|d| Path::new(a).starts_with(d)));
        let cwd = std::fs::read_link(format!("/proc/{pid}/cwd")).ok();
        let inside = cwd.is_some_and(|c| dirs.iter().any(|d| c.starts_with(d)));
        (named || inside).then_some((pid, name))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_identified_by_its_start_time_too() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let it = Identity::of(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(it.alive());
        let other = Identity { start_ticks: it.start_ticks + 1, ..it.clone() };
        assert!(!other.alive());
        assert!(!other.signal(Signal::SIGKILL).unwrap(), "another process with this pid must not be signalled");
        assert!(it.alive());
        assert!(it.kill().unwrap());
        assert!(!it.alive());
        let _ = child.wait();
    }

    #[test]
    fn a_check_that_takes_long_is_repeated_less_often() {
        let mut calls = 0;
        let held = until(Duration::from_millis(500), || {
            calls += 1;
            std::thread::sleep(Duration::from_millis(50));
            false
        });
        assert!(!held && calls <= 4, "{calls} times in half a second");
        assert!(until(Duration::ZERO, || true), "a condition that holds is seen without any time");
    }

    #[test]
    fn a_command_that_takes_too_long_is_killed_and_marked_as_timed_out() {
        let killed_after = |ms| {
            let finished = run(Command::new("sh").args(["-c", "echo before; exec sleep 600"]), Duration::from_millis(ms)).unwrap();
            assert!(finished.timed_out && finished.code() == 128 + 9, "{finished:?}");
            finished.out()
        };
        // On a busy machine it may be killed before it writes.
        assert!([300, 3000, 60_000].into_iter().any(|ms| killed_after(ms) == "before\n"), "what it wrote is lost");
    }
}
