//! The Raft log on disk.
//!
//! ```text
//!   openraft ──append──▶ index (entries are readable at once) ──job──▶ writer thread: write … write, one sync, callbacks
//! ```
//!
//! One thread owns the files. Appends that wait while it syncs are written together and share the next sync. What finds no
//! room on the disk takes of the reserve, and waits where that is gone ([`super::room`]). Recent
//! entries stay in memory, bounded by bytes; older ones are read from their segment.
//!
//! A follower's append is told when it is on disk. A leader's is told at once, so that the others write it at the same
//! time; [`super::synced`] keeps what follows from it back until it is on disk here as well. A leader that is started
//! again may therefore lack entries of its term that others have: it never leads in that term again ([`Log::open`]).

use super::directory::{Directory, replace};
use super::kept::Kept;
use super::power::Power;
use super::room::Room;
use super::segments::{self, Files, Place, Segments};
use super::synced::{Synced, SyncedMark};
use super::{StoreError, segments::Stored};
use crate::pack;
use crate::raft::{Entry, LogId, StorageError, TypeConfig, Vote};
use openraft::storage::{LogFlushed, LogState, RaftLogStorage};
use openraft::{AnyError, OptionalSend, RaftLogId, RaftLogReader, StorageIOError};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;
use tokio::sync::oneshot;

/// Bytes of entries kept in memory.
const CACHE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bytes of entries that one read gives to replication.
const READ_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Jobs that wait for the writer.
const JOBS_MAX: usize = 1024;
/// Bytes written before a sync, even when more waits.
const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;
/// When the log rests: how far it is synced is brought to the disk as well ([`super::synced_end`]).
const SETTLE_AFTER: Duration = Duration::from_millis(500);

/// The log. Clones read.
#[derive(Clone, Debug)]
pub struct Log {
    index: Arc<Mutex<Index>>,
    jobs: SyncSender<Job>,
    vote: Option<Vote>,
    member: u64,
    kept: Kept,
    synced: Synced,
}

#[derive(Debug, Default)]
struct Index {
    slots: VecDeque<Slot>,
    purged: Option<LogId>,
    files: Files,
    /// Bytes of the entries that are in memory.
    cached: usize,
    /// Slots before this one have no entry in memory.
    cached_from: u64,
}

#[derive(Debug)]
struct Slot {
    id: LogId,
    bytes: usize,
    place: Option<Place>,
    entry: Option<Entry>,
}

enum Job {
    Append(Append),
    Vote { vote: Vote, done: oneshot::Sender<Result<(), StoreError>> },
    Truncate { since: u64, done: oneshot::Sender<Result<(), StoreError>> },
    Purge { upto: LogId, clear: bool, done: oneshot::Sender<Result<(), StoreError>> },
}

struct Append {
    first: u64,
    last: LogId,
    payloads: Vec<Vec<u8>>,
    /// Whoever is told when it is on disk; `None` where that was not waited for.
    flushed: Option<LogFlushed<TypeConfig>>,
}

impl Log {
    /// Opens the log of `member`, cutting a torn tail off, and starts its writer.
    ///
    /// Where this member led when it stopped, its vote is read as not yet granted: others may have entries of that term
    /// that never reached this disk, and no second entry may get the place of one of them.
    pub fn open(directory: &Directory, member: u64, kept: Kept, room: Room) -> Result<Self, StoreError> {
        let path = directory.path();
        let vote = read_small::<Vote>(&path.join("vote"))?
            .map(|vote| if leads(&vote, member) { Vote::new(vote.leader_id.term, member) } else { vote });
        let purged = read_small::<LogId>(&path.join("purged"))?;
        let mut index = Index { purged, ..Index::default() };
        let segments = Segments::open(&path.join("log"), |stored| index.found(stored))?;
        index.files = segments.files().clone();
        index.cached_from = index.first();
        index.evict();
        let mark = SyncedMark::new(index.slots.back().map(|s| s.id).or(index.purged));
        let synced = mark.reader();
        let index = Arc::new(Mutex::new(index));
        let (jobs, queue) = sync_channel(JOBS_MAX);
        let writer = Writer {
            directory: directory.clone(),
            index: Arc::clone(&index),
            segments,
            mark,
            power: Power::from_environment(),
            room,
            failed: false,
        };
        std::thread::Builder::new()
            .name("quorum-log".to_owned())
            .spawn(move || writer.run(&queue))
            .map_err(StoreError::io(path, "the writer thread cannot be started"))?;
        Ok(Self { index, jobs, vote, member, kept, synced })
    }

    /// Whether nothing was ever written: no vote, no entry.
    pub fn is_empty(&self) -> bool {
        let index = lock(&self.index);
        self.vote.is_none() && index.slots.is_empty() && index.purged.is_none()
    }

