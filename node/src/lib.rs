//! The decisions of an agent, as pure functions. The agent's driver calls them:
//!
//! ```text
//!   event ──▶ Brain::handle ──▶ records ──append, fsync──▶ actions ──▶ executor ──▶ event …
//! ```
//!
//! The driver has one order: handle the event, write the records, then act. After a restart
//! [`Brain::resume`] returns the actions again from the records, so an action may be executed
//! twice; each action about an allocation carries the allocation's epoch.
//!
//! Tasks execute the brain's actions. The tasks' own decisions are also in this crate, most of them
//! as `handle(now, event, out)`: [`allocation`] (the phases of one allocation's task),
//! [`RunLease`], [`walltime`], [`fence`] and [`branch`] (a launch's tree), [`Checkpointing`].

#![forbid(unsafe_code)]

pub mod allocation;
mod assign;
mod brain;
pub mod branch;
mod checkpoint;
pub mod device_health;
mod durable;
pub mod fence;
pub mod health;
pub mod image_cache;
mod launch;
mod locality;
mod probe;
mod record;
mod run_lease;
pub mod walltime;

pub use assign::{EXACT_GPUS_MAX, NotAssigned, assign};
pub use brain::{Action, Brain, Event, GpusNow};
pub use checkpoint::{
    CheckpointEnd, CheckpointEvent, CheckpointPhase, CheckpointStep, Checkpointing, DEFERRAL_MS_MAX, Deadline, Progress, Saved,
};
pub use launch::{LaunchEnd, LaunchHead, PartEvent, RankEnd};
pub use locality::locality;
pub use probe::{ProbeWatch, Verdict};
pub use record::{Local, Phase, Record};
pub use run_lease::{Due, LeaseLapsed, RunLease, RunLeaseAction, RunLeaseEvent};
