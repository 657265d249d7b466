//! The task of an allocation's output: looks at the files, cuts chunks, stores them, records that,
//! and reports it to the shim.

use super::rounds::Rounds;
use super::{Piece, Spool, read, record, trim};
use crate::log_store::{LogStore, StoreError};
use crate::output_index::{Cut, Position, Seen, StreamIndex};
use crate::steps;
use futures::future::BoxFuture;
use lattice_model::Backoff;
use lattice_runtime::failpoint::{self, Point};
use lattice_runtime::shim::{FlushedLog, LogStream};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Interval of looks at files that grow.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of looks at files that do not grow.
pub(super) const IDLE_LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Looking takes at most one part in this many of the time.
const LOOK_PAUSE_TIMES: u32 = 50;
/// Looks without growth after which looks become rarer.
const IDLE_LOOKS: u32 = 10;
/// Backoff while the store is unreachable.
const STORE_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// Compression level: output is mostly text, and the cores belong to the work.
const ZSTD_LEVEL: i32 = 1;

/// Shared by the tasks of all allocations.
pub(super) struct Inner {
    pub(super) store: Option<LogStore>,
    pub(super) settings: Settings,
    pub(super) puts: Semaphore,
    pub(super) rounds: Arc<Rounds>,
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
    pub(super) live: Mutex<HashMap<PathBuf, Arc<Spool>>>,
    /// Since when the store does not answer, and its last error.
    pub(super) unreachable_since: Mutex<Option<(Instant, String)>>,
}

/// Passes on how far files are flushed. `false`: nobody is left to pass it to.
pub type ReportFlushed = Box<dyn Fn(Vec<FlushedLog>) -> BoxFuture<'static, bool> + Send + Sync>;

/// Settings of output.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The agent's state folder, which holds the allocations' directories.
    pub state_dir: PathBuf,
    /// How long output may wait before it is stored.
    pub flush: Duration,
    /// Bytes that the logs of ended allocations may take.
    pub bytes_max: u64,
}

/// Why a round failed.
enum Halt {
    /// The files are gone: those of an allocation without output are removed, old ones are trimmed.
    Gone,
    Store(StoreError),
    Disk(io::Error),
}

/// Time until the next look.
enum Wait {
    For(Duration),
    /// Until the common look at all files that do not grow.
    Round,
}

impl Inner {
    pub(super) async fn run_spool(self: Arc<Self>, spool: Arc<Spool>, report: Option<ReportFlushed>, adopted: bool) {
        let stop = self.stop.clone();
        let worked = stop.run_until_cancelled(self.work(&spool, report, adopted)).await;
        if worked.is_none() {
            // The agent stops: save the times that are known.
            let _ = spool.save_record().await;
        }
        self.live.lock().remove(&spool.dir.0);
        if worked.is_some() {
            // This allocation may have been all that exceeded the limit.
            let _ = tokio::task::spawn_blocking(move || self.trim()).await;
        }
    }

