//! Checkpoints: work is asked to save itself, and starts from what it saved when it runs again.
//!
//! ```text
//!   any agent ──CheckpointOpen──▶ head ──PartOpen, Go──▶ each node: asks ──▶ the application saves, and says so
//!     ▲                            │ ◀─Able, Saved────          └─ its files ─▶ store
//!     └────── how it goes ─────────┤
//!                                  ├─ manifest.json ─▶ store
//!                                  └─ report ─▶ quorum: this is the allocation's last one
//! ```
//!
//! The head decides ([`lattice_node::Checkpointing`]). It writes each state to a file beside the
//! shim's files before it acts on it, and after a restart it asks the nodes again. The other nodes
//! write no state: the request is in the allocation's directory ([`directory`]), and a node that is
//! asked for the same round again continues with it.
//!
//! | task | ends | queues |
//! |---|---|---|
//! | the driver of a checkpoint, one per allocation whose head is here | with the checkpoint | events 256 |
//! | the driver's work, and one per node that it asks (`JoinSet`s) | with the driver's state, or round | the driver's events |
//! | this node's part of a round, one per allocation | some time after its deadline, or with the allocation | `watch`es |
//! | a call to the work's port | with its part | `watch` |
//! | one per follower of a checkpoint | with the checkpoint, or with the follower | items 4 |
//! | one that removes what a failed checkpoint left | when that is done | |
//! | [`lookout`], [`broker`] | when the agent stops | |
//! | one per checkpoint that the broker requests (a `JoinSet`) | with the checkpoint, or when another agent is the broker | |
//!
//! Drivers, parts, followers and removals are in [`Handles::tasks`]. [`lookout`] and [`broker`] are
//! tasks of the agent. The other tasks are aborted with the task that began them.

mod allocation_locks;
mod allocation_records;
mod answer;
pub mod app_message;
mod asking;
mod blocking;
pub mod broker;
mod broker_knowledge;
mod broker_request;
mod callers;
mod catching;
mod counts;
mod directory;
mod handles;
mod head;
mod heads;
mod late;
pub mod lookout;
mod pack;
pub mod packers;
mod page;
mod part;
mod parts;
mod port;
mod request_method;
pub mod restore;
pub mod retention;
pub mod saving;
mod sightings;
pub mod simulated;
pub mod store;

pub use asking::ask;
pub use callers::Callers;
pub use directory::{Answer, DirectoryError};
pub use handles::Handles;
pub use head::{BeginError, begin};
pub use part::serve;

use allocation_locks::AllocationLocks;
use anyhow::Context as _;
use broker_knowledge::Latest;
use callers::Unasked;
use counts::Counts;
use directory::{Directories, PlaceError};
use heads::Head;
use lattice_agent_common::config::AgentConfig;
use lattice_agent_common::config::checkpoint::{CheckpointSettings, CheckpointsUnavailable};
use lattice_membership::quorum_clock::QuorumClock;
use lattice_model::{AllocationId, CheckpointMethod, DesiredShare, Epoch};
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

/// This agent's checkpoints. All clones share one state.
#[derive(Clone)]
pub struct Checkpoints(Arc<Inner>);

struct Inner {
    /// An error says why this agent makes no checkpoints.
    means: Result<Means, CheckpointsUnavailable>,
    heads: Mutex<BTreeMap<AllocationId, Head>>,
    parts: Parts,
    /// Calls in which work waits for a request.
    callers: Callers,
    /// Processes that were seen catching their allocation's signal.
    sightings: Sightings,
    /// Held while a checkpoint of an allocation begins.
    begins: AllocationLocks,
    counts: Counts,
    settings: CheckpointSettings,
    /// The broker's latest state; `None`: this agent is not the broker.
    broker: Mutex<Option<Latest>>,
    quorum_clock: QuorumClock,
}

