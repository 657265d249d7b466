//! The cluster level: the set of commands that every member understands.
//!
//! A member that reads an unknown command must stop, or the replicas would differ. So a command
//! above the committed level is refused before it is proposed, and again when it is applied. The
//! leader raises the level when every member has reported that it supports the next one (see
//! `levels` in `lattice-quorum`). The level never decreases.
//!
//! There is one level. A debug build has a second one for tests; leases whose names begin with
//! `trial/` need it.

use super::{ApplyContext, LEVEL_FIRST, Ledger, Outcome, Subject};
use lattice_ledger_state::refusal::Refusal;
use lattice_model::AuditAction;

/// The highest level whose commands this version knows. A member reports it to the leader, unless
/// `level_max` is lower.
pub const LEVEL_KNOWN: u32 = 1;
/// The highest level that this program supports: a debug build has one more.
pub const LEVEL_MAX: u32 = if cfg!(debug_assertions) { LEVEL_KNOWN + 1 } else { LEVEL_KNOWN };

/// In a debug build, leases with this name prefix need [`LEVEL_MAX`].
const TRIAL_PREFIX: &str = "trial/";

/// The level needed for a lease with this name.
pub(super) fn of_lease(name: &str) -> u32 {
    if cfg!(debug_assertions) && name.starts_with(TRIAL_PREFIX) { LEVEL_MAX } else { LEVEL_FIRST }
}

impl Ledger {
    /// The committed level.
    pub fn level(&self) -> u32 {
        self.level
    }

    /// Refuses a command whose level `needed` is not committed yet.
    pub fn admits(&self, needed: u32) -> Result<(), Refusal> {
        if needed <= self.level { Ok(()) } else { Err(Refusal::ClusterLevel { needed, now: self.level }) }
    }

    pub(super) fn raise_level(&mut self, context: &mut ApplyContext, level: u32) -> Result<Outcome, Refusal> {
        if level > LEVEL_MAX {
            return Err(Refusal::Malformed { why: format!("this version knows levels up to {LEVEL_MAX}, not {level}") });
        }
        if level > self.level {
            let detail = format!("{} -> {level}", self.level);
            self.level = level;
            self.record(context, "quorum", AuditAction::ClusterLevelRaised, Subject::default(), detail);
        }
        Ok(Outcome::Done)
    }
}
