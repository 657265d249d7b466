//! Allocations for the tests of this crate, and of crates that use it.

use crate::v1;
use lattice_model::Timestamp;

/// When they are shown: the first has run for some hours.
pub const NOW: Timestamp = Timestamp(1_772_704_812_000 + 51_781_900);

/// One that runs on three nodes.
pub fn running() -> v1::Allocation {
    v1::Allocation {
        id: "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".into(),
        name: "training-run".into(),
        state: "Running".into(),
        owner: "ada".into(),
        nodes: (1..=3).map(|n| format!("n{n}")).collect(),
        nodes_requested: 3,
        tasks_per_node: 2,
        walltime_seconds: 259_200,
        preemption_class: Some(5),
        submitted_at_ms: 1_772_704_800_000,
        claimed_at_ms: 1_772_704_801_000,
        started_at_ms: 1_772_704_812_000,
        vcluster: "ml-training".into(),
        epoch: 4,
        ..Default::default()
    }
}

/// A scaled service.
pub fn service() -> v1::Allocation {
    let policy = v1::ScalePolicy { metric: "cpu_utilization".into(), target: "0.8".into(), ..Default::default() };
    let drain = Some(v1::Drain { signal: "USR1".into(), grace_ms: None });
    let reading =
        v1::MetricReading { look: "above".into(), since_ms: 1_772_704_812_000, value: Some(0.91), why: String::new(), missing: 0 };
    let change = v1::ScaleChange { at_ms: 1_772_704_811_000, from: 3, to: 4, by: String::new(), value: Some(0.93) };
    v1::Allocation {
        name: "serve".into(),
        nodes: Vec::new(),
        nodes_requested: 1,
        tasks_per_node: 1,
        walltime_seconds: 0,
        scaling: Some(v1::Scaling { replicas_min: 2, replicas_max: 6, policy: Some(policy), drain }),
        scaling_state: Some(v1::ScalingState {
            wanted: 4,
            waiting: 1,
            running: 3,
            leaving: 2,
            reading: Some(reading),
            change: Some(change),
            ..Default::default()
        }),
        ..running()
    }
}

/// One that is first in its queue.
pub fn pending() -> v1::Allocation {
    v1::Allocation {
        id: "20000000-5b7d-4c39-9a54-0f3c2b1d7e88".into(),
        name: "eval".into(),
        state: "Pending".into(),
        owner: "bob".into(),
        nodes_requested: 4,
        tasks_per_node: 1,
        walltime_seconds: 7200,
        submitted_at_ms: 1_772_704_810_000,
        status_message: "next: wants 4 nodes, 2 are free".into(),
        queue_position: 1,
        ..Default::default()
    }
}
