//! The user's own files, which get the output of work while it is written, besides the log files.
//!
//! ```text
//!   script, ranks, tasks ──▶ log files ──look──▶ Copier, a thread that is the user ──append──▶ the user's files
//!                                                  ▲ open, catch up
//!                                          UserFiles (the shim's loop)
//! ```
//!
//! The shim's loop never touches a file of the user itself, so a file system that hangs stops only the thread. The loop
//! waits for the thread when work begins, because work does not begin without its files, and when work has ended,
//! because its end is reported once its files are complete. It waits at most [`STALL_MAX`] without progress, and at
//! most the grace of work that is being ended; after that, not again until the thread has answered. While work may run,
//! half of the run lease is left for the loop to extend it. When the shim is killed, the copies end; the logs stay.
//!
//! While logs are copied, the loop also looks whether the thread is stuck in a system call: see [`lateness`].

pub mod copier;
mod lateness;
mod opening;
pub mod plan;

use crate::log_ring::LogKey;
use crate::privileges;
use crate::shim_log::log_line;
use copier::{Copier, Failure, NewLog, Request, Shared, Which};
use lattice_model::Principal;
use nix::sys::signal::SigSet;
use plan::{Files, Plan};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

/// How long the loop waits for the thread while nothing is written.
const STALL_MAX: Duration = Duration::from_secs(5);
/// How long it waits while something is written: one bound for all output that ends in one turn of the loop.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The same while other processes of the work run, which may need the loop.
const BUSY_WAIT_MAX: Duration = Duration::from_secs(10);
/// How often it looks for progress meanwhile.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Requests that wait for the thread; it has more than one only after it has stalled.
const REQUESTS_LEN_MAX: usize = 64;
/// The thread has few frames.
const STACK_BYTES: usize = 256 * 1024;

/// Files that a message names at most.
const NAMED_MAX: usize = 3;

/// See the module.
pub struct UserFiles {
    pub plan: Plan,
    requests: SyncSender<Request>,
    shared: Arc<Shared>,
    /// How many requests were sent.
    sent: u64,
    /// The number of the request for which the loop did not wait to the end, and the progress at that time.
    given_up: Option<(u64, u64)>,
    /// Whether it was reported that files are not complete at the end of all work.
    is_incomplete: bool,
    /// When the present turn of the loop began.
    turn_began: Instant,
    /// When the run lease ends.
    lease_end: Option<Instant>,
    /// How long the loop may wait in its present turn.
    wait_max: Duration,
    copied: BTreeMap<LogKey, CopiedLog>,
    /// Why output waits for its files, as the latest look found it; `None`: it does not wait.
    late: Option<String>,
    /// When to look again, by [`lattice_runtime::shim::boottime_ms`].
    late_look_at_ms: u64,
}

/// A log that is copied.
struct CopiedLog {
    /// Bytes that are copied.
    bytes: Arc<AtomicU64>,
    log: Arc<File>,
    path: PathBuf,
}

impl UserFiles {
    /// Starts the thread, and empties files that several nodes write to.
    pub fn begin(plan: Plan, owner: &Principal) -> io::Result<Self> {
        let (requests, received) = sync_channel(REQUESTS_LEN_MAX);
        let shared = Arc::new(Shared::default());
        let (copier, owner) = (Copier::new(Arc::clone(&shared)), owner.clone());
        // It ends with the shim, which does not wait for it: a file system may hang.
        thread::Builder::new().name("user-files".to_owned()).stack_size(STACK_BYTES).spawn(move || {
            // Signals to the shim are for its loop; and SIGXFSZ, for a file that became too long, would end the shim.
            let _ = SigSet::all().thread_block();
            match privileges::become_user_for_files(&owner) {
                Ok(()) => copier.run(&received),
                // Nothing answers requests then, so no work with such files begins.
                Err(error) => log_line(&format!("the user's files cannot be written: {error:#}")),
            }
        })?;
        let mut files = Self {
            plan,
            requests,
            shared,
            sent: 0,
            given_up: None,
            is_incomplete: false,
            turn_began: Instant::now(),
            lease_end: None,
            wait_max: WAIT_MAX,
            copied: BTreeMap::new(),
            late: None,
            late_look_at_ms: 0,
        };
        let paths = files.plan.emptied_before();
        if !paths.is_empty() {
            let asked = Arc::new(());
            let asker = Arc::clone(&asked);
            files.ask(WAIT_MAX, |answer| Request::Empty { paths, asker, answer });
            drop(asked);
        }
        Ok(files)
    }

