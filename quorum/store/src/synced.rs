//! How far the log has been synced to this member's own disk.
//!
//! A leader sends entries to the other members while they are still being synced here, and openraft
//! counts them as stored by this member as soon as they are appended. Therefore the *consequences*
//! of a commit wait for this mark: applying the entry (and so every answer), and announcing the
//! commit to other members. So every visible commit is on the disks of a majority.

use super::StoreError;
use crate::raft::LogId;
use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// Everything up to this entry is on disk.
    Upto(Option<LogId>),
    /// Nothing more will be synced: the disk failed, or the log was closed.
    Over,
}

/// The log's handle for setting the mark.
#[derive(Debug)]
pub struct SyncedMark(watch::Sender<Mark>);

impl SyncedMark {
    /// The log is on disk up to this entry.
    pub fn new(upto: Option<LogId>) -> Self {
        Self(watch::Sender::new(Mark::Upto(upto)))
    }

    /// The log is on disk up to this entry. May be less than before if its end was cut off.
    pub fn set(&self, upto: Option<LogId>) {
        self.0.send_if_modified(|mark| *mark != Mark::Over && std::mem::replace(mark, Mark::Upto(upto)) != *mark);
    }

    /// Nothing more will reach the disk.
    pub fn fail(&self) {
        self.0.send_replace(Mark::Over);
    }

    /// A handle for readers of the mark.
    pub fn reader(&self) -> Synced {
        Synced(self.0.subscribe())
    }
}

/// The mark, for tasks that must not go beyond it.
#[derive(Clone, Debug)]
pub struct Synced(watch::Receiver<Mark>);

impl Synced {
    /// The last entry on disk; `None`: there is none, or none is reliable.
    pub fn upto(&self) -> Option<LogId> {
        match *self.0.borrow() {
            Mark::Upto(upto) => upto,
            Mark::Over => None,
        }
    }

    /// Whether nothing more will reach the disk.
    pub fn is_over(&self) -> bool {
        *self.0.borrow() == Mark::Over
    }

    /// Returns when the entry with this index is on disk.
    pub async fn reached(&mut self, index: u64) -> Result<(), StoreError> {
        let there = |mark: &Mark| match mark {
            Mark::Upto(upto) => upto.is_some_and(|id| id.index >= index),
            Mark::Over => true,
        };
        match self.0.wait_for(there).await.as_deref() {
            Ok(Mark::Upto(_)) => Ok(()),
            Ok(Mark::Over) | Err(_) => Err(StoreError::Stopped),
        }
    }
}
