//! The location of each log entry: in memory, in a segment, or both.

use crate::raft::{Entry, LogId};
use crate::segments::{self, Files, Place, Stored, UnusableEntry};
use lattice_api::pack;
use openraft::RaftLogId;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::io;

/// Largest size of entries in memory, in bytes. Entries that are not on disk yet may exceed it.
const CACHE_BYTES_MAX: usize = 32 * 1024 * 1024;

#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) slots: VecDeque<Slot>,
    pub(super) purged: Option<LogId>,
    pub(super) files: Files,
    /// Size of the entries in memory, in bytes.
    pub(super) cached: usize,
    /// Log index at which [`Self::evict`] continues: it has dropped the entries before it.
    pub(super) cached_from: u64,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) id: LogId,
    pub(super) bytes: usize,
    pub(super) place: Option<Place>,
    pub(super) entry: Option<Entry>,
}

impl Index {
    /// Adds an entry that was read from a segment at the start. Ignores an entry that is purged.
    pub(super) fn found(&mut self, stored: Stored) -> Result<(), UnusableEntry> {
        let entry: Entry = pack::from_bytes(&stored.payload)?;
        let id = *entry.get_log_id();
        if self.purged.is_some_and(|p| id.index <= p.index) {
            return Ok(());
        }
        let want = self.slots.back().map(|s| s.id.index + 1).or(self.purged.map(|p| p.index + 1));
        if let Some(wanted) = want.filter(|want| *want != id.index) {
            return Err(UnusableEntry::Order { found: id.index, wanted });
        }
        let bytes = stored.payload.len();
        self.cached += bytes;
        self.slots.push_back(Slot { id, bytes, place: Some(stored.place), entry: Some(entry) });
        if self.cached > 2 * CACHE_BYTES_MAX {
            self.evict();
        }
        Ok(())
    }

    pub(super) fn first(&self) -> u64 {
        self.slots.front().map_or(0, |s| s.id.index)
    }

    pub(super) fn at(&self, index: u64) -> Option<usize> {
        usize::try_from(index.checked_sub(self.first())?).ok().filter(|at| *at < self.slots.len())
    }

    /// While the limit is exceeded, drops the oldest entry from memory; stops at an entry that is
    /// not on disk.
    pub(super) fn evict(&mut self) {
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

    pub(super) fn drop_slots(&mut self, dropped: impl IntoIterator<Item = Slot>) {
        for slot in dropped {
            if slot.entry.is_some() {
                self.cached -= slot.bytes;
            }
        }
    }

    pub(super) fn read(&self, from: u64, to: u64, bytes_max: usize) -> io::Result<Vec<Entry>> {
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

pub(super) fn lock(index: &Mutex<Index>) -> MutexGuard<'_, Index> {
    index.lock()
}
