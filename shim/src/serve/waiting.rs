//! Launches that wait for their PMIx server.

use crate::bridge::Bridge;
use lattice_model::LaunchSpec;

/// A launch that starts its ranks when its PMIx server is ready.
pub(super) struct Waiting {
    pub(super) spec: LaunchSpec,
    pub(super) bridge: Bridge,
    /// When waiting is given up (milliseconds, CLOCK_BOOTTIME).
    pub(super) until: u64,
}
