//! Counters of the journal, for metrics.

use lattice_telemetry::catalogue::{LATENCY_SECONDS, agent as family};
use lattice_telemetry::histogram::Histogram;
use lattice_telemetry::sample::Samples;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counters since the agent's start, and the journal's length.
#[derive(Debug)]
pub struct JournalCounts {
    appends: AtomicU64,
    records: AtomicU64,
    bytes: AtomicU64,
    syncs: AtomicU64,
    checkpoints: AtomicU64,
    length: AtomicU64,
    seconds: Histogram,
}

impl Default for JournalCounts {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        let seconds = Histogram::new(LATENCY_SECONDS);
        Self { appends: zero(), records: zero(), bytes: zero(), syncs: zero(), checkpoints: zero(), length: zero(), seconds }
    }
}

impl JournalCounts {
    /// Counts one append of `records` records with `bytes` bytes together, which took `took`. The
    /// journal now has `length` bytes.
    pub fn appended(&self, records: usize, bytes: usize, synced: bool, length: u64, took: Duration) {
        let add = |counter: &AtomicU64, more: u64| {
            counter.fetch_add(more, Ordering::Relaxed);
        };
        add(&self.appends, 1);
        add(&self.records, records as u64);
        add(&self.bytes, bytes as u64);
        add(&self.syncs, u64::from(synced));
        self.length.store(length, Ordering::Relaxed);
        self.seconds.observe(took);
    }

    /// Counts a checkpoint. The journal now has `length` bytes.
    pub fn checkpointed(&self, length: u64) {
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.length.store(length, Ordering::Relaxed);
    }

    /// Appends the samples of these counters.
    pub fn write_metrics(&self, samples: &mut Samples) {
        for (metric, counter) in [
            (&family::JOURNAL_APPENDS, &self.appends),
            (&family::JOURNAL_RECORDS, &self.records),
            (&family::JOURNAL_WRITTEN, &self.bytes),
            (&family::JOURNAL_SYNCS, &self.syncs),
            (&family::JOURNAL_CHECKPOINTS, &self.checkpoints),
            (&family::JOURNAL_SIZE, &self.length),
        ] {
            samples.count(metric, &[], counter.load(Ordering::Relaxed));
        }
        samples.histogram(&family::JOURNAL_SECONDS, &[], self.seconds.counts());
    }
}
