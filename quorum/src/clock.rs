//! This machine's clocks.

use lattice_model::Timestamp;
use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, SystemTime};

/// What this machine's clock shows. The time of the ledger is the leader's [`Timekeeper`](crate::timekeeper::Timekeeper)'s.
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// How long the machine has run, suspended or not: no administrator and no time server sets that.
pub fn ruler() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}
