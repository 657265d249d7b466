//! Read access to a member's applied state.

use crate::StoreError;
use crate::audit::{AuditChain, Records, Sealed, Search, has_earlier, remove_before};
use crate::changes::Changes;
use crate::durations::Durations;
use crate::roster::Roster;
use lattice_ledger::{AuditFault, AuditHead, Ledger};
use lattice_model::{AuditFilter, AuditRecord, Generation, with_causes};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use std::path::PathBuf;
use std::sync::Arc;
use thiserror::Error;
use tokio::sync::watch;

/// This member's applied state, for readers.
#[derive(Debug)]
pub struct Agreed {
    /// Whether the log had entries at the start.
    pub(super) begun: bool,
    pub(super) ledger: RwLock<Ledger>,
    pub(super) audit: Mutex<AuditChain>,
    /// The folder of the audit chain. Locked while its beginning is written or segments are deleted.
    pub(super) audit_dir: Mutex<PathBuf>,
    /// The committed membership.
    pub(super) roster: watch::Sender<Arc<Roster>>,
    /// Distributes changes to watchers.
    pub changes: Changes,
    /// For metrics.
    pub durations: Durations,
}

/// Why the audit chain on disk is not usable.
#[derive(Debug, Error)]
pub enum AuditError {
    #[error(transparent)]
    Broken(#[from] AuditFault),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("audit record {seq} cannot be read")]
    Read {
        seq: u64,
        #[source]
        source: std::io::Error,
    },
    #[error("audit records before {begins} are not on this member's disk any more, only in the archive")]
    Pruned { begins: u64 },
}

impl Agreed {
    /// The ledger as of the last applied entry. Hold the lock only briefly, and never across an
    /// await.
    pub fn ledger(&self) -> RwLockReadGuard<'_, Ledger> {
        self.ledger.read()
    }

    /// The generation of the local state; `None`: there is no state yet. A log without a snapshot,
    /// of which nothing has been applied yet, belongs to the first generation, because a recovery
    /// starts with a snapshot.
    pub fn generation(&self) -> Option<Generation> {
        let ledger = self.ledger();
        (self.begun || !ledger.cluster().is_empty()).then(|| ledger.generation())
    }

    /// The committed membership, as of the last applied entry.
    pub fn roster(&self) -> Arc<Roster> {
        Arc::clone(&self.roster.borrow())
    }

    /// Notifies of each change of the committed membership.
    pub fn rosters(&self) -> watch::Receiver<Arc<Roster>> {
        self.roster.subscribe()
    }

