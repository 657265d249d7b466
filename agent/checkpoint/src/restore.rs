//! Restores an allocation from its last checkpoint: the files are downloaded to this node and
//! compared with the manifest before the work runs.

use super::directory::{DirectoryError, Found, give_all, lay_down};
use super::handles::Handles;
use super::owner_of;
use super::store::{CheckpointStore, FileEntry, Manifest, Owner, Part, StoreError};
use futures::{StreamExt, TryStreamExt};
use lattice_model::resources::bytes_text;
use lattice_model::{CheckpointId, CheckpointRef, DesiredShare, with_causes};
use lattice_runtime::failpoint::{self, Point};
use std::fs::File;
use std::path::Path;
use std::time::Duration;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

/// Pause between retries while the store is unreachable.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Retries between two log lines about the wait.
const LOG_EVERY_TRIES: u32 = 60;
/// Files downloaded at once.
const FILES_AT_ONCE: usize = 4;

/// Why an allocation cannot start from its checkpoint here.
#[derive(Debug, Error)]
pub enum RestoreError {
    #[error("checkpoint {}: {}", .id.short(), with_causes(.source))]
    Bring { id: CheckpointId, source: StoreError },
    #[error("cancelled while its checkpoint was restored")]
    Cancelled,
}

/// Downloads this node's part of `from` to where the work looks for it. Idempotent. While the store
/// is unreachable, it waits for the store or for the allocation's cancellation: another node would
/// not reach the store either.
pub async fn restore(
    context: &Handles,
    share: &DesiredShare,
    from: &CheckpointRef,
    cancel: &CancellationToken,
    set_detail: impl Fn(&str) + Sync,
) -> Result<(), RestoreError> {
    let tried = async {
        let mut tries = 0;
        loop {
            match try_restore(context, share, from, &set_detail).await {
                Err(StoreError::Store(error)) if may_pass(&error) => {
                    if tries % LOG_EVERY_TRIES == 0 {
                        tracing::warn!(allocation = %share.allocation, %error, "the restore waits for the checkpoint store");
                    }
                    set_detail(&format!("preparing: its checkpoint waits for the checkpoint store: {error}"));
                    tries += 1;
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                other => return other.map_err(|source| RestoreError::Bring { id: from.id, source }),
            }
        }
    };
    tokio::select! {
        restored = tried => restored,
        () = cancel.cancelled() => Err(RestoreError::Cancelled),
    }
}

/// Whether retrying may help after this error. Refused permission counts as permanent: the store
/// may grant it to another node.
fn may_pass(error: &object_store::Error) -> bool {
    use object_store::Error as E;
    !matches!(
        error,
        E::PermissionDenied { .. } | E::Unauthenticated { .. } | E::NotImplemented { .. } | E::NotSupported { .. } | E::InvalidPath { .. }
    )
}

async fn try_restore(
    context: &Handles,
    share: &DesiredShare,
    from: &CheckpointRef,
    set_detail: &(impl Fn(&str) + Sync),
) -> Result<(), StoreError> {
    let means = context.checkpoints.means()?;
    let owner = owner_of(share);
    let manifest = means.store.manifest(&owner, from.id).await?;
    if manifest.epoch != from.epoch {
        let why = format!("it is of epoch {}, the quorum has epoch {}", manifest.epoch, from.epoch);
        return Err(StoreError::Damaged { what: "manifest.json".to_owned(), why });
    }
    let index = share.nodes.iter().position(|node| *node == context.me);
    let (index, entry) = index.and_then(|index| Some((index, manifest.nodes.get(index)?))).ok_or_else(|| {
        StoreError::Unfit(format!("it was made on {} nodes, the allocation has {} now", manifest.nodes.len(), share.nodes.len()))
    })?;
    let part = Part { owner, id: from.id, epoch: manifest.epoch, round: manifest.round, index, node: entry.node.clone() };
    let files = means.store.node_manifest(&part, entry).await?.map(|node| node.files).unwrap_or_default();
    let (directories, allocation) = (means.directories.clone(), share.allocation);
    let root = run_in_directory(move || directories.restoring(allocation)).await?;
    failpoint::pass(Point::RestoreBegun);
    download_all(&means.store, &part, &files, &root, set_detail).await?;
    let (directories, user) = (means.directories.clone(), share.owner.clone());
    run_in_directory(move || {
        let found: Vec<Found> = files.into_iter().map(|f| Found { path: f.path, mode: f.mode, size: f.size }).collect();
        give_all(&root, &found, &user).map_err(|source| DirectoryError::GiveRestored { path: root.clone(), source })?;
        directories.restored(allocation, &root)
    })
    .await?;
    failpoint::pass(Point::Restored);
    Ok(())
}

async fn run_in_directory<T: Send + 'static>(act: impl FnOnce() -> Result<T, DirectoryError> + Send + 'static) -> Result<T, StoreError> {
    run_blocking(move || act().map_err(StoreError::Directory)).await
}

