//! Handling of a full disk under a member's data directory.
//!
//! ```text
//!   reserve complete, and as much again is free   everything is accepted
//!   less than that                                only commands that end work or keep nodes in contact
//!   more than half of the reserve is used         nothing: the rest is for entries that are already committed
//!   all of it is used                             pending writes wait for free space
//! ```
//!
//! The reserve is a file of allocated, empty blocks. A write that finds no space gets a piece of it
//! and is repeated. Once there is free space again, the reserve is refilled, and everything is
//! accepted as before. openraft stops for ever at the first disk error, so it never sees an error
//! caused by a full disk.

use super::StoreError;
use lattice_ledger::shortage::{RefusedCommands, Shortage};
use lattice_model::with_causes;
use nix::fcntl::posix_fallocate;
use parking_lot::{Mutex, MutexGuard};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// The reserve's file name in the directory.
pub const RESERVE_FILE: &str = "reserve";
/// Size of the piece that is released for one failed write, in bytes.
const PIECE_BYTES: u64 = 1024 * 1024;
/// Pause between two attempts to write on a full disk.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Pause before a snapshot that found no space is tried again.
const SNAPSHOT_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How often the free space is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The free space and the reserve. Clones share it.
#[derive(Clone, Debug)]
pub struct DiskReserve(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    /// The intended size of the reserve, in bytes.
    whole: u64,
    reserve: Mutex<Option<File>>,
    shortage: watch::Sender<Option<Shortage>>,
    stop: CancellationToken,
}

impl DiskReserve {
    /// For the disk of `dir`, with a reserve of this many bytes; with 0 there is no reserve and
    /// never a shortage. Waiting operations give up at `stop`.
    pub fn open(dir: &Path, whole: u64, stop: CancellationToken) -> Result<Self, StoreError> {
        let this =
            Self(Arc::new(Inner { dir: dir.to_owned(), whole, reserve: Mutex::new(None), shortage: watch::Sender::new(None), stop }));
        if let Err(error) = this.fill()
            && !error.is_full()
        {
            return Err(error);
        }
        this.check_shortage();
        Ok(this)
    }

