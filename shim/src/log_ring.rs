//! Keeps log files from filling the disk. Uploaded bytes are punched out of the files' beginnings, except the last ones
//! for live reading. While the store is unavailable, bytes beyond the spool's limit are removed as well. This works
//! with and without an agent.
//!
//! A hole is always at the beginning of a file, and the file keeps its length: so no writer notices, and all positions
//! stay valid.
//!
//! The user owns the files, and can keep others from opening one by a lease (`F_SETLEASE`), again and again. The kernel
//! ends it for an open that waits, for 45 s at most. So a thread waits, and the file stays open from then on: nobody gets
//! a lease on a file that another process has open for writing, or is about to.

use crate::shim_log::log_line;
use lattice_runtime::shim::{FlushedLog, LogLimits, LogStream, ShimDir};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::signal::SigSet;
use nix::unistd::{Whence, lseek};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;

/// Holes begin and end at block boundaries, in bytes.
const BLOCK_BYTES: u64 = 4096;
/// Bytes that are punched at a time: writers of the file wait meanwhile. What holds no data is punched at once.
const STEP_BYTES: u64 = 16 << 20;
/// Steps in one look, for all files together: the shim does nothing else meanwhile, and users own the files, so these
/// can have any length and any holes.
const STEPS_PER_LOOK: u32 = 64;
/// The shortest and longest interval between two looks, in milliseconds: the faster files grow, the shorter.
const LOOK_INTERVAL_MS: (u64, u64) = (100, 500);
/// Threads that wait for leases at once.
const OPENINGS_MAX: usize = 16;
/// Such a thread has few frames.
const STACK_BYTES: usize = 64 * 1024;

/// A log file: launch number, rank and stream, as in [`ShimDir::log`].
pub type LogKey = (u32, u32, LogStream);

/// What is known about the log files.
pub struct LogRing {
    room: Option<LogLimits>,
    files: BTreeMap<LogKey, LogFile>,
    /// How far files are copied to others, in bytes; those that are not copied are left out.
    copied: BTreeMap<LogKey, u64>,
    /// Launches without a process that could write, and whether their files were looked at since then.
    over: BTreeMap<u32, bool>,
    looked_at: u64,
    due: u64,
    /// The file that was punched last: the next look begins behind it, so that none waits for ever.
    latest: Option<LogKey>,
    /// Whether the latest attempt failed, which was logged.
    is_failing: bool,
    /// Files whose leases threads wait for, and where the open files come from.
    opening: BTreeMap<LogKey, Receiver<File>>,
    /// Files that had a lease.
    opened: BTreeMap<LogKey, File>,
}

/// One log file; positions in bytes from its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LogFile {
    end: u64,
    /// Everything before this was punched out.
    start: u64,
    /// Everything before this is in the store.
    flushed: u64,
    /// The agent's count of truncations.
    segment: u32,
}

impl LogRing {
    /// Nothing is known yet. `room`: how many bytes may stay; `None`: all.
    pub fn new(room: Option<LogLimits>, now_ms: u64) -> Self {
        Self {
            room,
            files: BTreeMap::new(),
            copied: BTreeMap::new(),
            over: BTreeMap::new(),
            looked_at: now_ms,
            due: now_ms,
            latest: None,
            is_failing: false,
            opening: BTreeMap::new(),
            opened: BTreeMap::new(),
        }
    }

    /// Notes how far these files are uploaded.
    pub fn flushed(&mut self, files: &[FlushedLog], now_ms: u64) {
        for file in files {
            let key = (file.number, file.rank, file.stream);
            if self.over.get(&file.number) == Some(&true) && !self.files.contains_key(&key) {
                continue;
            }
            let known = self.files.entry(key).or_default();
            if file.segment > known.segment {
                *known = LogFile { segment: file.segment, end: known.end, ..LogFile::default() };
            }
            // A restarted agent may know less, but uploaded bytes stay uploaded.
            known.flushed = known.flushed.max(file.bytes);
        }
        self.due = now_ms;
    }

    /// Keeps what was not copied yet, as if it were not uploaded.
    pub fn hold(&mut self, copied: BTreeMap<LogKey, u64>) {
        self.copied = copied;
    }

