//! The thread that copies log files to files of the user. It accesses every file as the user: see
//! [`crate::privileges::become_user_for_files`].
//!
//! It looks at the lengths of the logs, often while they grow and seldom while they do not. A file that cannot be
//! written now, such as one on a full disk, is tried again; the log keeps what is missing as long as it can.

use super::opening::{empty, open_input, open_output};
use super::plan::OutputFile;
use crate::log_ring::LogKey;
use lattice_runtime::shim::boottime_ms;
use nix::errno::Errno;
use nix::sys::statfs::{FUSE_SUPER_MAGIC, NFS_SUPER_MAGIC, fstatfs};
use nix::unistd::{Whence, lseek};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The shortest and longest interval between two looks at the logs.
const LOOK_INTERVALS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));
/// The interval while nothing is copied.
const IDLE_INTERVAL: Duration = Duration::from_secs(3600);
/// Bytes that are copied at a time.
const CHUNK_BYTES: usize = 64 * 1024;
/// Chunks of one log in one look: then the others have their turn.
const CHUNKS_PER_LOOK: u32 = 16;
/// Failures that wait to be reported; further ones are dropped.
const FAILURES_MAX: usize = 16;

/// A log to copy.
pub struct NewLog {
    pub key: LogKey,
    /// Open for reading.
    pub log: Arc<File>,
    /// How far it is copied, in bytes from its beginning.
    pub copied: Arc<AtomicU64>,
    pub to: OutputFile,
}

/// Requests to the thread, which answers each.
pub enum Request {
    /// Empty these files if they exist and the caller still has `asker`: later, others may have written to them.
    Empty { paths: Vec<PathBuf>, asker: Arc<()>, answer: SyncSender<()> },
    /// Open the files of a rank, the script or a task, and copy its logs to them from now on. The answer has the
    /// standard input, or says why the user may not have these files.
    Open { logs: Vec<NewLog>, input: Option<PathBuf>, answer: SyncSender<Result<Option<File>, String>> },
    /// Copy all that these logs have now. `is_last`: nothing is written to them any more.
    CatchUp { which: Which, is_last: bool, answer: SyncSender<()> },
}

/// Which logs.
#[derive(Clone, Copy)]
pub enum Which {
    All,
    Of { number: u32, rank: u32 },
}

/// What the thread and its owner share.
#[derive(Default)]
pub struct Shared {
    /// Grows with every write.
    pub progress: AtomicU64,
    /// Requests that were answered.
    pub answered: AtomicU64,
    /// When the present system call on a file of the user began, by [`boottime_ms`]; 0: there is none.
    pub busy_since_ms: AtomicU64,
    pub failures: Mutex<VecDeque<Failure>>,
}

impl Shared {
    /// Makes a system call on a file of the user, so that the owner sees how long it takes: it may never return.
    fn while_busy<T>(&self, call: impl FnOnce() -> T) -> T {
        // Zero would mean that there is no call.
        self.busy_since_ms.store(boottime_ms().max(1), Ordering::Relaxed);
        let result = call();
        self.busy_since_ms.store(0, Ordering::Relaxed);
        result
    }
}

/// Output that could not be written to the user's file.
pub struct Failure {
    /// The launch number and the rank of the log.
    pub number: u32,
    pub rank: u32,
    pub why: String,
}

struct Target {
    file: File,
    /// How many logs are copied to it.
    logs: u32,
    /// Whether a failure was reported.
    has_failed: bool,
    /// Whether other machines see what is written only after it was sent to a server.
    is_cached: bool,
}

struct Log {
    log: Arc<File>,
    copied: Arc<AtomicU64>,
    path: PathBuf,
}

/// How one log was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Copied {
    /// The file cannot be written now.
    Stuck,
    /// There was nothing to copy.
    Nothing,
    /// All of it, and there was something to copy.
    Whole,
    /// There is more.
    Part,
}

/// See the module.
pub struct Copier {
    shared: Arc<Shared>,
    targets: BTreeMap<PathBuf, Target>,
    logs: BTreeMap<LogKey, Log>,
    buffer: Vec<u8>,
}

