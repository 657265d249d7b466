//! The state machine: the ledger, its audit chain and its snapshots.
//!
//! The ledger lives in memory behind a lock that is held for one entry at a time. Entries are shared (`Arc`), so a
//! snapshot begins with a cheap copy and is written while further entries are applied.

#![expect(clippy::result_large_err, reason = "the error is openraft's")]

use super::audit::{AuditChain, Checkpoint, Records, Sealed, Search};
use super::directory::Directory;
use super::kept::Kept;
use super::room::Room;
use super::snapshot_file::{About, Loaded};
use super::synced::Synced;
use super::{StoreError, snapshot_file};
use crate::background;
use crate::changes::Changes;
use crate::clock::now;
use crate::ledger::{AuditFault, AuditHead, Changed, Ledger};
use crate::pack;
use crate::raft::{Entry, LogId, Proposal, Replies, SnapshotMeta, StorageError, StoredMembership, TypeConfig};
use crate::raft_counts::RaftCounts;
use crate::roster::Roster;
use crate::wire::AuditWalk;
use lattice_model::{AuditFilter, AuditRecord, Generation, MemberId, Revision};
use openraft::storage::{RaftStateMachine, Snapshot};
use openraft::{AnyError, EntryPayload, OptionalSend, RaftSnapshotBuilder, StorageIOError};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use thiserror::Error;
use tokio::sync::watch;
use uuid::Uuid;

/// The agreed state of this member, for readers.
#[derive(Debug)]
pub struct Agreed {
    /// Whether there were log entries at the start.
    begun: bool,
    ledger: RwLock<Ledger>,
    audit: Mutex<AuditChain>,
    /// The committed membership.
    roster: watch::Sender<Arc<Roster>>,
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

    fn audit(&self) -> MutexGuard<'_, AuditChain> {
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

    /// Checks the whole chain on disk up to the ledger's head. Reads the disk: call it where blocking is allowed.
    pub fn verify_audit(&self) -> Result<AuditHead, AuditError> {
        let mut walk = AuditWalk::new(MemberId(0));
        while !walk.done {
            walk = walk.step(self)?;
        }
        Ok(walk.head)
    }
}

/// The state machine as openraft drives it.
#[derive(Debug)]
pub struct Machine {
    directory: Directory,
    agreed: Arc<Agreed>,
    applied: Option<LogId>,
    membership: StoredMembership,
    snapshots: Arc<Snapshots>,
    /// Nothing is applied that is not on this disk.
    synced: Synced,
    room: Room,
}

#[derive(Debug)]
struct Snapshots {
    /// The newest one.
    present: Mutex<Option<SnapshotMeta>>,
    /// Tells snapshots that are received apart.
    received: AtomicU64,
    kept: Kept,
}

impl Machine {
    /// Opens the newest snapshot that is whole, or begins with nothing, and the audit chain. The chain may lack what a
    /// snapshot from elsewhere relies on: see [`Agreed::lacks_audit`].
    ///
    /// `log`: from the first entry that the log still has to its last. What came before it must be in a snapshot.
    pub fn open(directory: &Directory, kept: Kept, log: &RangeInclusive<u64>, synced: Synced, room: Room) -> Result<Self, StoreError> {
        let dir = directory.path();
        remove_leftovers(dir)?;
        let loaded = newest_whole(dir, *log.start())?;
        let audit = room.within(|| AuditChain::open(&dir.join("audit")))?;
        if let Some(loaded) = &loaded
            && audit.head().seq == loaded.ledger.audit_head().seq
            && audit.head() != loaded.ledger.audit_head()
        {
            return Err(StoreError::corrupt(&loaded.path, 0, "its ledger and the audit chain have different heads"));
        }
        kept.are(on_disk(dir)?);
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
            roster: watch::Sender::new(Arc::new(Roster::of(&membership))),
            counts: Arc::default(),
        };
        Ok(Self {
            directory: directory.clone(),
            agreed: Arc::new(agreed),
            applied: meta.as_ref().and_then(|m| m.last_log_id),
            membership,
            snapshots: Arc::new(Snapshots { present: Mutex::new(meta), received: AtomicU64::new(0), kept }),
            synced,
            room,
        })
    }

    /// Whether nothing was ever applied, as far as the disk knows.
    pub fn is_empty(&self) -> bool {
        self.applied.is_none()
    }

    /// What readers share.
    pub fn agreed(&self) -> Arc<Agreed> {
        Arc::clone(&self.agreed)
    }

    async fn apply_proposal(&self, log_id: LogId, proposal: &Proposal) -> Result<Replies, StorageError> {
        // Another member wrote what this version does not understand: going on would make the replicas differ.
        let commands = proposal.commands().map_err(|e| apply_failed(log_id, &e))?;
        let mut replies = Vec::with_capacity(commands.len());
        let mut records = Vec::new();
        let mut changed = Changed::default();
        let mut appended = {
            let mut ledger = self.agreed.ledger.write();
            for command in &commands {
                let applied = ledger.apply(Revision(log_id.index), command);
                replies.push(applied.result);
                records.extend(applied.audit);
                changed.merge(applied.changed);
            }
            // Before the records: a watch that resumes while they wait for room takes the ledger's revision for known.
            self.agreed.changes.tell(&ledger, changed);
            self.agreed.audit().append(&records)
        };
        // Without room for its records an entry does not count as applied: nobody is answered, and no snapshot is made. Who
        // reads what there is goes on meanwhile.
        while let Err(error) = appended {
            self.room.again(error).await.map_err(|e| apply_failed(log_id, &e))?;
            appended = self.agreed.audit().append(&records);
        }
        Ok(Replies(replies))
    }
}

