//! How far the log is on this member's own disk.
//!
//! A leader's entries go to the other members while they are still being synced here: openraft counts them as held by
//! this member as soon as they are appended. What may *follow* from a commit therefore waits for this mark: applying
//! (and with it every answer), and what the other members are told to be committed. A commit that anybody can see is
//! on the disks of a majority.

use super::StoreError;
use crate::raft::LogId;
use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// Everything up to here is on disk.
    Upto(Option<LogId>),
    /// Nothing more will be: the disk failed, or the log was closed.
    Over,
}

/// The log's end of the mark.
#[derive(Debug)]
pub struct SyncedMark(watch::Sender<Mark>);

impl SyncedMark {
    /// A log that is on disk up to here.
    pub fn new(upto: Option<LogId>) -> Self {
        Self(watch::Sender::new(Mark::Upto(upto)))
    }

    /// The log is on disk up to here. Less than before where its end was cut off.
    pub fn set(&self, upto: Option<LogId>) {
        self.0.send_if_modified(|mark| *mark != Mark::Over && std::mem::replace(mark, Mark::Upto(upto)) != *mark);
    }

    /// Nothing more will reach the disk.
    pub fn fail(&self) {
        self.0.send_replace(Mark::Over);
    }

    /// For those who wait.
    pub fn reader(&self) -> Synced {
        Synced(self.0.subscribe())
    }
}

/// The mark, for those who must not go further.
#[derive(Clone, Debug)]
pub struct Synced(watch::Receiver<Mark>);

impl Synced {
    /// The last entry on disk; `None` where there is none, or none can be relied upon.
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

    /// Returns when the entry of this index is on disk.
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
