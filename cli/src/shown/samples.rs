//! Allocations for the tests of this module.

use lattice_api::v1;
use lattice_model::time::Timestamp;

/// When they are shown.
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