/// Creates directories first, in their order: each is listed before its content. Shows which part of the bytes is there.
async fn download_all(
    store: &CheckpointStore,
    part: &Part,
    files: &[FileEntry],
    root: &Path,
    set_detail: &(impl Fn(&str) + Sync),
) -> Result<(), StoreError> {
    let (directories, at) = (files.iter().filter(|f| f.size.is_none()).cloned().collect::<Vec<_>>(), root.to_owned());
    run_blocking(move || directories.iter().try_for_each(|entry| create_entry(&at, entry).map(drop))).await?;
    let mut downloads = Vec::new();
    for entry in files.iter().filter(|entry| entry.size.is_some()) {
        let (store, part, entry, root) = (store.clone(), part.clone(), entry.clone(), root.to_owned());
        downloads.push(async move {
            let to = entry.clone();
            let file = run_blocking(move || create_entry(&root, &to)).await?;
            store.download(&part, &entry, file, &|_: u64| {}).await?;
            Ok::<u64, StoreError>(entry.size.unwrap_or_default())
        });
    }
    let (mut done, total) = (0, files.iter().filter_map(|entry| entry.size).sum::<u64>());
    let mut downloads = futures::stream::iter(downloads).buffer_unordered(FILES_AT_ONCE);
    while let Some(bytes) = downloads.try_next().await? {
        done += bytes;
        set_detail(&restored_text(done, total));
    }
    Ok(())
}

/// Which part of a checkpoint's files is on this node.
fn restored_text(done: u64, total: u64) -> String {
    let percent = done.saturating_mul(100) / total.max(1);
    format!("preparing: its checkpoint, {percent} % of {} restored", bytes_text(total))
}

async fn run_blocking<T: Send + 'static>(act: impl FnOnce() -> Result<T, StoreError> + Send + 'static) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(act).await.unwrap_or_else(|broke| Err(StoreError::Unfit(format!("restoring failed: {broke}"))))
}

fn create_entry(root: &Path, entry: &FileEntry) -> Result<Option<File>, StoreError> {
    let failed = |source| StoreError::Io { what: entry.path.clone(), source };
    lay_down(root, &entry.path, entry.mode, entry.size.is_none()).map_err(failed)
}

/// Compares a checkpoint's stored files with its manifest; returns the differences as text for
/// people. `set_read` gets about how many of its bytes were read so far, of those in [`Manifest::size`]. An error is one
/// of the store.
pub async fn verify(
    store: &CheckpointStore,
    owner: &Owner,
    manifest: &Manifest,
    set_read: &(dyn Fn(u64) + Sync),
) -> Result<Vec<String>, StoreError> {
    let mut wrong = Vec::new();
    let mut nodes_bytes = 0_u64;
    for (index, entry) in manifest.nodes.iter().enumerate() {
        let part =
            Part { owner: owner.clone(), id: manifest.id, epoch: manifest.epoch, round: manifest.round, index, node: entry.node.clone() };
        let files = match store.node_manifest(&part, entry).await {
            Ok(node) => node.map(|node| node.files).unwrap_or_default(),
            Err(StoreError::Store(error)) => return Err(error.into()),
            Err(error) => {
                wrong.push(with_causes(&error));
                Vec::new()
            }
        };
        let mut files_bytes = nodes_bytes;
        for file in &files {
            match store.download(&part, file, None, &|read: u64| set_read(files_bytes.saturating_add(read))).await {
                Ok(()) => {}
                Err(StoreError::Store(error)) => return Err(error.into()),
                Err(error) => wrong.push(with_causes(&error)),
            }
            files_bytes = files_bytes.saturating_add(file.size.unwrap_or_default());
        }
        // A damaged file counts as read.
        nodes_bytes = nodes_bytes.saturating_add(entry.bytes);
        set_read(nodes_bytes);
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restore_shows_the_part_of_its_bytes_that_is_there() {
        assert_eq!(restored_text(0, 4 << 30), "preparing: its checkpoint, 0 % of 4.0 GiB restored");
        assert_eq!(restored_text(3 << 30, 4 << 30), "preparing: its checkpoint, 75 % of 4.0 GiB restored");
        assert!(restored_text(0, 0).starts_with("preparing: its checkpoint, 0 % of "));
    }
}
