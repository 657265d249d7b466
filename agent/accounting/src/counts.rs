//! Metrics of the role.

use lattice_telemetry::catalogue::serving as family;
use lattice_telemetry::sample::{Collect, Samples, Whose};
use parking_lot::Mutex;
use std::sync::Arc;

/// Counters since the agent started. All clones share them. Nothing is exposed by an agent without the role.
#[derive(Clone, Debug, Default)]
pub struct AccountingCounts(Arc<Mutex<Option<Numbers>>>);

#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    stored: u64,
    failures: u64,
    /// `None`: another agent has the lease, or the quorum has not said it yet.
    waiting: Option<u64>,
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

    pub(crate) fn set_waiting(&self, waiting: Option<u64>) {
        if let Some(numbers) = &mut *self.0.lock() {
            numbers.waiting = waiting;
        }
    }
}

impl Collect for AccountingCounts {
    fn collect(&self, samples: &mut Samples, _whose: Whose) {
        let Some(Numbers { stored, failures, waiting }) = *self.0.lock() else { return };
        samples.count(&family::ACCOUNTING_STORED, &[], stored);
        samples.count(&family::ACCOUNTING_FAILURES, &[], failures);
        if let Some(waiting) = waiting {
            samples.count(&family::ACCOUNTING_WAITING, &[], waiting);
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
    fn an_agent_without_the_role_exposes_nothing_and_one_without_the_lease_no_backlog() {
        let counts = AccountingCounts::default();
        counts.record_failure();
        assert_eq!(collected(&counts), []);
        counts.begin();
        counts.record_stored(3);
        counts.clone().record_failure();
        let counters = [("lattice_accounting_failures_total", Value::Number(1.0)), ("lattice_accounting_stored_total", Value::Number(3.0))];
        assert_eq!(collected(&counts), counters);
        counts.set_waiting(Some(7));
        assert_eq!(collected(&counts)[2], ("lattice_accounting_waiting", Value::Number(7.0)));
    }
}
