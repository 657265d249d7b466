//! The task that moves raw measurements and audits to the object store.

use super::chunk::{self, Contents, Whole};
use super::{SPOOL_BYTES_MAX, Traces};
use lattice_agent_common::node_problems::NodeProblems;
use lattice_model::{Backoff, TelemetryMode, with_causes};
use lattice_output::log_store::{LogStore, Place, StoreError};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

/// Backoff while not everything can be stored.
const STORE_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// How often to check for complete files without a notification.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);
/// Compression level: a fast one, because the cores belong to the work.
const ZSTD_LEVEL: i32 = 1;
/// A smaller file counts with this size, in bytes: it uses a block and a directory entry.
const FILE_BYTES_MIN: u64 = 4096;
/// The subject in this node's problems.
const SUBJECT: &str = "raw measurements and audits";

#[derive(Debug, Error)]
enum FlushError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("they cannot be read here")]
    Disk(#[from] io::Error),
    #[error("logs.store, which would store them, is no longer configured")]
    NoStore,
}

impl Traces {
    /// Stores complete files until `stop`. The next run of the agent stores the rest.
    pub async fn flush(self, problems: NodeProblems, stop: CancellationToken) {
        let mut retry: Option<Backoff> = None;
        loop {
            let wait = retry.as_mut().map_or(CHECK_INTERVAL, Backoff::next_pause);
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.0.closed.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
            let is_new = retry.is_none();
            let trouble = |error: &FlushError| {
                if is_new {
                    tracing::warn!(error = %with_causes(error), "raw measurements and audits stay on this node");
                }
                problems.set(SUBJECT, format!("stay on this node, {} MiB at most: {}", SPOOL_BYTES_MAX >> 20, with_causes(error)));
            };
            match stop.run_until_cancelled(self.put_all(&trouble)).await {
                None => return,
                Some(true) => {
                    if retry.take().is_some() {
                        problems.clear(SUBJECT);
                    }
                }
                Some(false) => {
                    retry.get_or_insert(STORE_BACKOFF);
                }
            }
        }
    }

    /// Stores all complete files; returns whether all succeeded. The first error is reported at
    /// once. After an error the other files of the same allocation are skipped; the files of other
    /// allocations are stored.
    async fn put_all(&self, trouble: &(impl Fn(&FlushError) + Sync)) -> bool {
        let traces = self.clone();
        let all = match blocking(move || traces.within_bounds(None)).await {
            Ok(all) => all,
            Err(error) => {
                trouble(&FlushError::from(error));
                return false;
            }
        };
        let Some(store) = &self.0.store else {
            if !all.is_empty() {
                trouble(&FlushError::NoStore);
            }
            return all.is_empty();
        };
        let mut stay: BTreeSet<PathBuf> = BTreeSet::new();
        for Whole { path, .. } in all {
            let folder = path.parent().map(Path::to_owned).unwrap_or_default();
            if stay.contains(&folder) {
                continue;
            }
            if let Err(error) = self.put_within_bounds(store, path).await {
                if stay.is_empty() {
                    trouble(&error);
                }
                stay.insert(folder);
            }
        }
        stay.is_empty()
    }

    /// Stores a file. Whenever another file is completed meanwhile, checks whether too many bytes
    /// wait: work continues to write, and a store may be slow.
    async fn put_within_bounds(&self, store: &LogStore, path: PathBuf) -> Result<(), FlushError> {
        let mut put = pin!(self.put(store, path.clone()));
        loop {
            tokio::select! {
                put = &mut put => return put,
                () = self.0.more.notified() => {
                    let (traces, path) = (self.clone(), path.clone());
                    if let Err(error) = blocking(move || traces.within_bounds(Some(&path))).await {
                        tracing::warn!(%error, "the raw measurements and audits that wait for the store cannot be listed");
                    }
                }
            }
        }
    }

    /// Stores a file and then removes it here. A file that cannot be stored under its owner is only
    /// removed, and its looks count as lost.
    async fn put(&self, store: &LogStore, path: PathBuf) -> Result<(), FlushError> {
        let read = {
            let path = path.clone();
            move || -> io::Result<Option<(Contents, Vec<u8>)>> {
                let contents = match chunk::read(&path) {
                    // It was removed for lack of space after it was listed.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                    read => read?,
                };
                let compressed = zstd::bulk::compress(&contents.lines, ZSTD_LEVEL)?;
                Ok(Some((contents, compressed)))
            }
        };
        let Some((contents, compressed)) = blocking(read).await? else { return Ok(()) };
        let name = path.file_name().and_then(|name| name.to_str()).map(|name| format!("{name}.zst"));
        match contents.header.zip(name) {
            Some((header, name)) if contents.looks > 0 => {
                let place = Place { tenant: header.tenant, project: header.project, allocation: header.allocation, epoch: header.epoch };
                store.put_trace(&place, &header.node, &name, compressed).await?;
            }
            // The file has no looks.
            Some((header, _)) => self.lost_in(header.mode, &path, contents.looks),
            // Its owner is unknown: the machine crashed before the first line was on the disk, or
            // another version wrote the file. Or its name is not UTF-8.
            None => self.lost_in(TelemetryMode::Debug, &path, contents.looks),
        }
        blocking(move || remove(&path)).await?;
        Ok(())
    }

    /// The files to store, after removing the oldest while they exceed [`SPOOL_BYTES_MAX`]. `but`:
    /// a file that is being stored, which is not counted and not removed.
    pub(super) fn within_bounds(&self, but: Option<&Path>) -> io::Result<Vec<Whole>> {
        let mut all = chunk::whole(&self.0.dir)?;
        all.retain(|one| but != Some(one.path.as_path()));
        let takes = |one: &Whole| one.bytes.max(FILE_BYTES_MIN);
        // Growing files use space as well, but complete files always have half of it.
        let growing = chunk::growing(&self.0.dir)?.min(SPOOL_BYTES_MAX / 2);
        let mut total: u64 = growing + all.iter().map(takes).sum::<u64>();
        let mut gone = 0;
        while total > SPOOL_BYTES_MAX && gone < all.len() {
            let oldest = &all[gone];
            let contents = chunk::read(&oldest.path).ok();
            let mode = contents.as_ref().and_then(|contents| contents.header.as_ref()).map_or(TelemetryMode::Debug, |header| header.mode);
            remove(&oldest.path)?;
            self.lost_in(mode, &oldest.path, contents.map_or(0, |contents| contents.looks));
            total -= takes(oldest);
            gone += 1;
        }
        if gone > 0 {
            tracing::warn!(files = gone, "the oldest raw measurements and audits are gone: too many wait for the store");
        }
        Ok(all.split_off(gone))
    }
}

/// Removes a file, and its folder if it is then empty.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    if let Some(folder) = path.parent() {
        let _still_needed = fs::remove_dir(folder);
    }
    Ok(())
}

/// Runs work on a blocking thread, because the disk may be slow.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}
