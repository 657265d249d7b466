//! The thread that copies log files to files of the user. It is the user for every access to a file: see
//! [`crate::privileges::become_user_for_files`].
//!
//! It looks at the lengths of the logs, often while they grow and seldom while they do not. A file that cannot be
//! written now, such as one on a full disk, is tried again; the log keeps what is missing as long as it can.

use super::plan::OutputFile;
use crate::log_ring::LogKey;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::statfs::{FUSE_SUPER_MAGIC, NFS_SUPER_MAGIC, fstatfs};
use nix::unistd::{Whence, lseek};
use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
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
    pub log: File,
    /// How far it is copied, in bytes from its beginning.
    pub copied: Arc<AtomicU64>,
    pub to: OutputFile,
}

/// What the thread is asked. It answers each.
pub enum Request {
    /// Empty these files if they exist.
    Empty { paths: Vec<PathBuf>, answer: SyncSender<()> },
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
    pub failures: Mutex<VecDeque<Failure>>,
}

/// Output that could not be written to the user's file.
pub struct Failure {
    /// Whose log it is: launch number and rank.
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
    log: File,
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
            Request::Empty { paths, answer } => {
                for path in paths {
                    // The work reports it when it opens the file.
                    let _ = user_options().write(true).truncate(true).open(path);
                }
                let _ = answer.send(());
            }
            Request::Open { logs, input, answer } => drop(answer.send(self.open(logs, input.as_deref()))),
            Request::CatchUp { which, is_last, answer } => {
                self.catch_up(which, is_last);
                let _ = answer.send(());
            }
        }
    }

    fn open(&mut self, logs: Vec<NewLog>, input: Option<&Path>) -> Result<Option<File>, String> {
        let input = input.map(|path| open_input(path).map_err(|error| format!("--input {}: {error}", path.display()))).transpose()?;
        for NewLog { key, log, copied, to } in logs {
            self.forget(key);
            if !self.targets.contains_key(&to.path) {
                let file = open_output(&to).map_err(|error| format!("--{} {}: {error}", to.option, to.path.display()))?;
                let is_cached = fstatfs(&file).is_ok_and(|system| [NFS_SUPER_MAGIC, FUSE_SUPER_MAGIC].contains(&system.filesystem_type()));
                self.targets.insert(to.path.clone(), Target { file, logs: 0, has_failed: false, is_cached });
            }
            if let Some(target) = self.targets.get_mut(&to.path) {
                target.logs += 1;
            }
            self.logs.insert(key, Log { log, copied, path: to.path });
        }
        Ok(input)
    }

    /// Copies some of each log. Returns the most that there was to copy of one.
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
            self.copy_present(key);
            let target = self.logs.get(&key).and_then(|log| self.targets.get_mut(&log.path));
            if let Some(target) = target.filter(|target| target.is_cached)
                && let Err(error) = target.file.sync_data()
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
    fn copy_present(&mut self, key: LogKey) {
        let Some(log) = self.logs.get(&key) else { return };
        let (length, copied) = (log.log.metadata().map_or(0, |metadata| metadata.len()), Arc::clone(&log.copied));
        while self.copy(key) == Copied::Part && copied.load(Ordering::Relaxed) < length {}
    }

    /// Copies the log no longer. A file that no log is copied to is closed.
    fn forget(&mut self, key: LogKey) {
        let Some(Log { path, .. }) = self.logs.remove(&key) else { return };
        let Some(target) = self.targets.get_mut(&path) else { return };
        target.logs -= 1;
        if target.logs == 0 {
            self.targets.remove(&path);
        }
    }

    /// Copies at most [`CHUNKS_PER_LOOK`] chunks of one log.
    fn copy(&mut self, key: LogKey) -> Copied {
        let mut copied = Copied::Nothing;
        for _ in 0..CHUNKS_PER_LOOK {
            match self.copy_chunk(key) {
                Ok(true) => copied = Copied::Whole,
                Ok(false) => return copied,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Copied::Stuck,
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
            // Its program truncated it: all present bytes are new.
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
            match target.file.write(rest) {
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

    /// Has a failure reported, once for each file.
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

/// Opens without waiting: neither for the reader of a pipe nor for the end of a lease.
fn user_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    options
}

fn open_output(to: &OutputFile) -> io::Result<File> {
    let file = user_options().append(true).create(true).mode(0o666).open(&to.path)?;
    if to.is_emptied && file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

fn open_input(path: &Path) -> io::Result<File> {
    let file = user_options().read(true).open(path)?;
    if file.metadata()?.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    // Its program reads it as any other file.
    fcntl(&file, FcntlArg::F_SETFL(OFlag::empty()))?;
    Ok(file)
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
mod tests {
    use super::*;
    use lattice_runtime::shim::LogStream;
    use std::fs;

    struct Bench {
        dir: PathBuf,
        copier: Copier,
    }

    impl Bench {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("lattice-copier-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).unwrap();
            Self { dir, copier: Copier::new(Arc::default()) }
        }

        fn log(&self, rank: u32, text: &str) {
            let mut log = OpenOptions::new().append(true).create(true).open(self.dir.join(format!("{rank}.out"))).unwrap();
            log.write_all(text.as_bytes()).unwrap();
        }

        /// Copies the log of a rank to a file with this name.
        fn open(&mut self, rank: u32, name: &str, is_emptied: bool) -> Result<(), String> {
            self.log(rank, "");
            let log = File::open(self.dir.join(format!("{rank}.out"))).unwrap();
            let to = OutputFile { stream: LogStream::Out, option: "output", path: self.dir.join(name), is_emptied };
            let logs = vec![NewLog { key: (1, rank, LogStream::Out), log, copied: Arc::default(), to }];
            self.copier.open(logs, None).map(drop)
        }

        fn file(&self, name: &str) -> String {
            fs::read_to_string(self.dir.join(name)).unwrap()
        }
    }

    impl Drop for Bench {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }

    #[test]
    fn logs_are_copied_as_they_grow_and_a_file_is_closed_with_its_last_log() {
        let mut bench = Bench::new("grow");
        fs::write(bench.dir.join("out"), "before\n").unwrap();
        bench.open(0, "out", false).unwrap();
        bench.open(1, "out", true).unwrap();
        assert_eq!(bench.copier.look(), Copied::Nothing);
        bench.log(0, "zero\n");
        bench.log(1, "one\n");
        assert_eq!(bench.copier.look(), Copied::Whole);
        assert_eq!(bench.file("out"), "before\nzero\none\n", "it was open already, so it was not emptied");
        bench.log(1, "late\n");
        bench.copier.catch_up(Which::Of { number: 1, rank: 1 }, true);
        assert_eq!((bench.file("out").lines().last(), bench.copier.targets.len()), (Some("late"), 1));
        bench.copier.catch_up(Which::All, true);
        assert_eq!((bench.copier.targets.len(), bench.copier.logs.len()), (0, 0));
        bench.open(0, "out", true).unwrap();
        bench.copier.look();
        assert_eq!(bench.file("out"), "zero\n", "its log is copied from the beginning");
    }

    #[test]
    fn a_long_log_is_copied_in_turns_and_a_truncated_one_begins_anew() {
        let mut bench = Bench::new("long");
        let line = format!("{}\n", "x".repeat(99));
        bench.open(0, "out", true).unwrap();
        bench.log(0, &line.repeat(20_000));
        assert_eq!(bench.copier.look(), Copied::Part);
        assert!(bench.file("out").ends_with(&line), "a chunk ends with a line");
        bench.copier.catch_up(Which::All, false);
        assert_eq!(bench.file("out").len(), 2_000_000);
        File::options().write(true).open(bench.dir.join("0.out")).unwrap().set_len(0).unwrap();
        bench.log(0, "anew\n");
        bench.copier.look();
        assert!(bench.file("out").ends_with("x\nanew\n"));
    }

    #[test]
    fn what_the_node_removed_from_a_log_is_reported_and_skipped() {
        let mut bench = Bench::new("hole");
        bench.open(0, "out", true).unwrap();
        let log = File::options().write(true).open(bench.dir.join("0.out")).unwrap();
        log.write_all_at(b"end\n", 1 << 20).unwrap();
        bench.copier.look();
        assert_eq!(bench.file("out"), "end\n");
        let failure = bench.copier.shared.failures.lock().unwrap().pop_front().unwrap();
        let why = "1048576 bytes were removed from the node's disk before they could be written; `lattice logs` has it";
        assert!(failure.why.ends_with(why), "{}", failure.why);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_tried_again_and_reported_once() {
        let mut bench = Bench::new("full");
        bench.open(0, "/dev/full", true).unwrap();
        bench.log(0, "text\n");
        for _ in 0..3 {
            assert_eq!(bench.copier.look(), Copied::Stuck);
        }
        bench.copier.catch_up(Which::All, false);
        let failures = bench.copier.shared.failures.lock().unwrap();
        let why = "some of its output may be missing in /dev/full: No space left on device (os error 28); `lattice logs` has it";
        assert_eq!(failures.iter().map(|failure| (failure.rank, failure.why.as_str())).collect::<Vec<_>>(), [(0, why)]);
    }

    #[test]
    fn a_file_that_cannot_be_opened_says_by_which_option_it_was_named() {
        let mut bench = Bench::new("absent");
        let path = bench.dir.join("no/out");
        let why = format!("--output {}: No such file or directory (os error 2)", path.display());
        assert_eq!(bench.open(0, "no/out", true), Err(why));
        let input = bench.copier.open(Vec::new(), Some(&bench.dir)).unwrap_err();
        assert!(input.starts_with("--input ") && input.ends_with("is a directory"), "{input}");
    }
}
