//! What a member counts of its commands.

use lattice_telemetry::catalogue::LATENCY_SECONDS;
use lattice_telemetry::histogram::Histogram;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counted since the member began.
#[derive(Debug)]
pub struct RaftCounts {
    /// Commands proposed here that were applied, by their answer; and those of which nobody can say.
    pub accepted: AtomicU64,
    pub refused: AtomicU64,
    pub unserved: AtomicU64,
    /// Entries that they were gathered into.
    pub entries: AtomicU64,
    /// From an entry's proposal here to its being applied.
    pub commit: Histogram,
    /// Applying one entry.
    pub apply: Histogram,
    /// Making a snapshot.
    pub snapshot: Histogram,
}

impl Default for RaftCounts {
    fn default() -> Self {
        let (zero, histogram) = (|| AtomicU64::new(0), || Histogram::new(LATENCY_SECONDS));
        Self {
            accepted: zero(),
            refused: zero(),
            unserved: zero(),
            entries: zero(),
            commit: histogram(),
            apply: histogram(),
            snapshot: histogram(),
        }
    }
}

/// Counts one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
