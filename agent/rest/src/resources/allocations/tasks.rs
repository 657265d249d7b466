//! `/api/v1/allocations/{id}/tasks`: the tasks of a task group.

use super::answers::Submitted;
use crate::calls::{Calls, Grpc};
use crate::idempotency::IdempotencyKey;
use crate::input::{NoParams, OptionalBody, Params, Segments, StaleParams};
use crate::problem::Problem;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use lattice_api::json::{TaskJson, TasksJson};
use lattice_api::v1;
use lattice_cli_syntax::tasks::index_runs;
use lattice_model::TaskIndices;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, OpenApi, ToSchema};

#[derive(OpenApi)]
#[openapi(paths(get_tasks, get_task, cancel_tasks, retry_tasks))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi()
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new()
        .route("/api/v1/allocations/{id}/tasks", get(get_tasks).delete(cancel_tasks))
        .route("/api/v1/allocations/{id}/tasks/{index}", get(get_task))
        .route("/api/v1/allocations/{id}/retry", post(retry_tasks))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TasksParams {
    /// The most ranges of the answer: 1 to 10000.
    #[serde(default)]
    #[param(default = 1000, maximum = 10000)]
    limit: u32,
    /// Accept the state of one member, which may be old.
    #[serde(default)]
    stale: bool,
}

/// The tasks of a task group, as ranges in the same state.
#[utoipa::path(
    get, path = "/api/v1/allocations/{id}/tasks", tag = "allocations",
    params(("id" = String, Path, description = "The id, or the beginning of one"), TasksParams),
    responses((status = 200, description = "The tasks", body = TasksJson))
)]
async fn get_tasks(
    calls: Calls,
    Segments(key): Segments<String>,
    Params(TasksParams { limit, stale }): Params<TasksParams>,
) -> Result<Json<TasksJson>, Problem> {
    let request = v1::GetTasksRequest { key, index: None, limit, stale };
    let found = calls.allocations().get_tasks(request).await?.into_inner();
    Ok(Json(TasksJson::from(&found)))
}

/// One task of a task group.
#[utoipa::path(
    get, path = "/api/v1/allocations/{id}/tasks/{index}", tag = "allocations",
    params(("id" = String, Path, description = "The id, or the beginning of one"),
           ("index" = u32, Path, description = "Of the task"), StaleParams),
    responses((status = 200, description = "The task", body = TaskJson))
)]
async fn get_task(
    calls: Calls,
    Segments((key, index)): Segments<(String, u32)>,
    Params(StaleParams { stale }): Params<StaleParams>,
) -> Result<Json<TaskJson>, Problem> {
    let request = v1::GetTasksRequest { key, index: Some(index), limit: 1, stale };
    let found = calls.allocations().get_tasks(request).await?.into_inner();
    let known = found.ranges.first().ok_or_else(|| Problem::not_found(format!("task group {} has no task {index}", found.id)))?;
    Ok(Json(TaskJson::of(&found.id, index, known)))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct CancelParams {
    /// The tasks, such as `3-5,9` or `0-98:2`.
    indices: String,
}

/// Tasks that were cancelled.
#[derive(Serialize, ToSchema)]
struct CancelledTasks {
    /// Of the group.
    id: String,
    /// Tasks that had not ended.
    cancelled: u32,
    /// Tasks that had ended before: nothing was changed.
    ended: u32,
}

/// Cancels tasks of a task group.
#[utoipa::path(
    delete, path = "/api/v1/allocations/{id}/tasks", tag = "allocations",
    params(("id" = String, Path, description = "The id, or the beginning of one"), CancelParams),
    responses((status = 200, description = "How many were cancelled", body = CancelledTasks))
)]
async fn cancel_tasks(
    calls: Calls,
    Segments(key): Segments<String>,
    Params(CancelParams { indices }): Params<CancelParams>,
) -> Result<Json<CancelledTasks>, Problem> {
    let request = v1::CancelTasksRequest { key, indices: runs(&indices)? };
    let v1::CancelTasksResponse { id, cancelled, ended } = calls.allocations().cancel_tasks(request).await?.into_inner();
    Ok(Json(CancelledTasks { id, cancelled, ended }))
}

/// Which tasks are submitted once more.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Retry {
    /// These tasks, which must have ended, such as `3-5,9`; null: all that failed.
    indices: Option<String>,
}

/// Submits tasks of a task group once more, as a new group.
///
/// With the header `Idempotency-Key` the request may be repeated: it is made once.
#[utoipa::path(
    post, path = "/api/v1/allocations/{id}/retry", tag = "allocations",
    params(("id" = String, Path, description = "The id, or the beginning of one"),
           ("Idempotency-Key" = Option<String>, Header, description = "The id of the new group (a UUID), or any text")),
    request_body = Option<Retry>,
    responses((status = 201, description = "The new group", body = Submitted))
)]
async fn retry_tasks(
    calls: Calls,
    idempotency: IdempotencyKey,
    Segments(key): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
    OptionalBody(Retry { indices }): OptionalBody<Retry>,
) -> Result<Response, Problem> {
    let indices = indices.as_deref().map(runs).transpose()?.unwrap_or_default();
    let id = idempotency.id(&["retry", &key], &calls).await?.to_string();
    let done = Box::pin(calls.allocations().retry_tasks(v1::RetryTasksRequest { key, indices, id })).await?.into_inner();
    Ok(Submitted::of(done, Vec::new()).respond())
}

/// Indices as the API has them.
fn runs(text: &str) -> Result<Vec<v1::IndexRun>, Problem> {
    let indices = TaskIndices::parse(text).map_err(|error| Problem::invalid(format!("indices: {error}")))?;
    Ok(index_runs(&indices))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_read_as_they_are_typed() {
        let run = |first, last, step| v1::IndexRun { first, last, step };
        assert_eq!(runs("0-98:2,200").unwrap(), [run(0, 98, 2), run(200, 200, 1)]);
        assert!(format!("{:?}", runs("x").unwrap_err()).contains("indices: "));
    }
}
