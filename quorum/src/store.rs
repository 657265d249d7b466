//! What a member keeps on disk.
//!
//! ```text
//!   DIR/lock                 held by the process that uses the folder
//!   DIR/member.json          whose folder it is: cluster and member
//!   DIR/vote                 the last vote, replaced whole
//!   DIR/purged               up to where the log was cut off behind a snapshot, replaced whole
//!   DIR/log/FIRST.log        the log, in segments named by their first index
//!   DIR/audit.log            the audit chain, append-only
//!   DIR/INDEX.snapshot       the ledger and the audit chain as of a log index
//! ```
//!
//! Every record has its length and checksum. What was being written at a crash (a torn tail) is cut off with a line in
//! the log; damage anywhere else refuses to start and names file and offset. The audit file is *derived*: records of
//! entries behind the last snapshot are made again by applying the log, so it is synced with the snapshot and not with
//! every entry.
//!
//! A snapshot carries the audit records up to its head, so that a member that installs it has the whole chain. That
//! costs a copy of the chain for each snapshot; issue 4 replaces it by segments that are fetched on their own.

pub mod audit_file;
pub mod directory;
pub mod log;
pub mod machine;
pub mod record;
pub mod segments;
pub mod snapshot_file;

#[cfg(test)]
mod crash_tests;

use crate::pack::PackError;
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
    #[error("{} is in use by another process", path.display())]
    Locked { path: PathBuf },
    #[error("{} belongs to member {member} of cluster {cluster:?}, not to member {wanted_member} of {wanted_cluster:?}", path.display())]
    Foreign { path: PathBuf, member: u64, cluster: String, wanted_member: u64, wanted_cluster: String },
    #[error(
        "{} is damaged at byte {offset}: {what}. Nothing was changed. Restore this member's folder from a copy, or move it away and let the other members send it everything",
        path.display()
    )]
    Corrupt { path: PathBuf, offset: u64, what: String },
    #[error("a log entry cannot be encoded")]
    Encode(#[source] PackError),
    #[error("the log stopped after an earlier failure to write")]
    Stopped,
}

impl StoreError {
    pub(crate) fn io(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), what, source }
    }

    pub(crate) fn corrupt(path: &Path, offset: u64, what: impl Into<String>) -> Self {
        Self::Corrupt { path: path.to_owned(), offset, what: what.into() }
    }
}
