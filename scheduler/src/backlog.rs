//! How much work waits, compared with the work that runs: f₆ of the score. The sums are integers,
//! so they do not depend on the order of changes.

use lattice_model::{Allocation, millis};

/// The walltime that work without one is counted with.
const WITHOUT_WALLTIME_MS: u64 = 86_400_000;

/// Sums of nodes, or GPUs, times walltimes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    /// Of work that wants whole nodes: node-milliseconds.
    whole_node_ms: u128,
    /// Of other work: node-milliseconds.
    share_node_ms: u128,
    /// Of that other work: GPU-milliseconds.
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

    /// In GPU-milliseconds if the cluster has GPUs, otherwise in node-milliseconds.
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

    /// Removes an allocation from the sums.
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

    /// f₆: the waiting amount divided by the running amount, at most 1. `gpus_per_node`: the GPUs
    /// of the node with the most.
    pub fn value(&self, gpus_per_node: u32) -> f64 {
        let (waits_ms, runs_ms) = (self.waits.amount(gpus_per_node) as f64, self.runs.amount(gpus_per_node) as f64);
        match (waits_ms > 0.0, runs_ms > 0.0) {
            (true, true) => (waits_ms / runs_ms).min(1.0),
            (true, false) => 1.0,
            (false, _) => 0.0,
        }
    }
}
