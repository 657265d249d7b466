//! Metrics of this agent's scheduler.

use lattice_telemetry::catalogue::serving as family;
use lattice_telemetry::histogram::Histogram;
use lattice_telemetry::sample::{Collect, Samples, Whose};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bucket bounds in seconds: from a round in a small cluster to what the documents call slow, and
/// beyond.
const CYCLE_SECONDS: &[f64] = &[0.0005, 0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// The result of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimResult {
    Accepted,
    Rejected,
    Unanswered,
}

/// Counters since the agent started. All clones share them.
#[derive(Clone)]
pub struct Rounds(Arc<Inner>);

struct Inner {
    seconds: Histogram,
    /// Plans that broke.
    failures: AtomicU64,
    queues: Mutex<BTreeMap<String, Queue>>,
}

/// Counters of one vCluster. A cluster has a few hundred at most; the counters of deleted vClusters
/// stay until the agent ends.
#[derive(Default)]
struct Queue {
    /// Number of waiting allocations, if this agent serves the queue.
    depth: Option<u64>,
    accepted: u64,
    rejected: u64,
    unanswered: u64,
}

impl Default for Rounds {
    fn default() -> Self {
        Self(Arc::new(Inner { seconds: Histogram::new(CYCLE_SECONDS), failures: AtomicU64::new(0), queues: Mutex::default() }))
    }
}

impl Rounds {
    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<String, Queue>) -> T) -> T {
        work(&mut self.0.queues.lock())
    }

    /// Records the duration of a round.
    pub(super) fn record_duration(&self, took: Duration) {
        self.0.seconds.observe(took);
    }

    /// Records that a plan broke.
    pub(super) fn record_failure(&self) {
        self.0.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the depths of the queues that this agent serves; other queues are reported by the
    /// agents that serve them.
    pub(super) fn set_depths(&self, depths: &BTreeMap<&str, u64>) {
        self.with(|queues| {
            queues.values_mut().for_each(|queue| queue.depth = None);
            for (name, depth) in depths {
                queues.entry((*name).to_owned()).or_default().depth = Some(*depth);
            }
        });
    }

    /// Records the result of a claim for this queue.
    pub fn record_claim(&self, queue: &str, result: ClaimResult) {
        self.with(|queues| {
            let of = queues.entry(queue.to_owned()).or_default();
            *match result {
                ClaimResult::Accepted => &mut of.accepted,
                ClaimResult::Rejected => &mut of.rejected,
                ClaimResult::Unanswered => &mut of.unanswered,
            } += 1;
        });
    }
}

impl Collect for Rounds {
    fn collect(&self, samples: &mut Samples, _whose: Whose) {
        samples.histogram(&family::CYCLE_SECONDS, &[], self.0.seconds.counts());
        samples.count(&family::PLAN_FAILURES, &[], self.0.failures.load(Ordering::Relaxed));
        self.with(|queues| {
            for (name, queue) in queues {
                if let Some(depth) = queue.depth {
                    samples.count(&family::QUEUE_DEPTH, &[name], depth);
                }
                for (result, count) in [("accepted", queue.accepted), ("rejected", queue.rejected), ("unanswered", queue.unanswered)] {
                    samples.count(&family::CLAIMS, &[name, result], count);
                }
                samples.count(&family::PLACEMENTS, &[name], queue.accepted);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_telemetry::sample::Value;

    fn collected(rounds: &Rounds, name: &str) -> Vec<(String, f64)> {
        let mut samples = Samples::new(Vec::new());
        rounds.collect(&mut samples, Whose::Ours);
        let of = |samples: &[lattice_telemetry::sample::Sample]| {
            let number = |value: &Value| if let Value::Number(number) = value { *number } else { f64::NAN };
            samples.iter().map(|sample| (sample.labels.join("/"), number(&sample.value))).collect()
        };
        samples.families().find(|(family, _)| family.name == name).map(|(_, samples)| of(samples)).unwrap_or_default()
    }

    fn named(pairs: &[(&str, f64)]) -> Vec<(String, f64)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn a_queue_that_this_agent_no_longer_serves_has_no_depth_and_keeps_its_counters() {
        let rounds = Rounds::default();
        rounds.set_depths(&[("a", 3), ("b", 0)].into());
        assert_eq!(collected(&rounds, family::QUEUE_DEPTH.name), named(&[("a", 3.0), ("b", 0.0)]));
        rounds.record_claim("a", ClaimResult::Accepted);
        rounds.record_claim("a", ClaimResult::Accepted);
        rounds.record_claim("a", ClaimResult::Unanswered);
        rounds.clone().record_claim("c", ClaimResult::Rejected);
        rounds.set_depths(&[("b", 1)].into());
        assert_eq!(collected(&rounds, family::QUEUE_DEPTH.name), named(&[("b", 1.0)]));
        let claims = [
            ("a/accepted", 2.0),
            ("a/rejected", 0.0),
            ("a/unanswered", 1.0),
            ("b/accepted", 0.0),
            ("b/rejected", 0.0),
            ("b/unanswered", 0.0),
            ("c/accepted", 0.0),
            ("c/rejected", 1.0),
            ("c/unanswered", 0.0),
        ];
        assert_eq!(collected(&rounds, family::CLAIMS.name), named(&claims));
        assert_eq!(collected(&rounds, family::PLACEMENTS.name), named(&[("a", 2.0), ("b", 0.0), ("c", 0.0)]));
        assert_eq!(collected(&rounds, family::PLAN_FAILURES.name), named(&[("", 0.0)]), "it is there before the first one");
        rounds.clone().record_failure();
        assert_eq!(collected(&rounds, family::PLAN_FAILURES.name), named(&[("", 1.0)]));
    }
}
