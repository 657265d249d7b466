//! The agreed state of a member, for readers.

use crate::changes::Changes;
use crate::raft_counts::RaftCounts;
use crate::roster::Roster;
use crate::store::StoreError;
use crate::store::audit::{AuditChain, Records, Sealed, Search};
use lattice_ledger::{AuditFault, AuditHead, Ledger};
use lattice_model::{AuditFilter, AuditRecord, Generation};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use std::sync::Arc;
use thiserror::Error;
use tokio::sync::watch;

/// The agreed state of this member, for readers.
#[derive(Debug)]
pub struct Agreed {
    /// Whether there were log entries at the start.
    pub(super) begun: bool,
    pub(super) ledger: RwLock<Ledger>,
    pub(super) audit: Mutex<AuditChain>,
    /// The committed membership.
    pub(super) roster: watch::Sender<Arc<Roster>>,
    /// Who hears of changes.
    pub changes: Changes,
    /// What this member does, for metrics.
    pub counts: Arc<RaftCounts>,
}

/// Why the audit chain on disk does not hold.
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
}

impl Agreed {
    /// The ledger as of the last applied entry. Hold it shortly, and never across an await.
    pub fn ledger(&self) -> RwLockReadGuard<'_, Ledger> {
        self.ledger.read()
    }

    /// The generation of what is here; `None` where nothing is here yet. A log without a snapshot, of which nothing is applied
    /// before a leader says how far, is of the first one: a recovery begins with a snapshot.
    pub fn generation(&self) -> Option<Generation> {
        let ledger = self.ledger();
        (self.begun || !ledger.cluster().is_empty()).then(|| ledger.generation())
    }

    /// The committed membership, as of the last applied entry.
    pub fn roster(&self) -> Arc<Roster> {
        Arc::clone(&self.roster.borrow())
    }

    /// Hears of each change of the committed membership.
    pub fn rosters(&self) -> watch::Receiver<Arc<Roster>> {
        self.roster.subscribe()
    }

    pub(super) fn audit(&self) -> MutexGuard<'_, AuditChain> {
        self.audit.lock()
    }

    /// The last audit record on this member's disk. A member that is about to install a snapshot has fetched more than it
    /// has applied.
    pub fn audit_on_disk(&self) -> AuditHead {
        self.audit().head().clone()
    }

    /// The audit segments on this member's disk that do not change any more. Each is sealed with the snapshot after it.
    pub fn audit_segments(&self) -> Vec<Sealed> {
        self.audit().sealed().to_vec()
    }

    /// Audit records behind `after`, up to `upto`, one by one from the disk.
    pub fn audit_reader(&self, after: u64, upto: u64) -> Records {
        self.audit().records(after, upto)
    }

    /// Puts records that another member sent behind those that are here, durably: each must follow from the one before
    /// it. Touches the disk: call it where blocking is allowed.
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

    /// Whether this record is on disk, with this hash.
    pub fn has_audit(&self, head: &AuditHead) -> bool {
        head.seq == 0 || self.audit_reader(head.seq - 1, head.seq).next().is_some_and(|r| r.is_ok_and(|r| r.hash == head.hash))
    }

    /// Drops records that turned out not to be those of this cluster.
    pub(crate) fn cut_audit_back(&self, head: &AuditHead) -> Result<(), StoreError> {
        self.audit().cut_back(head)
    }

    /// Where the audit chain on disk lacks records that the ledger's snapshot relies on: what is there, what is wanted.
    pub fn lacks_audit(&self) -> Option<(AuditHead, AuditHead)> {
        let (have, want) = (self.audit_on_disk(), self.ledger().audit_head().clone());
        (have.seq < want.seq).then_some((have, want))
    }

    /// The same for whoever reports what cannot be read.
    pub fn audit_records(&self, after: u64, upto: u64) -> impl Iterator<Item = Result<AuditRecord, AuditError>> {
        let numbered = (after + 1..).zip(self.audit_reader(after, upto));
        numbered.map(|(seq, record)| record.map_err(|source| AuditError::Read { seq, source }))
    }

    /// Searches the audit chain behind `after`, up to `upto`. Reads the disk: call it where blocking is allowed.
    pub fn audit_search(&self, filter: &AuditFilter, after: u64, upto: u64) -> Search {
        self.audit().search(filter, after, upto)
    }
}