    /// The index of the first entry that is still there.
    pub fn first_index(&self) -> u64 {
        lock(&self.index).purged.map_or(0, |id| id.index + 1)
    }

    /// The index of the last entry, 0 where there is none.
    pub fn last_index(&self) -> u64 {
        let index = lock(&self.index);
        index.slots.back().map(|s| s.id).or(index.purged).map_or(0, |id| id.index)
    }

    /// How far it is on disk.
    pub fn synced(&self) -> Synced {
        self.synced.clone()
    }

    async fn job(&self, make: impl FnOnce(oneshot::Sender<Result<(), StoreError>>) -> Job) -> Result<(), StoreError> {
        let (tx, rx) = oneshot::channel();
        self.jobs.send(make(tx)).map_err(|_| StoreError::Stopped)?;
        rx.await.map_err(|_| StoreError::Stopped)?
    }
}

/// Whether this vote made `member` the leader of its term.
fn leads(vote: &Vote, member: u64) -> bool {
    vote.committed && vote.leader_id.node_id == member
}

fn lock(index: &Mutex<Index>) -> MutexGuard<'_, Index> {
    index.lock()
}

fn read_small<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, StoreError> {
    match std::fs::read(path) {
        Ok(bytes) => {
            let body = bytes.split_first_chunk::<4>().filter(|(crc, body)| u32::from_le_bytes(**crc) == crc32fast::hash(body));
            let (_, body) = body.ok_or_else(|| StoreError::corrupt(path, 0, "it does not have its checksum"))?;
            pack::from_bytes(body).map(Some).map_err(|e| StoreError::corrupt(path, 4, pack::with_causes(&e)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io(path, "cannot be read")(error)),
    }
}

fn write_small<T: serde::Serialize>(path: &Path, value: &T) -> Result<(), StoreError> {
    let body = pack::to_bytes(value).map_err(StoreError::Encode)?;
    let mut bytes = crc32fast::hash(&body).to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);
    replace(path, &bytes)
}

/// Checks the log of a folder that nobody uses, and changes nothing. A torn tail is no damage.
pub fn check(dir: &Path) -> Result<(), StoreError> {
    read_small::<Vote>(&dir.join("vote"))?;
    read_small::<LogId>(&dir.join("purged"))?;
    segments::check(&dir.join("log"))
}

/// Writes an empty log that begins behind `purged`, for a folder that is made from a backup.
pub fn begin_at(directory: &Directory, purged: LogId, vote: Vote) -> Result<(), StoreError> {
    let path = directory.path();
    std::fs::create_dir_all(path.join("log")).map_err(StoreError::io(path, "the folder cannot be made"))?;
    write_small(&path.join("purged"), &purged)?;
    write_small(&path.join("vote"), &vote)
}

impl Index {
    /// Takes an entry read at the start.
    fn found(&mut self, stored: Stored) -> Result<(), String> {
        let entry: Entry = pack::from_bytes(&stored.payload).map_err(|e| pack::with_causes(&e))?;
        let id = *entry.get_log_id();
        if self.purged.is_some_and(|p| id.index <= p.index) {
            return Ok(());
        }
        let want = self.slots.back().map(|s| s.id.index + 1).or(self.purged.map(|p| p.index + 1));
        if want.is_some_and(|want| want != id.index) {
            return Err(format!("entry {} follows where {} should", id.index, want.unwrap_or_default()));
        }
        let bytes = stored.payload.len();
        self.cached += bytes;
        self.slots.push_back(Slot { id, bytes, place: Some(stored.place), entry: Some(entry) });
        if self.cached > 2 * CACHE_BYTES_MAX {
            self.evict();
        }
        Ok(())
    }

    fn first(&self) -> u64 {
        self.slots.front().map_or(0, |s| s.id.index)
    }

    fn at(&self, index: u64) -> Option<usize> {
        usize::try_from(index.checked_sub(self.first())?).ok().filter(|at| *at < self.slots.len())
    }

    /// Drops the oldest entries that are on disk from memory while they are too many.
    fn evict(&mut self) {
        self.cached_from = self.cached_from.max(self.first());
        while self.cached > CACHE_BYTES_MAX {
            let Some(at) = self.at(self.cached_from) else { return };
            let slot = &mut self.slots[at];
            if slot.place.is_none() {
                return;
            }
            if slot.entry.take().is_some() {
                self.cached -= slot.bytes;
            }
            self.cached_from += 1;
        }
    }

    fn drop_slots(&mut self, dropped: impl IntoIterator<Item = Slot>) {
        for slot in dropped {
            if slot.entry.is_some() {
                self.cached -= slot.bytes;
            }
        }
    }

    fn read(&self, from: u64, to: u64, bytes_max: usize) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let mut bytes = 0;
        for index in from.max(self.first())..to {
            let Some(slot) = self.at(index).map(|at| &self.slots[at]) else { break };
            bytes += slot.bytes;
            if bytes > bytes_max && !entries.is_empty() {
                break;
            }
            entries.push(match (&slot.entry, slot.place) {
                (Some(entry), _) => entry.clone(),
                (None, Some(place)) => {
                    let payload = segments::read(&self.files, place)?;
                    pack::from_bytes(&payload).map_err(io::Error::other)?
                }
                (None, None) => return Err(io::Error::other("an entry is neither in memory nor on disk")),
            });
        }
        Ok(entries)
    }
}

