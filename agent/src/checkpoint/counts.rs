//! What became of preemptions of which this node was the head, for metrics.

use lattice_model::{AllocationSpec, DEFAULT_VCLUSTER, Preemption};
use lattice_telemetry::catalogue::agent as family;
use lattice_telemetry::histogram::Histogram;
use lattice_telemetry::sample::Samples;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// From what saves at once to a deadline of hours.
const SECONDS: &[f64] = &[0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0];

/// Counted since the agent began.
pub struct Counts {
    /// By vCluster and cause.
    preempted: Mutex<BTreeMap<(String, String), u64>>,
    seconds: Histogram,
    requeued: AtomicU64,
    unsaved: AtomicU64,
    walltime: AtomicU64,
}

impl Default for Counts {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self { preempted: Mutex::default(), seconds: Histogram::new(SECONDS), requeued: zero(), unsaved: zero(), walltime: zero() }
    }
}

impl Counts {
    /// Work was to give its nodes back, and has saved itself for it (or not) after so long.
    pub fn preempted(&self, spec: &AllocationSpec, order: &Preemption, saved: bool, took: Duration) {
        if saved {
            self.seconds.observe(took);
            self.requeued.fetch_add(u64::from(!order.hold), Ordering::Relaxed);
        } else if spec.checkpoint.is_some() {
            self.unsaved.fetch_add(1, Ordering::Relaxed);
        }
        if saved || order.cause.ends_unsaved() {
            let vcluster = if spec.vcluster.is_empty() { DEFAULT_VCLUSTER } else { &spec.vcluster };
            let key = (vcluster.to_owned(), order.cause.to_string());
            *self.preempted.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default() += 1;
        }
    }

    /// Walltime was over while a checkpoint was under way.
    pub fn walltime_conflict(&self) {
        self.walltime.fetch_add(1, Ordering::Relaxed);
    }

    /// Tells all of it.
    pub fn tell(&self, samples: &mut Samples) {
        for ((vcluster, cause), count) in self.preempted.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            samples.count(&family::PREEMPTIONS, &[vcluster, cause], *count);
        }
        samples.histogram(&family::PREEMPTION_SECONDS, &[], self.seconds.counts());
        for (metric, counter) in [
            (&family::PREEMPTION_REQUEUES, &self.requeued),
            (&family::PREEMPTION_UNSAVED, &self.unsaved),
            (&family::CHECKPOINT_WALLTIME, &self.walltime),
        ] {
            samples.count(metric, &[], counter.load(Ordering::Relaxed));
        }
    }
}
