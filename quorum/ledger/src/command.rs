//! Commands and how they are applied.

use super::action::Action;
use super::apply_context::ApplyContext;
use super::outcome::Applied;
use super::state::Ledger;
use lattice_model::{Revision, Timestamp};
use serde::{Deserialize, Serialize};

/// The most by which a command other than [`Action::AdvanceTime`] advances the ledger's time, in
/// milliseconds.
pub const ENTRY_LEAP_MS_MAX: u64 = 60_000;

/// A command with the time at which the leader proposed it. Applying it uses no other clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// When the leader proposed it.
    pub at: Timestamp,
    /// The action.
    pub action: Action,
}

impl Ledger {
    /// Applies one committed command. `index` is the index of its log entry: it never decreases,
    /// and the commands of one entry share it (no reader sees the state between them).
    ///
    /// The ledger's time never goes back. A command advances it by at most [`ENTRY_LEAP_MS_MAX`],
    /// except the first command and [`Action::AdvanceTime`].
    pub fn apply(&mut self, index: Revision, command: &Command) -> Applied {
        let last = self.time;
        self.time = self.time_of(command);
        let mut context = ApplyContext::new(index, self.time);
        self.revision = index;
        let was_waiting = self.placing_waits();
        let result = self.admits(command.action.level()).and_then(|()| command.action.apply(self, &mut context));
        if result.is_ok() {
            self.cancel_steps(&mut context);
            self.settle(&mut context);
            self.forget_expired_tokens();
            self.forget_old_reservations(&mut context, last);
        }
        self.count_changed(&mut context);
        self.update_indexes(&mut context);
        self.resume_placing(&mut context, was_waiting);
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
