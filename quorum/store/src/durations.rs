//! How long the state machine's work takes, for metrics.

use lattice_telemetry::catalogue::LATENCY_SECONDS;
use lattice_telemetry::histogram::Histogram;

/// Durations since the member started.
#[derive(Debug)]
pub struct Durations {
    /// Time to apply one entry. The last entry of a call of openraft includes the time to write the
    /// audit records of all of them.
    pub apply: Histogram,
    /// Time to make a snapshot.
    pub snapshot: Histogram,
}

impl Default for Durations {
    fn default() -> Self {
        let histogram = || Histogram::new(LATENCY_SECONDS);
        Self { apply: histogram(), snapshot: histogram() }
    }
}
