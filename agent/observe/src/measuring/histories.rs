//! What is kept of each number over time, and which window of it is exported.

use lattice_telemetry::catalogue::{Family, allocation as family};
use lattice_telemetry::sample::Samples;
use lattice_telemetry::usage::{Distribution, Source, Usage};
use lattice_telemetry::window::latency::LatencyHistory;
use lattice_telemetry::window::smoothing::Smoothing;
use lattice_telemetry::window::{History, PROD_MS, Summary, Whole};
use std::time::Duration;

/// Whole windows that are kept of each: an hour.
pub(super) const WINDOWS_MAX: usize = 120;

/// How windows are exported of work that runs, or has ended.
#[derive(Clone, Copy)]
pub(super) struct Exported {
    pub smoothing: Smoothing,
    /// How long ago it ended.
    pub ended: Option<Duration>,
}

impl Exported {
    /// The window that is told now.
    pub(super) fn of(self, whole: &Whole) -> Option<Summary> {
        whole.exported(self.smoothing, self.ended.map(|ended| u64::try_from(ended.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// How much later than the last window the one is that is exported.
pub fn told_later(smoothing: Smoothing) -> Duration {
    Duration::from_millis(PROD_MS * smoothing.later() as u64)
}

/// An allocation's numbers over time.
pub(super) struct Histories {
    pub cpu_cores: History,
    pub memory: History,
    pub io_read: History,
    pub io_written: History,
    pub received: History,
    pub sent: History,
    /// Requests to block devices, reads and writes together.
    io_latency: LatencyHistory,
}

impl Histories {
    pub(super) fn new() -> Self {
        let history = || History::new(PROD_MS, WINDOWS_MAX);
        let [cpu_cores, memory, io_read, io_written, received, sent] = std::array::from_fn(|_| history());
        // Only what is exported is asked of it.
        let io_latency = LatencyHistory::new(PROD_MS, Smoothing::Cubic.windows());
        Self { cpu_cores, memory, io_read, io_written, received, sent, io_latency }
    }

    /// Takes what a look said: cores, and what was read, written, received and sent a second; memory is taken by itself.
    pub(super) fn take(&mut self, at_ms: u64, cores: Option<(f64, Source)>, rates: [Option<(f64, Source)>; 4], usage: &Usage) {
        let [read, written, received, sent] = rates;
        let Self { cpu_cores, io_read, io_written, received: in_, sent: out, .. } = self;
        for (history, rate) in [(cpu_cores, cores), (io_read, read), (io_written, written), (in_, received), (out, sent)] {
            if let Some((rate, _)) = rate {
                history.push(at_ms, rate);
            }
        }
        let [reads, writes] =
            [Distribution::BlockRead, Distribution::BlockWrite].map(|of| usage.distribution(of).map(|(counts, _)| counts));
        let both = reads.zip(writes).and_then(|(reads, writes)| reads.and(writes));
        if let Some(counts) = both {
            self.io_latency.push(at_ms, counts);
        }
    }

    /// Nothing more comes.
    pub(super) fn close(&mut self, smoothing: Smoothing) {
        let Self { cpu_cores, memory, io_read, io_written, received, sent, io_latency } = self;
        [cpu_cores, memory, io_read, io_written, received, sent].into_iter().for_each(|history| history.close(smoothing));
        io_latency.close(smoothing);
    }

    /// As metrics.
    pub(super) fn tell(&self, id: &str, exported: Exported, samples: &mut Samples) {
        for (history, metric) in [
            (&self.cpu_cores, &family::CPU_CORES),
            (&self.memory, &family::MEMORY_USED),
            (&self.io_read, &family::IO_READ_RATE),
            (&self.io_written, &family::IO_WRITE_RATE),
            (&self.received, &family::NETWORK_RECEIVED_RATE),
            (&self.sent, &family::NETWORK_SENT_RATE),
        ] {
            if let Some(window) = exported.of(history.whole()) {
                tell_window(samples, metric, id, &window);
            }
        }
        if let Some(window) = exported.of(self.io_latency.whole()) {
            tell_window(samples, &family::IO_LATENCY, id, &window);
            samples.count(&family::IO_LATENCY_REQUESTS, &[id], window.count);
        }
        if let Some(window) = exported.of(self.memory.whole()).or(exported.of(self.cpu_cores.whole())) {
            samples.count(&family::SAMPLES, &[id], window.count);
        }
    }
}

pub(super) fn tell_window(samples: &mut Samples, metric: &'static Family, id: &str, window: &Summary) {
    let Summary { mean, p50, p95, p99, max, .. } = *window;
    for (stat, value) in [("mean", mean), ("p50", p50), ("p95", p95), ("p99", p99), ("max", max)] {
        samples.add(metric, &[id, stat], value);
    }
}