struct Writer {
    /// Keeps the folder locked for as long as anything can be written.
    directory: Directory,
    index: Arc<Mutex<Index>>,
    segments: Segments,
    mark: SyncedMark,
    power: Power,
    room: Room,
    failed: bool,
}

impl Writer {
    fn run(mut self, queue: &Receiver<Job>) {
        let mut next = None;
        while let Some(job) = next.take().or_else(|| self.wait(queue)) {
            match job {
                Job::Append(append) => next = self.append(queue, append),
                // Whoever asked may have been stopped meanwhile; the work is done all the same.
                Job::Vote { vote, done } => {
                    let path = self.path("vote");
                    let _gone = done.send(self.room.waiting("a vote", || write_small(&path, &vote)));
                }
                Job::Truncate { since, done } => {
                    let _gone = done.send(self.truncate(since));
                }
                Job::Purge { upto, clear, done } => {
                    let _gone = done.send(self.purge(upto, clear));
                }
            }
        }
    }

    /// The next job; `None` where nobody gives any more.
    fn wait(&mut self, queue: &Receiver<Job>) -> Option<Job> {
        if !self.segments.is_settled() {
            match queue.recv_timeout(SETTLE_AFTER) {
                Ok(job) => return Some(job),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => self.segments.settle(),
            }
        }
        queue.recv().ok()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes this append and those that wait behind it, syncs once, and tells all of them. Gives back the job that ended the run.
    fn append(&mut self, queue: &Receiver<Job>, append: Append) -> Option<Job> {
        let mut bytes: usize = append.payloads.iter().map(Vec::len).sum();
        let mut result = self.write(append.first, &append.payloads);
        let mut last = append.last;
        let mut waiting = vec![append.flushed];
        let mut next = None;
        while bytes < BATCH_BYTES_MAX
            && let Ok(job) = queue.try_recv()
        {
            let Job::Append(append) = job else {
                next = Some(job);
                break;
            };
            bytes += append.payloads.iter().map(Vec::len).sum::<usize>();
            waiting.push(append.flushed);
            last = append.last;
            result = result.and_then(|()| self.write(append.first, &append.payloads));
        }
        self.power.check(&self.segments);
        let result = result.and_then(|()| self.segments.sync());
        match &result {
            Ok(()) => self.mark.set(Some(last)),
            Err(error) => {
                // What reached the disk is not known: nothing more may be acknowledged.
                self.failed = true;
                self.mark.fail();
                tracing::error!(error = %pack::with_causes(error), "the log cannot be written; this member stops");
            }
        }
        for flushed in waiting.into_iter().flatten() {
            let told = result.as_ref().map_err(|e| io::Error::other(pack::with_causes(e)));
            flushed.log_io_completed(told.copied());
        }
        if result.is_ok() {
            self.segments.note_synced();
        }
        lock(&self.index).evict();
        next
    }

    fn write(&mut self, first: u64, payloads: &[Vec<u8>]) -> Result<(), StoreError> {
        if self.failed {
            return Err(StoreError::Stopped);
        }
        let places = self.room.waiting("the log", || self.segments.append(first, payloads))?;
        let mut index = lock(&self.index);
        for (at, place) in (first..).zip(places) {
            if let Some(at) = index.at(at) {
                index.slots[at].place = Some(place);
            }
        }
        if index.files.len() != self.segments.files().len() {
            index.files.clone_from(self.segments.files());
        }
        Ok(())
    }

    fn truncate(&mut self, since: u64) -> Result<(), StoreError> {
        let place = {
            let index = lock(&self.index);
            index.at(since).and_then(|at| index.slots[at].place)
        };
        if let Some(place) = place {
            self.room.waiting("the log's end", || self.segments.truncate(place))?;
        }
        let mut index = lock(&self.index);
        if let Some(at) = index.at(since) {
            let dropped = index.slots.split_off(at);
            index.drop_slots(dropped);
        }
        self.mark.set(index.slots.back().map(|s| s.id).or(index.purged));
        index.files.clone_from(self.segments.files());
        Ok(())
    }

    fn purge(&mut self, upto: LogId, clear: bool) -> Result<(), StoreError> {
        // First the mark: entries up to it are ignored from now on, whether their files are gone or not.
        let path = self.path("purged");
        self.room.waiting("the log's beginning", || write_small(&path, &upto))?;
        if clear {
            self.room.waiting("the log's beginning", || self.segments.clear())?;
            let index = lock(&self.index);
            self.mark.set(index.slots.back().map(|s| s.id).or(index.purged));
        } else {
            self.room.waiting("the log's beginning", || self.segments.purge(upto.index))?;
        }
        lock(&self.index).files.clone_from(self.segments.files());
        Ok(())
    }
}

impl RaftLogReader<TypeConfig> for Log {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, StorageError> {
        let (from, to) = bounds(&range);
        lock(&self.index).read(from, to, usize::MAX).map_err(|e| StorageIOError::read_logs(AnyError::new(&e)).into())
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, StorageError> {
        lock(&self.index).read(start, end, READ_BYTES_MAX).map_err(|e| StorageIOError::read_logs(AnyError::new(&e)).into())
    }
}

fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let from = match range.start_bound() {
        Bound::Included(at) => *at,
        Bound::Excluded(at) => at + 1,
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(at) => at + 1,
        Bound::Excluded(at) => *at,
        Bound::Unbounded => u64::MAX,
    };
    (from, to)
}

impl RaftLogStorage<TypeConfig> for Log {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, StorageError> {
        let index = lock(&self.index);
        let last = index.slots.back().map(|s| s.id).or(index.purged);
        Ok(LogState { last_purged_log_id: index.purged, last_log_id: last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        let vote = *vote;
        self.job(|done| Job::Vote { vote, done }).await.map_err(|e| StorageIOError::write_vote(AnyError::new(&e)))?;
        self.vote = Some(vote);
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        Ok(self.vote)
    }

    async fn append<I>(&mut self, entries: I, flushed: LogFlushed<TypeConfig>) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let fail = |e: StoreError| StorageError::from(StorageIOError::write_logs(AnyError::new(&e)));
        let mut payloads = Vec::new();
        let mut slots = Vec::new();
        for entry in entries {
            let payload = pack::to_bytes(&entry).map_err(|e| fail(StoreError::Encode(e)))?;
            slots.push(Slot { id: *entry.get_log_id(), bytes: payload.len(), place: None, entry: Some(entry) });
            payloads.push(payload);
        }
        let (Some(first), Some(last)) = (slots.first().map(|s| s.id.index), slots.last().map(|s| s.id)) else {
            flushed.log_io_completed(Ok(()));
            return Ok(());
        };
        // Entries of the term in which this member leads are its own: nobody waits for its disk alone.
        let own = self.vote.is_some_and(|vote| leads(&vote, self.member) && slots.iter().all(|s| s.id.leader_id == vote.leader_id));
        {
            let mut index = lock(&self.index);
            index.cached += slots.iter().map(|s| s.bytes).sum::<usize>();
            index.slots.extend(slots);
        }
        if self.synced.is_over() {
            return Err(fail(StoreError::Stopped));
        }
        let (told, later) = if own { (Some(flushed), None) } else { (None, Some(flushed)) };
        self.jobs.send(Job::Append(Append { first, last, payloads, flushed: later })).map_err(|_| fail(StoreError::Stopped))?;
        if let Some(flushed) = told {
            flushed.log_io_completed(Ok(()));
        }
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), StorageError> {
        let since = log_id.index;
        self.job(|done| Job::Truncate { since, done }).await.map_err(|e| StorageIOError::write_logs(AnyError::new(&e)).into())
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), StorageError> {
        // openraft orders this with the installation of a snapshot from elsewhere, and does not wait for that.
        let reached = self.kept.reach(upto.index).await;
        reached.map_err(|e| StorageIOError::write_logs(AnyError::new(&e)))?;
        let (clear, gone) = {
            let mut index = lock(&self.index);
            // What joins the new log stays on disk up to the snapshot before the newest; what does not join it goes whole.
            let id_at = |at: u64| index.at(at).map(|at| index.slots[at].id);
            let joins = id_at(upto.index) == Some(upto);
            let gone = if joins { self.kept.spare().and_then(|spare| id_at(spare.min(upto.index))) } else { Some(upto) };
            let keep = index.slots.partition_point(|s| s.id.index <= upto.index);
            let kept = index.slots.split_off(keep);
            let dropped = std::mem::replace(&mut index.slots, kept);
            index.drop_slots(dropped);
            index.purged = Some(upto);
            index.cached_from = index.cached_from.max(upto.index + 1);
            // What the spare snapshot needs stays, also where the newest one has all that there is.
            (index.slots.is_empty() && gone == Some(upto), gone)
        };
        let Some(upto) = gone else { return Ok(()) };
        self.job(|done| Job::Purge { upto, clear, done }).await.map_err(|e| StorageIOError::write_logs(AnyError::new(&e)).into())
    }
}
