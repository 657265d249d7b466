//! The state machine: the ledger, its audit chain and its snapshots.
//!
//! The ledger is in memory behind a lock that is held for one entry at a time. Its records are
//! shared (`Arc`), so a snapshot starts with a cheap copy and is written while further entries are
//! applied.
//!
//! ```text
//!   entries of one call ──apply──▶ ledger (locked for each entry) ──records──▶ unwritten
//!   unwritten ──one write, the ledger is not locked──▶ audit chain ──▶ replies
//! ```
//!
//! A reader may see an entry in the ledger while its audit records are not written yet; it gets no
//! answer that depends on them ([`Agreed::audit_head`]).

mod agreed;
mod snapshots;

pub use agreed::{Agreed, AuditError};

use super::StoreError;
use super::audit::AuditChain;
use super::directory::Directory;
use super::disk_reserve::DiskReserve;
use super::retained_snapshots::RetainedSnapshots;
use super::synced::Synced;
use crate::changes::Changes;
use crate::durations::Durations;
use crate::raft::{Entry, LogId, Proposal, Replies, SnapshotMeta, StorageError, StoredMembership, TypeConfig};
use crate::roster::Roster;
use lattice_ledger::{Changed, Ledger};
use lattice_model::{AuditRecord, Revision, Timestamp, with_causes};
use openraft::storage::{RaftStateMachine, Snapshot};
use openraft::{AnyError, EntryPayload, OptionalSend, StorageIOError};
use parking_lot::{Mutex, RwLock};
use snapshots::{Builder, Snapshots, install, newest_whole, on_disk, open_snapshot, put_off, remove_leftovers};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::watch;

/// Largest number of audit records that are collected before they are written. A call of openraft
/// may have thousands of entries, above all after a start.
const UNWRITTEN_RECORDS_MAX: usize = 1024;

/// The state machine as used by openraft.
#[derive(Debug)]
pub struct Machine {
    directory: Directory,
    agreed: Arc<Agreed>,
    /// The audit records of applied entries that are not in the chain's file yet, in order.
    unwritten: Vec<AuditRecord>,
    applied: Option<LogId>,
    membership: StoredMembership,
    snapshots: Arc<Snapshots>,
    /// Entries are applied only after they are on this disk.
    synced: Synced,
    reserve: DiskReserve,
    now: fn() -> Timestamp,
}

impl Machine {
    /// Opens the newest undamaged snapshot, or starts empty, and opens the audit chain. The chain
    /// may lack records that a received snapshot depends on: see [`Agreed::lacks_audit`].
    ///
    /// `log`: the first and the last entry in the log. Earlier entries must be in a snapshot. `now`:
    /// the clock for the descriptions of snapshots.
    pub fn open(
        directory: &Directory,
        retained: RetainedSnapshots,
        log: &RangeInclusive<u64>,
        synced: Synced,
        reserve: DiskReserve,
        now: fn() -> Timestamp,
    ) -> Result<Self, StoreError> {
        let dir = directory.path();
        remove_leftovers(dir)?;
        let loaded = newest_whole(dir, *log.start())?;
        let audit = reserve.with_reserve(|| AuditChain::open(&dir.join("audit")))?;
        if let Some(loaded) = &loaded
            && audit.head().seq == loaded.ledger.audit_head().seq
            && audit.head() != loaded.ledger.audit_head()
        {
            return Err(StoreError::corrupt(&loaded.path, 0, "its ledger and the audit chain have different heads"));
        }
        retained.set(on_disk(dir)?);
        let (ledger, meta) = match loaded {
            Some(loaded) => (loaded.ledger, Some(loaded.about.meta)),
            None => (Ledger::default(), None),
        };
        let membership = meta.as_ref().map(|m| m.last_membership.clone()).unwrap_or_default();
        let agreed = Agreed {
            begun: *log.end() > 0,
            changes: Changes::since(&ledger),
            ledger: RwLock::new(ledger),
            audit: Mutex::new(audit),
            audit_dir: Mutex::new(dir.join("audit")),
            roster: watch::Sender::new(Arc::new(Roster::of(&membership))),
            durations: Durations::default(),
        };
        Ok(Self {
            directory: directory.clone(),
            agreed: Arc::new(agreed),
            unwritten: Vec::new(),
            applied: meta.as_ref().and_then(|m| m.last_log_id),
            membership,
            snapshots: Arc::new(Snapshots { present: Mutex::new(meta), received: AtomicU64::new(0), retained }),
            synced,
            reserve,
            now,
        })
    }

    /// Whether nothing was ever applied, according to the disk.
    pub fn is_empty(&self) -> bool {
        self.applied.is_none()
    }

    /// The state shared with readers.
    pub fn agreed(&self) -> Arc<Agreed> {
        Arc::clone(&self.agreed)
    }

