//! `/api/v1/quorum`.

use crate::calls::{Calls, Grpc};
use crate::input::Params;
use crate::problem::Problem;
use axum::routing::get;
use axum::{Json, Router};
use lattice_api::json::QuorumStatusJson;
use lattice_api::v1;
use serde::Deserialize;
use utoipa::{IntoParams, OpenApi};

#[derive(OpenApi)]
#[openapi(paths(get_quorum_status))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi()
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new().route("/api/v1/quorum/status", get(get_quorum_status))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StatusParams {
    /// Only the leader answers, which knows the state of all members.
    #[serde(default)]
    by_leader: bool,
}

/// The status of the quorum.
#[utoipa::path(
    get, path = "/api/v1/quorum/status", tag = "quorum", params(StatusParams),
    responses((status = 200, description = "As one member knows it", body = QuorumStatusJson))
)]
async fn get_quorum_status(
    calls: Calls,
    Params(StatusParams { by_leader }): Params<StatusParams>,
) -> Result<Json<QuorumStatusJson>, Problem> {
    let status = calls.admin().quorum_status(v1::QuorumStatusRequest { by_leader }).await?.into_inner();
    Ok(Json(QuorumStatusJson::from(&status)))
}
