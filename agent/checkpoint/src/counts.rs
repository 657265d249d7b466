//! Metrics of checkpoints and preemptions whose head was this node, and of the broker while this
//! agent is the broker.

use lattice_model::{DEFAULT_VCLUSTER, DesiredShare, PreemptCause, Preemption, RequeuePolicy};
use lattice_node::CheckpointEnd;
use lattice_telemetry::catalogue::agent as family;
use lattice_telemetry::histogram::Histogram;
use lattice_telemetry::sample::Samples;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bucket bounds in seconds: from work that saves immediately up to an hour.
const SECONDS: &[f64] = &[0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0];

/// Counters since the agent started.
pub struct Counts {
    /// By vCluster and cause.
    preempted: Mutex<BTreeMap<(String, String), u64>>,
    seconds: Histogram,
    requeued: AtomicU64,
    unsaved: AtomicU64,
    walltime: AtomicU64,
    /// Duration of complete checkpoints.
    took: Histogram,
    complete: AtomicU64,
    failed: AtomicU64,
    timed_out: AtomicU64,
    /// 1 if this agent is the broker.
    leads: AtomicU64,
    /// 1 if the broker cannot reach the store.
    unreachable: AtomicU64,
    /// Allocations whose checkpoint is due and waits.
    waits: AtomicU64,
    /// The broker's rounds.
    rounds: AtomicU64,
    /// The broker's requests that led to a checkpoint, and those that did not.
    brokered: AtomicU64,
    brokered_in_vain: AtomicU64,
}

impl Default for Counts {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            preempted: Mutex::default(),
            seconds: Histogram::new(SECONDS),
            requeued: zero(),
            unsaved: zero(),
            walltime: zero(),
            took: Histogram::new(SECONDS),
            complete: zero(),
            failed: zero(),
            timed_out: zero(),
            leads: zero(),
            unreachable: zero(),
            waits: zero(),
            rounds: zero(),
            brokered: zero(),
            brokered_in_vain: zero(),
        }
    }
}

impl Counts {
    /// Records a preemption: how long the work took to save itself, and whether it did. A replica
    /// that leaves because its service needs fewer replicas does not count.
    pub fn preempted(&self, share: &DesiredShare, order: &Preemption, saved: bool, took: Duration) {
        if order.cause == PreemptCause::ScaleDown {
            return;
        }
        let spec = &share.spec;
        if saved {
            self.seconds.observe(took);
        } else if spec.checkpoint.is_some() {
            self.unsaved.fetch_add(1, Ordering::Relaxed);
        }
        let begins_anew = spec.requeue == RequeuePolicy::Always && share.requeue_count < spec.requeues_max;
        let ends_unsaved = order.cause.ends_unsaved(spec.checkpoint.is_some());
        let waits = if saved { !order.hold } else { ends_unsaved && begins_anew };
        if waits {
            self.requeued();
        }
        if saved || ends_unsaved {
            let vcluster = if spec.vcluster.is_empty() { DEFAULT_VCLUSTER } else { &spec.vcluster };
            let key = (vcluster.to_owned(), order.cause.to_string());
            *self.preempted.lock().entry(key).or_default() += 1;
        }
    }

    /// Records that preempted work waits for nodes again: at once, or, if it was held, when it is
    /// resumed through this agent.
    pub fn requeued(&self) {
        self.requeued.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the walltime ended while a checkpoint was under way.
    pub fn walltime_conflict(&self) {
        self.walltime.fetch_add(1, Ordering::Relaxed);
    }

    /// Records the end of a checkpoint whose head was this node.
    pub fn checkpoint(&self, end: &CheckpointEnd, took: Duration) {
        let counter = match end {
            CheckpointEnd::Complete { .. } => {
                self.took.observe(took);
                &self.complete
            }
            CheckpointEnd::Failed { .. } => &self.failed,
            CheckpointEnd::TimedOut { .. } => &self.timed_out,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Records whether this agent is the broker (`leads`), and if so, one more round; whether the
    /// store is unreachable (`unreachable`); and how many allocations are due and wait (`waits`).
    pub fn broker(&self, leads: bool, unreachable: bool, waits: u64) {
        self.leads.store(u64::from(leads), Ordering::Relaxed);
        self.unreachable.store(u64::from(unreachable), Ordering::Relaxed);
        self.waits.store(waits, Ordering::Relaxed);
        self.rounds.fetch_add(u64::from(leads), Ordering::Relaxed);
    }

    /// Records the end of a checkpoint that the broker requested.
    pub fn brokered(&self, saved: bool) {
        let counter = if saved { &self.brokered } else { &self.brokered_in_vain };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds all counters to `samples`.
    pub fn write_metrics(&self, samples: &mut Samples) {
        for ((vcluster, cause), count) in self.preempted.lock().iter() {
            for metric in [&family::PREEMPTIONS, &family::SCHEDULING_PREEMPTIONS] {
                samples.count(metric, &[vcluster, cause], *count);
            }
        }
        samples.histogram(&family::PREEMPTION_SECONDS, &[], self.seconds.counts());
        for (metric, counter) in [
            (&family::PREEMPTION_REQUEUES, &self.requeued),
            (&family::PREEMPTION_UNSAVED, &self.unsaved),
            (&family::CHECKPOINT_WALLTIME, &self.walltime),
            (&family::BROKER_LEADS, &self.leads),
            (&family::BROKER_STORAGE_UNAVAILABLE, &self.unreachable),
            (&family::BROKER_WAITS, &self.waits),
            (&family::BROKER_ROUNDS, &self.rounds),
        ] {
            samples.count(metric, &[], counter.load(Ordering::Relaxed));
        }
        samples.histogram(&family::CHECKPOINT_SECONDS, &[], self.took.counts());
        for (metric, end, counter) in [
            (&family::CHECKPOINTS, "complete", &self.complete),
            (&family::CHECKPOINTS, "failed", &self.failed),
            (&family::CHECKPOINTS, "timed_out", &self.timed_out),
            (&family::BROKER_ASKED, "complete", &self.brokered),
            (&family::BROKER_ASKED, "failed", &self.brokered_in_vain),
        ] {
            samples.count(metric, &[end], counter.load(Ordering::Relaxed));
        }
    }
}