    /// Applies an entry to the ledger. Its audit records are written with those of the call's other
    /// entries.
    #[expect(clippy::result_large_err, reason = "the error is openraft's")]
    fn apply_proposal(&mut self, log_id: LogId, proposal: &Proposal) -> Result<Replies, StorageError> {
        // Another member wrote something that this version does not understand: to continue would
        // make the replicas differ.
        let commands = proposal.commands().map_err(|e| apply_failed(log_id, &e))?;
        let mut replies = Vec::with_capacity(commands.len());
        let mut changed = Changed::default();
        let mut ledger = self.agreed.ledger.write();
        for command in &commands {
            let applied = ledger.apply(Revision(log_id.index), command);
            replies.push(applied.result);
            self.unwritten.extend(applied.audit);
            changed.merge(applied.changed);
        }
        // Under the lock: a watch that resumes before the records are written considers the
        // ledger's revision as known.
        self.agreed.changes.publish(&ledger, changed);
        Ok(Replies(replies))
    }

    /// Writes the collected audit records. While there is no space for them, no entry of this call
    /// counts as applied: nobody gets an answer, and no snapshot is made. Readers of existing data
    /// are not affected.
    async fn write_audit(&mut self, log_id: LogId) -> Result<(), StorageError> {
        while !self.unwritten.is_empty() {
            let appended = self.agreed.audit().append(&self.unwritten);
            match appended {
                Ok(()) => self.unwritten.clear(),
                Err(error) => self.reserve.wait_to_retry(error).await.map_err(|e| apply_failed(log_id, &e))?,
            }
        }
        Ok(())
    }
}

fn apply_failed(log_id: LogId, error: &(impl std::error::Error + 'static)) -> StorageError {
    tracing::error!(error = %with_causes(error), %log_id, "an entry cannot be applied; this member stops");
    StorageIOError::apply(log_id, AnyError::new(error)).into()
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), StorageError> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Replies>, StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut replies = Vec::new();
        let mut entries = entries.into_iter().peekable();
        while let Some(entry) = entries.next() {
            self.synced.reached(entry.log_id.index).await.map_err(|e| apply_failed(entry.log_id, &e))?;
            let began = Instant::now();
            replies.push(match &entry.payload {
                EntryPayload::Blank => Replies::default(),
                EntryPayload::Normal(proposal) => self.apply_proposal(entry.log_id, proposal)?,
                EntryPayload::Membership(membership) => {
                    self.membership = StoredMembership::new(Some(entry.log_id), membership.clone());
                    self.agreed.roster.send_replace(Arc::new(Roster::of(&self.membership)));
                    Replies::default()
                }
            });
            // openraft answers nobody before all entries of this call are applied, so one write is
            // enough for them.
            if entries.peek().is_none() || self.unwritten.len() >= UNWRITTEN_RECORDS_MAX {
                self.write_audit(entry.log_id).await?;
            }
            self.agreed.durations.apply.observe(began.elapsed());
            self.applied = Some(entry.log_id);
        }
        Ok(replies)
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder {
            directory: self.directory.clone(),
            agreed: Arc::clone(&self.agreed),
            snapshots: Arc::clone(&self.snapshots),
            ledger: self.agreed.ledger().clone(),
            checkpoint: self.agreed.audit().checkpoint(),
            applied: self.applied,
            membership: self.membership.clone(),
            reserve: self.reserve.clone(),
            now: self.now,
        }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<tokio::fs::File>, StorageError> {
        let number = self.snapshots.received.fetch_add(1, Ordering::Relaxed);
        let path = self.directory.path().join(format!("{number}.received"));
        let file = loop {
            let made = tokio::fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).await;
            match made.map_err(StoreError::io(&path, "cannot be made")) {
                Ok(file) => break file,
                Err(error) => {
                    self.reserve.wait_to_retry(error).await.map_err(|e| StorageIOError::write_snapshot(None, AnyError::new(&e)))?;
                }
            }
        };
        // The file is unlinked: it disappears when the receiver closes it.
        std::fs::remove_file(&path).map_err(|e| StorageIOError::write_snapshot(None, AnyError::new(&e)))?;
        Ok(Box::new(file))
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: Box<tokio::fs::File>) -> Result<(), StorageError> {
        let file = Arc::new(snapshot.into_std().await);
        let fail = |e: &dyn std::error::Error| {
            self.snapshots.retained.set_failed();
            tracing::error!(error = %with_causes(e), "a snapshot cannot be installed");
            StorageIOError::write_snapshot(None, AnyError::error(with_causes(e)))
        };
        let kept = loop {
            let (directory, agreed, meta, file) = (self.directory.clone(), Arc::clone(&self.agreed), meta.clone(), Arc::clone(&file));
            let installed = tokio::task::spawn_blocking(move || install(&directory, &agreed, &file, &meta)).await.map_err(|e| fail(&e))?;
            match installed {
                Err(error) => put_off(&self.reserve, error).await.map_err(|e| fail(&e))?,
                Ok(kept) => break kept,
            }
        };
        let meta = meta.clone();
        self.snapshots.retained.set(kept);
        tracing::info!(
            upto = meta.last_log_id.map(|id| id.index),
            "the leader's snapshot is installed: this member was absent for longer than the log reaches back"
        );
        self.applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        self.agreed.roster.send_replace(Arc::new(Roster::of(&self.membership)));
        *self.snapshots.present.lock() = Some(meta);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<TypeConfig>>, StorageError> {
        let present = self.snapshots.present.lock().clone();
        match present {
            Some(meta) => open_snapshot(&self.directory, meta).map(Some),
            None => Ok(None),
        }
    }
}
