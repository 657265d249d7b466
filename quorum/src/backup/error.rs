//! Why a backup could not be made or used.

use lattice_api::pack::PackError;
use lattice_ledger::shortage::Shortage;
use lattice_objects::ObjectsError;
use lattice_store::StoreError;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a backup could not be made or used.
#[derive(Debug, Error)]
pub enum BackupError {
    #[error(
        "no place for backups is configured: set backup in the member's configuration, or name one with --from (file:///DIR, s3://BUCKET/PREFIX, …)"
    )]
    NoStore,
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    #[error("{url}: {what}")]
    Store {
        url: String,
        what: String,
        #[source]
        source: object_store::Error,
    },
    #[error("{url} holds no backup")]
    Empty { url: String },
    #[error("{url} holds no backup {name:?}; there are {}", there.join(", "))]
    Unknown { url: String, name: String, there: Vec<String> },
    #[error("backup {name} is damaged: {object}: {why}. Take another one (--backup NAME): {others}")]
    Damaged { name: String, object: String, why: String, others: String },
    #[error("the backup cannot be encoded")]
    Encode(#[source] ChainCodecError),
    #[error(transparent)]
    Files(#[from] StoreError),
    #[error("{}", path.display())]
    Local {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("there is too little disk space for a snapshot: {shortage}")]
    DiskFull { shortage: Shortage },
    #[error("no snapshot could be made: {why}")]
    NoSnapshot { why: String },
    #[error("{} is not empty: nothing was changed. `recover` is for a member without files; `restore` moves what is there aside", path.display())]
    NotEmpty { path: PathBuf },
    #[error("{} has no files: nothing was changed. `restore` goes back from what is there; use `recover`", path.display())]
    NothingToReplace { path: PathBuf },
    #[error(
        "member {member} runs at {address}: nothing was changed. Stop every member first: members with the old state and members with the restored state would diverge"
    )]
    Runs { member: u64, address: String },
    #[error("the backup is of cluster {theirs:?}, the configuration of {ours:?}")]
    Foreign { theirs: String, ours: String },
    #[error("the other members cannot be asked: {why}")]
    Unasked { why: String },
    #[error("the task failed: {why}")]
    Task { why: String },
}

/// Why a backup's description of its audit chain cannot be written or read.
#[derive(Debug, Error)]
pub enum ChainCodecError {
    #[error(transparent)]
    Pack(#[from] PackError),
    #[error(transparent)]
    Compression(#[from] std::io::Error),
}

impl BackupError {
    pub(super) fn local(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Local { path: path.to_owned(), source }
    }
}