    fn lock_file(&self) -> MutexGuard<'_, Option<File>> {
        self.0.reserve.lock()
    }

    /// Free bytes. A file system that does not report them counts as having enough.
    fn free(&self) -> u64 {
        nix::sys::statvfs::statvfs(&self.0.dir).map_or(u64::MAX, |s| s.blocks_available().saturating_mul(s.fragment_size()))
    }

    /// The current shortage, if any.
    pub fn check_shortage(&self) -> Option<Shortage> {
        let reserve = allocated(&mut self.lock_file());
        let free_bytes = self.free();
        let mut now = None;
        self.0.shortage.send_if_modified(|was| {
            let (refuses, wanted_bytes) = assess(free_bytes, reserve, self.0.whole, was.is_some());
            now = refuses.map(|refuses| Shortage { dir: self.0.dir.display().to_string(), free_bytes, wanted_bytes, refuses });
            let refused = was.as_ref().map(|was| was.refuses);
            match &now {
                Some(now) if refused != Some(now.refuses) => {
                    tracing::error!(reserve, "{now}. Running work continues; free some space there");
                }
                None if refused.is_some() => tracing::info!(free_bytes, "the disk has enough free space again"),
                Some(_) | None => {}
            }
            std::mem::replace(was, now.clone()) != *was
        });
        now
    }

    /// Refills the reserve if enough other space stays free.
    fn fill(&self) -> Result<(), StoreError> {
        let (path, whole) = (self.0.dir.join(RESERVE_FILE), self.0.whole);
        let mut reserve = self.lock_file();
        if whole == 0 {
            return Ok(());
        }
        let file = match &mut *reserve {
            Some(file) => file,
            none => {
                let options = File::options().create(true).truncate(false).read(true).write(true).open(&path);
                none.insert(options.map_err(StoreError::io(&path, "cannot be made"))?)
            }
        };
        let length = file.metadata().map_err(StoreError::io(&path, "cannot be read"))?.len();
        if length > whole {
            file.set_len(whole).map_err(StoreError::io(&path, "cannot be cut"))?;
        }
        let there = allocated(&mut reserve);
        let (Some(file), Ok(length)) = (&*reserve, i64::try_from(whole)) else { return Ok(()) };
        if there >= whole || self.free() < wanted_free_bytes(there, whole, true) {
            return Ok(());
        }
        posix_fallocate(file, 0, length).map_err(|e| StoreError::io(&path, "its space cannot be allocated")(e.into()))
    }

    /// Releases a piece of the reserve to the disk. Returns false if nothing of it is left, or if it
    /// cannot be released.
    fn release_piece(&self) -> bool {
        let is_released = {
            let mut reserve = self.lock_file();
            let left = allocated(&mut reserve);
            let cut = |file: &File| file.set_len(left.saturating_sub(PIECE_BYTES));
            left > 0
                && reserve.as_ref().is_some_and(|file| {
                    cut(file).inspect_err(|error| tracing::error!(%error, "the reserve on the disk cannot be released")).is_ok()
                })
        };
        self.check_shortage();
        is_released
    }

    /// Runs `work`, and while the disk is full, releases a piece of the reserve and runs it again.
    /// Blocks on the disk.
    pub fn with_reserve<T>(&self, mut work: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
        loop {
            match work() {
                Err(error) if error.is_full() && self.release_piece() => {}
                done => return done,
            }
        }
    }

    /// As [`Self::with_reserve`], and then repeats with pauses until there is space. Blocks: for a
    /// dedicated thread.
    pub fn retry_until_written<T>(&self, what: &str, mut work: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
        let mut waits = false;
        loop {
            match self.with_reserve(&mut work) {
                Err(error) if error.is_full() && !self.0.stop.is_cancelled() => {
                    if !std::mem::replace(&mut waits, true) {
                        tracing::error!(error = %with_causes(&error), "{what} waits for free space on the disk");
                    }
                    std::thread::sleep(RETRY_INTERVAL);
                }
                done => {
                    if waits && done.is_ok() {
                        tracing::info!("{what} continues");
                    }
                    return done;
                }
            }
        }
    }

    /// Waits until a failed operation may be repeated. Returns its error if the cause is not a full
    /// disk, or if the member stops.
    pub async fn wait_to_retry(&self, error: StoreError) -> Result<(), StoreError> {
        if !error.is_full() {
            return Err(error);
        }
        if self.release_piece() {
            return Ok(());
        }
        tokio::select! {
            () = self.0.stop.cancelled() => Err(error),
            () = tokio::time::sleep(RETRY_INTERVAL) => Ok(()),
        }
    }

    /// Returns when there is no shortage.
    pub async fn wait_for_space(&self) -> Result<(), StoreError> {
        let mut shortage = self.0.shortage.subscribe();
        tokio::select! {
            () = self.0.stop.cancelled() => Err(StoreError::Stopping),
            ended = shortage.wait_for(Option::is_none) => ended.map(drop).map_err(|_| StoreError::Stopping),
        }
    }

    /// Returns after a pause, and then only when there is no shortage: the failed operation may
    /// need more than is free now.
    pub async fn pause_for_space(&self) -> Result<(), StoreError> {
        tokio::select! {
            () = self.0.stop.cancelled() => return Err(StoreError::Stopping),
            () = tokio::time::sleep(SNAPSHOT_RETRY_INTERVAL) => {}
        }
        self.wait_for_space().await
    }

    /// Monitors the free space until the member stops.
    pub async fn monitor(self) {
        let mut tick = tokio::time::interval(CHECK_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failed = false;
        loop {
            tokio::select! {
                () = self.0.stop.cancelled() => return,
                _ = tick.tick() => {}
            }
            let this = self.clone();
            let filled = tokio::task::spawn_blocking(move || {
                let filled = this.fill();
                this.check_shortage();
                filled
            });
            match filled.await {
                // The shortage is detected and reported separately.
                Ok(Err(error)) if error.is_full() => {}
                Ok(Err(error)) if !failed => {
                    failed = true;
                    tracing::error!(error = %with_causes(&error), "the reserve on the disk cannot be filled");
                }
                Ok(Ok(())) => failed = false,
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }
}

/// The allocated bytes of the reserve. If somebody removed the file, its handle is dropped so that
/// its blocks become free.
fn allocated(reserve: &mut Option<File>) -> u64 {
    let metadata = reserve.as_ref().and_then(|file| file.metadata().ok());
    match metadata {
        Some(metadata) if metadata.nlink() > 0 => metadata.len().min(metadata.blocks().saturating_mul(512)),
        Some(_) | None => {
            *reserve = None;
            0
        }
    }
}

/// Required free bytes: enough to refill the reserve, and its size again. A quarter more after a
/// shortage, to avoid oscillation.
fn wanted_free_bytes(reserve: u64, whole: u64, was_short: bool) -> u64 {
    let more = if was_short { whole / 4 } else { 0 };
    whole.saturating_sub(reserve).saturating_add(whole).saturating_add(more)
}

/// The commands to refuse, and the number of bytes that must be free.
fn assess(free: u64, reserve: u64, whole: u64, was_short: bool) -> (Option<RefusedCommands>, u64) {
    let wanted_bytes = wanted_free_bytes(reserve, whole, was_short);
    let refuses = if reserve < whole / 2 {
        Some(RefusedCommands::All)
    } else if reserve < whole || free < wanted_bytes {
        Some(RefusedCommands::New)
    } else {
        None
    };
    (refuses, wanted_bytes)
}

impl StoreError {
    /// Whether the disk was full, so that the same operation may be repeated.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Io { source, .. } if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortage_depends_on_the_free_space_and_on_the_reserve() {
        let refuses = |free, reserve, was_short| assess(free, reserve, 100, was_short).0;
        assert_eq!(refuses(100, 100, false), None);
        assert_eq!(refuses(99, 100, false), Some(RefusedCommands::New));
        assert_eq!(refuses(124, 100, true), Some(RefusedCommands::New), "not at the first byte");
        assert_eq!(refuses(125, 100, true), None);
        assert_eq!(refuses(u64::MAX, 99, false), Some(RefusedCommands::New), "the reserve is filled first");
        assert_eq!(refuses(0, 50, false), Some(RefusedCommands::New));
        assert_eq!(refuses(u64::MAX, 49, false), Some(RefusedCommands::All), "a quota ends before the disk does");
        assert_eq!(assess(0, 40, 100, true).1, 60 + 100 + 25);
        assert_eq!(assess(0, 0, 0, false).0, None, "none is wanted");
    }

    #[test]
    fn a_piece_is_released_for_each_attempt_and_the_reserve_is_refilled() {
        let dir = std::env::temp_dir().join(format!("lattice-reserve-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let stop = CancellationToken::new();
        let reserve = DiskReserve::open(&dir, 3 * PIECE_BYTES, stop.clone()).unwrap();
        assert_eq!((reserve.check_shortage(), allocated(&mut reserve.lock_file())), (None, 3 * PIECE_BYTES));
        let full = || StoreError::io(Path::new("f"), "cannot be written")(io::ErrorKind::StorageFull.into());
        let mut tries = 0;
        let done = reserve.with_reserve(|| {
            tries += 1;
            if tries < 3 { Err(full()) } else { Ok(allocated(&mut reserve.lock_file())) }
        });
        assert_eq!((done.unwrap(), tries), (PIECE_BYTES, 3));
        assert_eq!(reserve.check_shortage().map(|s| s.refuses), Some(RefusedCommands::All));
        // The reserve is used up: callers that cannot wait get the error now, and others when the
        // member stops.
        assert!(reserve.with_reserve(|| Err::<(), _>(full())).unwrap_err().is_full());
        stop.cancel();
        assert!(reserve.retry_until_written("it", || Err::<(), _>(full())).unwrap_err().is_full());
        // A failed sync is not repeated.
        let mut tries = 0;
        let unsynced = |source| StoreError::Unsynced { path: "f".into(), source };
        let once = reserve.with_reserve(|| {
            tries += 1;
            Err::<(), _>(unsynced(io::ErrorKind::StorageFull.into()))
        });
        assert!(once.is_err() && tries == 1);

        std::fs::remove_file(dir.join(RESERVE_FILE)).unwrap();
        assert_eq!(reserve.check_shortage().map(|s| s.refuses), Some(RefusedCommands::All));
        reserve.fill().unwrap();
        assert_eq!((reserve.check_shortage(), allocated(&mut reserve.lock_file())), (None, 3 * PIECE_BYTES));
        drop(reserve);
        let smaller = DiskReserve::open(&dir, PIECE_BYTES, stop).unwrap();
        assert_eq!(allocated(&mut smaller.lock_file()), PIECE_BYTES);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