    async fn work(&self, spool: &Arc<Spool>, report: Option<ReportFlushed>, mut adopted: bool) {
        let (mut flushed_at, mut idle, mut retry) = (Instant::now(), 0u32, None);
        let (mut known, mut behind, mut reported) = (0u64, true, Vec::new());
        let mut wait = Wait::For(LOOK_INTERVAL.min(self.settings.flush));
        loop {
            // Most work is short: it is looked at only when it has ended.
            let mut ended = spool.ended.is_cancelled();
            let mut looked = None;
            match wait {
                Wait::For(time) => tokio::select! {
                    () = spool.ended.cancelled(), if !ended => ended = true,
                    () = tokio::time::sleep(time), if !ended || retry.is_some() => {}
                    else => {}
                },
                Wait::Round => tokio::select! {
                    () = spool.ended.cancelled() => ended = true,
                    by_round = self.rounds.look(spool, &self.tasks, &self.stop) => looked = by_round,
                },
            }
            let by_time = ended || flushed_at.elapsed() >= self.settings.flush;
            let (mut whole, mut look_took) = (true, Duration::ZERO);
            let round = async {
                if adopted && let Some(store) = &self.store {
                    spool.recover(store).await?;
                    adopted = false;
                }
                let (seen, took) = match looked {
                    Some((seen, took)) => (of_look(seen)?, took),
                    None => {
                        let begun = Instant::now();
                        (spool.look_around().await?, begun.elapsed())
                    }
                };
                look_took = took;
                whole = self.flush(spool, &seen, by_time, ended, &mut behind).await?;
                Ok::<_, Halt>(seen)
            };
            wait = match round.await {
                Ok(seen) => {
                    spool.is_leased.store(false, Ordering::Relaxed);
                    self.store_answers(&mut retry);
                    if !behind && let Some(report) = &report {
                        spool.report_flushed(report, &mut reported).await;
                    }
                    if by_time {
                        flushed_at = Instant::now();
                    }
                    let bytes = seen.iter().map(|s| s.bytes).sum();
                    if ended && !whole {
                        Wait::For(retry.insert(STORE_BACKOFF).next_pause())
                    } else if ended {
                        match self.complete(spool).await {
                            Ok(()) | Err(Halt::Gone) => return,
                            Err(halt) => Wait::For(self.halted(spool, &halt, &mut retry)),
                        }
                    } else {
                        idle = if bytes == known { idle.saturating_add(1) } else { 0 };
                        known = bytes;
                        let often = if idle < IDLE_LOOKS { LOOK_INTERVAL } else { IDLE_LOOK_INTERVAL };
                        // Thousands of launches leave thousands of files.
                        let time = often.min(self.settings.flush).max(look_took * LOOK_PAUSE_TIMES);
                        if time == IDLE_LOOK_INTERVAL { Wait::Round } else { Wait::For(time) }
                    }
                }
                Err(Halt::Gone) => {
                    if spool.index().all_put() {
                        // Files that are empty at the end are removed; all of their output was
                        // flushed before.
                        let _ = self.complete(spool).await;
                    }
                    return;
                }
                Err(halt) => Wait::For(self.halted(spool, &halt, &mut retry)),
            };
        }
    }

    /// Stores what is due. Returns whether the files still were as they had been seen. `behind`:
    /// whether the store's index lacks a stored chunk. If the work has `ended`, the index follows
    /// once it is complete.
    async fn flush(&self, spool: &Arc<Spool>, seen: &[Seen], by_time: bool, ended: bool, behind: &mut bool) -> Result<bool, Halt> {
        let Some(store) = &self.store else { return Ok(true) };
        let (mut put, mut whole) = (false, true);
        let mut failed = None;
        'all: for seen in seen {
            loop {
                let Some(cut) = spool.index().cut(seen, by_time) else { break };
                match self.put(store, spool, &cut).await {
                    Ok(true) => put = true,
                    // The file changed meanwhile: the next look finds out how.
                    Ok(false) => {
                        whole = false;
                        break;
                    }
                    Err(error) => {
                        failed = Some(error);
                        break 'all;
                    }
                }
            }
        }
        if put && !ended {
            *behind = true;
            match spool.save_record().await {
                Ok(()) => failpoint::pass(Point::SpoolWritten),
                // If the disk is full, only the store frees space, and its index is enough.
                Err(error) => tracing::debug!(dir = %spool.dir.0.display(), %error, "what was flushed cannot be written down here"),
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        if *behind && !ended && spool.index().streams.iter().any(|s| s.segments.iter().any(|s| !s.chunks.is_empty())) {
            store.put_index(&spool.snapshot()).await.map_err(Halt::Store)?;
            failpoint::pass(Point::IndexPut);
        }
        *behind = false;
        Ok(whole)
    }

    /// Stores one chunk. `false`: the file is no longer as it was seen.
    async fn put(&self, store: &LogStore, spool: &Arc<Spool>, cut: &Cut) -> Result<bool, Halt> {
        let Ok(_permit) = self.puts.acquire().await else { return Ok(false) };
        let (path, chunk) = (spool.path(cut.stream), cut.chunk);
        let compressed = blocking(move || {
            let most = usize::try_from(chunk.end - chunk.start).map_err(io::Error::other)?;
            match read(&path, chunk.start, most)? {
                Piece::Data(data) if data.len() == most => zstd::bulk::compress(&data, ZSTD_LEVEL).map(Some),
                Piece::Data(_) | Piece::Punched => Ok(None),
            }
        });
        let compressed = match compressed.await {
            Ok(Some(compressed)) => compressed,
            Ok(None) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Halt::Gone),
            Err(error) => return Err(Halt::Disk(error)),
        };
        let (place, node) = spool.place();
        store.put_chunk(&place, &node, cut, compressed).await.map_err(Halt::Store)?;
        failpoint::pass(Point::ChunkPut);
        spool.put(cut);
        Ok(true)
    }