    /// A turn of the loop begins. `lease_left`: how long the run lease lasts; `None`: there is none. `wait_max`: how long
    /// the loop may wait in this turn.
    pub fn begin_turn(&mut self, lease_left: Option<Duration>, wait_max: Duration) {
        self.turn_began = Instant::now();
        self.wait_max = wait_max.min(WAIT_MAX);
        self.lease_end = lease_left.and_then(|left| self.turn_began.checked_add(left));
    }

    /// Opens the files of a rank, a task or the script, whose logs `path` names, and copies them from now on. Returns
    /// its standard input, or why it cannot begin.
    ///
    /// # Errors
    /// The user may not have these files, or the file system does not answer.
    pub fn open(
        &mut self,
        (number, rank): (u32, u32),
        files: Files,
        log: impl Fn(&plan::OutputFile) -> io::Result<File>,
    ) -> Result<Option<File>, NotOpened> {
        let Files { outputs, input } = files;
        let mut logs = Vec::with_capacity(outputs.len());
        for to in outputs {
            let log = log(&to).map_err(|error| NotOpened::Refused(format!("its log file for --{}: {error}", to.option)))?;
            // One descriptor for both: a node may have many hundred ranks.
            let log = Arc::new(log);
            let (key, copied) = ((number, rank, to.stream), Arc::<AtomicU64>::default());
            self.copied.insert(key, CopiedLog { bytes: Arc::clone(&copied), log: Arc::clone(&log), path: to.path.clone() });
            logs.push(NewLog { key, log, copied, to });
        }
        let answer = self.ask(self.within_lease(self.wait_max), |answer| Request::Open { logs, input, answer });
        let opened = answer.map_or(Err(NotOpened::Unanswered), |opened| opened.map_err(NotOpened::Refused));
        if opened.is_err() {
            self.copied.retain(|key, _| (key.0, key.1) != (number, rank));
        }
        opened
    }

    /// Waits until all that a rank, a task or the script has written is in its files. `is_last`: nothing of it is left
    /// that could write. `is_busy`: other processes of the work run.
    pub fn catch_up(&mut self, number: u32, rank: u32, is_last: bool, is_busy: bool) {
        let has_logs = self.copied.keys().any(|key| (key.0, key.1) == (number, rank));
        if !has_logs {
            return;
        }
        let wait_max = if is_busy { BUSY_WAIT_MAX.min(self.wait_max) } else { self.wait_max };
        let wait_max = wait_max.saturating_sub(self.turn_began.elapsed());
        let answer =
            self.ask(self.within_lease(wait_max), |answer| Request::CatchUp { which: Which::Of { number, rank }, is_last, answer });
        // Otherwise the wait at the end of all work includes it again.
        if is_last && answer.is_some() {
            self.copied.retain(|key, _| (key.0, key.1) != (number, rank));
        }
    }

    /// As [`Self::catch_up`] for all logs, when nothing is left that could run. Reports a failure, once, if the thread
    /// does not answer in time.
    pub fn catch_up_all(&mut self, wait_max: Duration) {
        let Some((number, rank, _)) = self.copied.keys().next().copied() else { return };
        let answer = self.ask(wait_max, |answer| Request::CatchUp { which: Which::All, is_last: false, answer });
        if answer.is_none() && !std::mem::replace(&mut self.is_incomplete, true) {
            let why = self.incomplete_text();
            let mut failures = self.shared.failures.lock().unwrap_or_else(PoisonError::into_inner);
            failures.push_back(Failure { number, rank, why });
        }
    }

    /// What the user reads if files are not complete at the end of all work: how much is missing, and where.
    fn incomplete_text(&self) -> String {
        let what = match self.uncopied_text() {
            Some(uncopied) => format!("{uncopied} are missing"),
            // All of it was written, but not to the disk of the server.
            None => "some output may be missing there".to_owned(),
        };
        format!("the files of --output and --error were not written in time: {what}; `lattice logs` has it")
    }

