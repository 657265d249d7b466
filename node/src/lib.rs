//! What an agent decides, as pure functions. The agent's driver stands around it:
//!
//! ```text
//!   event ──▶ Brain::handle ──▶ records ──append, fsync──▶ actions ──▶ executor ──▶ event …
//! ```
//!
//! The driver has one order: handle, write the records down, then act. Actions may be done twice: each carries the
//! allocation's epoch, and after a restart [`Brain::resume`] asks for them again from what the records say.

#![forbid(unsafe_code)]

mod assign;
mod brain;
mod checkpoint;
pub mod device_health;
pub mod health;
pub mod image_cache;
mod launch;
mod probe;
mod record;

pub use assign::{EXACT_GPUS_MAX, NotAssigned, assign};
pub use brain::{Action, Brain, Event, GpusNow, Local};
pub use checkpoint::{
    CheckpointEnd, CheckpointEvent, CheckpointPhase, CheckpointStep, Checkpointing, DEFERRAL_MS_MAX, Deadline, Progress, Saved,
};
pub use launch::{LaunchEnd, LaunchHead, PartEvent, RankEnd};
pub use probe::{ProbeWatch, Verdict};
pub use record::{Phase, Record};
