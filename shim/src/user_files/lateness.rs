//! Output that waits for a file system that does not answer. A thread that is stuck in a system call cannot report that
//! itself, so the shim's loop looks at the time at which the call began: every five seconds while processes run whose
//! logs are copied, and never without such files.

use super::{STALL_MAX, UserFiles};
use lattice_model::millis;
use std::sync::atomic::Ordering;

impl UserFiles {
    /// Why output waits for its files, as the latest look found it; `None`: it does not wait.
    pub fn late(&self) -> Option<&str> {
        self.late.as_deref()
    }

    /// When to look next, in milliseconds of the clock passed to [`Self::look_for_lateness`]; `None`: nothing is copied.
    pub fn lateness_due(&self) -> Option<u64> {
        let is_needed = !self.copied.is_empty() || self.late.is_some();
        is_needed.then_some(self.late_look_at_ms)
    }

    /// Looks whether the thread is stuck, if it is time. `now_ms`: by [`lattice_runtime::shim::boottime_ms`]. Returns
    /// whether [`Self::late`] has changed.
    pub fn look_for_lateness(&mut self, now_ms: u64) -> bool {
        if self.lateness_due().is_none_or(|due| now_ms < due) {
            return false;
        }
        self.late_look_at_ms = now_ms.saturating_add(millis(STALL_MAX));
        let late = self.late_text(now_ms);
        let has_changed = self.late != late;
        self.late = late;
        has_changed
    }

    /// One system call that takes [`STALL_MAX`] counts as stuck. Many calls that each take less do not: output is only
    /// slow then.
    fn late_text(&self, now_ms: u64) -> Option<String> {
        let since_ms = self.shared.busy_since_ms.load(Ordering::Relaxed);
        let is_stuck = since_ms > 0 && now_ms.saturating_sub(since_ms) >= millis(STALL_MAX);
        if !is_stuck || self.copied.is_empty() {
            return None;
        }
        let what = match self.uncopied_text() {
            Some(uncopied) => format!("{uncopied} are not written yet"),
            None => "some output may not be on its disk yet".to_owned(),
        };
        Some(format!(
            "the file system of --output and --error does not answer: {what}; check that file system (`lattice logs` has the output)"
        ))
    }
}
