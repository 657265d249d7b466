//! Metrics of the role.

use lattice_telemetry::catalogue::serving as family;
use lattice_telemetry::sample::{Collect, Samples, Whose};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Counters since the agent started. All clones share them. An agent without the role exposes nothing.
#[derive(Clone, Debug, Default)]
pub struct AccountingCounts(Arc<Mutex<Option<Numbers>>>);

#[derive(Clone, Debug, Default)]
struct Numbers {
    stored: u64,
    failures: u64,
    sinks: BTreeMap<&'static str, SinkNumbers>,
}

#[derive(Clone, Copy, Debug, Default)]
struct SinkNumbers {
    delivered: u64,
    failures: u64,
    /// `None`: another agent delivers.
    lag_ms: Option<u64>,
}

impl AccountingCounts {
    /// Exposes the counters from now on.
    pub(crate) fn begin(&self) {
        *self.0.lock() = Some(Numbers::default());
    }

    pub(crate) fn record_stored(&self, records: u64) {
        if let Some(numbers) = &mut *self.0.lock() {
            numbers.stored += records;
        }
    }

    pub(crate) fn record_failure(&self) {
        if let Some(numbers) = &mut *self.0.lock() {
            numbers.failures += 1;
        }
    }

    /// Counts records that a sink has accepted.
    pub(crate) fn record_delivered(&self, sink: &'static str, records: u64) {
        self.of_sink(sink, |numbers| numbers.delivered += records);
    }

    /// Counts a delivery that failed.
    pub(crate) fn record_undelivered(&self, sink: &'static str) {
        self.of_sink(sink, |numbers| numbers.failures += 1);
    }

    /// Sets the age of the oldest record that a sink does not have.
    pub(crate) fn set_lag(&self, sink: &'static str, lag_ms: Option<u64>) {
        self.of_sink(sink, |numbers| numbers.lag_ms = lag_ms);
    }

    fn of_sink(&self, sink: &'static str, change: impl FnOnce(&mut SinkNumbers)) {
        if let Some(numbers) = &mut *self.0.lock() {
            change(numbers.sinks.entry(sink).or_default());
        }
    }
}

impl Collect for AccountingCounts {
    fn collect(&self, samples: &mut Samples, _whose: Whose) {
        let Some(Numbers { stored, failures, sinks }) = self.0.lock().clone() else { return };
        samples.count(&family::ACCOUNTING_STORED, &[], stored);
        samples.count(&family::ACCOUNTING_FAILURES, &[], failures);
        for (sink, numbers) in sinks {
            samples.count(&family::ACCOUNTING_SINK_DELIVERED, &[sink], numbers.delivered);
            samples.count(&family::ACCOUNTING_SINK_FAILURES, &[sink], numbers.failures);
            if let Some(lag_ms) = numbers.lag_ms {
                samples.add(&family::ACCOUNTING_SINK_LAG, &[sink], lag_ms as f64 / 1000.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_telemetry::sample::Value;

    fn collected(counts: &AccountingCounts) -> Vec<(&'static str, Value)> {
        let mut samples = Samples::default();
        counts.collect(&mut samples, Whose::Ours);
        samples.families().flat_map(|(family, all)| all.iter().map(move |one| (family.name, one.value.clone()))).collect()
    }

    #[test]
    fn an_agent_without_the_role_exposes_nothing_and_one_without_the_lease_no_lag() {
        let counts = AccountingCounts::default();
        counts.record_failure();
        assert_eq!(collected(&counts), []);
        counts.begin();
        counts.record_stored(3);
        counts.clone().record_failure();
        let counters = [("lattice_accounting_failures_total", Value::Number(1.0)), ("lattice_accounting_stored_total", Value::Number(3.0))];
        assert_eq!(collected(&counts), counters);
        counts.record_delivered("http", 2);
        assert_eq!(collected(&counts).len(), 4, "no lag");
        counts.set_lag("http", Some(1500));
        let lag = ("lattice_accounting_sink_lag_seconds", Value::Number(1.5));
        assert!(collected(&counts).contains(&lag), "{:?}", collected(&counts));
    }
}
