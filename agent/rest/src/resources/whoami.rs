//! `/api/v1/whoami`.

use crate::calls::{Calls, Grpc};
use crate::input::{NoParams, Params};
use crate::problem::Problem;
use axum::routing::get;
use axum::{Json, Router};
use lattice_api::json::{PermissionJson, WhoAmIJson};
use lattice_api::v1;
use serde::Serialize;
use utoipa::{OpenApi, ToSchema};

#[derive(OpenApi)]
#[openapi(paths(who_am_i, what_may_i))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi()
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new().route("/api/v1/whoami", get(who_am_i)).route("/api/v1/whoami/permissions", get(what_may_i))
}

async fn me(calls: &Calls) -> Result<v1::WhoAmIResponse, Problem> {
    Ok(calls.admin().who_am_i(v1::WhoAmIRequest {}).await?.into_inner())
}

/// The calling account, and how it proved who it is.
#[utoipa::path(get, path = "/api/v1/whoami", tag = "whoami", responses((status = 200, description = "The caller", body = WhoAmIJson)))]
async fn who_am_i(calls: Calls, Params(NoParams {}): Params<NoParams>) -> Result<Json<WhoAmIJson>, Problem> {
    Ok(Json(WhoAmIJson::from(&me(&calls).await?)))
}

/// What the caller may do.
#[derive(Serialize, ToSchema)]
struct Permissions {
    /// One for each method.
    permissions: Vec<PermissionJson>,
}

/// What the caller may do with each method.
#[utoipa::path(
    get, path = "/api/v1/whoami/permissions", tag = "whoami",
    responses((status = 200, description = "One for each method", body = Permissions))
)]
async fn what_may_i(calls: Calls, Params(NoParams {}): Params<NoParams>) -> Result<Json<Permissions>, Problem> {
    Ok(Json(Permissions { permissions: me(&calls).await?.may.iter().map(PermissionJson::from).collect() }))
}
