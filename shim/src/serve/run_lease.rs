//! The run lease: work that nobody vouches for any more is killed here, whoever is left to see it.
//!
//! ```text
//!   Ungranted ──RunLease──▶ Until(t) ──RunLease──▶ Until(later) … ──t comes──▶ Lapsed
//! ```
//!
//! It is kept in memory alone: it ends with the shim, whose agent then ends what is left, or with the machine.

use super::ending::KILL_AGAIN_MS;
use super::{Ending, Shim, now_ms};
use crate::shim_log::say;
use lattice_runtime::exits::ExitRecord;
use lattice_runtime::shim::{FromShim, StopReason};

/// See the module. Times are the shim's clock's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunLease {
    /// The work goes on without one.
    None,
    /// Nothing may be started yet.
    Ungranted,
    Until(u64),
    Lapsed,
}

impl RunLease {
    pub(super) fn wanted(wanted: bool) -> Self {
        if wanted { Self::Ungranted } else { Self::None }
    }

    /// Why nothing may be started now.
    pub(super) fn keeps_off(self) -> Option<String> {
        match self {
            Self::None | Self::Until(_) => None,
            Self::Ungranted => Some("its run lease was not granted yet".to_owned()),
            Self::Lapsed => Some("its run lease lapsed".to_owned()),
        }
    }

    /// When it lapses.
    pub(super) fn ends(self) -> Option<u64> {
        match self {
            Self::Until(end) => Some(end),
            Self::None | Self::Ungranted | Self::Lapsed => None,
        }
    }

    pub(super) fn replay(self) -> Vec<FromShim> {
        match self {
            Self::None => Vec::new(),
            Self::Ungranted | Self::Until(_) => vec![FromShim::RunLease { until_ms: self.ends() }],
            Self::Lapsed => vec![FromShim::RunLease { until_ms: None }, FromShim::RunLeaseLapsed],
        }
    }
}

impl Shim {
    /// The agent says how long it lasts. One that is over is over, also where its end was not noticed yet: a stopped shim, or a
    /// machine that slept, may hear of more time before it looks at the clock.
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
            // Without any grace: from a moment on that is promised, none of it runs.
            Ending::No | Ending::Terminating { .. } => {
                self.work.kill_all();
                self.ending = Ending::Killing { why: StopReason::Asked, again_at: now + KILL_AGAIN_MS };
            }
            // What is being killed for another reason goes on being killed for that.
            Ending::Killing { .. } | Ending::Quitting { .. } | Ending::Stopped { .. } => return,
        }
        say("the run lease lapsed: all work was killed");
        self.record(&ExitRecord::RunLeaseLapsed);
        self.agent.tell(&FromShim::RunLeaseLapsed);
        self.agent.tell(&FromShim::Stopping { why: StopReason::Asked });
        self.check_stopped();
    }
}
