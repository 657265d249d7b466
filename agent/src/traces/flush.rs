//! The task that takes raw measurements to the object store.

use super::chunk::{self, Whole};
use super::{SPOOL_BYTES_MAX, Traces};
use crate::log_store::{Place, StoreError};
use crate::troubles::Troubles;
use lattice_quorum::pack::with_causes;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

/// Between two tries while the store is away: from this, doubled, to [`AWAY_MAX`].
const AWAY: Duration = Duration::from_secs(1);
const AWAY_MAX: Duration = Duration::from_secs(30);
/// Where nobody said that there is something.
const IDLE: Duration = Duration::from_secs(3600);
/// The level of compression: the cores are the work's.
const ZSTD_LEVEL: i32 = 1;
/// What a file counts at least, in bytes: it takes a block and a name.
const FILE_BYTES_MIN: u64 = 4096;
/// The subject of what is the matter.
const SUBJECT: &str = "raw measurements";

#[derive(Debug, Error)]
enum FlushError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("they cannot be read here")]
    Disk(#[from] io::Error),
    #[error("there is no log_store any more to take them")]
    NoStore,
}

impl Traces {
    /// Puts what is whole, until `stop`. What is left then is put by the next life.
    pub async fn flush(self, troubles: Troubles, stop: CancellationToken) {
        let mut away: Option<Duration> = None;
        loop {
            let wait = away.unwrap_or(IDLE);
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.0.closed.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
            match stop.run_until_cancelled(self.put_all()).await {
                None => return,
                Some(Ok(())) => {
                    if away.take().is_some() {
                        troubles.over(SUBJECT);
                    }
                }
                Some(Err(error)) => {
                    if away.is_none() {
                        tracing::warn!(error = %with_causes(&error), "raw measurements of debug mode stay on this node");
                    }
                    troubles.say(
                        SUBJECT,
                        format!("of debug mode, stay on this node, {} MiB at most: {}", SPOOL_BYTES_MAX >> 20, with_causes(&error)),
                    );
                    away = Some(away.map_or(AWAY, |wait| (wait * 2).min(AWAY_MAX)));
                }
            }
        }
    }

    async fn put_all(&self) -> Result<(), FlushError> {
        let traces = self.clone();
        let all = blocking(move || traces.within_bounds()).await?;
        let Some(store) = &self.0.store else {
            return if all.is_empty() { Ok(()) } else { Err(FlushError::NoStore) };
        };
        for Whole { path, .. } in all {
            let read = {
                let path = path.clone();
                move || {
                    let contents = chunk::read(&path)?;
                    let compressed = zstd::bulk::compress(&contents.lines, ZSTD_LEVEL)?;
                    Ok((contents, compressed))
                }
            };
            let (contents, compressed) = blocking(read).await?;
            let name = path.file_name().and_then(|name| name.to_str()).map(|name| format!("{name}.zst"));
            match contents.header.zip(name) {
                Some((header, name)) if contents.looks > 0 => {
                    let place =
                        Place { tenant: header.tenant, project: header.project, allocation: header.allocation, epoch: header.epoch };
                    store.put_trace(&place, &header.node, &name, compressed).await?;
                }
                // Its machine went down before its first line was on the disk, or nothing was looked at.
                Some(_) | None => self.lost(contents.looks),
            }
            blocking(move || remove(&path)).await?;
        }
        Ok(())
    }

    /// What is to be put, without the oldest where there is too much.
    pub(super) fn within_bounds(&self) -> io::Result<Vec<Whole>> {
        let mut all = chunk::whole(&self.0.dir)?;
        let takes = |one: &Whole| one.bytes.max(FILE_BYTES_MIN);
        let mut total: u64 = all.iter().map(takes).sum();
        let mut gone = 0;
        while total > SPOOL_BYTES_MAX && gone < all.len() {
            let oldest = &all[gone];
            let looks = chunk::read(&oldest.path).map_or(0, |contents| contents.looks);
            remove(&oldest.path)?;
            self.lost(looks);
            total -= takes(oldest);
            gone += 1;
        }
        if gone > 0 {
            tracing::warn!(files = gone, "the oldest raw measurements of debug mode are gone: too many wait for the store");
        }
        Ok(all.split_off(gone))
    }
}

/// Removes a file, and its folder where nothing else is in it.
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

/// The disk may be slow.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}
