//! `/api/v1/usage`.

use crate::calls::{Calls, Grpc};
use crate::input::Params;
use crate::problem::Problem;
use axum::routing::get;
use axum::{Json, Router};
use lattice_api::json::{UsageJson, UsageOf};
use lattice_api::v1;
use serde::Deserialize;
use utoipa::{IntoParams, OpenApi};

#[derive(OpenApi)]
#[openapi(paths(get_user_usage))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi()
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new().route("/api/v1/usage", get(get_user_usage))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct UsageParams {
    /// Of this user; left out: of the caller.
    #[serde(default)]
    user: String,
    /// The last days (UTC), today included; 0: the budget period.
    #[serde(default)]
    days: u32,
}

/// What a user has used.
#[utoipa::path(
    get, path = "/api/v1/usage", tag = "usage", params(UsageParams),
    responses((status = 200, description = "The use", body = UsageJson))
)]
async fn get_user_usage(calls: Calls, Params(UsageParams { user, days }): Params<UsageParams>) -> Result<Json<UsageJson>, Problem> {
    let usage = calls.admin().get_user_usage(v1::GetUserUsageRequest { user, days }).await?.into_inner();
    Ok(Json(UsageJson::of(UsageOf::User, &usage)))
}