    /// No process of this launch is left: its files no longer change, and are looked at once more.
    pub fn over(&mut self, number: u32) {
        self.over.entry(number).or_insert(false);
    }

    /// Processes write under this number again, so its files are looked at again.
    pub fn not_over(&mut self, number: u32) {
        self.over.remove(&number);
    }

    /// When to look next, in milliseconds of the clock passed to `look`.
    pub fn due(&self) -> Option<u64> {
        self.room.map(|_| self.due)
    }

    /// Looks at the files and punches holes, if it is time.
    pub fn look(&mut self, dir: &ShimDir, now_ms: u64) {
        let Some(room) = self.room.filter(|_| self.due <= now_ms) else { return };
        let grown = self.read_lengths(dir);
        self.take_opened();
        let (mut failed, mut steps) = (None, STEPS_PER_LOOK);
        let mut planned = plan(&self.held(), room);
        let behind = planned.partition_point(|(key, _)| Some(*key) <= self.latest);
        planned.rotate_left(behind);
        for (key, to) in planned {
            if steps == 0 {
                break;
            }
            self.latest = Some(key);
            let from = self.files[&key].start;
            let path = dir.log(key.0, key.1, key.2);
            match self.punch(key, &path, (from, to), &mut steps) {
                Ok(reached) => drop(self.files.entry(key).and_modify(|f| f.start = reached)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.open_leased(key, path),
                Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
                    log_line(&format!("log files cannot be punched here, so they only grow: {error}"));
                    self.room = None;
                    return;
                }
                // Its owner has removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => drop(self.files.remove(&key)),
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = &failed
            && !self.is_failing
        {
            log_line(&format!("a log file cannot be punched now, so it grows; the shim tries again: {error}"));
        }
        self.is_failing = failed.is_some();
        // At the present rate, files grow by at most half the ring until the next look, if `LOOK_INTERVAL_MS` permits.
        let since_ms = now_ms.saturating_sub(self.looked_at).max(1);
        let wait = (room.ring_bytes / 2).saturating_mul(since_ms) / grown.max(1);
        self.looked_at = now_ms;
        let wait = if steps == 0 { LOOK_INTERVAL_MS.0 } else { wait.clamp(LOOK_INTERVAL_MS.0, LOOK_INTERVAL_MS.1) };
        self.due = now_ms + wait;
    }

    fn punch(&self, key: LogKey, path: &Path, (from, to): (u64, u64), steps: &mut u32) -> io::Result<u64> {
        match self.opened.get(&key) {
            Some(file) if is_at(file, path)? => punch(file, from, to, steps),
            Some(_) | None => punch(&open(path)?, from, to, steps),
        }
    }

    /// Has a thread open the file, which waits for its lease to end.
    fn open_leased(&mut self, key: LogKey, path: PathBuf) {
        if self.opening.len() >= OPENINGS_MAX || self.opening.contains_key(&key) {
            return;
        }
        let (send, opened) = sync_channel(1);
        // It ends with the shim, which does not wait for it.
        let begun = thread::Builder::new().name("leased-log".to_owned()).stack_size(STACK_BYTES).spawn(move || {
            // Signals are for the shim's loop.
            let _ = SigSet::all().thread_block();
            if let Ok(file) = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(path) {
                let _ = send.send(file);
            }
        });
        if begun.is_ok() {
            self.opening.insert(key, opened);
        }
    }

    fn take_opened(&mut self) {
        // Without a process that writes, a file is punched once more at most: it need not stay open.
        self.opened.retain(|key, _| self.files.contains_key(key) && self.over.get(&key.0) != Some(&true));
        self.opening.retain(|key, opened| match opened.try_recv() {
            Ok(file) => {
                self.opened.insert(*key, file);
                false
            }
            Err(TryRecvError::Empty) => true,
            // It could not be opened.
            Err(TryRecvError::Disconnected) => false,
        });
    }

    /// The files, as far as they may be punched.
    fn held(&self) -> Cow<'_, BTreeMap<LogKey, LogFile>> {
        if self.copied.is_empty() {
            return Cow::Borrowed(&self.files);
        }
        let mut files = self.files.clone();
        for (key, copied) in &self.copied {
            if let Some(file) = files.get_mut(key) {
                file.flushed = file.flushed.min(*copied);
            }
        }
        Cow::Owned(files)
    }

    /// Reads the lengths of the files; returns how many bytes were added since the last look.
    fn read_lengths(&mut self, dir: &ShimDir) -> u64 {
        let mut grown: u64 = 0;
        let Ok(launches) = fs::read_dir(dir.logs()) else { return 0 };
        for launch in launches.flatten() {
            let Some(number) = launch.file_name().to_str().and_then(|n| n.parse().ok()) else { continue };
            match self.over.get_mut(&number) {
                Some(true) => {}
                Some(looked) => {
                    *looked = true;
                    grown = grown.saturating_add(self.read_lengths_of(number, &launch.path()));
                    // There may be millions of files, most of them short; those of one block are never punched.
                    self.files.retain(|key, file| key.0 != number || file.end > BLOCK_BYTES);
                }
                None => grown = grown.saturating_add(self.read_lengths_of(number, &launch.path())),
            }
        }
        grown
    }

    fn read_lengths_of(&mut self, number: u32, logs: &Path) -> u64 {
        let mut grown: u64 = 0;
        let Ok(entries) = fs::read_dir(logs) else { return 0 };
        for entry in entries.flatten() {
            let (Some((rank, stream)), Ok(metadata)) = (entry.file_name().to_str().and_then(parse), entry.metadata()) else { continue };
            let file = self.files.entry((number, rank, stream)).or_default();
            if metadata.len() < file.end {
                // Its program truncated it: all present bytes are new.
                *file = LogFile { segment: file.segment, ..LogFile::default() };
            }
            grown = grown.saturating_add(metadata.len() - file.end);
            file.end = metadata.len();
        }
        grown
    }
}

fn parse(name: &str) -> Option<(u32, LogStream)> {
    let (rank, suffix) = name.split_once('.')?;
    let stream = [LogStream::Out, LogStream::Err].into_iter().find(|s| s.suffix() == suffix)?;
    Some((rank.parse().ok()?, stream))
}

/// The position up to which each oversized file is punched.
fn plan(files: &BTreeMap<LogKey, LogFile>, room: LogLimits) -> Vec<(LogKey, u64)> {
    let mut sizes: Vec<u64> = files.values().map(|f| f.end - f.start).collect();
    let size_max = file_bytes_max(&mut sizes, room.ring_bytes);
    let mut starts: BTreeMap<LogKey, u64> = BTreeMap::new();
    for (key, file) in files {
        let goes = file.end.saturating_sub(size_max).min(file.flushed);
        starts.insert(*key, file.start.max(goes / BLOCK_BYTES * BLOCK_BYTES));
    }
    let mut sizes: Vec<u64> = files.iter().map(|(key, file)| file.end - starts[key]).collect();
    let size_max = file_bytes_max(&mut sizes, room.spool_bytes_max);
    let too_long = files.iter().filter_map(|(key, file)| {
        let to = starts[key].max(file.end.saturating_sub(size_max) / BLOCK_BYTES * BLOCK_BYTES);
        (to > file.start).then_some((*key, to))
    });
    too_long.collect()
}

/// The most bytes that each file may keep so that all together keep at most `most`. Long files share what short ones
/// leave.
fn file_bytes_max(sizes: &mut [u64], most: u64) -> u64 {
    sizes.sort_unstable();
    let (mut left, mut count) = (most, sizes.len() as u64);
    for size in sizes {
        if *size > left / count {
            // The end of a file is never punched: by these bytes the agent sees that the file only grew.
            return (left / count).max(BLOCK_BYTES);
        }
        left -= *size;
        count -= 1;
    }
    u64::MAX
}

/// Opens a log file without waiting for a lease.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path)
}

