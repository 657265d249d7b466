//! This machine's clocks.

use lattice_model::{Timestamp, millis};
use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, SystemTime};

/// The wall clock of this machine. The ledger's time is that of the leader's
/// [`Timekeeper`](crate::timekeeper::Timekeeper).
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp(millis(since))
}

/// How long the machine has been running, including suspension: no administrator and no time server
/// can set this clock.
pub fn uptime() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}
