//! `/api/v1/allocations/{id}/steps`: the script or command of an allocation, and the launches in it.

use crate::calls::{Calls, Grpc};
use crate::input::{NoParams, Params, Segments};
use crate::problem::Problem;
use axum::routing::get;
use axum::{Json, Router};
use lattice_api::json::JobStepsJson;
use lattice_api::v1;
use utoipa::OpenApi;

#[derive(OpenApi)]
#[openapi(paths(list_steps))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi()
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new().route("/api/v1/allocations/{id}/steps", get(list_steps))
}

/// The steps of an allocation, of its present or last attempt.
#[utoipa::path(
    get, path = "/api/v1/allocations/{id}/steps", tag = "allocations",
    params(("id" = String, Path, description = "The id, or the beginning of one")),
    responses((status = 200, description = "The steps", body = JobStepsJson))
)]
async fn list_steps(
    calls: Calls,
    Segments(key): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<JobStepsJson>, Problem> {
    let found = calls.allocations().list_steps(v1::ListStepsRequest { key }).await?.into_inner();
    Ok(Json(JobStepsJson::from(&found)))
}
