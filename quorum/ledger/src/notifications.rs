//! How far the audit log has been sent as notifications.

use super::{Ledger, NotifyWay, Outcome};

impl Ledger {
    /// The last audit record that was delivered this way; `None`: none yet.
    pub fn notified(&self, way: NotifyWay) -> Option<u64> {
        self.notified.get(&way).copied()
    }

    /// Never moves back: a late acknowledgement must not cause records to be sent again.
    pub(super) fn set_notified(&mut self, way: NotifyWay, upto: u64) -> Outcome {
        let notified = self.notified.entry(way).or_default();
        *notified = (*notified).max(upto).min(self.audit.seq);
        Outcome::Done
    }
}
