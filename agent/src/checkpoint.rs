//! Checkpoints: work is asked to save itself, and begins from what it saved when it runs again.
//!
//! ```text
//!   any agent ──CheckpointOpen──▶ head ──PartOpen, Go──▶ each node: signal ─▶ the application saves, and says so
//!     ▲                            │ ◀─Able, Saved────          └─ its files ─▶ store
//!     └────── how it goes ─────────┤
//!                                  ├─ manifest.json ─▶ store
//!                                  └─ report ─▶ quorum: this is the allocation's last one
//! ```
//!
//! The head decides ([`lattice_node::Checkpointing`]) and writes down each state before it acts on it, beside the shim's files; its
//! next life asks again. A node writes nothing down: what it was asked for lies in the allocation's directory ([`directory`]), and
//! who is asked for the same round again goes on with that.

mod asking;
pub mod broker;
mod catching;
mod counts;
mod directory;
mod head;
mod kept;
mod part;
mod restore;
pub mod retention;
pub mod settings;
pub mod store;

pub use asking::ask;
pub use head::begin;
pub use part::serve;
pub use restore::{restore, verify};

use crate::config::AgentConfig;
use anyhow::Context as _;
use counts::Counts;
use directory::Directories;
use head::Head;
use lattice_model::{AllocationId, DesiredShare, Epoch};
use lattice_node::Checkpointing;
use lattice_quorum::credentials::Material;
use part::Parts;
use settings::CheckpointSettings;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use store::{CheckpointStore, Owner};
use tokio::sync::watch;

/// What this agent knows of checkpoints. Cloneable; all clones are one.
#[derive(Clone)]
pub struct Checkpoints(Arc<Inner>);

struct Inner {
    /// Or why none is made here.
    means: Result<Means, String>,
    heads: Mutex<BTreeMap<AllocationId, Head>>,
    parts: Parts,
    /// One checkpoint is begun at a time.
    begins: tokio::sync::Mutex<()>,
    counts: Counts,
    settings: CheckpointSettings,
    /// What the broker knows, while it is here.
    broker: Mutex<Option<broker::Latest>>,
}

/// What checkpoints are made with.
#[derive(Clone)]
struct Means {
    store: CheckpointStore,
    directories: Directories,
}

impl Checkpoints {
    /// As configured, with the authorities that the agent trusts.
    pub fn open(config: &AgentConfig, authorities: watch::Receiver<Arc<Material>>) -> anyhow::Result<Self> {
        if let Err(why) = config.makes_checkpoints() {
            if !config.checkpoint_store.is_empty() {
                anyhow::bail!(why);
            }
            if !config.log_store.is_empty() {
                tracing::warn!(why, "no checkpoints are made here");
            }
        }
        let means = match config.makes_checkpoints() {
            Ok(()) => {
                let store =
                    config.open_checkpoint_store().context("the store of checkpoints")?.of_cluster(config.cluster.clone(), authorities);
                let directories = Directories::below(config.checkpoint_dir()).map_err(anyhow::Error::msg)?;
                Ok(Means { store, directories })
            }
            Err(why) => Err(format!("this agent makes no checkpoints: {why}")),
        };
        let begins = tokio::sync::Mutex::new(());
        let inner = Inner {
            means,
            heads: Mutex::default(),
            parts: Parts::default(),
            begins,
            counts: Counts::default(),
            settings: config.checkpoint,
            broker: Mutex::default(),
        };
        Ok(Self(Arc::new(inner)))
    }

    fn means(&self) -> Result<&Means, String> {
        self.0.means.as_ref().map_err(Clone::clone)
    }

    /// The store, or why there is none.
    pub fn store(&self) -> Result<&CheckpointStore, String> {
        self.means().map(|means| &means.store)
    }

    /// Makes the directory of work that asks for checkpoints.
    pub fn make(&self, share: &DesiredShare) -> Result<(), String> {
        if share.spec.checkpoint.is_none() {
            return Ok(());
        }
        self.means()?.directories.make(share.allocation, &share.owner)
    }

    /// What its processes are told.
    pub fn environment(&self, share: &DesiredShare) -> Vec<(&'static str, String)> {
        let (Ok(means), Some(_)) = (&self.0.means, &share.spec.checkpoint) else { return Vec::new() };
        let told = |name, path: std::path::PathBuf| (name, path.display().to_string());
        let mut env = vec![told("LATTICE_CHECKPOINT_DIR", means.directories.of(share.allocation))];
        if share.restore.is_some() {
            env.push(told("LATTICE_RESTORE_FROM", means.directories.restore_of(share.allocation)));
        }
        env
    }

    /// Removes what lies here of an allocation. May be done again.
    pub fn remove(&self, share: &DesiredShare) -> Result<(), String> {
        self.0.parts.stop(share.allocation);
        let mut heads = self.0.heads.lock().unwrap_or_else(PoisonError::into_inner);
        if heads.get(&share.allocation).is_some_and(|head| head.epoch == share.epoch) {
            heads.remove(&share.allocation);
        }
        drop(heads);
        self.means().map_or(Ok(()), |means| means.directories.remove(share.allocation))
    }

    /// Removes what lies here of allocations that `known` does not know.
    pub fn sweep(&self, known: impl Fn(AllocationId) -> bool) {
        if let Ok(means) = &self.0.means {
            means.directories.sweep(known);
        }
    }

    /// When work is asked without a request, and how long checkpoints are kept.
    pub fn settings(&self) -> &CheckpointSettings {
        &self.0.settings
    }

    fn broker_says(&self, latest: Option<broker::Latest>) {
        *self.0.broker.lock().unwrap_or_else(PoisonError::into_inner) = latest;
    }

    /// What became of checkpoints and preemptions here.
    pub fn counts(&self) -> &Counts {
        &self.0.counts
    }

    /// The checkpoint of a claim whose head this node is: the one that is under way, or else the last one.
    pub fn last(&self, allocation: AllocationId, epoch: Epoch) -> Option<watch::Receiver<Checkpointing>> {
        self.head_of(allocation, epoch).map(|head| head.view)
    }

    fn head_of(&self, allocation: AllocationId, epoch: Epoch) -> Option<Head> {
        let heads = self.0.heads.lock().unwrap_or_else(PoisonError::into_inner);
        heads.get(&allocation).filter(|head| head.epoch == epoch).cloned()
    }
}

/// Whose an allocation's checkpoints are.
pub fn owner_of(share: &DesiredShare) -> Owner {
    Owner { tenant: share.spec.tenant.clone(), project: share.spec.project.clone(), allocation: share.allocation }
}

/// The wall clock, in milliseconds since 1970: for people and applications. Nothing is decided by it.
fn wall_ms() -> u64 {
    crate::service::now().0
}
