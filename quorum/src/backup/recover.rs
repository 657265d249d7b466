//! Creates a member's data directory from a backup: after the loss of the whole quorum, or to
//! return to the backup's state deliberately.
//!
//! ```text
//!   prepare: download and check beside the directory ──▶ show the loss ──▶ put_in_place: new generation, renamed
//! ```
//!
//! The state becomes the first one of a new generation, in a snapshot whose voters are all
//! configured members. A crash before the directory is put in place leaves the temporary directory
//! beside the member's. A present directory is renamed first: a crash right after that leaves both
//! under other names, and the recovery is repeated as for a lost directory.

use super::BackupError;
use super::store::{BackupStore, Checked, stamp};
use crate::certify;
use crate::clock::now;
use crate::config::QuorumConfig;
use futures::FutureExt;
use futures::future::BoxFuture;
use lattice_ledger::beyond;
use lattice_model::count::counted;
use lattice_model::{AllocationState, Revision, with_causes};
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{Answer, Request};
use lattice_store::directory::{Directory, sync_folder, sync_parent};
use lattice_store::log;
use lattice_store::raft::{LogId, Peer, SnapshotMeta, StoredMembership, Vote};
use lattice_store::snapshot_file::{self, About};
use openraft::{CommittedLeaderId, Membership};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Timeout for asking whether a member is running.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// What happens to the member's current directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Present {
    /// It is missing or empty: everything was lost.
    Lost,
    /// It is moved aside and kept: the cluster returns to the backup deliberately.
    MovedAside,
}

/// A checked backup in a temporary directory beside the member's. Removed on drop, unless it was
/// put in place.
#[derive(Debug)]
pub struct Prepared {
    checked: Checked,
    beside: TemporaryDirectory,
    present: Present,
    /// The newest snapshot in the current directory.
    current: Option<About>,
}

/// A directory beside another one, removed on drop.
#[derive(Debug)]
struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    fn make(dir: &Path, suffix: &str) -> Result<Self, BackupError> {
        let beside = with_suffix(dir, suffix);
        if beside.exists() {
            std::fs::remove_dir_all(&beside).map_err(BackupError::local(&beside))?;
        }
        std::fs::create_dir_all(&beside).map_err(BackupError::local(&beside))?;
        Ok(Self(beside))
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // This fails if the directory was put in place. After any other failure, the next attempt
        // removes it.
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

fn with_suffix(dir: &Path, suffix: &str) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(suffix);
    dir.with_file_name(name)
}

/// Whether the directory is missing or empty.
pub(super) fn is_empty(dir: &Path) -> Result<bool, BackupError> {
    match std::fs::read_dir(dir) {
        Ok(mut files) => Ok(files.next().is_none()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(BackupError::local(dir)(error)),
    }
}

/// Another configured member that answers.
async fn running_member(config: &QuorumConfig) -> Result<Option<(u64, String)>, BackupError> {
    let credentials = super::credentials(config).map_err(|e| BackupError::Unasked { why: with_causes(&e) })?;
    for member in config.members.iter().filter(|m| m.id != config.id) {
        let Ok(client) = QuorumClient::new(vec![member.service.clone()], credentials.clone()) else { continue };
        if let Ok(Answer::Status(_)) = client.call(&Request::Status, ASK_TIMEOUT).await {
            return Ok(Some((member.id, member.service.clone())));
        }
    }
    Ok(None)
}

/// Downloads a backup (the newest if `name` is `None`) and checks it completely.
pub fn prepare<'a>(
    config: &'a QuorumConfig,
    store: &'a BackupStore,
    name: Option<&'a str>,
    present: Present,
) -> BoxFuture<'a, Result<Prepared, BackupError>> {
    download(config, store, name, present).boxed()
}

async fn download(config: &QuorumConfig, store: &BackupStore, name: Option<&str>, present: Present) -> Result<Prepared, BackupError> {
    let dir = &config.data_dir;
    let current = match (present, is_empty(dir)?) {
        (Present::Lost, true) => None,
        (Present::Lost, false) => return Err(BackupError::NotEmpty { path: dir.clone() }),
        (Present::MovedAside, true) => return Err(BackupError::NothingToReplace { path: dir.clone() }),
        (Present::MovedAside, false) => {
            // Fails if a member uses it.
            let (_directory, _released) = Directory::open(dir, &config.cluster, config.id)?;
            let newest = snapshot_file::list(dir)?.into_iter().next();
            newest.and_then(|(_, path)| snapshot_file::about(&path).ok())
        }
    };
    if let Some((member, address)) = running_member(config).await? {
        return Err(BackupError::Runs { member, address });
    }
    let beside = TemporaryDirectory::make(dir, "recovering")?;
    let checked = store.get(name, &beside.0).await?;
    let about = &checked.loaded.about;
    if about.cluster != config.cluster {
        return Err(BackupError::Foreign { theirs: about.cluster.clone(), ours: config.cluster.clone() });
    }
    Ok(Prepared { checked, beside, present, current })
}

/// A description of a backup's content, for people.
fn described(checked: &Checked) -> String {
    let about = &checked.loaded.about;
    let mut text = String::new();
    let _ = writeln!(text, "Backup       {}", checked.name);
    let _ = writeln!(text, "Cluster      {}, generation {}, revision {}", about.cluster, about.generation, about.revision);
    let _ = writeln!(text, "Written      {} by version {}", about.written, about.version);
    let members: Vec<String> = about.meta.last_membership.voter_ids().map(|id| id.to_string()).collect();
    let _ = writeln!(text, "Members      {}", members.join(", "));
    let _ = writeln!(text, "Nodes        {}", about.nodes);
    let counts = checked.loaded.ledger.allocation_counts();
    let counts: Vec<String> = counts.iter().map(|(state, count)| format!("{count} {state}")).collect();
    let _ = writeln!(text, "Allocations  {}", if counts.is_empty() { "none".to_owned() } else { counts.join(", ") });
    let _ = writeln!(text, "Audit        {} records, head {}: every link holds", about.audit.seq, about.audit.hash);
    text
}

