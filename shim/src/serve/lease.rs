//! The run lease: kills work here when no leader vouches for it any more, even if no agent is left.
//!
//! ```text
//!   Ungranted ──RunLease──▶ Until(t) ──RunLease──▶ Until(later) … ──t comes──▶ Lapsed
//! ```
//!
//! The state is only in memory: it ends with the shim (the agent then ends what is left), or with the machine.

use lattice_runtime::shim::FromShim;
use thiserror::Error;

/// Why the run lease lets nothing start now.
#[derive(Debug, Error)]
pub(super) enum NotLeased {
    #[error("its run lease was not granted yet")]
    NotGranted,
    #[error("its run lease lapsed")]
    Lapsed,
}

/// State of the run lease; see the module. Times are in milliseconds of CLOCK_BOOTTIME.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunLease {
    /// The work needs no lease.
    None,
    /// Nothing may be started yet.
    Ungranted,
    Until(u64),
    Lapsed,
}

impl RunLease {
    pub(super) fn new(is_needed: bool) -> Self {
        if is_needed { Self::Ungranted } else { Self::None }
    }

    /// Why nothing may be started now.
    pub(super) fn refusal(self) -> Option<NotLeased> {
        match self {
            Self::None | Self::Until(_) => None,
            Self::Ungranted => Some(NotLeased::NotGranted),
            Self::Lapsed => Some(NotLeased::Lapsed),
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
