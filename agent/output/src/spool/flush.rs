//! The task beside an allocation's output: looks, cuts, puts, writes down, tells.

use super::rounds::Rounds;
use super::{Piece, Spool, read, record, trim};
use crate::log_store::{LogStore, StoreError};
use crate::output_index::{Cut, Position, Seen, StreamIndex};
use futures::future::BoxFuture;
use lattice_model::Backoff;
use lattice_runtime::failpoint::{self, Point};
use lattice_runtime::shim::{FlushedLog, LogStream};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Between two looks at files that grow.
const LOOK: Duration = Duration::from_secs(1);
/// Between two looks at files that do not.
pub(super) const LOOK_IDLE: Duration = Duration::from_secs(5);
/// Looking takes one part in so many of the time.
const LOOKS_SHARE: u32 = 50;
/// Looks without growth after which they become rarer.
const IDLE_LOOKS: u32 = 10;
/// Between two tries while the store is away.
const AWAY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// The level of compression: output is text, mostly, and the cores are the work's.
const ZSTD_LEVEL: i32 = 1;

/// What the tasks of all allocations share.
pub(super) struct Inner {
    pub(super) store: Option<LogStore>,
    pub(super) settings: Settings,
    pub(super) puts: Semaphore,
    pub(super) rounds: Arc<Rounds>,
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
    pub(super) live: Mutex<HashMap<PathBuf, Arc<Spool>>>,
    /// Since when the store does not answer, and what it says.
    pub(super) away: Mutex<Option<(Instant, String)>>,
}

/// Passes on how far files are flushed. `false`: nobody is left who would.
pub type ReportFlushed = Box<dyn Fn(Vec<FlushedLog>) -> BoxFuture<'static, bool> + Send + Sync>;

/// What the configuration says of output.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where allocations lie.
    pub state_dir: PathBuf,
    /// How long output may wait before it is put.
    pub flush: Duration,
    /// Bytes that the logs of ended allocations may take.
    pub bytes_max: u64,
}

/// Why a round came to nothing.
enum Halt {
    /// The files are gone: silent ones are removed, old ones trimmed.
    Gone,
    Store(StoreError),
    Disk(io::Error),
}

/// Until the next look.
enum Wait {
    For(Duration),
    /// Until all are looked at whose files do not grow.
    Round,
}

impl Inner {
    pub(super) async fn look_after(self: Arc<Self>, spool: Arc<Spool>, report: Option<ReportFlushed>, adopted: bool) {
        let stop = self.stop.clone();
        let worked = stop.run_until_cancelled(self.work(&spool, report, adopted)).await;
        if worked.is_none() {
            // The agent stops: what is known of times is worth keeping.
            let _ = spool.write_down().await;
        }
        self.live.lock().remove(&spool.dir.0);
        if worked.is_some() {
            // It may have been all that was over the limit.
            let _ = tokio::task::spawn_blocking(move || self.trim()).await;
        }
    }

    async fn work(&self, spool: &Arc<Spool>, report: Option<ReportFlushed>, mut adopted: bool) {
        let (mut flushed_at, mut idle, mut away) = (Instant::now(), 0u32, None);
        let (mut known, mut behind, mut told) = (0u64, true, Vec::new());
        let mut wait = Wait::For(LOOK.min(self.settings.flush));
        loop {
            // Most work is short: it is looked at when it has ended.
            let mut ended = spool.ended.is_cancelled();
            let mut looked = None;
            match wait {
                Wait::For(time) => tokio::select! {
                    () = spool.ended.cancelled(), if !ended => ended = true,
                    () = tokio::time::sleep(time), if !ended || away.is_some() => {}
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
                    self.store_answers(&mut away);
                    if !behind && let Some(report) = &report {
                        spool.tell(report, &mut told).await;
                    }
                    if by_time {
                        flushed_at = Instant::now();
                    }
                    let bytes = seen.iter().map(|s| s.bytes).sum();
                    if ended && !whole {
                        Wait::For(away.insert(AWAY).next_pause())
                    } else if ended {
                        match self.complete(spool).await {
                            Ok(()) | Err(Halt::Gone) => return,
                            Err(halt) => Wait::For(self.halted(spool, &halt, &mut away)),
                        }
                    } else {
                        idle = if bytes == known { idle.saturating_add(1) } else { 0 };
                        known = bytes;
                        let often = if idle < IDLE_LOOKS { LOOK } else { LOOK_IDLE };
                        // Thousands of launches leave thousands of files.
                        let time = often.min(self.settings.flush).max(look_took * LOOKS_SHARE);
                        if time == LOOK_IDLE { Wait::Round } else { Wait::For(time) }
                    }
                }
                Err(Halt::Gone) => {
                    if spool.index().all_put() {
                        // Files that are empty at their end go; what was flushed of them before is all that there is.
                        let _ = self.complete(spool).await;
                    }
                    return;
                }
                Err(halt) => Wait::For(self.halted(spool, &halt, &mut away)),
            };
        }
    }

