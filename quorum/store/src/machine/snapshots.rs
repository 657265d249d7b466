//! The state machine's snapshots: which one is used at the start, how one is written, and how a
//! received one is installed.

#![expect(clippy::result_large_err, reason = "the error is openraft's")]

use super::agreed::Agreed;
use crate::StoreError;
use crate::audit::Checkpoint;
use crate::background;
use crate::directory::Directory;
use crate::disk_reserve::DiskReserve;
use crate::raft::{LogId, SnapshotMeta, StorageError, StoredMembership, TypeConfig};
use crate::retained_snapshots::RetainedSnapshots;
use crate::snapshot_file::{self, About, Loaded};
use lattice_ledger::Ledger;
use lattice_model::{Timestamp, with_causes};
use openraft::storage::Snapshot;
use openraft::{AnyError, RaftSnapshotBuilder, StorageIOError};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;
use uuid::Uuid;

#[derive(Debug)]
pub(super) struct Snapshots {
    /// The metadata of the newest snapshot.
    pub(super) present: Mutex<Option<SnapshotMeta>>,
    /// Counts received snapshots, for the names of their files.
    pub(super) received: AtomicU64,
    pub(super) retained: RetainedSnapshots,
}

/// Loads the newest undamaged snapshot. A damaged one is moved aside if an earlier one and the log
/// after it, or the complete log, can replace it; otherwise the member refuses to start.
pub(super) fn newest_whole(dir: &Path, log_first: u64) -> Result<Option<Loaded>, StoreError> {
    let mut damaged: Vec<(PathBuf, StoreError)> = Vec::new();
    let mut found = None;
    for (index, path) in snapshot_file::list(dir)? {
        if index + 1 < log_first {
            break;
        }
        match snapshot_file::load(&path) {
            Ok(loaded) => {
                found = Some(loaded);
                break;
            }
            Err(error @ StoreError::Corrupt { .. }) => damaged.push((path, error)),
            Err(error) => return Err(error),
        }
    }
    if found.is_none() && log_first > 0 {
        // The log no longer has the entries that would replace the snapshot.
        return match damaged.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Err(StoreError::SnapshotMissing { path: dir.to_owned(), first: log_first }),
        };
    }
    for (path, error) in damaged {
        tracing::error!(error = %with_causes(&error), "a damaged snapshot is moved aside; the one before it and the log are used");
        std::fs::rename(&path, path.with_extension("snapshot-damaged")).map_err(StoreError::io(&path, "cannot be moved aside"))?;
    }
    Ok(found)
}

pub(super) fn on_disk(dir: &Path) -> Result<Vec<u64>, StoreError> {
    Ok(snapshot_file::list(dir)?.into_iter().map(|(index, _)| index).collect())
}

/// Removes the files that a crash left while a snapshot was written or received.
pub(super) fn remove_leftovers(dir: &Path) -> Result<(), StoreError> {
    for file in std::fs::read_dir(dir).map_err(StoreError::io(dir, "cannot be listed"))? {
        let path = file.map_err(StoreError::io(dir, "cannot be listed"))?.path();
        if path.extension().is_some_and(|e| e == "snapshot-new" || e == "received") {
            std::fs::remove_file(&path).map_err(StoreError::io(&path, "cannot be removed"))?;
        }
    }
    Ok(())
}

pub(super) fn open_snapshot(directory: &Directory, meta: SnapshotMeta) -> Result<Snapshot<TypeConfig>, StorageError> {
    let path = snapshot_file::path_of(directory.path(), meta.last_log_id.map_or(0, |id| id.index));
    let file = std::fs::File::open(&path).map_err(|e| StorageIOError::read_snapshot(None, AnyError::new(&e)))?;
    Ok(Snapshot { meta, snapshot: Box::new(tokio::fs::File::from_std(file)) })
}

