//! `/api/v1/tenants/{name}/members` and `/usage`.

use crate::calls::{Calls, Grpc};
use crate::input::{NoParams, OptionalBody, Params, Segments};
use crate::problem::Problem;
use axum::http::StatusCode;
use axum::routing::{get, put};
use axum::{Json, Router};
use lattice_api::json::{TenantMemberJson, UsageJson, UsageOf};
use lattice_api::v1;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, OpenApi, ToSchema};

#[derive(OpenApi)]
#[openapi(paths(list_members, put_member, delete_member, get_tenant_usage))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi()
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new()
        .route("/api/v1/tenants/{name}/members", get(list_members))
        .route("/api/v1/tenants/{name}/members/{subject}", put(put_member).delete(delete_member))
        .route("/api/v1/tenants/{name}/usage", get(get_tenant_usage))
}

/// The members of a tenant.
#[derive(Serialize, ToSchema)]
struct TenantMembers {
    /// Empty: it takes work from everybody, or, if it had members before, from its admins alone.
    members: Vec<TenantMemberJson>,
}

/// Lists the members of a tenant.
#[utoipa::path(
    get, path = "/api/v1/tenants/{name}/members", tag = "tenants", params(("name" = String, Path, description = "Of the tenant")),
    responses((status = 200, description = "All members", body = TenantMembers))
)]
async fn list_members(
    calls: Calls,
    Segments(tenant): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<TenantMembers>, Problem> {
    let found = calls.admin().list_tenant_members(v1::ListTenantMembersRequest { tenant }).await?.into_inner();
    Ok(Json(TenantMembers { members: found.members.iter().map(TenantMemberJson::from).collect() }))
}

/// How an account or a group is a member.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Membership {
    /// Its work that names no tenant is of this one.
    #[serde(default)]
    default: bool,
}

/// Makes an account or a group a member of a tenant.
#[utoipa::path(
    put, path = "/api/v1/tenants/{name}/members/{subject}", tag = "tenants",
    params(("name" = String, Path, description = "Of the tenant"), ("subject" = String, Path, description = "user:NAME or group:NAME")),
    request_body = Option<Membership>,
    responses((status = 200, description = "It is a member", body = TenantMemberJson))
)]
async fn put_member(
    calls: Calls,
    Segments((tenant, subject)): Segments<(String, String)>,
    Params(NoParams {}): Params<NoParams>,
    OptionalBody(Membership { default: is_default }): OptionalBody<Membership>,
) -> Result<Json<TenantMemberJson>, Problem> {
    let request = v1::TenantMemberRequest { tenant, subject, is_default };
    let added = calls.admin().add_tenant_member(request).await?.into_inner().member.unwrap_or_default();
    Ok(Json(TenantMemberJson::added(&added)))
}

/// Removes a member of a tenant.
#[utoipa::path(
    delete, path = "/api/v1/tenants/{name}/members/{subject}", tag = "tenants",
    params(("name" = String, Path, description = "Of the tenant"), ("subject" = String, Path, description = "user:NAME or group:NAME")),
    responses((status = 204, description = "It is no member"))
)]
async fn delete_member(
    calls: Calls,
    Segments((tenant, subject)): Segments<(String, String)>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<StatusCode, Problem> {
    calls.admin().remove_tenant_member(v1::TenantMemberRequest { tenant, subject, is_default: false }).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct UsageParams {
    /// Of this project alone.
    project: Option<String>,
    /// The last days (UTC), today included; 0: the budget period.
    #[serde(default)]
    days: u32,
}

/// What a tenant, or a project of it, has used.
#[utoipa::path(
    get, path = "/api/v1/tenants/{name}/usage", tag = "usage", params(("name" = String, Path, description = "Of the tenant"), UsageParams),
    responses((status = 200, description = "Its use", body = UsageJson))
)]
async fn get_tenant_usage(
    calls: Calls,
    Segments(tenant): Segments<String>,
    Params(UsageParams { project, days }): Params<UsageParams>,
) -> Result<Json<UsageJson>, Problem> {
    let of = if project.is_some() { UsageOf::Project } else { UsageOf::Tenant };
    let request = v1::GetTenantUsageRequest { tenant, project: project.unwrap_or_default(), days };
    let usage = calls.admin().get_tenant_usage(request).await?.into_inner();
    Ok(Json(UsageJson::of(of, &usage)))
}
