//! Times that the leader's clock waits for on behalf of an allocation.

use super::Allocation;
use crate::allocation_state::AllocationState;
use crate::duration::millis;
use crate::mail::MailEvent;
use crate::time::Timestamp;

impl Allocation {
    /// From when on it can no longer end by its deadline; `None`: never, or it does not wait. For a task group whose
    /// tasks have begun, this is the deadline itself, and its lanes end with it.
    pub fn deadline_missed_at(&self) -> Option<Timestamp> {
        let is_part = self.lane.is_some() || self.replica.is_some();
        let has_begun = self.is_task_group() && self.started_at.is_some();
        let latest = if has_begun { self.spec.deadline() } else { self.spec.begin_latest() };
        let latest = latest.filter(|_| self.state.is_without_nodes() && !is_part)?;
        Some(Timestamp(latest.0.saturating_add(1)))
    }

    /// The next part of its walltime about which its user wants mail: when it is over, and its event.
    pub fn next_mail_mark(&self) -> Option<(Timestamp, MailEvent)> {
        if self.state != AllocationState::Running || !self.has_mail() {
            return None;
        }
        let (started, walltime) = self.started_at.zip(self.spec.walltime)?;
        let wanted = self.spec.mail.iter().flat_map(|mail| &mail.events).copied();
        let ahead = wanted.filter_map(|event| Some((event.percent().filter(|percent| *percent > self.mailed_percent)?, event)));
        let (percent, event) = ahead.min()?;
        let after_ms = millis(walltime) / 100 * u64::from(percent);
        Some((Timestamp(started.0.saturating_add(after_ms)), event))
    }
}
