//! Launches that wait for their server of PMIx.

use crate::bridge::Bridge;
use lattice_model::LaunchSpec;

/// A launch whose ranks are made when its PMIx server is ready.
pub(super) struct Waiting {
    pub(super) spec: LaunchSpec,
    pub(super) bridge: Bridge,
    /// When it is given up (milliseconds, CLOCK_BOOTTIME).
    pub(super) until: u64,
}
