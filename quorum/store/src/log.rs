//! The Raft log on disk.
//!
//! ```text
//!   openraft ──append──▶ index (readable at once) ──job──▶ writer thread: write … write, one sync, callbacks
//! ```
//!
//! One thread owns the files. Appends that queue up while it syncs are written together and share
//! the next sync. If the disk is full, a write uses the reserve, and waits if that is used up
//! ([`super::disk_reserve`]). Recent entries stay in memory, limited by bytes; older ones are read from
//! their segment.
//!
//! A follower's append is acknowledged when it is on disk. A leader's is acknowledged at once, so
//! that the others write it at the same time; [`super::synced`] delays its consequences until it is
//! on disk here as well. A restarted leader may therefore lack entries of its term that others
//! have, so it never leads in that term again ([`Log::open`]).

mod checksummed;
mod index;
mod writer;

use super::StoreError;
use super::directory::Directory;
use super::disk_reserve::DiskReserve;
use super::power::Power;
use super::retained_snapshots::RetainedSnapshots;
use super::segments::{self, Segments};
use super::synced::{Synced, SyncedMark};
use crate::raft::{Entry, LogId, StorageError, TypeConfig, Vote};
use checksummed::{read, write};
use index::{Index, Slot, lock};
use lattice_api::pack;
use openraft::storage::{LogFlushed, LogState, RaftLogStorage};
use openraft::{AnyError, OptionalSend, RaftLogId, RaftLogReader, StorageIOError};
use parking_lot::Mutex;
use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use tokio::sync::oneshot;
use writer::{Append, Job, Writer};

/// Largest size of entries returned by one read for replication, in bytes.
const READ_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Largest number of queued jobs for the writer.
const JOBS_MAX: usize = 1024;

/// The log. Clones read.
#[derive(Clone, Debug)]
pub struct Log {
    index: Arc<Mutex<Index>>,
    jobs: SyncSender<Job>,
    vote: Option<Vote>,
    member: u64,
    retained: RetainedSnapshots,
    synced: Synced,
}

impl Log {
    /// Opens the log of `member`, cuts off a torn tail, and starts its writer.
    ///
    /// If this member was the leader when it stopped, its vote is treated as not yet granted:
    /// others may have entries of that term that never reached this disk, and a different entry
    /// must not get the same index and term.
    pub fn open(directory: &Directory, member: u64, retained: RetainedSnapshots, reserve: DiskReserve) -> Result<Self, StoreError> {
        let path = directory.path();
        let vote =
            read::<Vote>(&path.join("vote"))?.map(|vote| if leads(&vote, member) { Vote::new(vote.leader_id.term, member) } else { vote });
        let purged = read::<LogId>(&path.join("purged"))?;
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
            reserve,
            failed: false,
        };
        std::thread::Builder::new()
            .name("quorum-log".to_owned())
            .spawn(move || writer.run(&queue))
            .map_err(StoreError::io(path, "the writer thread cannot be started"))?;
        Ok(Self { index, jobs, vote, member, retained, synced })
    }

    /// Whether nothing was ever written: no vote, no entry.
    pub fn is_empty(&self) -> bool {
        let index = lock(&self.index);
        self.vote.is_none() && index.slots.is_empty() && index.purged.is_none()
    }

    /// The index of the first entry in the log.
    pub fn first_index(&self) -> u64 {
        lock(&self.index).purged.map_or(0, |id| id.index + 1)
    }

    /// The index of the last entry; 0 if there is none.
    pub fn last_index(&self) -> u64 {
        let index = lock(&self.index);
        index.slots.back().map(|s| s.id).or(index.purged).map_or(0, |id| id.index)
    }

    /// How far the log is on disk.
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

/// Checks the log in an unused directory without changing anything. A torn tail is not an error.
pub fn check(dir: &Path) -> Result<(), StoreError> {
    read::<Vote>(&dir.join("vote"))?;
    read::<LogId>(&dir.join("purged"))?;
    segments::check(&dir.join("log"))
}

/// Writes an empty log that begins after `purged`, for a directory created from a backup.
pub fn begin_at(directory: &Directory, purged: LogId, vote: Vote) -> Result<(), StoreError> {
    let path = directory.path();
    std::fs::create_dir_all(path.join("log")).map_err(StoreError::io(path, "the folder cannot be made"))?;
    write(&path.join("purged"), &purged)?;
    write(&path.join("vote"), &vote)
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
        // In the term in which this member is the leader, all entries are its own: nobody waits only
        // for its disk.
        let own = self.vote.is_some_and(|vote| leads(&vote, self.member) && slots.iter().all(|s| s.id.leader_id == vote.leader_id));
        {
            let mut index = lock(&self.index);
            index.cached += slots.iter().map(|s| s.bytes).sum::<usize>();
            index.slots.extend(slots);
        }
        if self.synced.is_over() {
            return Err(fail(StoreError::Stopped));
        }
        let (at_once, later) = if own { (Some(flushed), None) } else { (None, Some(flushed)) };
        self.jobs.send(Job::Append(Append { first, last, payloads, flushed: later })).map_err(|_| fail(StoreError::Stopped))?;
        if let Some(flushed) = at_once {
            flushed.log_io_completed(Ok(()));
        }
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), StorageError> {
        let since = log_id.index;
        self.job(|done| Job::Truncate { since, done }).await.map_err(|e| StorageIOError::write_logs(AnyError::new(&e)).into())
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), StorageError> {
        // openraft requests this together with the installation of a received snapshot, and does
        // not wait for the installation.
        let reached = self.retained.wait_until_durable(upto.index).await;
        reached.map_err(|e| StorageIOError::write_logs(AnyError::new(&e)))?;
        let (clear, gone) = {
            let mut index = lock(&self.index);
            // If the purge point is contained in the log, entries after the snapshot before the
            // newest stay on disk; otherwise the whole log is removed.
            let id_at = |at: u64| index.at(at).map(|at| index.slots[at].id);
            let joins = id_at(upto.index) == Some(upto);
            let gone =
                if joins { self.retained.purgeable_upto().and_then(|purgeable| id_at(purgeable.min(upto.index))) } else { Some(upto) };
            let keep = index.slots.partition_point(|s| s.id.index <= upto.index);
            let kept = index.slots.split_off(keep);
            let dropped = std::mem::replace(&mut index.slots, kept);
            index.drop_slots(dropped);
            index.purged = Some(upto);
            index.cached_from = index.cached_from.max(upto.index + 1);
            // Entries needed after the older snapshot stay, even if the newest one contains
            // everything.
            (index.slots.is_empty() && gone == Some(upto), gone)
        };
        let Some(upto) = gone else { return Ok(()) };
        self.job(|done| Job::Purge { upto, clear, done }).await.map_err(|e| StorageIOError::write_logs(AnyError::new(&e)).into())
    }
}
