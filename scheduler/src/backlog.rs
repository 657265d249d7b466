//! How much work waits, compared with what runs: f₆ of the score. Sums of whole numbers, so that they are
//! the same whatever the order in which work came and went.

use lattice_model::{Allocation, millis};

/// How long work without a walltime counts as work that waits or runs.
const WITHOUT_WALLTIME_MS: u64 = 86_400_000;

/// The sums for some work, over its nodes and the time that it lasts at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    /// Of work that wants whole nodes: node-milliseconds.
    whole_node_ms: u128,
    /// Of other work: node-milliseconds.
    share_node_ms: u128,
    /// Of that work: GPU-milliseconds.
    share_gpu_ms: u128,
}

impl Sums {
    fn of(allocation: &Allocation) -> Self {
        let spec = &allocation.spec;
        let node_ms = u128::from(spec.nodes) * u128::from(spec.walltime.map_or(WITHOUT_WALLTIME_MS, millis));
        match spec.share {
            None => Self { whole_node_ms: node_ms, ..Self::default() },
            Some(share) => Self { share_node_ms: node_ms, share_gpu_ms: node_ms.saturating_mul(share.gpus.into()), ..Self::default() },
        }
    }

    /// Where the cluster has GPUs, GPUs are counted, otherwise nodes.
    fn amount(&self, gpus_per_node: u32) -> u128 {
        match gpus_per_node {
            0 => self.whole_node_ms.saturating_add(self.share_node_ms),
            gpus => self.whole_node_ms.saturating_mul(u128::from(gpus)).saturating_add(self.share_gpu_ms),
        }
    }

    fn change(&mut self, change: impl Fn(u128, u128) -> u128, other: &Self) {
        self.whole_node_ms = change(self.whole_node_ms, other.whole_node_ms);
        self.share_node_ms = change(self.share_node_ms, other.share_node_ms);
        self.share_gpu_ms = change(self.share_gpu_ms, other.share_gpu_ms);
    }
}

/// See the module documentation.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    waits: Sums,
    runs: Sums,
}

impl Backlog {
    /// Counts an allocation.
    pub fn add(&mut self, allocation: &Allocation) {
        self.change(u128::saturating_add, allocation);
    }

    /// Counts it no longer.
    pub fn remove(&mut self, allocation: &Allocation) {
        self.change(u128::saturating_sub, allocation);
    }

    fn change(&mut self, change: impl Fn(u128, u128) -> u128, allocation: &Allocation) {
        if allocation.waits() {
            self.waits.change(change, &Sums::of(allocation));
        } else if !allocation.state.is_without_nodes() && !allocation.state.is_terminal() {
            self.runs.change(change, &Sums::of(allocation));
        }
    }

    /// f₆: what waits, as a part of what runs, at most 1. `gpus_per_node`: of the node with most GPUs.
    pub fn value(&self, gpus_per_node: u32) -> f64 {
        let (waits_ms, runs_ms) = (self.waits.amount(gpus_per_node) as f64, self.runs.amount(gpus_per_node) as f64);
        match (waits_ms > 0.0, runs_ms > 0.0) {
            (true, true) => (waits_ms / runs_ms).min(1.0),
            (true, false) => 1.0,
            (false, _) => 0.0,
        }
    }
}
