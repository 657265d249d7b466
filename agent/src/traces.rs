//! Raw measurements: what is kept of work that is measured in debug mode.
//!
//! ```text
//!   the quorum's list ──▶ Recorder: which allocations, and for how long (mode.json)
//!   each look (the measuring thread) ──▶ Recorder ──▶ one line ──▶ <state>/traces/<allocation>-<epoch>/….open
//!                                                                      │ after log_flush_seconds, or a mebibyte: ….jsonl
//!                                                                      ▼
//!                                                         flush ──▶ zstd ──▶ object store ──▶ removed here
//! ```
//!
//! A line is with the kernel before the next look, so an agent that is killed loses none; the machine's work does not outlive the machine,
//! so nothing is synced. What was put and not removed is put again under the same name. While the store is away the newest are kept here,
//! up to [`SPOOL_BYTES_MAX`].

mod chunk;
mod flush;
mod recorder;

pub use recorder::Recorder;

use crate::context::Context;
use crate::kernel_counts::Key;
use crate::log_store::LogStore;
use lattice_model::{AllocationId, Epoch};
use lattice_telemetry::catalogue::agent as family;
use lattice_telemetry::sample::Samples;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Bytes that wait for the store on this node, of all allocations together. Then the oldest go.
pub const SPOOL_BYTES_MAX: u64 = 64 << 20;
/// A piece that is longer is closed, in bytes.
const CHUNK_BYTES: u64 = 1 << 20;

/// All of this node's. Cloneable; all clones are one.
#[derive(Clone)]
pub struct Traces(Arc<Inner>);

struct Inner {
    dir: PathBuf,
    store: Option<LogStore>,
    /// How long lines wait before they are put.
    flush: Duration,
    /// Something is to be put.
    closed: Notify,
    recording: AtomicU64,
    points: AtomicU64,
    lost: AtomicU64,
    /// The same of each allocation that was in debug mode in this life of the agent, while it has this node.
    kept: Mutex<BTreeMap<Key, Kept>>,
}

/// What debug mode has kept of an allocation in this life of the agent: looks that were written down, and those that were not, or went
/// before the store had them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub points: u64,
    pub lost: u64,
}

impl Traces {
    /// Takes up what a former life left: what it was writing is as much as there will be. Blocking, and short.
    pub fn open(state_dir: &Path, store: Option<LogStore>, flush: Duration) -> Self {
        let dir = state_dir.join("traces");
        if let Err(error) = chunk::close_all(&dir) {
            tracing::warn!(dir = %dir.display(), %error, "raw measurements of a former life stay where they are");
        }
        let (recording, points, lost, kept) = Default::default();
        let traces = Self(Arc::new(Inner { dir, store, flush, closed: Notify::new(), recording, points, lost, kept }));
        traces.0.closed.notify_one();
        traces
    }

    /// Who writes them down: for the measuring thread.
    pub fn recorder(&self, context: &Context) -> Recorder {
        Recorder::new(self.clone(), context.me.clone(), context.view.clone(), context.troubles.clone())
    }

    /// How many were kept in this life of the agent, and what became of the rest.
    pub fn tell(&self, samples: &mut Samples) {
        samples.count(&family::DEBUG_ALLOCATIONS, &[], self.0.recording.load(Ordering::Relaxed));
        samples.count(&family::DEBUG_POINTS, &[], self.0.points.load(Ordering::Relaxed));
        samples.count(&family::DEBUG_POINTS_LOST, &[], self.0.lost.load(Ordering::Relaxed));
    }

    fn dir(&self, (allocation, epoch): Key) -> PathBuf {
        self.0.dir.join(name(allocation, epoch))
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<Key, Kept>> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wrote(&self, key: Key) {
        self.0.points.fetch_add(1, Ordering::Relaxed);
        self.kept().entry(key).or_default().points += 1;
    }

    fn lost(&self, key: Key, looks: u64) {
        self.0.lost.fetch_add(looks, Ordering::Relaxed);
        if let Some(kept) = self.kept().get_mut(&key) {
            kept.lost += looks;
        }
    }

    /// The same of what was in a file: its folder says whose they were.
    fn lost_in(&self, file: &Path, looks: u64) {
        let folder = file.parent();
        let key = self.kept().keys().copied().find(|key| folder == Some(self.dir(*key).as_path()));
        match key {
            Some(key) => self.lost(key, looks),
            None => {
                self.0.lost.fetch_add(looks, Ordering::Relaxed);
            }
        }
    }
}

fn name(allocation: AllocationId, epoch: Epoch) -> String {
    format!("{allocation}-{epoch}")
}

/// The folders of allocations; none where there is no folder yet.
fn folders(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Ok(entries) => Ok(entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
