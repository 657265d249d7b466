//! The cluster level: which commands every member understands.
//!
//! A member that meets a command it does not know must stop, or the replicas would differ. So a command newer than the
//! committed level is refused before it is proposed, and once more where it is applied; the leader raises the level when
//! every member has said that it can follow (see `levels`). It never falls.
//!
//! There is one level. A debug build has a second one for tests, which leases of names that begin with `trial/` need.

use super::refusal::Refusal;
use super::{ApplyContext, LEVEL_FIRST, Ledger, Outcome, Subject};
use lattice_model::AuditAction;

/// The highest level whose commands this version has. A member reports it to the leader, unless `level_max` says
/// otherwise.
pub const LEVEL_KNOWN: u32 = 1;
/// The highest level that this program can follow: a debug build has one more.
pub const LEVEL_MAX: u32 = if cfg!(debug_assertions) { LEVEL_KNOWN + 1 } else { LEVEL_KNOWN };

/// What the names of leases begin with that need [`LEVEL_MAX`], in a debug build.
const TRIAL_PREFIX: &str = "trial/";

/// The level that a lease of this name needs.
pub(super) fn of_lease(name: &str) -> u32 {
    if cfg!(debug_assertions) && name.starts_with(TRIAL_PREFIX) { LEVEL_MAX } else { LEVEL_FIRST }
}

impl Ledger {
    /// The committed level.
    pub fn level(&self) -> u32 {
        self.level
    }

    /// Refused, where a command of level `needed` must wait.
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