    /// Everything is stored, and nothing will follow: marks the output as complete.
    async fn complete(&self, spool: &Arc<Spool>) -> Result<(), Halt> {
        let Some(store) = &self.store else {
            return spool.save_record().await.map_err(Halt::Disk);
        };
        spool.index().complete = true;
        let index = spool.snapshot();
        let finished = async {
            if index.streams.iter().any(|s| s.segments.iter().any(|s| !s.chunks.is_empty())) {
                store.put_index(&index).await.map_err(Halt::Store)?;
                failpoint::pass(Point::LastIndexPut);
            }
            spool.put_steps(store).await?;
            let path = spool.dir.flushed();
            let written = async {
                spool.save_record().await?;
                failpoint::pass(Point::LastSpoolWritten);
                blocking(move || std::fs::write(path, b"")).await?;
                failpoint::pass(Point::FlushedMarked);
                Ok::<(), io::Error>(())
            };
            match written.await {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(dir = %spool.dir.0.display(), %error, "cannot record that all of this output is in the store");
                }
                Ok(()) | Err(_) => {}
            }
            Ok(())
        };
        let finished = finished.await;
        if finished.is_err() {
            spool.index().complete = false;
        }
        finished
    }

    pub(super) fn trim(&self) {
        let Settings { state_dir, bytes_max, .. } = &self.settings;
        // Output on its way into a store that answers can soon be removed without loss. With a lease, its user keeps it
        // from going there.
        let unreachable = self.unreachable_since.lock().is_some();
        let may_go_on = |spool: &Arc<Spool>| !spool.is_leased.load(Ordering::Relaxed);
        let flushing = |path: &Path| !unreachable && self.live.lock().get(path).is_some_and(may_go_on);
        trim::trim(state_dir, *bytes_max, flushing);
    }

    fn store_answers(&self, retry: &mut Option<Backoff>) {
        if retry.take().is_some() && self.unreachable_since.lock().take().is_some() {
            tracing::info!("the log store answers again: output goes on into it");
        }
    }

    /// Logs the problem once; returns how long to wait.
    fn halted(&self, spool: &Spool, halt: &Halt, retry: &mut Option<Backoff>) -> Duration {
        let first = retry.is_none();
        let wait = retry.get_or_insert(STORE_BACKOFF).next_pause();
        let is_leased = matches!(halt, Halt::Disk(error) if error.kind() == io::ErrorKind::WouldBlock);
        spool.is_leased.store(is_leased, Ordering::Relaxed);
        match halt {
            Halt::Gone => {}
            Halt::Store(error) => {
                let mut since = self.unreachable_since.lock();
                if since.is_none() {
                    let url = self.store.as_ref().map_or("", |s| s.url());
                    tracing::warn!(url, error = %lattice_model::with_causes(error), "the log store is unreachable: output stays on this node");
                    *since = Some((Instant::now(), error.to_string()));
                }
            }
            Halt::Disk(error) if first => {
                tracing::warn!(dir = %spool.dir.0.display(), %error, "output cannot be flushed now; it is tried again");
            }
            Halt::Disk(_) => {}
        }
        wait
    }
}

