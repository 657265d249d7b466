//! What the scheduler of this agent has done, for metrics.

use lattice_telemetry::catalogue::serving as family;
use lattice_telemetry::histogram::Histogram;
use lattice_telemetry::sample::{Collect, Samples, Whose};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// From a look at a small cluster to what the documents call slow, and beyond.
const CYCLE_SECONDS: &[f64] = &[0.0005, 0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proposed {
    Accepted,
    Rejected,
    Unanswered,
}

/// Counted since the agent began. Cloneable; all clones are one.
#[derive(Clone)]
pub struct Rounds(Arc<Inner>);

struct Inner {
    seconds: Histogram,
    queues: Mutex<BTreeMap<String, Queue>>,
}

/// Of one vCluster, of which there are a few hundred at most.
#[derive(Default)]
struct Queue {
    /// Who waits, where it is served here.
    depth: Option<u64>,
    accepted: u64,
    rejected: u64,
    unanswered: u64,
}

impl Default for Rounds {
    fn default() -> Self {
        Self(Arc::new(Inner { seconds: Histogram::new(CYCLE_SECONDS), queues: Mutex::default() }))
    }
}

impl Rounds {
    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<String, Queue>) -> T) -> T {
        work(&mut self.0.queues.lock())
    }

    /// A round took so long.
    pub(super) fn over(&self, took: Duration) {
        self.0.seconds.observe(took);
    }

    /// What waits in the queues that are served here; the others are another's to tell.
    pub(super) fn wait(&self, depths: &BTreeMap<&str, u64>) {
        self.with(|queues| {
            queues.values_mut().for_each(|queue| queue.depth = None);
            for (name, depth) in depths {
                queues.entry((*name).to_owned()).or_default().depth = Some(*depth);
            }
        });
    }

    /// What became of a claim for this queue.
    pub fn proposed(&self, queue: &str, result: Proposed) {
        self.with(|queues| {
            let of = queues.entry(queue.to_owned()).or_default();
            *match result {
                Proposed::Accepted => &mut of.accepted,
                Proposed::Rejected => &mut of.rejected,
                Proposed::Unanswered => &mut of.unanswered,
            } += 1;
        });
    }
}

impl Collect for Rounds {
    fn collect(&self, samples: &mut Samples, _whose: Whose) {
        samples.histogram(&family::CYCLE_SECONDS, &[], self.0.seconds.counts());
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
