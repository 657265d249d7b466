//! The history of each number, and which window of it is exported.

use lattice_model::millis;
use lattice_telemetry::catalogue::{Family, allocation as family};
use lattice_telemetry::sample::Samples;
use lattice_telemetry::usage::{Distribution, Measure, Source, Usage};
use lattice_telemetry::window::latency::LatencyHistory;
use lattice_telemetry::window::smoothing::Smoothing;
use lattice_telemetry::window::{History, PROD_MS, Summary, Whole};
use std::time::Duration;

/// Complete windows that are kept of each number: an hour.
pub(super) const WINDOWS_MAX: usize = 120;

/// How windows of running or ended work are exported.
#[derive(Clone, Copy)]
pub(super) struct Exported {
    pub smoothing: Smoothing,
    /// How long ago the work ended; `None`: it runs.
    pub ended: Option<Duration>,
}

impl Exported {
    /// The window that is exported now.
    pub(super) fn of(self, whole: &Whole) -> Option<Summary> {
        whole.exported(self.smoothing, self.ended.map(millis))
    }
}

/// How much older than the last complete window the exported one is.
pub fn export_delay(smoothing: Smoothing) -> Duration {
    Duration::from_millis(PROD_MS * smoothing.later() as u64)
}

/// The histories of an allocation's numbers.
pub(super) struct Histories {
    pub cpu_cores: History,
    pub memory: History,
    pub io_read: History,
    pub io_written: History,
    pub received: History,
    pub sent: History,
    pub connections_accepted: History,
    pub accept_queue: History,
    /// Durations of block device requests, reads and writes together.
    io_latency: LatencyHistory,
}

impl Histories {
    pub(super) fn new() -> Self {
        let history = || History::new(PROD_MS, WINDOWS_MAX);
        let [cpu_cores, memory, io_read, io_written, received, sent, connections_accepted, accept_queue] =
            std::array::from_fn(|_| history());
        // It only needs what is exported.
        let io_latency = LatencyHistory::new(PROD_MS, Smoothing::Cubic.windows());
        Self { cpu_cores, memory, io_read, io_written, received, sent, connections_accepted, accept_queue, io_latency }
    }

    /// Adds the numbers of a look: cores, and the rates of reading, writing, receiving and sending
    /// in bytes a second, and of accepted connections. Memory is added separately.
    pub(super) fn take(&mut self, at_ms: u64, cores: Option<(f64, Source)>, rates: [Option<(f64, Source)>; 5], usage: &Usage) {
        let [read, written, received, sent, accepted] = rates;
        let queued = usage.get(Measure::AcceptQueue);
        for (history, now) in [
            (&mut self.cpu_cores, cores),
            (&mut self.io_read, read),
            (&mut self.io_written, written),
            (&mut self.received, received),
            (&mut self.sent, sent),
            (&mut self.connections_accepted, accepted),
            (&mut self.accept_queue, queued),
        ] {
            if let Some((now, _)) = now {
                history.push(at_ms, now);
            }
        }
        let [reads, writes] =
            [Distribution::BlockRead, Distribution::BlockWrite].map(|of| usage.distribution(of).map(|(counts, _)| counts));
        let both = reads.zip(writes).and_then(|(reads, writes)| reads.and(writes));
        if let Some(counts) = both {
            self.io_latency.push(at_ms, counts);
        }
    }

    /// Closes the histories: nothing more follows.
    pub(super) fn close(&mut self, smoothing: Smoothing) {
        let Self { cpu_cores, memory, io_read, io_written, received, sent, connections_accepted, accept_queue, io_latency } = self;
        let histories = [cpu_cores, memory, io_read, io_written, received, sent, connections_accepted, accept_queue];
        histories.into_iter().for_each(|history| history.close(smoothing));
        io_latency.close(smoothing);
    }

    /// Adds the metrics.
    pub(super) fn write_metrics(&self, id: &str, exported: Exported, samples: &mut Samples) {
        for (history, metric) in [
            (&self.cpu_cores, &family::CPU_CORES),
            (&self.memory, &family::MEMORY_USED),
            (&self.io_read, &family::IO_READ_RATE),
            (&self.io_written, &family::IO_WRITE_RATE),
            (&self.received, &family::NETWORK_RECEIVED_RATE),
            (&self.sent, &family::NETWORK_SENT_RATE),
        ] {
            if let Some(window) = exported.of(history.whole()) {
                write_window(samples, metric, id, &window);
            }
        }
        if let Some(window) = exported.of(self.io_latency.whole()) {
            write_window(samples, &family::IO_LATENCY, id, &window);
            samples.count(&family::IO_LATENCY_REQUESTS, &[id], window.count);
        }
        if let Some(window) = exported.of(self.memory.whole()).or(exported.of(self.cpu_cores.whole())) {
            samples.count(&family::SAMPLES, &[id], window.count);
        }
    }
}

pub(super) fn write_window(samples: &mut Samples, metric: &'static Family, id: &str, window: &Summary) {
    let Summary { mean, p50, p95, p99, max, .. } = *window;
    for (stat, value) in [("mean", mean), ("p50", p50), ("p95", p95), ("p99", p99), ("max", max)] {
        samples.add(metric, &[id, stat], value);
    }
}
