//! Output that waits for a file system of the user, as the shim reports it.

use super::AllocationTask;

impl AllocationTask {
    /// Shows why output waits for its files; `None`: it no longer does.
    pub(super) fn show_late_files(&self, why: Option<String>) {
        let allocation = self.share.allocation;
        let was_late = self.senders.detail.borrow().files_late.is_some();
        match &why {
            // The reason changes as output grows: only the first one is logged.
            Some(why) if !was_late => tracing::warn!(%allocation, %why, "output of work waits for its files"),
            None if was_late => tracing::info!(%allocation, "output of work no longer waits for its files"),
            Some(_) | None => {}
        }
        self.senders.detail.send_modify(|d| d.files_late = why);
    }

    /// A shim that is gone has no output that waits. One that was only disconnected reports anew what waits.
    pub(super) fn forget_late_files(&self) {
        self.senders.detail.send_if_modified(|d| d.files_late.take().is_some());
    }
}
