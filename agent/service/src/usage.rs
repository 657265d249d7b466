//! `AllocationService.Top`: what an allocation's work uses, from the agents of its nodes. For ended
//! work, and for periods longer than agents remember, the store is queried ([`stored`]).

mod asking;
mod ranks;
mod stored;

pub use stored::tail;
pub(super) use stored::{PUSHED, Pushed};

use super::Api;
use super::groups::refuse_group;
use asking::NODES_AT_ONCE_MAX;
use futures::stream::{self, StreamExt};
use lattice_api::v1;
use lattice_mesh::gpu_usage::{WireGpu, WireGpus};
use lattice_mesh::usage::{Shown, UsageOpen, WireUsage};
use lattice_model::{Allocation, AllocationState, NodeId, Principal, millis};
use lattice_observe::measuring::devices::gpus_of_node;
use lattice_observe::measuring::{self, DURATION_MAX, UsageError};
use std::time::Duration;
use tonic::{Request, Status};

/// The period for running work if the caller gives none.
const DURATION: Duration = Duration::from_secs(30);
/// The longest period that a caller may ask for.
const STORED_MAX: Duration = Duration::from_secs(90 * 86_400);

pub(super) async fn top(api: &Api, request: Request<v1::TopRequest>) -> Result<v1::TopResponse, Status> {
    let caller = api.caller(&request).await?;
    let v1::TopRequest { key, duration_ms, per_gpu, per_rank } = request.into_inner();
    let asked = (duration_ms > 0).then(|| Duration::from_millis(duration_ms));
    if asked.is_some_and(|asked| asked > STORED_MAX) {
        return Err(Status::invalid_argument(format!("duration: at most {} days", STORED_MAX.as_secs() / 86_400)));
    }
    let allocation = api.allocation(&caller, &key).await?;
    api.check(&caller, &allocation).await?;
    refuse_group(&allocation)?;
    let has_ended = allocation.state.is_terminal() && allocation.started_at.is_some();
    if !has_ended {
        runs(&allocation)?;
    }
    api.audit_measurements_read(&caller.principal, &allocation, "top").await?;
    if has_ended {
        return stored::of_ended(api, &allocation, asked).await;
    }
    let (duration, user) = (asked.unwrap_or(DURATION), caller.vouched_for(&allocation.owner));
    let of_store = async { if duration > DURATION_MAX { Some(stored::of_running(api, &allocation, duration).await) } else { None } };
    let of_ranks = async { if per_rank { Some(ranks::of_all_nodes(api, &user, &allocation).await) } else { None } };
    let of_nodes = of_all_nodes(api, &user, &allocation, duration.min(DURATION_MAX));
    let (mut nodes, stored, ranks) = tokio::join!(of_nodes, of_store, of_ranks);
    ranks::join(&mut nodes, ranks.unwrap_or_default());
    let allocation_id = allocation.id.to_string();
    let mut response =
        v1::TopResponse { allocation: allocation_id, duration_ms: millis(duration), nodes, per_gpu, per_rank, ..Default::default() };
    if per_gpu {
        add_gpus(api, &user, &allocation, &mut response.nodes).await;
    }
    if let Some(stored) = stored {
        stored::join(&mut response, stored);
    }
    Ok(response)
}

/// What each node of the allocation reports, in the allocation's order. The caller has authorized
/// the user.
pub(super) async fn of_all_nodes(api: &Api, user: &Principal, allocation: &Allocation, duration: Duration) -> Vec<v1::NodeUsage> {
    let nodes: Vec<_> = allocation.nodes().cloned().collect();
    let asked = nodes.into_iter().map(|node| {
        let open = UsageOpen::of(user, allocation, duration);
        async move {
            let address = api.mesh_address(&node).await;
            match measuring::of_node(&api.context.work.measuring, &node, address, open).await {
                Ok(WireUsage { age_ms, shown }) => {
                    let measured = shown.into_iter().map(measured).collect();
                    v1::NodeUsage { node: node.to_string(), age_ms, measured, ..Default::default() }
                }
                Err(error) => v1::NodeUsage { node: node.to_string(), error: error.to_string(), ..Default::default() },
            }
        }
    });
    stream::iter(asked).buffered(NODES_AT_ONCE_MAX).collect().await
}

/// Adds what each GPU does, for the nodes that reported their usage.
async fn add_gpus(api: &Api, user: &Principal, allocation: &Allocation, nodes: &mut [v1::NodeUsage]) {
    // Both are in the order of the allocation's nodes. A node that did not answer about its usage
    // is not asked again.
    let answered = allocation.nodes().cloned().zip(nodes.iter_mut()).filter(|(_, usage)| usage.error.is_empty());
    let (all, usages): (Vec<NodeId>, Vec<&mut v1::NodeUsage>) = answered.unzip();
    let asked = all.into_iter().map(|node| {
        let open = UsageOpen::of(user, allocation, Duration::ZERO);
        async move {
            let address = api.mesh_address(&node).await;
            gpus_of_node(&api.context.work.measuring, &node, address, open).await
        }
    });
    let answers: Vec<Result<WireGpus, UsageError>> = stream::iter(asked).buffered(NODES_AT_ONCE_MAX).collect().await;
    for (usage, answer) in usages.into_iter().zip(answers) {
        match answer {
            Ok(WireGpus { age_ms, gpus }) => {
                usage.gpus_age_ms = age_ms;
                usage.gpus = gpus.into_iter().map(gpu).collect();
            }
            Err(error) => usage.gpus_error = error.to_string(),
        }
    }
}

fn gpu(WireGpu { id, model, error, shown, throttled }: WireGpu) -> v1::GpuUsage {
    v1::GpuUsage { id, model, error, measured: shown.into_iter().map(measured).collect(), throttled }
}

/// Refuses to ask agents about work that does not run.
pub(super) fn runs(allocation: &Allocation) -> Result<(), Status> {
    refuse_group(allocation)?;
    let short = allocation.id.short();
    match allocation.state {
        AllocationState::Running => Ok(()),
        AllocationState::Pending | AllocationState::Suspended | AllocationState::Staging => {
            let text = format!("allocation {short} is {}: nothing of it runs yet\nhint: lattice explain {short}", allocation.state);
            Err(Status::failed_precondition(text))
        }
        AllocationState::Completed | AllocationState::Failed | AllocationState::Cancelled => {
            let text =
                format!("allocation {short} is {}: its agents no longer measure it; what was pushed is in the store", allocation.state);
            Err(Status::failed_precondition(text))
        }
    }
}

pub(super) fn measured(Shown { name, unit, source, now, mean, max }: Shown) -> v1::Measured {
    v1::Measured { name, unit, source, now, mean, max, window_source: String::new() }
}
