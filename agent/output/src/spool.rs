//! The spool: output on this node, and its upload into the log store. Each allocation with output
//! has one task.
//!
//! ```text
//!   log files ── look, every second or less often (rounds) ──▶ Index ── cut by size and time ──▶ zstd ──▶ LogStore
//!                                                       │ spool.json, beside the files           │
//!                                      flushed up to ◀──┴── the shim frees the space before it ◀─┘
//! ```
//!
//! Because of the order, a crash at any point neither loses nor repeats output. Chunks are stored
//! first, then the index on this node is written, then the index in the store, and then the shim may
//! free the space in its files. A chunk that was stored but not recorded is stored again under the
//! same name.

mod allocation;
mod files;
mod flush;
mod record;
mod rounds;
mod trim;

pub use allocation::Spool;
pub use files::{Piece, launches, read};
pub use flush::Settings;
pub use trim::RETENTION_AFTER_END;

use crate::log_store::LogStore;
use crate::output_index::{Index, VERSION};
use flush::{Inner, ReportFlushed};
use lattice_model::{AllocationId, DesiredShare, Epoch, NodeId};
use lattice_runtime::shim::ShimDir;
use parking_lot::Mutex;
use rounds::Rounds;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Limit of the chunks that are stored at once: each needs memory, and compressing it needs a core.
const PUTS_MAX: usize = 2;

/// All spools of this node. All clones share them.
#[derive(Clone)]
pub struct Spools(Arc<Inner>);

impl Spools {
    /// No spools yet. The tasks end with `stop`.
    pub fn new(store: Option<LogStore>, settings: Settings, tasks: TaskTracker, stop: CancellationToken) -> Self {
        let (live, unreachable_since, rounds) = (Mutex::default(), Mutex::default(), Rounds::new(flush::IDLE_LOOK_INTERVAL));
        Self(Arc::new(Inner { store, settings, puts: Semaphore::new(PUTS_MAX), rounds, tasks, stop, live, unreachable_since }))
    }

    /// The log store.
    pub fn store(&self) -> Option<&LogStore> {
        self.0.store.as_ref()
    }

    /// The problem with the store, if there is one, for `node status`.
    pub fn problem(&self) -> Option<String> {
        let unreachable_since = self.0.unreachable_since.lock();
        unreachable_since.as_ref().map(|(since, why)| {
            let s = since.elapsed().as_secs();
            format!("log store: unreachable for {s} s ({why}): output is kept on this node, up to logs.spool_max_bytes for each allocation")
        })
    }

    /// Starts the task for an allocation's output, unless it runs already. Every start of an
    /// allocation waits for this call, so it writes nothing. `report`: called with how far output is
    /// flushed. `adopted`: output may have been flushed further than this node has recorded.
    pub fn begin(&self, share: &DesiredShare, node: &NodeId, dir: &ShimDir, report: ReportFlushed, adopted: bool) {
        let mut live = self.live();
        if live.contains_key(&dir.0) {
            return;
        }
        let index = known(share, node, dir);
        let spool = Spool::new(dir.clone(), index);
        live.insert(dir.0.clone(), Arc::clone(&spool));
        self.0.tasks.spawn(Arc::clone(&self.0).run_spool(spool, Some(report), adopted));
    }

    /// Records the owner of the output, unless it is recorded already. Called before the other
    /// records of the allocation are removed. Blocks.
    pub fn note(&self, share: &DesiredShare, node: &NodeId, dir: &ShimDir) {
        if self.0.store.is_none() || dir.spool().exists() {
            return;
        }
        let live = self.live().get(&dir.0).cloned();
        let index = live.map_or_else(|| known(share, node, dir), |spool| spool.snapshot());
        if let Err(error) = record::write(dir, &index, record::Sync::Later) {
            tracing::warn!(allocation = %share.allocation, %error, "cannot record the owner of this output: it is flushed only if this agent keeps running");
        }
    }

    /// An allocation has ended: its task flushes the rest of the output, and then ends. Blocks.
    pub fn end(&self, share: &DesiredShare, node: &NodeId, dir: &ShimDir) {
        let mut live = self.live();
        if let Some(spool) = live.get(&dir.0) {
            spool.ended.cancel();
        } else if dir.logs().exists() {
            self.finish(&mut live, dir, known(share, node, dir));
        }
    }

    fn finish(&self, live: &mut HashMap<PathBuf, Arc<Spool>>, dir: &ShimDir, index: Index) {
        // Without a store, output of ended allocations is not flushed.
        if self.0.store.is_none() || live.contains_key(&dir.0) {
            return;
        }
        if index.complete {
            // An earlier run stopped before it wrote this mark.
            if let Err(error) = std::fs::write(dir.flushed(), b"") {
                tracing::warn!(dir = %dir.0.display(), %error, "cannot record that all of this output is in the store");
            }
            return;
        }
        let spool = Spool::new(dir.clone(), index);
        spool.ended.cancel();
        live.insert(dir.0.clone(), Arc::clone(&spool));
        self.0.tasks.spawn(Arc::clone(&self.0).run_spool(spool, None, true));
    }

    /// Resumes the flushing of ended allocations that an earlier run of this agent left. Blocks.
    pub fn resume(&self) {
        let Ok(entries) = std::fs::read_dir(self.0.settings.state_dir.join("alloc")) else { return };
        for dir in entries.flatten().map(|e| ShimDir(e.path())) {
            if dir.config().exists() || dir.flushed().exists() {
                continue;
            }
            match record::read(&dir) {
                Ok(Some(index)) => self.finish(&mut self.live(), &dir, index),
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "output of an ended allocation is not flushed: its owner is unknown"),
            }
        }
    }

    /// Removes logs of ended allocations if they take too much space. Blocks.
    pub fn trim(&self) {
        self.0.trim();
    }

    /// The spool of this directory, while its task runs.
    pub fn running_spool(&self, dir: &ShimDir) -> Option<Arc<Spool>> {
        self.live().get(&dir.0).cloned()
    }

    /// The spool of readable output: that of the running task, or one with the recorded index.
    /// Blocks.
    pub fn of(&self, dir: &ShimDir, allocation: AllocationId, epoch: Epoch, node: &NodeId) -> Arc<Spool> {
        if let Some(spool) = self.running_spool(dir) {
            return spool;
        }
        let index = record::read(dir).ok().flatten().unwrap_or_else(|| Index {
            version: VERSION,
            allocation,
            epoch,
            node: node.clone(),
            nodes: Vec::new(),
            tenant: String::new(),
            project: String::new(),
            owner_uid: 0,
            owner: String::new(),
            complete: false,
            streams: Vec::new(),
        });
        Spool::new(dir.clone(), index)
    }

    fn live(&self) -> parking_lot::MutexGuard<'_, HashMap<PathBuf, Arc<Spool>>> {
        self.0.live.lock()
    }
}

/// The index of an allocation's output on this node. The store's index may have more.
fn known(share: &DesiredShare, node: &NodeId, dir: &ShimDir) -> Index {
    match record::read(dir) {
        Ok(Some(index)) => return index,
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(allocation = %share.allocation, %error, "the record of flushed output cannot be read: the store's index is used");
        }
    }
    Index {
        version: VERSION,
        allocation: share.allocation,
        epoch: share.epoch,
        node: node.clone(),
        nodes: share.nodes.to_vec(),
        tenant: share.spec.tenant.clone(),
        project: share.spec.project.clone(),
        owner_uid: share.owner.uid,
        owner: share.owner.name.clone(),
        complete: false,
        streams: Vec::new(),
    }
}
