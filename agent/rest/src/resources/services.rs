//! `/api/v1/services`.

use crate::calls::{Calls, Grpc};
use crate::input::{Params, Segments};
use crate::problem::Problem;
use axum::routing::get;
use axum::{Json, Router};
use lattice_api::json::{EndpointJson, ServiceJson};
use lattice_api::v1;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, OpenApi, ToSchema};

#[derive(OpenApi)]
#[openapi(paths(list_services, lookup_service))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi()
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new().route("/api/v1/services", get(list_services)).route("/api/v1/services/{name}", get(lookup_service))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TenantParams {
    /// Of this tenant; left out: operators get those of all, others those of the tenants of their work.
    tenant: Option<String>,
}

/// The services of running allocations.
#[derive(Serialize, ToSchema)]
struct Services {
    /// By tenant and name.
    services: Vec<ServiceJson>,
    /// Whether there are more than one answer can hold.
    more: bool,
}

/// Lists the services of running allocations.
#[utoipa::path(
    get, path = "/api/v1/services", tag = "services", params(TenantParams),
    responses((status = 200, description = "The services", body = Services))
)]
async fn list_services(calls: Calls, Params(TenantParams { tenant }): Params<TenantParams>) -> Result<Json<Services>, Problem> {
    let found = calls.admin().list_services(v1::ListServicesRequest { tenant }).await?.into_inner();
    Ok(Json(Services { services: found.services.iter().map(ServiceJson::from).collect(), more: found.more }))
}

/// Where a service is reached.
#[derive(Serialize, ToSchema)]
struct Endpoints {
    /// By allocation; the first node of each comes first.
    endpoints: Vec<EndpointJson>,
    /// Whether there are more than one answer can hold.
    more: bool,
}

/// Looks a service up.
#[utoipa::path(
    get, path = "/api/v1/services/{name}", tag = "services", params(("name" = String, Path, description = "Its name"), TenantParams),
    responses((status = 200, description = "Where it is reached", body = Endpoints))
)]
async fn lookup_service(
    calls: Calls,
    Segments(name): Segments<String>,
    Params(TenantParams { tenant }): Params<TenantParams>,
) -> Result<Json<Endpoints>, Problem> {
    let found = calls.admin().lookup_service(v1::LookupServiceRequest { name, tenant }).await?.into_inner();
    Ok(Json(Endpoints { endpoints: found.endpoints.iter().map(EndpointJson::from).collect(), more: found.more }))
}
