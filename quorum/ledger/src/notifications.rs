//! How far others are notified of what the audit log has.

use super::{Ledger, NotifyWay, Outcome};

impl Ledger {
    /// Up to which audit record others were told this way; `None`: nobody was yet.
    pub fn notified(&self, way: NotifyWay) -> Option<u64> {
        self.notified.get(&way).copied()
    }

    /// Never back: what was taken is not told again for a word that was late.
    pub(super) fn set_notified(&mut self, way: NotifyWay, upto: u64) -> Outcome {
        let told = self.notified.entry(way).or_default();
        *told = (*told).max(upto).min(self.audit.seq);
        Outcome::Done
    }
}