    pub(super) fn audit(&self) -> MutexGuard<'_, AuditChain> {
        self.audit.lock()
    }

    /// The last audit record on this member's disk. Before it installs a snapshot, a member has
    /// fetched more records than it has applied.
    pub fn audit_on_disk(&self) -> AuditHead {
        self.audit().head().clone()
    }

    /// The last audit record that readers may see: it is applied and on this member's disk. The
    /// ledger's head is ahead of it while records wait to be written. The disk's head is ahead of it
    /// while fetched records wait for the installation of their snapshot.
    pub fn audit_head(&self) -> AuditHead {
        let (on_disk, applied) = (self.audit_on_disk(), self.ledger().audit_head().clone());
        if on_disk.seq < applied.seq { on_disk } else { applied }
    }

    /// The audit segments on this member's disk that no longer change. A segment is sealed together
    /// with the next snapshot.
    pub fn audit_segments(&self) -> Vec<Sealed> {
        self.audit().sealed().to_vec()
    }

    /// Compares a sealed segment with its checksum. If it is damaged ([`StoreError::Corrupt`]),
    /// nothing is read from it any more; after any other error, the segment may be good or damaged.
    /// Reads the whole segment: call it where blocking is allowed.
    pub fn check_audit_segment(&self, segment: &Sealed) -> Result<(), StoreError> {
        match segment.check() {
            // The segment may have been cut off or pruned meanwhile.
            Err(_) if !self.audit().has_sealed(segment) => Ok(()),
            Err(error @ StoreError::Corrupt { .. }) => {
                self.audit().set_damaged(segment, &with_causes(&error));
                Err(error)
            }
            checked => checked,
        }
    }

    /// Number of sealed audit segments that were found damaged since the start.
    pub fn damaged_audit_segments(&self) -> usize {
        self.audit().damaged()
    }

    /// Makes the next `appends` appends to the audit chain find no space on the disk.
    #[cfg(test)]
    pub(crate) fn fill_disk_of_audit(&self, appends: u32) {
        self.audit().appends_without_space = appends;
    }

    /// Locks the audit chain.
    #[cfg(test)]
    pub(crate) fn hold_audit(&self) -> MutexGuard<'_, AuditChain> {
        self.audit()
    }

    /// The ledger, unless somebody writes to it now.
    #[cfg(test)]
    pub(crate) fn try_ledger(&self) -> Option<RwLockReadGuard<'_, Ledger>> {
        self.ledger.try_read()
    }

    /// Audit records after `after` up to `upto`, read one by one from the disk.
    pub fn audit_reader(&self, after: u64, upto: u64) -> Records {
        self.audit().records(after, upto)
    }

    /// Appends records sent by another member durably: each must follow from the previous one.
    /// Accesses the disk: call it where blocking is allowed.
    pub fn take_audit(&self, records: &[AuditRecord]) -> Result<(), AuditError> {
        let checkpoint = {
            let mut audit = self.audit();
            let mut head = audit.head().clone();
            for record in records.iter().filter(|r| r.seq > audit.head().seq) {
                head.follow(record)?;
            }
            audit.append(records)?;
            audit.checkpoint()?
        };
        let checked = checkpoint.run()?;
        self.audit().checked(checked);
        Ok(())
    }

    /// The record before the first one on this member's disk: earlier ones are only in the archive.
    pub fn audit_base(&self) -> AuditHead {
        self.audit().base().clone()
    }

    /// The base and the sealed segments after it.
    pub fn audit_base_and_segments(&self) -> (AuditHead, Vec<Sealed>) {
        let audit = self.audit();
        (audit.base().clone(), audit.sealed().to_vec())
    }

    /// Begins the chain after `base`, where another member's chain begins. Does nothing if this disk
    /// has that record. Accesses the disk: call it where blocking is allowed.
    pub fn begin_audit_at(&self, base: AuditHead) -> Result<(), StoreError> {
        let _dir = self.audit_dir.lock();
        self.audit().begin_at(base)
    }

    /// The last record of the segments that may be deleted: those up to `checkpoint`, except the
    /// newest `kept` ones. `checkpoint`: a checkpoint of the ledger, and part of the snapshots on this
    /// disk. Accesses the disk: call it where blocking is allowed.
    pub fn prunable_audit(&self, checkpoint: &AuditHead, kept: usize) -> Result<Option<AuditHead>, StoreError> {
        let dir = self.audit_dir.lock();
        let (prunable, base) = {
            let audit = self.audit();
            (audit.prunable(checkpoint, kept)?, audit.base().clone())
        };
        if prunable.is_some() {
            return Ok(prunable);
        }
        // Segments that could not be deleted earlier, and segments from before this chain began at
        // another member's base.
        Ok((base.seq <= checkpoint.seq && has_earlier(&dir, &base)?).then_some(base))
    }

    /// Deletes the segments up to `upto`, which [`Self::prunable_audit`] returned. `false`: the chain
    /// has been cut off or begun anew since, and nothing was deleted. Accesses the disk: call it where
    /// blocking is allowed.
    pub fn prune_audit(&self, upto: &AuditHead) -> Result<bool, StoreError> {
        let dir = self.audit_dir.lock();
        let base = {
            let mut audit = self.audit();
            audit.prune(upto);
            audit.base().clone()
        };
        if base == *upto { remove_before(&dir, &base).map(|()| true) } else { Ok(false) }
    }

    /// Whether this record is on disk, with this hash, or is the base.
    pub fn has_audit(&self, head: &AuditHead) -> bool {
        head.seq == 0
            || *head == self.audit_base()
            || self.audit_reader(head.seq - 1, head.seq).next().is_some_and(|r| r.is_ok_and(|r| r.hash == head.hash))
    }

    /// Drops records that turned out not to belong to this cluster.
    pub fn cut_audit_back(&self, head: &AuditHead) -> Result<(), StoreError> {
        self.audit().cut_back(head)
    }

    /// If the audit chain on disk lacks records that the ledger's snapshot depends on: the head on
    /// disk and the required head. Call it only before entries are applied: later, records that wait
    /// to be written are not on disk either.
    pub fn lacks_audit(&self) -> Option<(AuditHead, AuditHead)> {
        let (have, want) = (self.audit_on_disk(), self.ledger().audit_head().clone());
        (have.seq < want.seq).then_some((have, want))
    }

    /// As [`Self::audit_reader`], with errors for callers that report unreadable records.
    pub fn audit_records(&self, after: u64, upto: u64) -> impl Iterator<Item = Result<AuditRecord, AuditError>> {
        let numbered = (after + 1..).zip(self.audit_reader(after, upto));
        numbered.map(|(seq, record)| record.map_err(|source| self.unreadable(seq, source)))
    }

    /// Why record `seq` cannot be read.
    pub fn unreadable(&self, seq: u64, source: std::io::Error) -> AuditError {
        // Its segment may have been deleted since the reader began.
        let base = self.audit_base();
        if seq <= base.seq { AuditError::Pruned { begins: base.seq + 1 } } else { AuditError::Read { seq, source } }
    }

    /// Searches the audit chain after `after` up to `upto`. Reads the disk: call it where blocking
    /// is allowed.
    pub fn audit_search(&self, filter: &AuditFilter, after: u64, upto: u64) -> Search {
        self.audit().search(filter, after, upto)
    }
}
