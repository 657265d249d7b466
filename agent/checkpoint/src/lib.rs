//! Checkpoints: work is asked to save itself, and begins from what it saved when it runs again.
//!
//! ```text
//!   any agent ──CheckpointOpen──▶ head ──PartOpen, Go──▶ each node: asks ──▶ the application saves, and says so
//!     ▲                            │ ◀─Able, Saved────          └─ its files ─▶ store
//!     └────── how it goes ─────────┤
//!                                  ├─ manifest.json ─▶ store
//!                                  └─ report ─▶ quorum: this is the allocation's last one
//! ```
//!
//! The head decides ([`lattice_node::Checkpointing`]) and writes down each state before it acts on it, beside the shim's files; its
//! next life asks again. A node writes nothing down: what it was asked for lies in the allocation's directory ([`directory`]), and
//! who is asked for the same round again goes on with that.

mod answer;
mod asking;
mod blocking;
pub mod broker;
mod broker_knowledge;
mod callers;
mod catching;
mod counts;
mod directory;
mod handles;
mod head;
mod heads;
mod kept;
mod late;
pub mod lookout;
mod pack;
pub mod packers;
mod page;
mod part;
mod parts;
mod port;
pub mod restore;
pub mod retention;
pub mod said;
pub mod saving;
mod sightings;
pub mod simulated;
pub mod store;
mod turns;
mod way;

pub use asking::ask;
pub use callers::Callers;
pub use directory::{Answer, DirectoryError};
pub use handles::Handles;
pub use head::{BeginError, begin};
pub use part::serve;

use anyhow::Context as _;
use broker_knowledge::Latest;
use callers::Unasked;
use counts::Counts;
use directory::{Directories, PlaceError};
use heads::Head;
use lattice_agent_common::config::AgentConfig;
use lattice_agent_common::config::checkpoint::{CheckpointSettings, CheckpointsUnavailable};
use lattice_model::{AllocationId, AskBy, DesiredShare, Epoch};
use lattice_node::Checkpointing;
use lattice_pki::credentials::Material;
use parking_lot::Mutex;
use parts::Parts;
use sightings::Sightings;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use store::{CheckpointStore, Owner};
use thiserror::Error;
use tokio::sync::watch;
use turns::Turns;

/// What this agent knows of checkpoints. Cloneable; all clones are one.
#[derive(Clone)]
pub struct Checkpoints(Arc<Inner>);

struct Inner {
    /// Or why none is made here.
    means: Result<Means, CheckpointsUnavailable>,
    heads: Mutex<BTreeMap<AllocationId, Head>>,
    parts: Parts,
    /// Work that waits in calls to be asked.
    callers: Callers,
    /// Work that is asked by a signal, and catches it.
    sightings: Sightings,
    /// One checkpoint of an allocation is begun at a time.
    begins: Turns,
    counts: Counts,
    settings: CheckpointSettings,
    /// What the broker knows, while it is here.
    broker: Mutex<Option<Latest>>,
}

