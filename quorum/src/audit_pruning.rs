//! Deletes this member's oldest audit records once they are in the archive.
//!
//! ```text
//!   the leader reads the archive back ──▶ ArchiveAudit (committed) ──▶ every member: snapshots with it
//!                                                       ──▶ reads the segments in the archive ──▶ deletes its own
//! ```
//!
//! A member deletes only segments up to the checkpoint that *every* snapshot on its own disk has: if
//! the newest one is damaged, the state of the one before it has that checkpoint too. It keeps the
//! newest `audit_kept_segments`. It deletes nothing without an archive in its configuration, nor if
//! the leader's archive is another one, nor if it does not read the same records there.

use crate::audit::signer::verifies;
use crate::audit_archive::{Archive, ArchiveError};
use crate::core::Core;
use lattice_ledger::signing::SignedHead;
use lattice_ledger::{AuditCheckpoint, AuditHead};
use lattice_model::with_causes;
use lattice_store::{StoreError, background, snapshot_file};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::time::{Instant, MissedTickBehavior};

/// How often to check whether something may be deleted.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after a failure; a new snapshot or segment ends it early.
const RETRY_PAUSE: Duration = Duration::from_secs(60);

/// Why nothing is deleted.
#[derive(Debug, Error)]
enum PruneError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the task that deletes records failed")]
    Task(#[source] io::Error),
    #[error("the signature of the audit checkpoint in record {seq} is invalid")]
    Signature { seq: u64 },
    #[error("the archive cannot be listed")]
    Archive(#[from] object_store::Error),
    #[error("the leader archives to {theirs}, not to this member's `audit_archive`: it must be the same for all members")]
    OtherArchive { theirs: String },
    #[error("this member does not see the segment that begins with record {first} in the archive: all members need the same store")]
    NotSeen { first: u64 },
    #[error("the archive does not give the records back")]
    Unreadable(#[from] ArchiveError),
    #[error("the archive's record {seq} differs from this member's")]
    Differs { seq: u64 },
}

/// Until the member stops, deletes the records that may be deleted.
pub(crate) async fn prune(core: Arc<Core>, archive: Arc<Archive>) {
    let mut tick = tokio::time::interval(CHECK_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The newest snapshot and the number of segments at the last check, and when to check again even
    // if both are unchanged.
    let mut checked = None;
    let mut retry_at: Option<Instant> = None;
    loop {
        tokio::select! {
            () = core.stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        let snapshot = core.raft.metrics().borrow().snapshot.map_or(0, |id| id.index);
        let present = (snapshot, core.agreed.audit_segments().len());
        if checked == Some(present) && retry_at.is_none_or(|at| Instant::now() < at) {
            continue;
        }
        (checked, retry_at) = (Some(present), None);
        match prune_once(&core, &archive).await {
            Ok(None) => {}
            Ok(Some(upto)) => tracing::info!(upto = upto.seq, "audit records that are in the archive were deleted here"),
            Err(error) => {
                retry_at = Some(Instant::now() + RETRY_PAUSE);
                tracing::error!(error = %with_causes(&error), "audit records that are in the archive cannot be deleted here");
            }
        }
    }
}

/// Deletes up to the checkpoint that all snapshots have. Returns the last deleted record.
async fn prune_once(core: &Core, archive: &Archive) -> Result<Option<AuditHead>, PruneError> {
    let (cluster, known) = {
        let ledger = core.agreed.ledger();
        (ledger.cluster().to_owned(), ledger.audit_checkpoint().cloned())
    };
    let Some(known) = known else { return Ok(None) };
    let upto = background::run("audit-prune", {
        let (agreed, dir, kept) = (Arc::clone(&core.agreed), core.config.data_dir.clone(), core.config.audit_kept_segments as usize);
        move || match common_checkpoint(&dir)? {
            Some(checkpoint) => agreed.prunable_audit(&checkpoint, kept),
            None => Ok(None),
        }
    });
    let Some(upto) = upto.await.map_err(PruneError::Task)??.filter(|upto| upto.seq <= known.signed.seq) else { return Ok(None) };
    // The deletion itself is awaited: after the stop, nothing may change in the directory.
    match core.stop.run_until_cancelled(require_archived(core, archive, &cluster, (&known, &upto))).await {
        Some(archived) => archived?,
        None => return Ok(None),
    }
    let (agreed, pruned) = (Arc::clone(&core.agreed), upto.clone());
    let reserve = core.disk.reserve.clone();
    let deleted = background::run("audit-prune", move || reserve.with_reserve(|| agreed.prune_audit(&pruned)));
    Ok(deleted.await.map_err(PruneError::Task)??.then_some(upto))
}

/// The earliest checkpoint of the snapshots in `dir`; `None`: there is no snapshot, or one of them
/// has no checkpoint.
fn common_checkpoint(dir: &Path) -> Result<Option<AuditHead>, StoreError> {
    let mut common: Option<AuditHead> = None;
    for (_, path) in snapshot_file::list(dir)? {
        let checkpoint = snapshot_file::about(&path)?.audit_checkpoint;
        if common.as_ref().is_none_or(|common| checkpoint.seq < common.seq) {
            common = Some(checkpoint);
        }
    }
    Ok(common.filter(|common| common.seq > 0))
}

/// Checks that the leader's signature of the checkpoint is valid, that this member sees all segments
/// up to `upto` in the same archive, and that the archive's copies of the segments to delete have the
/// same records: the leader may have read them long ago.
async fn require_archived(
    core: &Core,
    archive: &Archive,
    cluster: &str,
    (known, upto): (&AuditCheckpoint, &AuditHead),
) -> Result<(), PruneError> {
    let AuditCheckpoint { signed, archive: theirs, .. } = known;
    if !verifies(&signed.key, SignedHead::message(cluster, signed.seq, &signed.hash).as_bytes(), &signed.signature) {
        return Err(PruneError::Signature { seq: signed.seq });
    }
    if theirs != archive.url() {
        return Err(PruneError::OtherArchive { theirs: theirs.clone() });
    }
    if let Some(first) = archive.first_missing(cluster, known, upto.seq).await? {
        return Err(PruneError::NotSeen { first });
    }
    let found = archive.read_back(cluster, known, core.agreed.audit_base(), upto.seq).await?;
    if found == *upto { Ok(()) } else { Err(PruneError::Differs { seq: upto.seq }) }
}