fn of_look(looked: io::Result<Vec<Seen>>) -> Result<Vec<Seen>, Halt> {
    looked.map_err(|error| if error.kind() == io::ErrorKind::NotFound { Halt::Gone } else { Halt::Disk(error) })
}

impl Spool {
    async fn look_around(self: &Arc<Self>) -> Result<Vec<Seen>, Halt> {
        let spool = Arc::clone(self);
        of_look(blocking(move || spool.look(None)).await)
    }

    async fn save_record(self: &Arc<Self>) -> io::Result<()> {
        let spool = Arc::clone(self);
        match blocking(move || record::write(&spool.dir, &spool.snapshot(), record::Sync::Now)).await {
            // The directory of an allocation without output is removed at its end.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            written => written,
        }
    }

    /// Stores the steps, if this is the head and a launch began.
    async fn put_steps(self: &Arc<Self>, store: &LogStore) -> Result<(), Halt> {
        let spool = Arc::clone(self);
        let steps = blocking(move || steps::read(&spool.dir)).await.map_err(Halt::Disk)?;
        if steps.totals().begun == 0 {
            return Ok(());
        }
        store.put_steps(&self.place().0, &steps).await.map_err(Halt::Store)
    }

    /// Takes over what the store knows beyond the record here, which may be damaged or missing
    /// after a full disk.
    async fn recover(&self, store: &LogStore) -> Result<(), Halt> {
        let (place, node) = self.place();
        if let Some(known) = store.index(&place, &node).await.map_err(Halt::Store)? {
            self.index().learn(&known);
        }
        Ok(())
    }

    /// Reports to the shim how far each file is flushed, unless it has been `reported`.
    async fn report_flushed(&self, report: &ReportFlushed, reported: &mut Vec<FlushedLog>) {
        let files: Vec<FlushedLog> = {
            let index = self.index();
            let of = |s: &StreamIndex| {
                let Position { segment, offset } = index.flushed(s.stream)?;
                let stream = if s.stream.stderr { LogStream::Err } else { LogStream::Out };
                (offset > 0).then_some(FlushedLog { number: s.stream.launch, rank: s.stream.rank, stream, segment, bytes: offset })
            };
            index.streams.iter().filter_map(of).collect()
        };
        if files != *reported && report(files.clone()).await {
            *reported = files;
            failpoint::pass(Point::FlushReported);
        }
    }
}

/// Runs work on a blocking thread, because the disk may be slow.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::super::Spools;
    use super::*;
    use lattice_model::{AllocationId, Epoch};
    use lattice_runtime::shim::ShimDir;
    use std::fs;

    #[test]
    fn output_that_a_lease_keeps_from_the_store_does_not_stay_over_the_limit() {
        let top = std::env::temp_dir().join(format!("lattice-flush-leased-{}", std::process::id()));
        let _ = fs::remove_dir_all(&top);
        let settings = Settings { state_dir: top.clone(), flush: IDLE_LOOK_INTERVAL, bytes_max: 0 };
        let spools = Spools::new(None, settings, TaskTracker::new(), CancellationToken::new());
        let [leased, other] = ["leased", "other"].map(|name| {
            let dir = ShimDir(top.join("alloc").join(name));
            fs::create_dir_all(dir.logs()).unwrap();
            fs::write(dir.flushed(), b"").unwrap();
            let spool = spools.of(&dir, AllocationId(uuid::Uuid::nil()), Epoch(1), &"n1".parse().unwrap());
            spools.0.live.lock().insert(dir.0, Arc::clone(&spool));
            spool
        });
        leased.is_leased.store(true, Ordering::Relaxed);
        spools.trim();
        assert_eq!((leased.dir.0.exists(), other.dir.0.exists()), (false, true));
        fs::remove_dir_all(top).unwrap();
    }
}
