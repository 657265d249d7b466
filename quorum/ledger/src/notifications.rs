//! How far the audit log has been sent as notifications.

use super::{Ledger, NotifyChannel, Outcome};

impl Ledger {
    /// The last audit record that was delivered by this channel; `None`: none yet.
    pub fn notified(&self, channel: NotifyChannel) -> Option<u64> {
        self.notified.get(&channel).copied()
    }

    /// Never moves back: a late acknowledgement must not cause records to be sent again.
    pub(super) fn set_notified(&mut self, channel: NotifyChannel, upto: u64) -> Outcome {
        let notified = self.notified.entry(channel).or_default();
        *notified = (*notified).max(upto).min(self.audit.seq);
        Outcome::Done
    }
}