    /// How many bytes of output are not yet in which file, without access to the user's file system; `None`: there are
    /// none.
    fn uncopied_text(&self) -> Option<String> {
        let mut missing = BTreeMap::<&Path, u64>::new();
        for CopiedLog { bytes, log, path } in self.copied.values() {
            let length = log.metadata().map_or(0, |metadata| metadata.len());
            *missing.entry(path).or_default() += length.saturating_sub(bytes.load(Ordering::Relaxed));
        }
        missing.retain(|_, bytes| *bytes > 0);
        if missing.is_empty() {
            return None;
        }
        let named = missing.iter().take(NAMED_MAX).map(|(path, bytes)| format!("{bytes} bytes in {}", path.display()));
        let more = match missing.len() {
            count if count > NAMED_MAX => format!(", and some in {} others", count - NAMED_MAX),
            _ => String::new(),
        };
        Some(named.collect::<Vec<_>>().join(", ") + &more)
    }

    /// How far each log is copied, in bytes.
    pub fn positions(&self) -> BTreeMap<LogKey, u64> {
        self.copied.iter().map(|(key, copied)| (*key, copied.bytes.load(Ordering::Relaxed))).collect()
    }

    /// The failures that were not reported yet.
    pub fn take_failures(&self) -> Vec<Failure> {
        let mut failures = self.shared.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.drain(..).collect()
    }

    /// The loop must read an extension of the run lease before the lease ends.
    fn within_lease(&self, wait_max: Duration) -> Duration {
        self.lease_end.map_or(wait_max, |end| wait_max.min(end.saturating_duration_since(Instant::now()) / 2))
    }

    /// Asks the thread and waits for its answer; `None`: it does not answer.
    fn ask<T>(&mut self, wait_max: Duration, request: impl FnOnce(SyncSender<T>) -> Request) -> Option<T> {
        let (answer, answered) = sync_channel(1);
        let progress = self.shared.progress.load(Ordering::Relaxed);
        let is_unanswered = |number: u64| self.shared.answered.load(Ordering::Acquire) < number;
        let request = request(answer);
        // If something was written meanwhile, the loop waits again for files to open, and at the end of all work.
        let is_urgent = matches!(request, Request::Open { .. } | Request::CatchUp { which: Which::All, .. });
        let is_stuck = self.given_up.is_some_and(|(number, then)| is_unanswered(number) && (then == progress || !is_urgent));
        self.requests.try_send(request).ok()?;
        self.sent += 1;
        let answer = if is_stuck { None } else { self.wait(wait_max, &answered) };
        self.given_up = answer.is_none().then(|| (self.sent, self.shared.progress.load(Ordering::Relaxed)));
        answer
    }

    fn wait<T>(&self, wait_max: Duration, answered: &Receiver<T>) -> Option<T> {
        let begun = Instant::now();
        let until = begun + wait_max;
        let (mut progress, mut progressed) = (self.shared.progress.load(Ordering::Relaxed), begun);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match answered.recv_timeout(PROGRESS_INTERVAL.min(left)) {
                Ok(answer) => return Some(answer),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = self.shared.progress.load(Ordering::Relaxed);
            if std::mem::replace(&mut progress, now) != now {
                progressed = Instant::now();
            }
            if progressed.elapsed() >= STALL_MAX || until <= Instant::now() {
                log_line("the file system of the user's files does not answer in time: the work goes on without waiting for it");
                return None;
            }
        }
    }
}

/// Why the files of a rank, a task or the script were not opened.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum NotOpened {
    #[error("{0}")]
    Refused(String),
    #[error("the file system of its --output, --error or --input does not answer")]
    Unanswered,
}

