//! `/api/v1/tenants`.

mod members;
mod projects;
mod quotas;

use crate::calls::{Calls, Grpc};
use crate::etag::{IfMatch, Tag};
use crate::input::{Body, NoParams, Params, Segments};
use crate::problem::Problem;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use lattice_api::json::TenantJson;
use lattice_api::v1;
use quotas::TenantQuotas;
use serde::Serialize;
use utoipa::{OpenApi, ToSchema};

#[derive(OpenApi)]
#[openapi(paths(list_tenants, get_tenant, put_tenant, delete_tenant))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi().merge_from(members::openapi()).merge_from(projects::openapi())
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new()
        .route("/api/v1/tenants", get(list_tenants))
        .route("/api/v1/tenants/{name}", get(get_tenant).put(put_tenant).delete(delete_tenant))
        .merge(members::routes())
        .merge(projects::routes())
}

/// The tenants.
#[derive(Serialize, ToSchema)]
struct Tenants {
    /// By name.
    tenants: Vec<TenantJson>,
}

/// Lists the tenants.
#[utoipa::path(get, path = "/api/v1/tenants", tag = "tenants", responses((status = 200, description = "All tenants", body = Tenants)))]
async fn list_tenants(calls: Calls, Params(NoParams {}): Params<NoParams>) -> Result<Json<Tenants>, Problem> {
    Ok(Json(Tenants { tenants: all(&calls).await?.iter().map(TenantJson::from).collect() }))
}

async fn all(calls: &Calls) -> Result<Vec<v1::Tenant>, Problem> {
    Ok(calls.admin().list_tenants(v1::ListTenantsRequest {}).await?.into_inner().tenants)
}

async fn find(calls: &Calls, name: &str) -> Result<Option<v1::Tenant>, Problem> {
    Ok(all(calls).await?.into_iter().find(|tenant| tenant.name == name))
}

fn missing(name: &str) -> Problem {
    Problem::not_found(format!("there is no tenant {name:?}")).with_hint("GET /api/v1/tenants lists them")
}

/// The tag of a tenant's quotas, not of what it has now.
fn tag_of(tenant: &v1::Tenant) -> Result<Tag, Problem> {
    Tag::of(&TenantJson::from(&v1::Tenant { nodes: 0, allocations: 0, ..tenant.clone() }))
}

/// One tenant.
#[utoipa::path(
    get, path = "/api/v1/tenants/{name}", tag = "tenants", params(("name" = String, Path, description = "Its name")),
    responses((status = 200, description = "The tenant", body = TenantJson, headers(("ETag" = String, description = "Of its quotas"))))
)]
async fn get_tenant(calls: Calls, Segments(name): Segments<String>, Params(NoParams {}): Params<NoParams>) -> Result<Response, Problem> {
    let tenant = find(&calls, &name).await?.ok_or_else(|| missing(&name))?;
    Ok(tag_of(&tenant)?.on(&TenantJson::from(&tenant)))
}

/// Sets the quotas of a tenant, and creates it if there is none.
///
/// A quota that is left out stays as it is; null means no limit. With `If-Match`, only if it has that tag.
#[utoipa::path(
    put, path = "/api/v1/tenants/{name}", tag = "tenants",
    params(("name" = String, Path, description = "Its name"),
           ("If-Match" = Option<String>, Header, description = "The ETag of what was read"),
           ("If-None-Match" = Option<String>, Header, description = "`*`: only create")),
    request_body = TenantQuotas,
    responses((status = 200, description = "It is changed", body = TenantJson),
              (status = 201, description = "It is created", body = TenantJson))
)]
async fn put_tenant(
    calls: Calls,
    if_match: IfMatch,
    Segments(name): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
    Body(quotas): Body<TenantQuotas>,
) -> Result<Response, Problem> {
    let mut request = quotas.request(name.clone())?;
    let before = find(&calls, &name).await?;
    if_match.check(before.as_ref().map(tag_of).transpose()?.as_ref())?;
    let status = match &before {
        Some(_) if request == (v1::TenantRequest { name: name.clone(), ..v1::TenantRequest::default() }) => StatusCode::OK,
        Some(before) => {
            request.expected_version = if_match.names_a_tag().then_some(before.version);
            if_match.made(calls.admin().update_tenant(request).await)?;
            StatusCode::OK
        }
        None => {
            if_match.made(calls.admin().create_tenant(request).await)?;
            StatusCode::CREATED
        }
    };
    let tenant = find(&calls, &name).await?.ok_or_else(|| missing(&name))?;
    Ok((status, tag_of(&tenant)?.on(&TenantJson::from(&tenant))).into_response())
}

/// Deletes a tenant that has no work.
#[utoipa::path(
    delete, path = "/api/v1/tenants/{name}", tag = "tenants", params(("name" = String, Path, description = "Its name")),
    responses((status = 204, description = "It is deleted"))
)]
async fn delete_tenant(
    calls: Calls,
    Segments(name): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<StatusCode, Problem> {
    calls.admin().delete_tenant(v1::DeleteTenantRequest { name }).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_is_of_the_quotas_alone() {
        let tenant = v1::Tenant { name: "physics".into(), max_nodes: Some(2), ..Default::default() };
        let busy = v1::Tenant { nodes: 2, allocations: 5, ..tenant.clone() };
        assert_eq!(tag_of(&tenant).unwrap(), tag_of(&busy).unwrap());
        assert_ne!(tag_of(&tenant).unwrap(), tag_of(&v1::Tenant { max_nodes: None, ..tenant.clone() }).unwrap());
    }
}