fn apply_failed(log_id: LogId, error: &(impl std::error::Error + 'static)) -> StorageError {
    tracing::error!(error = %pack::with_causes(error), %log_id, "an entry cannot be applied; this member stops");
    StorageIOError::apply(log_id, AnyError::new(error)).into()
}

/// Loads the newest snapshot that is whole. A damaged one is moved aside where the one before it and the log behind that
/// make up for it; where they do not, the member refuses to start.
fn newest_whole(dir: &Path, log_first: u64) -> Result<Option<Loaded>, StoreError> {
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
        // Nothing here makes up for what the log no longer has.
        return match damaged.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Err(StoreError::SnapshotMissing { path: dir.to_owned(), first: log_first }),
        };
    }
    for (path, error) in damaged {
        tracing::error!(error = %pack::with_causes(&error), "a damaged snapshot is moved aside; the one before it and the log are used");
        std::fs::rename(&path, path.with_extension("snapshot-damaged")).map_err(StoreError::io(&path, "cannot be moved aside"))?;
    }
    Ok(found)
}

fn on_disk(dir: &Path) -> Result<Vec<u64>, StoreError> {
    Ok(snapshot_file::list(dir)?.into_iter().map(|(index, _)| index).collect())
}

/// What a crash in the middle of a snapshot left.
fn remove_leftovers(dir: &Path) -> Result<(), StoreError> {
    for file in std::fs::read_dir(dir).map_err(StoreError::io(dir, "cannot be listed"))? {
        let path = file.map_err(StoreError::io(dir, "cannot be listed"))?.path();
        if path.extension().is_some_and(|e| e == "snapshot-new" || e == "received") {
            std::fs::remove_file(&path).map_err(StoreError::io(&path, "cannot be removed"))?;
        }
    }
    Ok(())
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
        for entry in entries {
            self.synced.reached(entry.log_id.index).await.map_err(|e| apply_failed(entry.log_id, &e))?;
            let began = Instant::now();
            replies.push(match &entry.payload {
                EntryPayload::Blank => Replies::default(),
                EntryPayload::Normal(proposal) => self.apply_proposal(entry.log_id, proposal).await?,
                EntryPayload::Membership(membership) => {
                    self.membership = StoredMembership::new(Some(entry.log_id), membership.clone());
                    self.agreed.roster.send_replace(Arc::new(Roster::of(&self.membership)));
                    Replies::default()
                }
            });
            self.agreed.counts.apply.observe(began.elapsed());
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
            room: self.room.clone(),
        }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<tokio::fs::File>, StorageError> {
        let number = self.snapshots.received.fetch_add(1, Ordering::Relaxed);
        let path = self.directory.path().join(format!("{number}.received"));
        let file = loop {
            let made = tokio::fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).await;
            match made.map_err(StoreError::io(&path, "cannot be made")) {
                Ok(file) => break file,
                Err(error) => self.room.again(error).await.map_err(|e| StorageIOError::write_snapshot(None, AnyError::new(&e)))?,
            }
        };
        // Without a name it goes away with whoever receives it.
        std::fs::remove_file(&path).map_err(|e| StorageIOError::write_snapshot(None, AnyError::new(&e)))?;
        Ok(Box::new(file))
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: Box<tokio::fs::File>) -> Result<(), StorageError> {
        let file = Arc::new(snapshot.into_std().await);
        let fail = |e: &dyn std::error::Error| {
            self.snapshots.kept.failed();
            tracing::error!(error = %pack::with_causes(e), "a snapshot cannot be installed");
            StorageIOError::write_snapshot(None, AnyError::error(pack::with_causes(e)))
        };
        let kept = loop {
            let (directory, agreed, meta, file) = (self.directory.clone(), Arc::clone(&self.agreed), meta.clone(), Arc::clone(&file));
            let installed = tokio::task::spawn_blocking(move || install(&directory, &agreed, &file, &meta)).await.map_err(|e| fail(&e))?;
            match installed {
                Err(error) => put_off(&self.room, error).await.map_err(|e| fail(&e))?,
                Ok(kept) => break kept,
            }
        };
        let meta = meta.clone();
        self.snapshots.kept.are(kept);
        tracing::info!(
            upto = meta.last_log_id.map(|id| id.index),
            "the leader's snapshot is taken: this member was away for longer than the log reaches back"
        );
        self.applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        self.agreed.roster.send_replace(Arc::new(Roster::of(&self.membership)));
        *self.snapshots.present.lock() = Some(meta);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<TypeConfig>>, StorageError> {
        let present = self.snapshots.present.lock().clone();
        present.map(|meta| open_snapshot(&self.directory, meta)).transpose()
    }
}