impl Copier {
    /// Copies nothing yet.
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, targets: BTreeMap::new(), logs: BTreeMap::new(), buffer: vec![0; CHUNK_BYTES] }
    }

    /// Copies until the other end of `requests` is gone.
    pub fn run(mut self, requests: &Receiver<Request>) {
        let mut interval = IDLE_INTERVAL;
        loop {
            match requests.recv_timeout(interval) {
                Ok(request) => {
                    self.handle(request);
                    self.shared.answered.fetch_add(1, Ordering::Release);
                    interval = LOOK_INTERVALS.0;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            interval = match self.look() {
                Copied::Part => Duration::ZERO,
                Copied::Whole => LOOK_INTERVALS.0,
                Copied::Nothing | Copied::Stuck => (interval * 2).clamp(LOOK_INTERVALS.0, LOOK_INTERVALS.1),
            };
            if self.logs.is_empty() {
                interval = IDLE_INTERVAL;
            }
        }
    }

    fn handle(&mut self, request: Request) {
        // The owner may have stopped waiting for the answer.
        match request {
            Request::Empty { paths, asker, answer } => {
                for path in paths {
                    // A failure is reported when the work opens the file.
                    let _ = self.shared.while_busy(|| empty(&path, || Arc::strong_count(&asker) > 1));
                }
                let _ = answer.send(());
            }
            Request::Open { logs, input, answer } => {
                let keys: Vec<LogKey> = logs.iter().map(|log| log.key).collect();
                let opened = self.open(logs, input.as_deref());
                let is_refused = opened.is_err();
                // If the opening came too late, no work begins that writes to these logs.
                if answer.send(opened).is_err() || is_refused {
                    keys.into_iter().for_each(|key| self.forget(key));
                }
            }
            Request::CatchUp { which, is_last, answer } => {
                self.catch_up(which, is_last);
                let _ = answer.send(());
            }
        }
    }

    fn open(&mut self, logs: Vec<NewLog>, input: Option<&Path>) -> Result<Option<File>, String> {
        let opened = |path: &Path| self.shared.while_busy(|| open_input(path));
        let input = input.map(|path| opened(path).map_err(|error| format!("--input {}: {error}", path.display()))).transpose()?;
        for NewLog { key, log, copied, to } in logs {
            self.forget(key);
            if !self.targets.contains_key(&to.path) {
                let is_wanted = || Arc::strong_count(&copied) > 1;
                let opened = self.shared.while_busy(|| open_output(&to, is_wanted));
                let file = opened.map_err(|error| format!("--{} {}: {error}", to.option, to.path.display()))?;
                let system = self.shared.while_busy(|| fstatfs(&file));
                let is_cached = system.is_ok_and(|system| [NFS_SUPER_MAGIC, FUSE_SUPER_MAGIC].contains(&system.filesystem_type()));
                self.targets.insert(to.path.clone(), Target { file, logs: 0, has_failed: false, is_cached });
            }
            if let Some(target) = self.targets.get_mut(&to.path) {
                target.logs += 1;
            }
            self.logs.insert(key, Log { log, copied, path: to.path });
        }
        Ok(input)
    }

    /// Copies some of each log. Returns the greatest of the results.
    fn look(&mut self) -> Copied {
        let keys: Vec<LogKey> = self.logs.keys().copied().collect();
        keys.into_iter().map(|key| self.copy(key)).max().unwrap_or(Copied::Nothing)
    }

    fn catch_up(&mut self, which: Which, is_last: bool) {
        let is_meant = |key: &LogKey| match which {
            Which::All => true,
            Which::Of { number, rank } => (key.0, key.1) == (number, rank),
        };
        for key in self.logs.keys().copied().filter(is_meant).collect::<Vec<_>>() {
            let is_stuck = self.copy_present(key) == Copied::Stuck;
            if is_stuck && (is_last || matches!(which, Which::All)) {
                self.fail(key, &io::Error::other("nobody reads it fast enough"));
            }
            let target = self.logs.get(&key).and_then(|log| self.targets.get_mut(&log.path));
            if let Some(target) = target.filter(|target| target.is_cached)
                && let Err(error) = self.shared.while_busy(|| target.file.sync_data())
            {
                // A pipe or a terminal cannot be synced.
                if error.raw_os_error() != Some(libc::EINVAL) {
                    self.fail(key, &error);
                }
            }
            if is_last {
                self.forget(key);
            }
        }
    }

    /// Copies what the log has now, and not what a process that lives on adds meanwhile.
    fn copy_present(&mut self, key: LogKey) -> Copied {
        let Some(log) = self.logs.get(&key) else { return Copied::Nothing };
        let (length, position) = (log.log.metadata().map_or(0, |metadata| metadata.len()), Arc::clone(&log.copied));
        loop {
            let copied = self.copy(key);
            let is_all = position.load(Ordering::Relaxed) >= length;
            if is_all || matches!(copied, Copied::Stuck | Copied::Nothing) {
                return if is_all { Copied::Whole } else { copied };
            }
        }
    }

    /// Copies the log no longer. A file that no log is copied to is closed.
    fn forget(&mut self, key: LogKey) {
        let Some(Log { path, .. }) = self.logs.remove(&key) else { return };
        let Some(target) = self.targets.get_mut(&path) else { return };
        target.logs -= 1;
        if target.logs == 0 {
            let unused = self.targets.remove(&path);
            // A server may have to confirm what was written.
            self.shared.while_busy(|| drop(unused));
        }
    }

    /// Copies at most [`CHUNKS_PER_LOOK`] chunks of one log.
    fn copy(&mut self, key: LogKey) -> Copied {
        let mut copied = Copied::Nothing;
        let position = |copier: &Self| copier.logs.get(&key).map(|log| log.copied.load(Ordering::Relaxed));
        let before = position(self);
        for _ in 0..CHUNKS_PER_LOOK {
            match self.copy_chunk(key) {
                Ok(true) => copied = Copied::Whole,
                Ok(false) => return copied,
                // A pipe is full: its reader, if there is one, reads on soon.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return if position(self) == before { Copied::Stuck } else { Copied::Whole };
                }
                Err(error) => {
                    self.fail(key, &error);
                    return Copied::Stuck;
                }
            }
        }
        Copied::Part
    }

    /// Copies one chunk; `false`: there was nothing to copy.
    fn copy_chunk(&mut self, key: LogKey) -> io::Result<bool> {
        let Some(Log { log, copied, path }) = self.logs.get(&key) else { return Ok(false) };
        let Some(target) = self.targets.get_mut(path) else { return Ok(false) };
        let (length, mut at) = (log.metadata()?.len(), copied.load(Ordering::Relaxed));
        if length < at {
            // The program truncated its output: all present bytes are new.
            at = 0;
            copied.store(0, Ordering::Relaxed);
        }
        if at == length {
            return Ok(false);
        }
        let data = next_data(log, at)?.unwrap_or(length).min(length);
        if data > at {
            // The log was shortened from its beginning, because the node keeps only so much.
            copied.store(data, Ordering::Relaxed);
            let lost = io::Error::other(format!("{} bytes were removed from the node's disk before they could be written", data - at));
            self.fail(key, &lost);
            return Ok(true);
        }
        let read = log.read_at(&mut self.buffer, at)?;
        // A file may get the lines of several logs: a full chunk ends with a line.
        let line_end = self.buffer[..read].iter().rposition(|byte| *byte == b'\n').map(|last| last + 1);
        let chunk = if read == CHUNK_BYTES { line_end.unwrap_or(read) } else { read };
        let mut rest = &self.buffer[..chunk];
        while !rest.is_empty() {
            match self.shared.while_busy(|| target.file.write(rest)) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    rest = &rest[written..];
                    copied.fetch_add(written as u64, Ordering::Relaxed);
                    self.shared.progress.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(chunk > 0)
    }

    /// Queues a failure to be reported, once for each file.
    fn fail(&mut self, key: LogKey, error: &io::Error) {
        let Some(path) = self.logs.get(&key).map(|log| &log.path) else { return };
        let Some(target) = self.targets.get_mut(path) else { return };
        let (number, rank, _) = key;
        if std::mem::replace(&mut target.has_failed, true) {
            return;
        }
        let why = format!("some of its output may be missing in {}: {error}; `lattice logs` has it", path.display());
        if let Ok(mut failures) = self.shared.failures.lock()
            && failures.len() < FAILURES_MAX
        {
            failures.push_back(Failure { number, rank, why });
        }
    }
}

/// The first position from `at` on that has data; `None`: there is none.
fn next_data(log: &File, at: u64) -> io::Result<Option<u64>> {
    let offset = libc::off_t::try_from(at).map_err(io::Error::other)?;
    match lseek(log, offset, Whence::SeekData) {
        Ok(data) => u64::try_from(data).map(Some).map_err(io::Error::other),
        Err(Errno::ENXIO) => Ok(None),
        // Holes cannot be found here.
        Err(_) => Ok(Some(at)),
    }
}

#[cfg(test)]
mod tests;
