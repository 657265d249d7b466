//! Why a member cannot use its disk.

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
    /// The sync is not repeated: a later success would not prove that the earlier data is on disk.
    #[error("{}: cannot be synced; it is unknown how much of it is on the disk", path.display())]
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
        "{} is damaged at byte {offset}: {what}. Nothing was changed. If the other members are healthy, replace this one by a member with a new id (`lattice quorum replace`); if not, `lattice quorum recover --plan` shows what to do",
        path.display()
    )]
    Corrupt { path: PathBuf, offset: u64, what: String },
    #[error(
        "audit records {first} to {last} are missing here, and no other member could send them ({why}). Start a member that has them; if no member has them, recover from a backup (`lattice quorum recover`)"
    )]
    AuditMissing { first: u64, last: u64, why: String },
    #[error(
        "{}: the log begins with entry {first}, and no snapshot contains the entries before it. Nothing was changed. If the other members are healthy, replace this one by a member with a new id (`lattice quorum replace`); if not, `lattice quorum recover --plan` shows what to do",
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
