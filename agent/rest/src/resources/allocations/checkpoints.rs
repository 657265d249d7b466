//! `/api/v1/allocations/{id}/checkpoint` and `/checkpoints`.

use crate::calls::{Calls, Grpc};
use crate::idempotency::IdempotencyKey;
use crate::input::{NoParams, OptionalBody, Params, Segments};
use crate::problem::Problem;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use lattice_api::json::CheckpointJson;
use lattice_api::v1;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, OpenApi, ToSchema};

#[derive(OpenApi)]
#[openapi(paths(create_checkpoint, list_checkpoints))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi()
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new()
        .route("/api/v1/allocations/{id}/checkpoint", post(create_checkpoint))
        .route("/api/v1/allocations/{id}/checkpoints", get(list_checkpoints))
}

/// A checkpoint that is requested.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CheckpointBody {
    /// 1 s to 24 h; 0: ten minutes.
    #[serde(default)]
    deadline_ms: u64,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WaitParams {
    /// Answer when the checkpoint has ended, and not as soon as it has begun.
    #[serde(default)]
    wait: bool,
}

/// The progress of a checkpoint.
#[derive(Serialize, ToSchema)]
struct CheckpointProgress {
    /// Of the checkpoint in progress, which may be another than the requested one.
    id: String,
    /// asking, requested, acknowledged, writing, deferred, verifying, committing, complete, failed, timed out
    state: String,
    /// What it waits for, or why it failed.
    detail: Option<String>,
    step: Option<u64>,
    bytes: u64,
}

impl From<v1::CheckpointEvent> for CheckpointProgress {
    fn from(event: v1::CheckpointEvent) -> Self {
        let v1::CheckpointEvent { id, state, detail, step, bytes, .. } = event;
        Self { id, state, detail: Some(detail).filter(|detail| !detail.is_empty()), step, bytes }
    }
}

/// Asks a running allocation to save itself.
///
/// If a checkpoint is in progress, that one is meant. With the header `Idempotency-Key` the request may be repeated.
#[utoipa::path(
    post, path = "/api/v1/allocations/{id}/checkpoint", tag = "allocations",
    params(("id" = String, Path, description = "The id, or the beginning of one"), WaitParams,
           ("Idempotency-Key" = Option<String>, Header, description = "The id of the checkpoint (a UUID), or any text")),
    request_body = Option<CheckpointBody>,
    responses((status = 202, description = "It has begun", body = CheckpointProgress),
              (status = 200, description = "It is complete", body = CheckpointProgress))
)]
async fn create_checkpoint(
    calls: Calls,
    idempotency: IdempotencyKey,
    Segments(allocation): Segments<String>,
    Params(WaitParams { wait }): Params<WaitParams>,
    OptionalBody(CheckpointBody { deadline_ms }): OptionalBody<CheckpointBody>,
) -> Result<Response, Problem> {
    let id = idempotency.id(&["checkpoint", &allocation], &calls).await?.to_string();
    let mut events = calls.allocations().checkpoint(v1::CheckpointRequest { id, allocation, deadline_ms }).await?.into_inner();
    while let Some(event) = events.message().await? {
        match (event.done, event.complete) {
            (true, false) => {
                let text = format!("checkpoint {} {}: {}", event.id, event.state, event.detail);
                let hint = "the allocation continues, and the previous checkpoint stays";
                return Err(Problem::new(StatusCode::CONFLICT, "aborted", text).with_hint(hint));
            }
            (true, true) => return Ok(Json(CheckpointProgress::from(event)).into_response()),
            // The checkpoint continues without this request.
            (false, _) if !wait => return Ok((StatusCode::ACCEPTED, Json(CheckpointProgress::from(event))).into_response()),
            (false, _) => {}
        }
    }
    Err(Problem::internal("the checkpoint was not followed to its end"))
}

/// The checkpoints of an allocation.
#[derive(Serialize, ToSchema)]
struct Checkpoints {
    /// The oldest first.
    checkpoints: Vec<CheckpointJson>,
}

/// Lists the checkpoints of an allocation, without their files.
#[utoipa::path(
    get, path = "/api/v1/allocations/{id}/checkpoints", tag = "allocations",
    params(("id" = String, Path, description = "The id, or the beginning of one")),
    responses((status = 200, description = "All of them", body = Checkpoints))
)]
async fn list_checkpoints(
    calls: Calls,
    Segments(allocation): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<Checkpoints>, Problem> {
    let found = calls.allocations().list_checkpoints(v1::ListCheckpointsRequest { allocation }).await?.into_inner();
    Ok(Json(Checkpoints { checkpoints: found.checkpoints.iter().map(CheckpointJson::from).collect() }))
}