/// Opens a log file for reading. Its user owns it, so it may be a link, or have a lease that would make others wait.
pub fn open_log(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::test_builders::desired_share;
    use lattice_model::{AllocationId, AllocationSpec, DesiredShare, Entrypoint, OutputFiles};
    use lattice_runtime::shim::LogStream;
    use std::fs;

    fn me() -> Principal {
        let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        Principal { name: "me".into(), uid, gid, groups: vec![] }
    }

    fn begin(dir: &Path, files: OutputFiles) -> UserFiles {
        let entrypoint = Entrypoint::Script { text: "#!/bin/sh\n".into(), args: vec![] };
        let spec = AllocationSpec { output_files: Some(Box::new(files)), ..AllocationSpec::new("a", entrypoint, dir) };
        let node = "n1".parse().unwrap();
        let share = DesiredShare { spec, nodes: vec![node].into(), ..desired_share(AllocationId(uuid::Uuid::from_u128(1))) };
        UserFiles::begin(Plan::of(&share, "n1").unwrap(), &me()).unwrap()
    }

    #[test]
    fn a_script_has_its_input_and_its_output_is_whole_when_it_was_waited_for() {
        let dir = std::env::temp_dir().join(format!("lattice-user-files-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("in"), "given").unwrap();
        let log = |stream: LogStream| -> PathBuf { dir.join(format!("log.{}", stream.suffix())) };
        let asked = OutputFiles { stdout: "out.%s".into(), stdin: "in".into(), ..OutputFiles::default() };
        let mut files = begin(&dir, asked.clone());
        for stream in [LogStream::Out, LogStream::Err] {
            fs::write(log(stream), format!("{}\n", stream.suffix())).unwrap();
        }
        let planned = files.plan.of_script().unwrap();
        let input = files.open((0, 0), planned.clone(), |to| open_log(&log(to.stream))).unwrap().unwrap();
        assert_eq!(io::read_to_string(input).unwrap(), "given");
        files.catch_up(0, 0, false, false);
        assert_eq!(fs::read_to_string(dir.join("out.batch")).unwrap(), "out\nerr\n");
        assert_eq!(files.positions().into_values().collect::<Vec<_>>(), [4, 4]);
        assert!(files.incomplete_text().contains("some output may be missing there"));
        let mut out = OpenOptions::new().append(true).open(log(LogStream::Out)).unwrap();
        io::Write::write_all(&mut out, b"more\n").unwrap();
        let missing = format!("not written in time: 5 bytes in {} are missing; ", dir.join("out.batch").display());
        let shown = files.incomplete_text();
        assert!(shown.contains(&missing) || shown.contains("some output may be missing there"), "the copier may have written it: {shown}");
        files.catch_up(0, 0, true, false);
        assert_eq!(files.positions(), BTreeMap::new());
        fs::remove_file(dir.join("in")).unwrap();
        let why = files.open((0, 0), planned, |to| open_log(&log(to.stream))).unwrap_err();
        assert_eq!(why.to_string(), format!("--input {}: No such file or directory (os error 2)", dir.join("in").display()));
        assert_eq!(files.positions(), BTreeMap::new());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_stuck_thread_is_found_by_looks_that_end_with_the_copies() {
        let dir = std::env::temp_dir().join(format!("lattice-late-files-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("log"), "out\n").unwrap();
        let mut files = begin(&dir, OutputFiles { stdout: "out".into(), ..OutputFiles::default() });
        assert_eq!((files.lateness_due(), files.look_for_lateness(1)), (None, false), "nothing is copied");
        // The thread does not have this log, so it is idle: the test acts in its place.
        let (bytes, log) = (Arc::<AtomicU64>::default(), Arc::new(open_log(&dir.join("log")).unwrap()));
        let copied = CopiedLog { bytes: Arc::clone(&bytes), log, path: "/hung/out".into() };
        files.copied.insert((0, 0, LogStream::Out), copied);
        let shared = Arc::clone(&files.shared);
        let busy_since = |ms: u64| shared.busy_since_ms.store(ms, Ordering::Relaxed);
        busy_since(7_000);
        assert!(!files.look_for_lateness(10_000), "3 s are not late");
        assert_eq!(files.lateness_due(), Some(15_000));
        assert!(!files.look_for_lateness(14_999), "it is not time");
        assert!(files.look_for_lateness(15_000));
        let shown = files.late().unwrap().to_owned();
        assert!(shown.contains("does not answer: 4 bytes in /hung/out are not written yet; "), "{shown}");
        assert!(!files.look_for_lateness(20_000), "nothing has changed");
        bytes.store(4, Ordering::Relaxed);
        assert!(files.look_for_lateness(25_000));
        assert!(files.late().unwrap().contains("some output may not be on its disk yet"), "{:?}", files.late());
        busy_since(29_000);
        assert!(files.look_for_lateness(30_000), "another call was made");
        assert_eq!(files.late(), None);
        assert!(files.look_for_lateness(35_000), "it hangs as well");
        files.copied.clear();
        assert!(files.lateness_due().is_some() && files.look_for_lateness(40_000));
        assert_eq!((files.late(), files.lateness_due()), (None, None));
        fs::remove_dir_all(&dir).unwrap();
    }
}
