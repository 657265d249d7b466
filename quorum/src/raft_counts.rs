//! Counters of a member's commands.

use lattice_telemetry::catalogue::LATENCY_SECONDS;
use lattice_telemetry::histogram::Histogram;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the member started.
#[derive(Debug)]
pub struct RaftCounts {
    /// Commands proposed here: accepted, refused, and with unknown result.
    pub accepted: AtomicU64,
    pub refused: AtomicU64,
    pub unserved: AtomicU64,
    /// Number of entries that contained them.
    pub entries: AtomicU64,
    /// Time from proposing an entry here until it is applied.
    pub commit: Histogram,
}

impl Default for RaftCounts {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        let commit = Histogram::new(LATENCY_SECONDS);
        Self { accepted: zero(), refused: zero(), unserved: zero(), entries: zero(), commit }
    }
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
