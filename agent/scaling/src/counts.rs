//! Metrics of the loop.

use crate::services::States;
use lattice_telemetry::catalogue::serving as family;
use lattice_telemetry::sample::{Collect, Samples, Whose};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The result of a look at a service's metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LookResult {
    /// Nothing is to change.
    Unchanged,
    /// The ledger noted that the look differs from the one before.
    Noted,
    /// One more replica is wanted.
    Up,
    /// One replica less is wanted.
    Down,
    /// The ledger refused the step: it knows more.
    Refused,
    /// The quorum did not answer.
    Unanswered,
    /// The service has ended or scales by another metric, or this agent no longer has the lease of its queue.
    Dropped,
}

impl LookResult {
    const ALL: [Self; 7] = [Self::Unchanged, Self::Noted, Self::Up, Self::Down, Self::Refused, Self::Unanswered, Self::Dropped];

    /// Whether the ledger knows what the look found, or refused what followed from it.
    pub fn is_known(self) -> bool {
        match self {
            Self::Unchanged | Self::Noted | Self::Up | Self::Down | Self::Refused => true,
            Self::Unanswered | Self::Dropped => false,
        }
    }

    /// The label of the metric.
    fn label(self) -> &'static str {
        match self {
            Self::Unchanged => "unchanged",
            Self::Noted => "noted",
            Self::Up => "up",
            Self::Down => "down",
            Self::Refused => "refused",
            Self::Unanswered => "unanswered",
            Self::Dropped => "dropped",
        }
    }
}

/// Counters since the agent started. All clones share them.
#[derive(Clone, Default)]
pub struct ScalingCounts(Arc<Mutex<Numbers>>);

#[derive(Default)]
struct Numbers {
    looks: BTreeMap<LookResult, u64>,
    failures: u64,
    /// `None`: this agent has no lease of a queue.
    states: Option<States>,
}

impl ScalingCounts {
    /// Counts a look.
    pub(super) fn record_look(&self, result: LookResult) {
        *self.0.lock().looks.entry(result).or_default() += 1;
    }

    /// Counts a look that found no value.
    pub(super) fn record_failure(&self) {
        self.0.lock().failures += 1;
    }

    /// Sets the states of the services that this agent looks at; `None`: it looks at none, because other
    /// agents have the leases.
    pub(super) fn set_states(&self, states: Option<States>) {
        self.0.lock().states = states;
    }
}

impl Collect for ScalingCounts {
    fn collect(&self, samples: &mut Samples, _whose: Whose) {
        let numbers = self.0.lock();
        let looks = |result| numbers.looks.get(&result).copied().unwrap_or(0);
        for result in LookResult::ALL {
            samples.count(&family::SCALING_LOOKS, &[result.label()], looks(result));
        }
        for direction in [LookResult::Up, LookResult::Down] {
            samples.count(&family::SCALING_STEPS, &[direction.label()], looks(direction));
        }
        samples.count(&family::SCALING_METRIC_FAILURES, &[], numbers.failures);
        if let Some(States { missing, oscillating, ok, below_min }) = numbers.states {
            for (state, count) in [("missing", missing), ("oscillating", oscillating), ("ok", ok)] {
                samples.count(&family::SCALING_SERVICES, &[state], count);
            }
            samples.count(&family::SCALING_SERVICES_BELOW_MIN, &[], below_min);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_telemetry::sample::Value;

    fn collected(counts: &ScalingCounts, name: &str) -> Vec<(String, f64)> {
        let mut samples = Samples::new(Vec::new());
        counts.collect(&mut samples, Whose::Ours);
        let number = |value: &Value| if let Value::Number(number) = value { *number } else { f64::NAN };
        let of_family = samples.families().filter(|(family, _)| family.name == name).flat_map(|(_, samples)| samples);
        of_family.map(|sample| (sample.labels.join("/"), number(&sample.value))).collect()
    }

    fn named(pairs: &[(&str, f64)]) -> Vec<(String, f64)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn counters_are_there_from_the_start_and_states_while_the_agent_has_a_lease() {
        let counts = ScalingCounts::default();
        assert_eq!(collected(&counts, family::SCALING_STEPS.name), named(&[("up", 0.0), ("down", 0.0)]));
        assert_eq!(collected(&counts, family::SCALING_SERVICES.name), []);
        for result in [LookResult::Up, LookResult::Refused, LookResult::Up, LookResult::Unchanged] {
            counts.clone().record_look(result);
        }
        counts.record_failure();
        counts.set_states(Some(States { missing: 1, oscillating: 0, ok: 7, below_min: 2 }));
        assert_eq!(collected(&counts, family::SCALING_STEPS.name), named(&[("up", 2.0), ("down", 0.0)]));
        let looks =
            [("unchanged", 1.0), ("noted", 0.0), ("up", 2.0), ("down", 0.0), ("refused", 1.0), ("unanswered", 0.0), ("dropped", 0.0)];
        assert_eq!(collected(&counts, family::SCALING_LOOKS.name), named(&looks));
        assert_eq!(collected(&counts, family::SCALING_METRIC_FAILURES.name), named(&[("", 1.0)]));
        assert_eq!(collected(&counts, family::SCALING_SERVICES.name), named(&[("missing", 1.0), ("oscillating", 0.0), ("ok", 7.0)]));
        assert_eq!(collected(&counts, family::SCALING_SERVICES_BELOW_MIN.name), named(&[("", 2.0)]));
        counts.set_states(None);
        assert_eq!(collected(&counts, family::SCALING_SERVICES.name), []);
    }
}
