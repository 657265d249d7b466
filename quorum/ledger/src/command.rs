//! A command, and how it is applied.

use super::action::Action;
use super::apply_context::ApplyContext;
use super::outcome::Applied;
use super::state::Ledger;
use lattice_model::{Revision, Timestamp};
use serde::{Deserialize, Serialize};

/// How much later than the one before a command may be that follows no [`Action::AdvanceTime`], in milliseconds.
pub const ENTRY_LEAP_MS_MAX: u64 = 60_000;

/// A command with the time at which the leader proposed it: the only time that applying it knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// When the leader proposed it.
    pub at: Timestamp,
    /// What is to be done.
    pub action: Action,
}

impl Ledger {
    /// Applies one committed command. `index` is the place of its log entry: it never falls, and several commands of
    /// one entry share it (nobody sees the state between them).
    ///
    /// Its time never goes back, and leaps by [`ENTRY_LEAP_MS_MAX`] at most where no [`Action::AdvanceTime`] vouches for more.
    pub fn apply(&mut self, index: Revision, command: &Command) -> Applied {
        self.time = self.time_of(command);
        let mut context = ApplyContext::new(index, self.time);
        self.revision = index;
        let result = self.admits(command.action.level()).and_then(|()| command.action.apply(self, &mut context));
        self.count_changed(&mut context);
        Applied { result, audit: context.audit, changed: context.changed }
    }

    fn time_of(&self, command: &Command) -> Timestamp {
        if self.time == Timestamp(0) {
            return command.at;
        }
        let latest = match command.action {
            Action::AdvanceTime => command.at.0,
            _ => self.time.0.saturating_add(ENTRY_LEAP_MS_MAX),
        };
        Timestamp(command.at.0.min(latest)).max(self.time)
    }
}
