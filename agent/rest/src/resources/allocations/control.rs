//! What is done to an allocation besides a change: hold, resume, requeue, preempt, scale, signal.

use super::answers::AllocationState;
use crate::calls::{Calls, Grpc};
use crate::idempotency::IdempotencyKey;
use crate::input::{Body, NoParams, OptionalBody, Params, Segments};
use crate::problem::Problem;
use axum::routing::post;
use axum::{Json, Router};
use lattice_api::v1;
use serde::{Deserialize, Serialize};
use utoipa::{OpenApi, ToSchema};

#[derive(OpenApi)]
#[openapi(paths(hold_allocation, resume_allocation, requeue_allocation, preempt_allocation, scale_service, signal_allocation))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi()
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new()
        .route("/api/v1/allocations/{id}/hold", post(hold_allocation))
        .route("/api/v1/allocations/{id}/resume", post(resume_allocation))
        .route("/api/v1/allocations/{id}/requeue", post(requeue_allocation))
        .route("/api/v1/allocations/{id}/preempt", post(preempt_allocation))
        .route("/api/v1/allocations/{id}/scale", post(scale_service))
        .route("/api/v1/allocations/{id}/signal", post(signal_allocation))
}

/// The allocation that it was done to.
#[derive(Serialize, ToSchema)]
struct Done {
    id: String,
}

/// Holds an allocation that waits: it gets no nodes until it is resumed.
#[utoipa::path(
    post, path = "/api/v1/allocations/{id}/hold", tag = "allocations",
    params(("id" = String, Path, description = "The id, or the beginning of one")),
    responses((status = 200, description = "It is held", body = AllocationState))
)]
async fn hold_allocation(
    calls: Calls,
    Segments(key): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<AllocationState>, Problem> {
    let v1::HoldAllocationResponse { id, state } = calls.allocations().hold(v1::HoldAllocationRequest { key }).await?.into_inner();
    Ok(Json(AllocationState { id, state }))
}

/// Lets a held allocation wait for nodes again.
#[utoipa::path(
    post, path = "/api/v1/allocations/{id}/resume", tag = "allocations",
    params(("id" = String, Path, description = "The id, or the beginning of one")),
    responses((status = 200, description = "It waits again", body = Done))
)]
async fn resume_allocation(
    calls: Calls,
    Segments(key): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<Done>, Problem> {
    let v1::ResumeResponse { id } = calls.allocations().resume(v1::ResumeRequest { key }).await?.into_inner();
    Ok(Json(Done { id }))
}

/// Why it is put back into the queue.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RequeueBody {
    #[serde(default)]
    reason: String,
}

/// Ends the present attempt and puts the allocation back into the queue.
#[utoipa::path(
    post, path = "/api/v1/allocations/{id}/requeue", tag = "allocations",
    params(("id" = String, Path, description = "The id, or the beginning of one")), request_body = Option<RequeueBody>,
    responses((status = 200, description = "It will be in the queue again", body = Done))
)]
async fn requeue_allocation(
    calls: Calls,
    Segments(key): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
    OptionalBody(RequeueBody { reason }): OptionalBody<RequeueBody>,
) -> Result<Json<Done>, Problem> {
    let v1::RequeueResponse { id } = calls.allocations().requeue(v1::RequeueRequest { key, reason }).await?.into_inner();
    Ok(Json(Done { id }))
}

/// How it gives its nodes back.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PreemptBody {
    #[serde(default)]
    reason: String,
    /// Of the checkpoint: 1 s to 24 h; 0: ten minutes.
    #[serde(default)]
    deadline_ms: u64,
    /// It then stays Suspended until it is resumed.
    #[serde(default)]
    hold: bool,
    /// Also end work that cannot save itself; else that is refused.
    #[serde(default)]
    kill: bool,
}

/// Asks an allocation to save itself and to give its nodes back.
#[utoipa::path(
    post, path = "/api/v1/allocations/{id}/preempt", tag = "allocations",
    params(("id" = String, Path, description = "The id, or the beginning of one"),
           ("Idempotency-Key" = Option<String>, Header, description = "The id of the checkpoint (a UUID), or any text")),
    request_body = Option<PreemptBody>,
    responses((status = 200, description = "Its state before the preemption", body = AllocationState))
)]
async fn preempt_allocation(
    calls: Calls,
    idempotency: IdempotencyKey,
    Segments(key): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
    OptionalBody(body): OptionalBody<PreemptBody>,
) -> Result<Json<AllocationState>, Problem> {
    let PreemptBody { reason, deadline_ms, hold, kill } = body;
    let id = idempotency.id(&["preempt", &key], &calls).await?.to_string();
    let request = v1::PreemptRequest { key, id, deadline_ms, reason, hold, kill };
    let v1::PreemptResponse { id, state } = calls.allocations().preempt(request).await?.into_inner();
    Ok(Json(AllocationState { id, state }))
}

/// How many replicas are wanted.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ScaleBody {
    /// Within the bounds of the service.
    replicas: u32,
}

/// A service that was scaled.
#[derive(Serialize, ToSchema)]
struct ScaledService {
    id: String,
    wanted: u32,
    wanted_before: u32,
    /// The metric by which the number may change again; null: it changes only on request.
    metric: Option<String>,
}

/// Sets how many replicas of a scaled service are wanted.
#[utoipa::path(
    post, path = "/api/v1/allocations/{id}/scale", tag = "allocations",
    params(("id" = String, Path, description = "The id, or the beginning of one")), request_body = ScaleBody,
    responses((status = 200, description = "The number is set", body = ScaledService))
)]
async fn scale_service(
    calls: Calls,
    Segments(key): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
    Body(ScaleBody { replicas }): Body<ScaleBody>,
) -> Result<Json<ScaledService>, Problem> {
    let scaled = calls.allocations().scale(v1::ScaleRequest { key, replicas }).await?.into_inner();
    let metric = Some(scaled.metric).filter(|metric| !metric.is_empty());
    Ok(Json(ScaledService { id: scaled.id, wanted: replicas, wanted_before: scaled.before, metric }))
}

/// A signal, and who gets it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SignalBody {
    /// Its number: 1 to 64.
    signal: u32,
    /// `ranks` (default): the process of each rank; `launches`: all processes of launches; `script`.
    #[serde(default)]
    to: String,
}

/// The processes that got a signal.
#[derive(Serialize, ToSchema)]
struct Signalled {
    id: String,
    nodes: Vec<SignalledNode>,
}

/// What one node did with a signal.
#[derive(Serialize, ToSchema)]
struct SignalledNode {
    node: String,
    /// How many processes got it.
    processes: u32,
    /// Why it was not sent, or why that is not known.
    failed: Option<String>,
}

/// Sends a signal once to the processes of an allocation.
#[utoipa::path(
    post, path = "/api/v1/allocations/{id}/signal", tag = "allocations",
    params(("id" = String, Path, description = "The id, or the beginning of one")), request_body = SignalBody,
    responses((status = 200, description = "What each node did", body = Signalled))
)]
async fn signal_allocation(
    calls: Calls,
    Segments(key): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
    Body(SignalBody { signal, to }): Body<SignalBody>,
) -> Result<Json<Signalled>, Problem> {
    let sent = calls.allocations().signal(v1::SignalRequest { key, signal, to }).await?.into_inner();
    let node = |node: v1::signal_response::Node| SignalledNode {
        node: node.node,
        processes: node.processes,
        failed: Some(node.failed).filter(|why| !why.is_empty()),
    };
    Ok(Json(Signalled { id: sent.id, nodes: sent.nodes.into_iter().map(node).collect() }))
}
