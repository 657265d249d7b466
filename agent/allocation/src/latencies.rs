//! Metrics: how long the quorum takes to acknowledge a heartbeat, and how long this node takes to
//! start work.

use lattice_telemetry::catalogue::{LATENCY_SECONDS, serving as family};
use lattice_telemetry::histogram::Histogram;
use lattice_telemetry::sample::Samples;

/// Bucket bounds: from work without preparations to work whose image must be fetched.
const STARTUP_SECONDS: &[f64] = &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];

/// Histograms since the agent's start.
pub struct Latencies {
    /// From a heartbeat to its acknowledgement, by the clock since boot.
    pub heartbeat: Histogram,
    /// From an assignment to the first process of its work.
    pub startup: Histogram,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { heartbeat: Histogram::new(LATENCY_SECONDS), startup: Histogram::new(STARTUP_SECONDS) }
    }
}

impl Latencies {
    /// Appends the samples of both histograms.
    pub fn write_metrics(&self, samples: &mut Samples) {
        samples.histogram(&family::HEARTBEAT_SECONDS, &[], self.heartbeat.counts());
        samples.histogram(&family::STARTUP_SECONDS, &[], self.startup.counts());
    }
}
