//! Records of work that is observed closely: in debug mode every look, in audit mode what it opens
//! and what it connects to.
//!
//! ```text
//!   the quorum's list ──▶ Recorder, one for each mode: which allocations, for how long (mode.json, audit.json)
//!   each look (the measuring thread), each event (agent::audit)
//!       ──▶ Recorder ──▶ one line ──▶ <state>/traces/<allocation>-<epoch>/….open
//!                          │ after logs.flush_seconds, or a mebibyte: ….jsonl
//!                          ▼
//!                        flush ──▶ zstd ──▶ object store ──▶ removed here
//! ```
//!
//! A line is written to the kernel before the next look, so an agent that is killed loses none.
//! While the disk takes nothing, looks are lost, and lines of audits wait in memory ([`pending`]).
//! Work does not outlive the machine, so nothing is synced. A file that was stored and not removed
//! is stored again under the same name. While the store is unreachable the newest files are kept
//! here, up to [`SPOOL_BYTES_MAX`].
//!
//! The request is committed and is in the nodes' lists: a message from agent to agent would be as
//! fast, but nobody would know afterwards which nodes record, and which of them missed the end. It
//! ends by the leader's clock, by each node's own clock since boot, or with the claim. Measuring
//! does not change, only what is stored. Lattice removes nothing from the store: how long traces
//! stay is a lifecycle rule of the bucket.

mod chunk;
mod flush;
mod folders;
mod pending;
mod recorder;
mod waiting;

pub use recorder::Recorder;

use crate::kernel_counts::Key;
use lattice_model::{AllocationId, Epoch, TelemetryMode};
use lattice_output::log_store::LogStore;
use lattice_telemetry::catalogue::agent as family;
use lattice_telemetry::sample::Samples;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// Bytes that may wait for the store on this node, of all allocations together; beyond, the oldest
/// are removed.
pub const SPOOL_BYTES_MAX: u64 = 64 << 20;
/// Size in bytes at which a file is completed.
const CHUNK_BYTES: u64 = 1 << 20;

/// The traces of this node. All clones share them.
#[derive(Clone)]
pub struct Traces(Arc<Inner>);

struct Inner {
    dir: PathBuf,
    store: Option<LogStore>,
    /// How long lines wait before they are stored.
    flush: Duration,
    /// Notified when a file is ready to be stored.
    closed: Notify,
    /// The same, for the check of how much waits while a file is being stored.
    more: Notify,
    debug: Tally,
    audit: Tally,
}

/// Counts of one mode in this run of the agent.
#[derive(Default)]
struct Tally {
    points: AtomicU64,
    lost: AtomicU64,
    /// Allocations that are in this mode now.
    open: Mutex<BTreeSet<Key>>,
    /// The same counts for each allocation that was in the mode, while it has this node.
    kept: Mutex<BTreeMap<Key, TraceCounts>>,
    /// Events lost with removed files since the last request: the record itself has to report them.
    dropped: Mutex<BTreeMap<Key, u64>>,
}

/// Counts of an allocation in one mode in this run of the agent: looks or events that were
/// recorded, and those that were not, or were lost before the store had them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceCounts {
    pub points: u64,
    pub lost: u64,
}

impl Traces {
    /// Opens the traces, and completes the files that an earlier run was writing. Blocks briefly.
    pub fn open(state_dir: &Path, store: Option<LogStore>, flush: Duration) -> Self {
        let dir = state_dir.join("traces");
        if let Err(error) = chunk::close_all(&dir) {
            tracing::warn!(dir = %dir.display(), %error, "raw measurements of an earlier run of this agent cannot be completed; they stay here");
        }
        let (debug, audit) = Default::default();
        let traces = Self(Arc::new(Inner { dir, store, flush, closed: Notify::new(), more: Notify::new(), debug, audit }));
        traces.0.closed.notify_one();
        traces
    }

    /// Adds metrics: how many were recorded in this run of the agent, and how many were lost.
    pub fn write_metrics(&self, samples: &mut Samples) {
        for (tally, open, points, lost) in [
            (&self.0.debug, &family::DEBUG_ALLOCATIONS, &family::DEBUG_POINTS, &family::DEBUG_POINTS_LOST),
            (&self.0.audit, &family::AUDIT_ALLOCATIONS, &family::AUDIT_EVENTS, &family::AUDIT_EVENTS_LOST),
        ] {
            samples.count(open, &[], tally.open().len() as u64);
            samples.count(points, &[], tally.points.load(Ordering::Relaxed));
            samples.count(lost, &[], tally.lost.load(Ordering::Relaxed));
        }
    }

    /// The counts of an allocation that is in this mode now.
    pub fn kept_of(&self, mode: TelemetryMode, key: Key) -> Option<TraceCounts> {
        let tally = self.of(mode);
        tally.open().contains(&key).then(|| tally.kept().get(&key).copied().unwrap_or_default())
    }

    fn of(&self, mode: TelemetryMode) -> &Tally {
        match mode {
            TelemetryMode::Audit => &self.0.audit,
            TelemetryMode::Debug | TelemetryMode::Prod => &self.0.debug,
        }
    }

    fn dir(&self, (allocation, epoch): Key) -> PathBuf {
        self.0.dir.join(name(allocation, epoch))
    }

    fn lost(&self, mode: TelemetryMode, key: Key, count: u64) {
        let tally = self.of(mode);
        tally.lost.fetch_add(count, Ordering::Relaxed);
        if let Some(kept) = tally.kept().get_mut(&key) {
            kept.lost += count;
        }
    }

    /// Counts the events of a lost file: its folder names the allocation.
    fn lost_in(&self, mode: TelemetryMode, file: &Path, count: u64) {
        let folder = file.parent();
        let key = self.of(mode).kept().keys().copied().find(|key| folder == Some(self.dir(*key).as_path()));
        match key {
            Some(key) => {
                self.lost(mode, key, count);
                *self.of(mode).dropped().entry(key).or_default() += count;
            }
            None => {
                self.of(mode).lost.fetch_add(count, Ordering::Relaxed);
            }
        }
    }
}

impl Tally {
    fn kept(&self) -> MutexGuard<'_, BTreeMap<Key, TraceCounts>> {
        self.kept.lock()
    }

    fn dropped(&self) -> MutexGuard<'_, BTreeMap<Key, u64>> {
        self.dropped.lock()
    }

    fn open(&self) -> MutexGuard<'_, BTreeSet<Key>> {
        self.open.lock()
    }

    fn wrote(&self, key: Key, count: u64) {
        self.points.fetch_add(count, Ordering::Relaxed);
        self.kept().entry(key).or_default().points += count;
    }
}

fn name(allocation: AllocationId, epoch: Epoch) -> String {
    format!("{allocation}-{epoch}")
}

#[cfg(test)]
mod tests;
