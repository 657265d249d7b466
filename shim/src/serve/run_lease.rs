//! How the shim enforces its run lease.

use super::ending::KILL_RETRY_MS;
use super::lease::RunLease;
use super::{Ending, Shim, now_ms};
use crate::shim_log::log_line;
use lattice_runtime::exits::ExitRecord;
use lattice_runtime::shim::{FromShim, StopReason};

impl Shim {
    /// The agent extends the lease. A lease that has lapsed stays so, even if the lapse was not noticed yet: a stopped
    /// shim, or a machine that was suspended, may receive an extension before it looks at the clock.
    pub(super) fn extend_run_lease(&mut self, until_ms: u64) {
        self.check_run_lease(now_ms());
        match &mut self.run_lease {
            RunLease::None | RunLease::Lapsed => {}
            RunLease::Ungranted => self.run_lease = RunLease::Until(until_ms),
            RunLease::Until(end) => *end = until_ms.max(*end),
        }
        self.check_run_lease(now_ms());
    }

    pub(super) fn check_run_lease(&mut self, now: u64) {
        if self.run_lease.ends().is_none_or(|end| end > now) {
            return;
        }
        self.run_lease = RunLease::Lapsed;
        match self.ending {
            // Without grace: the promise is that none of the work runs after this moment.
            Ending::No | Ending::Terminating { .. } => {
                self.work.kill_all();
                self.ending = Ending::Killing { why: StopReason::Requested, retry_at: now + KILL_RETRY_MS };
            }
            // Work that is being killed for another reason keeps that reason.
            Ending::Killing { .. } | Ending::Quitting { .. } | Ending::Stopped { .. } => return,
        }
        log_line("the run lease lapsed: all work was killed");
        self.record(&ExitRecord::RunLeaseLapsed);
        self.agent.send(&FromShim::RunLeaseLapsed);
        self.agent.send(&FromShim::Stopping { why: StopReason::Requested });
        self.check_stopped();
    }
}
