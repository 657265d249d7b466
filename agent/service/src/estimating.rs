//! When work that is only checked would begin, according to a plan for it and all that waits.

use super::Api;
use lattice_api::v1;
use lattice_model::{Allocation, AllocationId, AllocationSpec, Principal};
use tonic::Status;

/// The estimate for a specification. `id`: no allocation has it. `None`: this agent does not know what else waits.
pub(super) async fn expected_start(
    api: &Api,
    id: AllocationId,
    spec: AllocationSpec,
    owner: Principal,
) -> Result<Option<v1::ExpectedStart>, Status> {
    let view = {
        let cluster = api.cluster.borrow();
        if !cluster.fresh || !api.context.work.directory.knows_all() {
            return Ok(None);
        }
        cluster.with_gossip(api.membership.gossiped())
    };
    let (now, begin) = (lattice_agent_common::clock::now(), spec.begin());
    // For a task group, of its first task; for work that is held or has dependencies, as if neither were so.
    let spec = AllocationSpec { tasks: None, scaling: None, hold: false, ..spec };
    let asked = Allocation::submitted(id, spec, owner, now);
    let estimate = tokio::task::spawn_blocking(move || lattice_scheduler::estimate(&view, &asked, now)).await;
    let estimate = estimate.map_err(|error| Status::internal(error.to_string()))?;
    Ok(Some(v1::ExpectedStart {
        start_ms: estimate.start.map_or(0, |start| begin.map_or(start, |begin| start.max(begin)).0),
        nodes: estimate.nodes.iter().map(ToString::to_string).collect(),
        cores: estimate.cores,
        reason: estimate.reason,
    }))
}