/// Whether the path still names this file: a task that runs again has another one under its name.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let [open, named] = [file.metadata()?, fs::symlink_metadata(path)?];
    Ok((open.dev(), open.ino()) == (named.dev(), named.ino()))
}

/// Punches a file from `from` up to `to` in at most `steps` steps, and subtracts them. Returns how far it came.
fn punch(file: &File, mut from: u64, to: u64, steps: &mut u32) -> io::Result<u64> {
    let offset = |at: u64| libc::off_t::try_from(at).map_err(io::Error::other);
    while from < to && *steps > 0 {
        *steps -= 1;
        let data = match lseek(file, offset(from)?, Whence::SeekData) {
            Ok(data) => u64::try_from(data).map_err(io::Error::other)? / BLOCK_BYTES * BLOCK_BYTES,
            Err(Errno::ENXIO) => to,
            // Holes cannot be found here.
            Err(_) => from,
        };
        // What holds no data may still be allocated.
        let next = to.min(if data > from { data } else { from.saturating_add(STEP_BYTES) });
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(file, flags, offset(from)?, offset(next - from)?)?;
        from = next;
    }
    Ok(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: LogLimits = LogLimits { ring_bytes: 100 * BLOCK_BYTES, spool_bytes_max: 1000 * BLOCK_BYTES };

    fn planned(files: &[(u64, u64, u64)]) -> Vec<(u32, u64)> {
        let file = |&(start, flushed, end): &(u64, u64, u64)| LogFile {
            start: start * BLOCK_BYTES,
            flushed: flushed * BLOCK_BYTES,
            end: end * BLOCK_BYTES,
            segment: 0,
        };
        let files = (0..).zip(files).map(|(rank, f)| ((1, rank, LogStream::Out), file(f))).collect();
        plan(&files, ROOM).into_iter().map(|((_, rank, _), to)| (rank, to / BLOCK_BYTES)).collect()
    }

    #[test]
    fn flushed_bytes_stay_up_to_the_ring_and_unflushed_ones_up_to_the_spool_limit() {
        assert_eq!(planned(&[(0, 100, 100)]), []);
        assert_eq!(planned(&[(0, 500, 600)]), [(0, 500)]);
        assert_eq!(planned(&[(0, 600, 600)]), [(0, 500)]);
        assert_eq!(planned(&[(500, 600, 600)]), []);
        assert_eq!(planned(&[(0, 0, 1000)]), [], "the store is away");
        assert_eq!(planned(&[(0, 50, 1001)]), [(0, 50)]);
        assert_eq!(planned(&[(0, 0, 1001)]), [(0, 1)], "the oldest goes");
        assert_eq!(planned(&[(1, 0, 5001)]), [(0, 4001)]);
    }

    #[test]
    fn long_files_are_punched_and_short_ones_are_not() {
        assert_eq!(planned(&[(0, 10, 10), (0, 200, 200), (0, 500, 500)]), [(1, 155), (2, 455)]);
        assert_eq!(planned(&[(0, 0, 900), (0, 0, 90), (0, 0, 300)]), [(0, 290)]);
    }

    #[test]
    fn files_are_punched_and_a_truncated_one_begins_anew() {
        let dir = ShimDir(std::env::temp_dir().join(format!("lattice-ring-{}", std::process::id())));
        let _ = fs::remove_dir_all(&dir.0);
        fs::create_dir_all(dir.launch_logs(1)).unwrap();
        let path = dir.log(1, 0, LogStream::Out);
        fs::write(&path, vec![b'x'; 300 * BLOCK_BYTES as usize]).unwrap();
        let mut ring = LogRing::new(Some(ROOM), 0);
        ring.look(&dir, 0);
        assert!(ring.due().is_some_and(|due| due > 0) && blocks(&path) >= 300);
        let flushed = |blocks: u64| FlushedLog { number: 1, rank: 0, stream: LogStream::Out, segment: 0, bytes: blocks * BLOCK_BYTES };
        ring.flushed(&[flushed(150)], 50);
        assert_eq!(ring.due(), Some(50));
        ring.look(&dir, 50);
        assert_eq!((blocks(&path), fs::metadata(&path).unwrap().len()), (150, 300 * BLOCK_BYTES));
        fs::write(&path, vec![b'y'; 120 * BLOCK_BYTES as usize]).unwrap();
        ring.look(&dir, 5000);
        assert!(blocks(&path) >= 120, "nothing of what is new is flushed");
        ring.over(1);
        ring.look(&dir, 10_000);
        fs::write(dir.log(1, 1, LogStream::Out), "x").unwrap();
        ring.look(&dir, 20_000);
        assert_eq!(ring.files.len(), 1, "it was over before");
        let mut unbounded = LogRing::new(None, 0);
        unbounded.look(&dir, 0);
        assert_eq!(unbounded.due(), None);
        fs::remove_dir_all(&dir.0).unwrap();
    }

    #[test]
    fn short_files_are_forgotten_when_their_launch_is_over() {
        with_logs(&std::env::temp_dir(), "short", |dir| {
            for (rank, bytes) in [(0, BLOCK_BYTES), (1, BLOCK_BYTES + 1), (2, 1)] {
                fs::write(dir.log(1, rank, LogStream::Out), vec![b'x'; bytes as usize]).unwrap();
            }
            let mut ring = LogRing::new(Some(ROOM), 0);
            ring.look(dir, 0);
            assert_eq!(ring.files.len(), 3);
            ring.over(1);
            ring.look(dir, 10_000);
            let left = |ring: &LogRing| ring.files.keys().map(|key| key.1).collect::<Vec<_>>();
            assert_eq!(left(&ring), [1]);
            let flushed = |rank| FlushedLog { number: 1, rank, stream: LogStream::Out, segment: 0, bytes: 1 };
            ring.flushed(&[flushed(0), flushed(1), flushed(2)], 10_001);
            assert_eq!(left(&ring), [1]);
        });
    }

    fn blocks(path: &Path) -> u64 {
        std::os::unix::fs::MetadataExt::blocks(&fs::metadata(path).unwrap()) * 512 / BLOCK_BYTES
    }

    fn with_logs(base: &Path, name: &str, test: impl FnOnce(&ShimDir)) {
        let dir = ShimDir(base.join(format!("lattice-ring-{name}-{}", std::process::id())));
        let _ = fs::remove_dir_all(&dir.0);
        fs::create_dir_all(dir.launch_logs(1)).unwrap();
        test(&dir);
        fs::remove_dir_all(&dir.0).unwrap();
    }

    #[test]
    fn a_sparse_file_of_any_length_takes_a_few_steps() {
        use std::os::unix::fs::FileExt;
        const TIB: u64 = 1 << 40;
        with_logs(&std::env::temp_dir(), "sparse", |dir| {
            let path = dir.log(1, 0, LogStream::Out);
            let file = fs::File::create(&path).unwrap();
            file.set_len(15 * TIB).unwrap();
            for at in [0, TIB, 7 * TIB] {
                file.write_all_at(b"x", at).unwrap();
            }
            let mut steps = STEPS_PER_LOOK;
            assert_eq!(punch(&open(&path).unwrap(), 0, TIB + BLOCK_BYTES, &mut steps).unwrap(), TIB + BLOCK_BYTES);
            assert!(steps >= STEPS_PER_LOOK - 3, "{steps}");
            let mut ring = LogRing::new(Some(ROOM), 0);
            ring.look(dir, 0);
            assert_eq!(blocks(&path), 0);
            assert_eq!(ring.files[&(1, 0, LogStream::Out)].start, 15 * TIB - ROOM.spool_bytes_max);
        });
    }

    #[test]
    fn one_look_has_a_limit_and_the_next_begins_with_another_file() {
        use std::os::unix::fs::FileExt;
        with_logs(&std::env::temp_dir(), "steps", |dir| {
            let fragments = 2 * u64::from(STEPS_PER_LOOK);
            for rank in [0, 1] {
                let file = fs::File::create(dir.log(1, rank, LogStream::Out)).unwrap();
                file.set_len(2 * fragments * STEP_BYTES).unwrap();
                for n in 0..fragments {
                    file.write_all_at(b"x", 2 * n * STEP_BYTES).unwrap();
                }
            }
            let mut ring = LogRing::new(Some(ROOM), 0);
            let started = |ring: &LogRing| [0, 1].map(|rank| ring.files[&(1, rank, LogStream::Out)].start);
            ring.look(dir, 0);
            let first = started(&ring);
            assert!(first[0] > 0 && first[1] == 0, "{first:?}");
            assert_eq!(ring.due(), Some(LOOK_INTERVAL_MS.0));
            ring.look(dir, LOOK_INTERVAL_MS.0);
            let second = started(&ring);
            assert_eq!(second[0], first[0]);
            assert!(second[1] > 0);
            (2..20).for_each(|n| ring.look(dir, n * LOOK_INTERVAL_MS.1));
            assert_eq!(started(&ring), [2 * fragments * STEP_BYTES - ROOM.spool_bytes_max / 2; 2]);
        });
    }

    #[test]
    fn lengths_that_no_sum_can_hold_are_handled() {
        // tmpfs permits the longest files.
        with_logs(Path::new("/dev/shm"), "longest", |dir| {
            for rank in 0..4 {
                fs::File::create(dir.log(1, rank, LogStream::Out)).unwrap().set_len(i64::MAX.cast_unsigned()).unwrap();
            }
            let mut ring = LogRing::new(Some(ROOM), 0);
            assert_eq!(ring.read_lengths(dir), u64::MAX);
            ring.look(dir, 0);
            assert!(!ring.is_failing && ring.files.values().all(|f| f.end - f.start < ROOM.spool_bytes_max));
        });
    }

    /// A lease on a file (`F_SETLEASE`), of this process.
    fn lease(file: &File, kind: i32) -> Result<i32, Errno> {
        // The lease's signal ends a process that does not want it.
        let ignored = nix::sys::signal::SigHandler::SigIgn;
        // SAFETY: nothing else in this process uses SIGIO.
        unsafe { nix::sys::signal::signal(nix::sys::signal::Signal::SIGIO, ignored) }.unwrap();
        // SAFETY: three integers.
        Errno::result(unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(file), libc::F_SETLEASE, kind) })
    }

    #[test]
    fn a_lease_on_a_log_file_makes_nobody_wait() {
        with_logs(&std::env::temp_dir(), "lease", |dir| {
            let path = dir.log(1, 0, LogStream::Err);
            let file = OpenOptions::new().create_new(true).write(true).open(&path).unwrap();
            file.set_len(1 << 30).unwrap();
            lease(&file, libc::F_WRLCK).unwrap();
            assert_eq!(open(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            crate::log_files::append_error(dir, 1, 0, "why");
            lease(&file, libc::F_UNLCK).unwrap();
            assert_eq!(punch(&open(&path).unwrap(), 0, 1 << 20, &mut STEPS_PER_LOOK.clone()).unwrap(), 1 << 20);
        });
    }

    #[test]
    fn a_lease_that_is_taken_again_and_again_lets_no_log_grow_beyond_its_limit() {
        with_logs(&std::env::temp_dir(), "leases", |dir| {
            let path = dir.log(1, 0, LogStream::Out);
            fs::write(&path, vec![b'x'; 1100 * BLOCK_BYTES as usize]).unwrap();
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            lease(&file, libc::F_WRLCK).unwrap();
            let mut ring = LogRing::new(Some(ROOM), 0);
            ring.look(dir, 0);
            assert!(ring.opening.len() == 1 && blocks(&path) >= 1100);
            // The thread's open makes the program give it up. (Until the thread has come so far, the program gets it again.)
            let begun = std::time::Instant::now();
            while ring.opened.is_empty() {
                let _ended = lease(&file, libc::F_UNLCK);
                let _again = lease(&file, libc::F_WRLCK);
                ring.take_opened();
                assert!(begun.elapsed() < std::time::Duration::from_secs(60), "the file was not opened");
                thread::yield_now();
            }
            assert_eq!(lease(&file, libc::F_WRLCK), Err(Errno::EAGAIN), "another process has it open for writing");
            ring.look(dir, 10_000);
            assert_eq!(blocks(&path), 1000);
            // Its task runs again, with a new file under the old name.
            let next = dir.0.join("next");
            fs::write(&next, vec![b'y'; 1100 * BLOCK_BYTES as usize]).unwrap();
            fs::rename(&next, &path).unwrap();
            ring.files.clear();
            ring.look(dir, 20_000);
            assert_eq!(blocks(&path), 1000);
            ring.over(1);
            ring.look(dir, 30_000);
            assert!(ring.opened.is_empty(), "nobody writes to it any more");
        });
    }
}