fn open_snapshot(directory: &Directory, meta: SnapshotMeta) -> Result<Snapshot<TypeConfig>, StorageError> {
    let path = snapshot_file::path_of(directory.path(), meta.last_log_id.map_or(0, |id| id.index));
    let file = std::fs::File::open(&path).map_err(|e| StorageIOError::read_snapshot(None, AnyError::new(&e)))?;
    Ok(Snapshot { meta, snapshot: Box::new(tokio::fs::File::from_std(file)) })
}

fn install(directory: &Directory, agreed: &Agreed, received: &std::fs::File, meta: &SnapshotMeta) -> Result<Vec<u64>, StoreError> {
    let dir = directory.path();
    let index = meta.last_log_id.map_or(0, |id| id.index);
    let loaded = snapshot_file::take_over(dir, index, received, |loaded| {
        let want = loaded.ledger.audit_head();
        // The chain must be here before a state that relies on it counts.
        if agreed.has_audit(want) {
            return Ok(());
        }
        Err(StoreError::corrupt(&loaded.path, 0, format!("the audit chain here does not have its record {}", want.seq)))
    })?;
    let mut ledger = agreed.ledger.write();
    *ledger = loaded.ledger;
    agreed.changes.tell_everything(&ledger);
    drop(ledger);
    snapshot_file::remove_older(dir)?;
    on_disk(dir)
}

/// Returns when it is time to try a snapshot again that found no room; gives any other error back.
async fn put_off(room: &Room, error: StoreError) -> Result<(), StoreError> {
    if !error.is_full() {
        return Err(error);
    }
    tracing::warn!(error = %pack::with_causes(&error), "there is no room for a snapshot: it is put off, and those before it stay");
    room.later().await
}

/// Writes a snapshot of the moment at which it was made.
#[derive(Debug)]
pub struct Builder {
    directory: Directory,
    agreed: Arc<Agreed>,
    snapshots: Arc<Snapshots>,
    ledger: Ledger,
    checkpoint: Result<Checkpoint, StoreError>,
    applied: Option<LogId>,
    membership: StoredMembership,
    room: Room,
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    async fn build_snapshot(&mut self) -> Result<Snapshot<TypeConfig>, StorageError> {
        let began = Instant::now();
        // Two snapshots of one log entry, from two members or written twice, are different files: what is received of one
        // is never continued with the other.
        let of = self.applied.map_or_else(|| "empty".to_owned(), |id| format!("{}-{}", id.leader_id, id.index));
        let id = format!("{of}-{}", Uuid::new_v4().simple());
        let meta = SnapshotMeta { last_log_id: self.applied, last_membership: self.membership.clone(), snapshot_id: id };
        let mut checkpoint = std::mem::replace(&mut self.checkpoint, Err(StoreError::Stopped));
        let ledger = Arc::new(std::mem::take(&mut self.ledger));
        let fail = |e: &dyn std::error::Error| {
            tracing::error!(error = %pack::with_causes(e), "a snapshot cannot be written");
            StorageIOError::write_snapshot(None, AnyError::error(pack::with_causes(e)))
        };
        let kept = loop {
            // The log behind it stays meanwhile, and grows by no more than the reserve.
            self.room.enough().await.map_err(|e| fail(&e))?;
            let (directory, agreed, ledger, of) = (self.directory.clone(), Arc::clone(&self.agreed), Arc::clone(&ledger), meta.clone());
            let written = background::run("snapshot", move || {
                // Before the log behind it may go. Through descriptors of its own, so that nobody waits for it.
                let checked = checkpoint?.run()?;
                agreed.audit().checked(checked);
                let dir = directory.path();
                snapshot_file::write(dir, &About::of(of, &ledger, now()), &ledger)?;
                snapshot_file::remove_older(dir)?;
                on_disk(dir)
            });
            match written.await.map_err(|e| fail(&e))? {
                Err(error) => put_off(&self.room, error).await.map_err(|e| fail(&e))?,
                Ok(kept) => break kept,
            }
            checkpoint = self.agreed.audit().checkpoint();
        };
        self.agreed.counts.snapshot.observe(began.elapsed());
        self.snapshots.kept.are(kept);
        let mut present = self.snapshots.present.lock();
        if present.as_ref().is_none_or(|p| p.last_log_id <= meta.last_log_id) {
            *present = Some(meta.clone());
        }
        drop(present);
        open_snapshot(&self.directory, meta)
    }
}
