//! What a member keeps on disk.
//!
//! ```text
//!   DIR/lock                 held by the process that uses the folder
//!   DIR/member.json          whose folder it is: cluster and member
//!   DIR/vote                 the last vote, replaced whole
//!   DIR/purged               up to where the log was cut off behind the snapshot before the newest, replaced whole
//!   DIR/log/FIRST.log        the log, in segments named by their first index
//!   DIR/log/synced           how far the log is synced, written in place ([`synced_end`])
//!   DIR/audit/FIRST.audit    the audit chain, in append-only segments named by their first record
//!   DIR/INDEX.snapshot       the ledger as of a log index, with the audit chain's head; the last five are kept
//!   DIR/reserve              nothing: room for a full disk ([`room`])
//! ```
//!
//! Every record has its length and checksum. What was being written at a crash (a torn tail) is cut off with a line in
//! the log; damage anywhere else, also to the last record that was synced, refuses to start and names file and offset. The audit chain is *derived*: records of
//! entries behind the last snapshot are made again by applying the log, so it is synced with the snapshot and not with
//! every entry.
//!
//! A newest snapshot that is damaged is moved aside, and the one before it is taken with the log behind that.
//!
//! A snapshot has the audit chain's head and nothing else of it: a member fetches the records that it lacks from the one
//! that sends the snapshot before it takes it, and checks them against the head.

pub mod audit;
pub mod directory;
pub mod kept;
pub mod log;
pub mod machine;
pub mod power;
pub mod record;
pub mod room;
pub mod segments;
pub mod snapshot_file;
pub mod synced;
pub mod synced_end;

#[cfg(test)]
mod crash_tests;

use lattice_api::pack::PackError;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why the disk cannot be used.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error("{}: {what}", path.display())]
    Io {
        path: PathBuf,
        what: &'static str,
        #[source]
        source: io::Error,
    },
    /// It is not done again: a later success would tell nothing of what this one lost.
    #[error("{}: cannot be synced; what of it is on the disk is not known", path.display())]
    Unsynced {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is in use by another process", path.display())]
    Locked { path: PathBuf },
    #[error("{} belongs to member {member} of cluster {cluster:?}, not to member {wanted_member} of {wanted_cluster:?}", path.display())]
    Foreign { path: PathBuf, member: u64, cluster: String, wanted_member: u64, wanted_cluster: String },
    #[error(
        "{} is damaged at byte {offset}: {what}. Nothing was changed. With the other members healthy, put a new one under a new id in its place (`lattice quorum replace`); `lattice quorum recover --plan` says what to do where they are not",
        path.display()
    )]
    Corrupt { path: PathBuf, offset: u64, what: String },
    #[error(
        "audit records {first} to {last} are missing here and no other member could send them ({why}). Start a member that has them; where none has, recover from a backup (`lattice quorum recover`)"
    )]
    AuditMissing { first: u64, last: u64, why: String },
    #[error(
        "{}: the log begins with entry {first}, and no snapshot reaches so far. Nothing was changed. With the other members healthy, put a new one under a new id in its place (`lattice quorum replace`); `lattice quorum recover --plan` says what to do where they are not",
        path.display()
    )]
    SnapshotMissing { path: PathBuf, first: u64 },
    #[error("{} was written by a newer version ({what}). Nothing was changed. Start this member with that version", path.display())]
    Newer { path: PathBuf, what: String },
    #[error("a log entry cannot be encoded")]
    Encode(#[source] PackError),
    #[error("the log stopped after an earlier failure to write")]
    Stopped,
    #[error("this member is stopping")]
    Stopping,
}

impl StoreError {
    pub(crate) fn io(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), what, source }
    }

    pub(crate) fn unsynced(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Unsynced { path: path.to_owned(), source }
    }

    pub(crate) fn newer(path: &Path, what: impl Into<String>) -> Self {
        Self::Newer { path: path.to_owned(), what: what.into() }
    }

    pub(crate) fn corrupt(path: &Path, offset: u64, what: impl Into<String>) -> Self {
        Self::Corrupt { path: path.to_owned(), offset, what: what.into() }
    }
}