pub(super) fn install(
    directory: &Directory,
    agreed: &Agreed,
    received: &std::fs::File,
    meta: &SnapshotMeta,
) -> Result<Vec<u64>, StoreError> {
    let dir = directory.path();
    let index = meta.last_log_id.map_or(0, |id| id.index);
    let loaded = snapshot_file::take_over(dir, index, received, |loaded| {
        let want = loaded.ledger.audit_head();
        // This member must have the audit chain before it uses a state that depends on it.
        // The sender may have deleted records after it made the snapshot: then the chain here begins
        // after the snapshot, and the entries of the log fill the gap.
        if agreed.has_audit(want) || agreed.audit_base().seq > want.seq {
            return Ok(());
        }
        Err(StoreError::corrupt(&loaded.path, 0, format!("the audit chain here does not have its record {}", want.seq)))
    })?;
    let mut ledger = agreed.ledger.write();
    *ledger = loaded.ledger;
    agreed.changes.publish_everything(&ledger);
    drop(ledger);
    snapshot_file::remove_older(dir)?;
    on_disk(dir)
}

/// If the disk is full, returns when the snapshot may be tried again. Returns any other error at
/// once.
pub(super) async fn put_off(reserve: &DiskReserve, error: StoreError) -> Result<(), StoreError> {
    if !error.is_full() {
        return Err(error);
    }
    tracing::warn!(error = %with_causes(&error), "no space on the disk for a snapshot: it is postponed, and the earlier ones remain");
    reserve.pause_for_space().await
}

/// Writes a snapshot of the state at the moment when the builder was created.
#[derive(Debug)]
pub struct Builder {
    pub(super) directory: Directory,
    pub(super) agreed: Arc<Agreed>,
    pub(super) snapshots: Arc<Snapshots>,
    pub(super) ledger: Ledger,
    pub(super) checkpoint: Result<Checkpoint, StoreError>,
    pub(super) applied: Option<LogId>,
    pub(super) membership: StoredMembership,
    pub(super) reserve: DiskReserve,
    pub(super) now: fn() -> Timestamp,
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    async fn build_snapshot(&mut self) -> Result<Snapshot<TypeConfig>, StorageError> {
        let began = Instant::now();
        // Two snapshots of one log entry, from two members or written twice, are different files: a
        // partial transfer of one must not be continued with the other.
        let of = self.applied.map_or_else(|| "empty".to_owned(), |id| format!("{}-{}", id.leader_id, id.index));
        let id = format!("{of}-{}", Uuid::new_v4().simple());
        let meta = SnapshotMeta { last_log_id: self.applied, last_membership: self.membership.clone(), snapshot_id: id };
        let mut checkpoint = std::mem::replace(&mut self.checkpoint, Err(StoreError::Stopped));
        let ledger = Arc::new(std::mem::take(&mut self.ledger));
        let fail = |e: &dyn std::error::Error| {
            tracing::error!(error = %with_causes(e), "a snapshot cannot be written");
            StorageIOError::write_snapshot(None, AnyError::error(with_causes(e)))
        };
        let kept = loop {
            // Meanwhile the log is not purged, and grows by no more than the reserve.
            self.reserve.wait_for_space().await.map_err(|e| fail(&e))?;
            let (directory, agreed, ledger, of) = (self.directory.clone(), Arc::clone(&self.agreed), Arc::clone(&ledger), meta.clone());
            let now = self.now;
            let written = background::run("snapshot", move || {
                // The audit chain must be sealed and synced before the log may be purged. This uses
                // file descriptors of its own, so that no writer waits for it.
                let checked = checkpoint?.run()?;
                agreed.audit().checked(checked);
                let dir = directory.path();
                snapshot_file::write(dir, &About::of(of, &ledger, now()), &ledger)?;
                snapshot_file::remove_older(dir)?;
                on_disk(dir)
            });
            match written.await.map_err(|e| fail(&e))? {
                Err(error) => put_off(&self.reserve, error).await.map_err(|e| fail(&e))?,
                Ok(kept) => break kept,
            }
            checkpoint = self.agreed.audit().checkpoint();
        };
        self.agreed.durations.snapshot.observe(began.elapsed());
        self.snapshots.retained.set(kept);
        let mut present = self.snapshots.present.lock();
        if present.as_ref().is_none_or(|p| p.last_log_id <= meta.last_log_id) {
            *present = Some(meta.clone());
        }
        drop(present);
        open_snapshot(&self.directory, meta)
    }
}