/// Why the directory of work that asks for checkpoints cannot be made or removed.
#[derive(Debug, Error)]
pub enum CheckpointDirectoryError {
    #[error(transparent)]
    Unavailable(#[from] CheckpointsUnavailable),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

/// Why an answer that came in a call is not taken.
#[derive(Debug, Error)]
pub enum PutAnswerError {
    #[error(transparent)]
    Unasked(#[from] Unasked),
    #[error(transparent)]
    Unavailable(#[from] CheckpointsUnavailable),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("{token} was answered already, and otherwise")]
    AnsweredOtherwise { token: String },
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
            if config.wants_checkpoints() {
                return Err(why.into());
            }
            if !config.log_store.is_empty() {
                tracing::warn!(why = %why, "no checkpoints are made here");
            }
        }
        let means = match config.makes_checkpoints() {
            Ok(()) => {
                let store = CheckpointStore::configured(config)
                    .context("the store of checkpoints")?
                    .of_cluster(config.cluster.clone(), authorities);
                let directories = Directories::below(config.checkpoint_dir())?;
                Ok(Means { store, directories })
            }
            Err(why) => Err(CheckpointsUnavailable(why)),
        };
        let inner = Inner {
            means,
            heads: Mutex::default(),
            parts: Parts::default(),
            callers: Callers::default(),
            sightings: Sightings::default(),
            begins: Turns::default(),
            counts: Counts::default(),
            settings: config.checkpoint,
            broker: Mutex::default(),
        };
        Ok(Self(Arc::new(inner)))
    }

    fn means(&self) -> Result<&Means, CheckpointsUnavailable> {
        self.0.means.as_ref().map_err(Clone::clone)
    }

    /// The store, or why there is none.
    pub fn store(&self) -> Result<&CheckpointStore, CheckpointsUnavailable> {
        self.means().map(|means| &means.store)
    }

    /// Makes the directory of work that asks for checkpoints.
    pub fn make(&self, share: &DesiredShare) -> Result<(), CheckpointDirectoryError> {
        let Some(policy) = share.spec.checkpoint else { return Ok(()) };
        let directories = &self.means()?.directories;
        directories.make(share.allocation, &share.owner)?;
        match policy.by {
            AskBy::SharedMemory => directories.make_page(share.allocation, &share.owner)?,
            AskBy::Signal | AskBy::Call => {}
        }
        Ok(())
    }

    /// Work that waits in calls to be asked.
    pub fn callers(&self) -> &Callers {
        &self.0.callers
    }

    /// Work that is asked by a signal, and catches it.
    pub fn sightings(&self) -> &Sightings {
        &self.0.sightings
    }

    /// Where an allocation's work is asked to save itself.
    pub fn directory_of(&self, allocation: AllocationId) -> Result<PathBuf, CheckpointsUnavailable> {
        self.means().map(|means| means.directories.of(allocation))
    }

    /// Writes down what an application answered in a call, where its next look finds it whichever agent lives then. The same answer
    /// again is taken as well: who was not told that it was taken says it again. Called with the allocation's turn ([`Callers::turn`]).
    pub fn put_answer(&self, share: &DesiredShare, token: &str, answer: &Answer) -> Result<(), PutAnswerError> {
        let key = (share.allocation, share.epoch);
        // It becomes part of files' names.
        if !directory::is_token(token) {
            return Err(Unasked::of(token).into());
        }
        let place = self.means()?.directories.open(share.allocation, &share.owner)?;
        // What is asked for lies there: an agent that has just begun knows it as well.
        if place.requested()?.as_deref() != Some(token) {
            return Err(Unasked::of(token).into());
        }
        match place.answered(token)? {
            Some(there) if there == *answer => {}
            Some(_) => return Err(PutAnswerError::AnsweredOtherwise { token: token.to_owned() }),
            None => {
                if let Some(why) = self.callers().given_up(key, token) {
                    return Err(why.into());
                }
                place.put_answer(token, answer)?;
            }
        }
        self.callers().answered(key, token);
        Ok(())
    }

    /// What its processes are told.
    pub fn environment(&self, share: &DesiredShare) -> Vec<(&'static str, String)> {
        let (Ok(means), Some(policy)) = (&self.0.means, &share.spec.checkpoint) else { return Vec::new() };
        let told = |name, path: std::path::PathBuf| (name, path.display().to_string());
        let mut env = vec![told("LATTICE_CHECKPOINT_DIR", means.directories.of(share.allocation))];
        if policy.by == AskBy::SharedMemory {
            env.push(told("LATTICE_CHECKPOINT_SHM", means.directories.page_of(share.allocation)));
        }
        if let Some(port) = policy.port {
            env.push(("LATTICE_CHECKPOINT_PORT", port.to_string()));
        }
        if share.restore.is_some() {
            env.push(told("LATTICE_RESTORE_FROM", means.directories.restore_of(share.allocation)));
        }
        env
    }

    /// Removes what lies here of an allocation. May be done again.
    pub fn remove(&self, share: &DesiredShare) -> Result<(), DirectoryError> {
        self.0.parts.stop(share.allocation);
        self.0.callers.forget((share.allocation, share.epoch));
        self.0.sightings.forget(share.allocation);
        let mut heads = self.0.heads.lock();
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

    fn broker_says(&self, latest: Option<Latest>) {
        *self.0.broker.lock() = latest;
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
        let heads = self.0.heads.lock();
        heads.get(&allocation).filter(|head| head.epoch == epoch).cloned()
    }
}

/// Whose an allocation's checkpoints are.
pub fn owner_of(share: &DesiredShare) -> Owner {
    Owner { tenant: share.spec.tenant.clone(), project: share.spec.project.clone(), allocation: share.allocation }
}

/// The wall clock, in milliseconds since 1970: for people and applications. Nothing is decided by it.
fn wall_ms() -> u64 {
    lattice_agent_common::clock::now().0
}
