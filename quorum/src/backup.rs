//! Backups: a snapshot and its audit chain, copied to a store while the member is in service.
//!
//! ```text
//!   <backup>/audit/<first>-<hash>.audit        sealed segments of the chain, put once
//!   <backup>/backups/<time>-<index>/audit      the list of them, and the records after them; zstd of MessagePack
//!   <backup>/backups/<time>-<index>/snapshot   put last: with it the backup is complete
//! ```
//!
//! The leader makes a backup when the newest one is `backup_seconds` old, regardless of who made the
//! newest. Recovery from a backup ([`recover`]) is for the loss of the whole quorum: a single member
//! that lost its data directory is replaced by a new one, which gets everything from the others.

mod error;
pub mod plan;
pub mod progress;
pub mod recover;
pub mod store;

#[cfg(test)]
mod tests;

pub use error::BackupError;

use crate::certify;
use crate::config::QuorumConfig;
use crate::core::Core;
use lattice_model::{AuditRecord, with_causes};
use lattice_pki::credentials::Credentials;
use lattice_pki::tls::TlsError;
use lattice_store::snapshot_file::{self, About};
use openraft::metrics::WaitError;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::{BackupStore, Chain, Segment};
use tokio::time::MissedTickBehavior;

/// Timeout for writing the snapshot.
const SNAPSHOT_MAX: Duration = Duration::from_secs(120);
/// Interval for requesting the snapshot again while it does not exist yet.
const SNAPSHOT_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How often to check whether a backup is due.
const DUE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Longest pause before a failed backup is tried again.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(60);

/// A finished backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedBackup {
    /// Its name in the store.
    pub name: String,
    /// What it contains.
    pub about: About,
}

/// This member's certificate: the renewed one if it exists.
pub fn credentials(config: &QuorumConfig) -> Result<Credentials, TlsError> {
    Credentials::open(&config.tls, &config.data_dir.join(certify::RENEWED_FILE))
}

/// The backup store in the configuration.
pub fn store(config: &QuorumConfig) -> Result<BackupStore, BackupError> {
    if config.backup.is_empty() {
        return Err(BackupError::NoStore);
    }
    BackupStore::open(&config.backup, config)
}

/// Makes a backup of the state applied so far.
pub(crate) async fn make(core: &Arc<Core>) -> Result<FinishedBackup, BackupError> {
    let store = store(&core.config)?;
    if let Some(shortage) = core.disk.reserve.check_shortage() {
        return Err(BackupError::DiskFull { shortage });
    }
    let snapshot = tokio::time::timeout(SNAPSHOT_MAX, snapshot(core)).await;
    snapshot.map_err(|_| BackupError::NoSnapshot { why: format!("none was written in {} s", SNAPSHOT_MAX.as_secs()) })??;
    let dir = core.config.data_dir.clone();
    let newest = snapshot_file::list(&dir)?.into_iter().next();
    let (_, path) = newest.ok_or_else(|| BackupError::NoSnapshot { why: "nothing is applied here yet".to_owned() })?;
    // Kept open, because newer snapshots may remove the file while it is copied.
    let file = tokio::fs::File::open(&path).await.map_err(BackupError::local(&path))?;
    let about = snapshot_file::about(&path)?;
    let (base, present) = core.agreed.audit_base_and_segments();
    if base.seq > about.audit_checkpoint.seq {
        let why = format!("this member's audit chain begins after record {}, and its snapshot does not have that checkpoint yet", base.seq);
        return Err(BackupError::NoSnapshot { why });
    }
    let mut sealed_upto = base.seq;
    let mut segments = Vec::new();
    for sealed in present.into_iter().take_while(|s| s.last.seq <= about.audit.seq) {
        let segment = Segment { first: sealed.first, hash: sealed.last.hash.clone() };
        if !store.has_segment(&segment).await? {
            // A start reads only its seal.
            let (agreed, unchecked) = (Arc::clone(&core.agreed), sealed.clone());
            let checking = tokio::task::spawn_blocking(move || agreed.check_audit_segment(&unchecked));
            checking.await.map_err(|e| BackupError::Task { why: e.to_string() })??;
            store.put_segment(&segment, &sealed.path).await?;
        }
        sealed_upto = sealed.last.seq;
        segments.push(segment);
    }
    let agreed = Arc::clone(&core.agreed);
    let upto = about.audit.seq;
    let tail = tokio::task::spawn_blocking(move || agreed.audit_reader(sealed_upto, upto).collect::<std::io::Result<Vec<AuditRecord>>>());
    let tail = tail.await.map_err(|e| BackupError::Task { why: e.to_string() })?.map_err(BackupError::local(&dir.join("audit")))?;
    let name = store.put(&about, &Chain { base, segments, tail }, file, &path).await?;
    Ok(FinishedBackup { name, about })
}

/// Makes a snapshot of everything applied so far.
async fn snapshot(core: &Arc<Core>) -> Result<(), BackupError> {
    let failed = |e: &dyn std::error::Error| BackupError::NoSnapshot { why: with_causes(e) };
    let applied = core.raft.metrics().borrow().last_applied;
    loop {
        // Does nothing while another snapshot is being written, perhaps an older one.
        core.raft.trigger().snapshot().await.map_err(|e| failed(&e))?;
        match core.raft.wait(Some(SNAPSHOT_POLL_INTERVAL)).metrics(|m| m.snapshot >= applied, "the snapshot of a backup").await {
            Ok(_) => return Ok(()),
            Err(WaitError::Timeout(..)) => {}
            Err(error @ WaitError::ShuttingDown) => return Err(failed(&error)),
        }
    }
}

/// The leader's periodic backups, one whenever the newest is `backup_seconds` old.
pub(crate) async fn run_periodic(core: Arc<Core>) {
    if core.config.backup.is_empty() {
        return;
    }
    let every = Duration::from_secs(core.config.backup_seconds);
    let mut tick = tokio::time::interval(DUE_CHECK_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // When to list the backups: a new leader does so at once.
    let mut due = Instant::now();
    let mut led = false;
    loop {
        tokio::select! {
            () = core.stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        let leads = core.leads() && !core.agreed.ledger().cluster().is_empty();
        if leads && !led {
            due = Instant::now();
        }
        led = leads;
        if !leads || Instant::now() < due {
            continue;
        }
        let done = tokio::select! {
            () = core.stop.cancelled() => return,
            done = make_if_due(&core, every) => done,
        };
        let next = match done {
            Ok(next) => next,
            Err(error) => {
                let next = every.min(RETRY_PAUSE_MAX);
                tracing::error!(error = %with_causes(&error), "no backup could be made; it is tried again in {} s", next.as_secs());
                next
            }
        };
        due = Instant::now() + next;
    }
}

/// Makes a backup if the newest is old enough; returns when to check again.
async fn make_if_due(core: &Arc<Core>, every: Duration) -> Result<Duration, BackupError> {
    let store = store(&core.config)?;
    if let Some(age) = store.age_of_newest().await?.filter(|age| *age < every) {
        return Ok((every - age).max(DUE_CHECK_INTERVAL));
    }
    let made = make(core).await?;
    tracing::info!(name = made.name, revision = made.about.revision.0, "a backup was made");
    Ok(every)
}