/// Why the checkpoint directory of an allocation cannot be created.
#[derive(Debug, Error)]
pub enum CheckpointDirectoryError {
    #[error(transparent)]
    Unavailable(#[from] CheckpointsUnavailable),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

/// Why an answer from a call is refused.
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
    #[error("request {token} was answered already, with a different answer")]
    AnsweredOtherwise { token: String },
}

/// What an agent needs to make checkpoints.
#[derive(Clone)]
struct Means {
    store: CheckpointStore,
    directories: Directories,
}

impl Checkpoints {
    /// Opens the store and the directories that the configuration names. `authorities`: the
    /// authorities that the agent trusts, which identify the cluster in the store.
    pub fn open(config: &AgentConfig, authorities: watch::Receiver<Arc<Material>>) -> anyhow::Result<Self> {
        if let Err(why) = config.makes_checkpoints() {
            if config.wants_checkpoints() {
                return Err(why.into());
            }
            if config.logs.store.is_configured() {
                tracing::warn!(why = %why, "this agent makes no checkpoints");
            }
        }
        let means = match config.makes_checkpoints() {
            Ok((names, store)) => {
                let store = CheckpointStore::open(names, store)
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
            begins: AllocationLocks::default(),
            counts: Counts::default(),
            settings: config.checkpoint.clone(),
            broker: Mutex::default(),
            quorum_clock: QuorumClock::default(),
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

    /// Creates the checkpoint directory of an allocation, if its submission asks for checkpoints.
    pub fn make(&self, share: &DesiredShare) -> Result<(), CheckpointDirectoryError> {
        let Some(policy) = share.spec.checkpoint else { return Ok(()) };
        let directories = &self.means()?.directories;
        directories.make(share.allocation, &share.owner)?;
        match policy.method {
            CheckpointMethod::SharedMemory => directories.make_page(share.allocation, &share.owner)?,
            CheckpointMethod::Signal | CheckpointMethod::Call => {}
        }
        Ok(())
    }

    /// Calls in which work waits for a request.
    pub fn callers(&self) -> &Callers {
        &self.0.callers
    }

    /// Processes that were seen catching their allocation's signal.
    pub fn sightings(&self) -> &Sightings {
        &self.0.sightings
    }

    /// The directory through which an allocation's work is asked to save itself.
    pub fn directory_of(&self, allocation: AllocationId) -> Result<PathBuf, CheckpointsUnavailable> {
        self.means().map(|means| means.directories.of(allocation))
    }

    /// Writes the answer that an application sent in a call to the file that the part of this node
    /// reads, so that it survives a restart of the agent. The same answer is accepted again: an
    /// application without an acknowledgement repeats it. The caller must hold
    /// [`Callers::lock_answers`] of the allocation.
    pub fn put_answer(&self, share: &DesiredShare, token: &str, answer: &Answer) -> Result<(), PutAnswerError> {
        let key = (share.allocation, share.epoch);
        // The token becomes part of file names.
        if !directory::is_token(token) {
            return Err(Unasked::of(token).into());
        }
        let place = self.means()?.directories.open(share.allocation, &share.owner)?;
        // Read from the directory, because an agent that has just started has the request only there.
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

    /// The variables about checkpoints in the environment of the work's processes.
    pub fn environment(&self, share: &DesiredShare) -> Vec<(&'static str, String)> {
        let (Ok(means), Some(policy)) = (&self.0.means, &share.spec.checkpoint) else { return Vec::new() };
        let path_variable = |name, path: std::path::PathBuf| (name, path.display().to_string());
        let mut env = vec![path_variable("LATTICE_CHECKPOINT_DIR", means.directories.of(share.allocation))];
        if policy.method == CheckpointMethod::SharedMemory {
            env.push(path_variable("LATTICE_CHECKPOINT_SHM", means.directories.page_of(share.allocation)));
        }
        if let Some(port) = policy.port {
            env.push(("LATTICE_CHECKPOINT_PORT", port.to_string()));
        }
        if share.restore.is_some() {
            env.push(path_variable("LATTICE_RESTORE_FROM", means.directories.restore_of(share.allocation)));
        }
        env
    }

    /// Stops an allocation's part and removes its files on this node. Idempotent.
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

    /// Removes the files on this node of allocations for which `known` is false.
    pub fn sweep(&self, known: impl Fn(AllocationId) -> bool) {
        if let Ok(means) = &self.0.means {
            means.directories.sweep(known);
        }
    }

    /// The configuration's section `checkpoint`.
    pub fn settings(&self) -> &CheckpointSettings {
        &self.0.settings
    }

    /// The clock by which the broker decides.
    fn quorum_clock(&self) -> &QuorumClock {
        &self.0.quorum_clock
    }

    fn set_broker_state(&self, latest: Option<Latest>) {
        *self.0.broker.lock() = latest;
    }

    /// Metrics of checkpoints and preemptions on this node.
    pub fn counts(&self) -> &Counts {
        &self.0.counts
    }

    /// The checkpoint of a claim whose head is on this node: the running one, or else the last one.
    pub fn last(&self, allocation: AllocationId, epoch: Epoch) -> Option<watch::Receiver<Checkpointing>> {
        self.head_of(allocation, epoch).map(|head| head.view)
    }

    fn head_of(&self, allocation: AllocationId, epoch: Epoch) -> Option<Head> {
        let heads = self.0.heads.lock();
        heads.get(&allocation).filter(|head| head.epoch == epoch).cloned()
    }
}

/// The keys under which the store has an allocation's checkpoints.
pub fn owner_of(share: &DesiredShare) -> Owner {
    Owner { tenant: share.spec.tenant.clone(), project: share.spec.project.clone(), allocation: share.allocation }
}

/// The wall clock, in milliseconds since 1970. For people and applications only: no decision
/// depends on it.
fn wall_ms() -> u64 {
    lattice_agent_common::clock::now().0
}