    /// Puts what is due; tells whether the files were as they had been seen. `behind`: whether the store's index lacks
    /// something that was put. Where it has `ended`, the index follows when it is complete.
    async fn flush(&self, spool: &Arc<Spool>, seen: &[Seen], by_time: bool, ended: bool, behind: &mut bool) -> Result<bool, Halt> {
        let Some(store) = &self.store else { return Ok(true) };
        let (mut put, mut whole) = (false, true);
        let mut failed = None;
        'all: for seen in seen {
            loop {
                let Some(cut) = spool.index().cut(seen, by_time) else { break };
                match self.put(store, spool, &cut).await {
                    Ok(true) => put = true,
                    // It changed under our hands: the next look tells how.
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
            match spool.write_down().await {
                Ok(()) => failpoint::pass(Point::SpoolWritten),
                // On a full disk the way to room is through the store: its index serves as well.
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

    /// Puts one chunk. `false`: the file is no longer as it was seen.
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

    /// All was put: nothing will follow.
    async fn complete(&self, spool: &Arc<Spool>) -> Result<(), Halt> {
        let Some(store) = &self.store else {
            return spool.write_down().await.map_err(Halt::Disk);
        };
        spool.index().complete = true;
        let index = spool.snapshot();
        let finished = async {
            if index.streams.iter().any(|s| s.segments.iter().any(|s| !s.chunks.is_empty())) {
                store.put_index(&index).await.map_err(Halt::Store)?;
                failpoint::pass(Point::LastIndexPut);
            }
            let path = spool.dir.flushed();
            let written = async {
                spool.write_down().await?;
                failpoint::pass(Point::LastSpoolWritten);
                blocking(move || std::fs::write(path, b"")).await?;
                failpoint::pass(Point::FlushedMarked);
                Ok::<(), io::Error>(())
            };
            match written.await {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(dir = %spool.dir.0.display(), %error, "that all output is in the store cannot be written down here");
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
        // What is on its way into a store that answers will be gone without loss in a moment.
        let away = self.away.lock().is_some();
        let flushing = |path: &Path| !away && self.live.lock().contains_key(path);
        trim::trim(state_dir, *bytes_max, flushing);
    }

    fn store_answers(&self, away: &mut Option<Backoff>) {
        if away.take().is_some() && self.away.lock().take().is_some() {
            tracing::info!("the log store answers again: output goes on into it");
        }
    }

    /// Says what is the matter, once, and how long to wait.
    fn halted(&self, spool: &Spool, halt: &Halt, away: &mut Option<Backoff>) -> Duration {
        let first = away.is_none();
        let wait = away.get_or_insert(AWAY).next_pause();
        match halt {
            Halt::Gone => {}
            Halt::Store(error) => {
                let mut since = self.away.lock();
                if since.is_none() {
                    let url = self.store.as_ref().map_or("", |s| s.url());
                    tracing::warn!(url, error = %lattice_model::with_causes(error), "the log store is away: output stays on this node");
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

    async fn write_down(self: &Arc<Self>) -> io::Result<()> {
        let spool = Arc::clone(self);
        match blocking(move || record::write(&spool.dir, &spool.snapshot(), record::Sync::Now)).await {
            // A silent allocation's directory goes at its end.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            written => written,
        }
    }

    /// Takes over what the store knows beyond what was written down here: after damage, or a full disk.
    async fn recover(&self, store: &LogStore) -> Result<(), Halt> {
        let (place, node) = self.place();
        if let Some(known) = store.index(&place, &node).await.map_err(Halt::Store)? {
            self.index().learn(&known);
        }
        Ok(())
    }

    /// Tells the shim how far each file is flushed, unless it was `told`.
    async fn tell(&self, report: &ReportFlushed, told: &mut Vec<FlushedLog>) {
        let files: Vec<FlushedLog> = {
            let index = self.index();
            let of = |s: &StreamIndex| {
                let Position { segment, offset } = index.flushed(s.stream)?;
                let stream = if s.stream.stderr { LogStream::Err } else { LogStream::Out };
                (offset > 0).then_some(FlushedLog { number: s.stream.launch, rank: s.stream.rank, stream, segment, bytes: offset })
            };
            index.streams.iter().filter_map(of).collect()
        };
        if files != *told && report(files.clone()).await {
            *told = files;
            failpoint::pass(Point::FlushTold);
        }
    }
}

/// The disk may be slow.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}
