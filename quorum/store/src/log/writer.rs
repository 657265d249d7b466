//! The thread that owns the log's files.

use super::checksummed::write;
use super::index::{Index, lock};
use crate::StoreError;
use crate::directory::Directory;
use crate::disk_reserve::DiskReserve;
use crate::power::Power;
use crate::raft::{LogId, TypeConfig, Vote};
use crate::segments::Segments;
use crate::synced::SyncedMark;
use lattice_model::with_causes;
use openraft::storage::LogFlushed;
use parking_lot::Mutex;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Number of bytes written before a sync, even if more is queued.
const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;
/// When nothing has been written for this long, the synced end is synced as well
/// ([`crate::synced_end`]).
const SETTLE_AFTER: Duration = Duration::from_millis(500);

pub(super) enum Job {
    Append(Append),
    Vote { vote: Vote, done: oneshot::Sender<Result<(), StoreError>> },
    Truncate { since: u64, done: oneshot::Sender<Result<(), StoreError>> },
    Purge { upto: LogId, clear: bool, done: oneshot::Sender<Result<(), StoreError>> },
}

pub(super) struct Append {
    pub(super) first: u64,
    pub(super) last: LogId,
    pub(super) payloads: Vec<Vec<u8>>,
    /// Called when the entries are on disk; `None` if nobody waits for that.
    pub(super) flushed: Option<LogFlushed<TypeConfig>>,
}

pub(super) struct Writer {
    /// Keeps the directory locked as long as anything can be written.
    pub(super) directory: Directory,
    pub(super) index: Arc<Mutex<Index>>,
    pub(super) segments: Segments,
    pub(super) mark: SyncedMark,
    pub(super) power: Power,
    pub(super) reserve: DiskReserve,
    pub(super) failed: bool,
}

impl Writer {
    pub(super) fn run(mut self, queue: &Receiver<Job>) {
        let mut next = None;
        while let Some(job) = next.take().or_else(|| self.wait(queue)) {
            match job {
                Job::Append(append) => next = self.append(queue, append),
                // The caller may have stopped meanwhile; the work is done anyway.
                Job::Vote { vote, done } => {
                    let path = self.path("vote");
                    let _gone = done.send(self.reserve.retry_until_written("a vote", || write(&path, &vote)));
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

    /// The next job; `None`: there are no more senders.
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

    /// Writes this append and the queued ones after it, syncs once, and calls all callbacks.
    /// Returns the job that ended the run.
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
                // It is unknown what reached the disk: nothing more may be acknowledged.
                self.failed = true;
                self.mark.fail();
                tracing::error!(error = %with_causes(error), "the log cannot be written; this member stops");
            }
        }
        for flushed in waiting.into_iter().flatten() {
            let outcome = result.as_ref().map_err(|e| io::Error::other(with_causes(e)));
            flushed.log_io_completed(outcome.copied());
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
        let places = self.reserve.retry_until_written("the log", || self.segments.append(first, payloads))?;
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
            self.reserve.retry_until_written("the log's end", || self.segments.truncate(place))?;
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
        // The mark comes first: entries up to it are ignored from now on, whether or not their
        // files still exist.
        let path = self.path("purged");
        self.reserve.retry_until_written("the log's beginning", || write(&path, &upto))?;
        if clear {
            self.reserve.retry_until_written("the log's beginning", || self.segments.clear())?;
            let index = lock(&self.index);
            self.mark.set(index.slots.back().map(|s| s.id).or(index.purged));
        } else {
            self.reserve.retry_until_written("the log's beginning", || self.segments.purge(upto.index))?;
        }
        lock(&self.index).files.clone_from(self.segments.files());
        Ok(())
    }
}