impl Prepared {
    /// A description of its content, and of what is lost by using it.
    pub fn what_is_lost(&self, config: &QuorumConfig) -> String {
        let about = &self.checked.loaded.about;
        let minutes = now().since_ms(about.written) / 60_000;
        let counts = self.checked.loaded.ledger.allocation_counts();
        let pending = counts.iter().find(|(state, _)| *state == AllocationState::Pending).map_or(0, |(_, count)| *count);
        let mut text = described(&self.checked);
        let _ = writeln!(text, "\nWhat will be lost: everything that was agreed since {}, which is {minutes} minutes ago.", about.written);
        let _ = writeln!(text, "  - Submissions since then that no node runs. Work that a node runs goes on and is adopted.");
        let _ = writeln!(
            text,
            "  - The results of work that ran then and ended before the quorum was lost: it is shown as lost, and does not run again."
        );
        let _ = writeln!(
            text,
            "  - Waiting then: {}. Those that ran and ended since will run again. Cancel what must not.",
            counted(pending, "allocation")
        );
        let _ = writeln!(text, "  - Holds, leases and changes of the members since then.");
        let _ = writeln!(text, "  - All access tokens: some of the backup may have been revoked since. Issue anew what programs need.");
        let _ = writeln!(text, "  - The audit log since record {}.", about.audit.seq);
        if let Some(there) = &self.current {
            let _ = writeln!(
                text,
                "This member's files reach beyond revision {} ({} audit records); the backup is of revision {}. They are moved aside and kept.",
                there.revision, there.audit.seq, about.revision
            );
        }
        let members: Vec<String> = config.members.iter().map(|m| format!("{} ({})", m.id, m.raft)).collect();
        let _ = writeln!(text, "\nThe members will be those of this configuration: {}.", members.join(", "));
        text
    }

    /// Puts the directory in place; returns where the current one is kept. Accesses the disk: call
    /// it where blocking is allowed.
    pub fn put_in_place(self, config: &QuorumConfig) -> Result<Option<PathBuf>, BackupError> {
        let Checked { loaded, mut chain, .. } = self.checked;
        let at = now();
        let mut ledger = loaded.ledger;
        // The log index and term also continue beyond any value of the lost quorum, so that no
        // earlier log counts as longer.
        let index = beyond(loaded.about.index().max(ledger.revision().0));
        let term = beyond(loaded.about.meta.last_log_id.map_or(0, |id| id.leader_id.term));
        let id = LogId::new(CommittedLeaderId::new(term, config.id), index);
        let record = ledger.recover(Revision(index), at);
        chain.append(&[record])?;
        let checked = chain.checkpoint()?.run()?;
        chain.checked(checked);
        let voters: BTreeSet<u64> = config.members.iter().map(|m| m.id).collect();
        let peers: BTreeMap<u64, Peer> = config.members.iter().map(|m| (m.id, m.peer())).collect();
        let meta = SnapshotMeta {
            last_log_id: Some(id),
            last_membership: StoredMembership::new(Some(id), Membership::new(vec![voters], peers)),
            snapshot_id: format!("recovered-{}-{index}", ledger.generation()),
        };
        let dir = &self.beside.0;
        std::fs::remove_file(&loaded.path).map_err(BackupError::local(&loaded.path))?;
        let (directory, _released) = Directory::open(dir, &config.cluster, config.id)?;
        snapshot_file::write(dir, &About::of(meta, &ledger, at), &ledger)?;
        log::begin_at(&directory, id, Vote::new(term, config.id))?;
        drop(directory);
        let renewed = config.data_dir.join(certify::RENEWED_FILE);
        if renewed.exists() {
            // The configured certificate may have expired by now.
            let to = dir.join(certify::RENEWED_FILE);
            std::fs::copy(&renewed, &to).and_then(|_| std::fs::File::open(&to)?.sync_all()).map_err(BackupError::local(&to))?;
        }
        sync_folder(&dir.join("audit"))?;
        sync_folder(dir)?;
        let present = &config.data_dir;
        let kept = match self.present {
            Present::MovedAside => {
                let kept = with_suffix(present, &format!("before-{}", stamp(at)));
                std::fs::rename(present, &kept).map_err(BackupError::local(present))?;
                Some(kept)
            }
            Present::Lost => {
                if present.exists() {
                    std::fs::remove_dir(present).map_err(BackupError::local(present))?;
                }
                None
            }
        };
        std::fs::rename(dir, present).map_err(BackupError::local(present))?;
        sync_parent(present)?;
        Ok(kept)
    }
}

/// Downloads a backup, checks it completely, describes it, and removes the download.
pub fn verify<'a>(config: &'a QuorumConfig, store: &'a BackupStore, name: Option<&'a str>) -> BoxFuture<'a, Result<String, BackupError>> {
    async move {
        let scratch = TemporaryDirectory::make(&config.data_dir, &format!("verifying-{}", std::process::id()))?;
        let checked = store.get(name, &scratch.0).await?;
        if checked.loaded.about.cluster != config.cluster {
            return Err(BackupError::Foreign { theirs: checked.loaded.about.cluster, ours: config.cluster.clone() });
        }
        Ok(described(&checked))
    }
    .boxed()
}
