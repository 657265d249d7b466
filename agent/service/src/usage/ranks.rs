//! What each rank of an allocation's launches does, as reported by the agents of its nodes.

use super::Api;
use super::asking::NODES_AT_ONCE_MAX;
use futures::stream::{self, StreamExt};
use lattice_api::v1;
use lattice_mesh::ranks::{WireRank, WireRanks};
use lattice_mesh::usage::UsageOpen;
use lattice_meshd::diagnosis::{DiagnosisError, ranks};
use lattice_model::{Allocation, Principal};
use std::time::Duration;

/// The report of each of the allocation's nodes, in the allocation's order. The caller has
/// authorized the user.
pub(super) async fn of_all_nodes(api: &Api, user: &Principal, allocation: &Allocation) -> Vec<Result<WireRanks, DiagnosisError>> {
    let nodes: Vec<_> = allocation.nodes().cloned().collect();
    let asked = nodes.into_iter().map(|node| {
        let open = UsageOpen::of(user, allocation, Duration::ZERO);
        async move { ranks::of_node(&api.context, &node, api.mesh_address(&node).await, open).await }
    });
    stream::iter(asked).buffered(NODES_AT_ONCE_MAX).collect().await
}

/// Adds the ranks to the usage of their nodes; both are in the order of the allocation's nodes.
pub(super) fn join(nodes: &mut [v1::NodeUsage], answers: Vec<Result<WireRanks, DiagnosisError>>) {
    for (usage, answer) in nodes.iter_mut().zip(answers) {
        match answer {
            Ok(WireRanks { window_ms, ranks, omitted, unknown }) => {
                (usage.ranks_window_ms, usage.ranks_omitted, usage.ranks_unknown) = (window_ms, omitted, unknown);
                usage.ranks = ranks.into_iter().map(rank).collect();
            }
            Err(error) => usage.ranks_error = error.to_string(),
        }
    }
}

fn rank(WireRank { launch, rank, pid, name, processes, cpu_cores, memory_bytes, threads, state }: WireRank) -> v1::RankUsage {
    let state = state_name(&state).to_owned();
    v1::RankUsage { launch, rank, pid, name, processes, cpu_cores, memory_bytes, threads, state }
}

/// The kernel's state letter as a word.
fn state_name(state: &str) -> &str {
    match state {
        "R" => "running",
        "S" | "I" => "sleeping",
        "D" => "uninterruptible",
        "T" | "t" => "stopped",
        "Z" | "X" => "ended",
        other => other,
    }
}
