//! `/api/v1/roles`.

use crate::calls::{Calls, Grpc};
use crate::input::{NoParams, Params, Segments};
use crate::problem::Problem;
use axum::http::StatusCode;
use axum::routing::{get, put};
use axum::{Json, Router};
use lattice_api::v1;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, OpenApi, ToSchema};

#[derive(OpenApi)]
#[openapi(paths(list_roles, grant_role, revoke_role))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi()
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new().route("/api/v1/roles", get(list_roles)).route("/api/v1/roles/{role}/{subject}", put(grant_role).delete(revoke_role))
}

/// A role that an account or a group has.
#[derive(Serialize, ToSchema)]
struct GrantedRole {
    /// `tenant-admin`, `operator` or `system-admin`.
    role: String,
    /// `user:NAME` or `group:NAME`.
    subject: String,
    /// Its user id or group id.
    id: u32,
    /// Of a tenant-admin.
    tenant: Option<String>,
}

impl From<v1::RoleBinding> for GrantedRole {
    fn from(binding: v1::RoleBinding) -> Self {
        let v1::RoleBinding { role, subject, id, tenant } = binding;
        Self { role, subject, id, tenant: Some(tenant).filter(|tenant| !tenant.is_empty()) }
    }
}

/// Granted roles.
#[derive(Serialize, ToSchema)]
struct GrantedRoles {
    roles: Vec<GrantedRole>,
}

/// Lists the roles that the caller may see: its own, as an admin of a tenant also those for the tenant, as an operator all.
#[utoipa::path(get, path = "/api/v1/roles", tag = "roles", responses((status = 200, description = "The roles", body = GrantedRoles)))]
async fn list_roles(calls: Calls, Params(NoParams {}): Params<NoParams>) -> Result<Json<GrantedRoles>, Problem> {
    let found = calls.admin().list_roles(v1::ListRolesRequest {}).await?.into_inner();
    Ok(Json(GrantedRoles { roles: found.bindings.into_iter().map(GrantedRole::from).collect() }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RoleParams {
    /// Of a tenant-admin; none for the other roles.
    #[serde(default)]
    tenant: String,
}

/// Grants a role to an account or a group; for system admins.
#[utoipa::path(
    put, path = "/api/v1/roles/{role}/{subject}", tag = "roles",
    params(("role" = String, Path, description = "tenant-admin, operator or system-admin"),
           ("subject" = String, Path, description = "user:NAME or group:NAME"), RoleParams),
    responses((status = 200, description = "It has the role", body = GrantedRole))
)]
async fn grant_role(
    calls: Calls,
    Segments((role, subject)): Segments<(String, String)>,
    Params(RoleParams { tenant }): Params<RoleParams>,
) -> Result<Json<GrantedRole>, Problem> {
    let granted = calls.admin().grant_role(v1::RoleRequest { role, subject, tenant }).await?.into_inner();
    Ok(Json(GrantedRole::from(granted.binding.unwrap_or_default())))
}

/// Revokes a role; for system admins.
#[utoipa::path(
    delete, path = "/api/v1/roles/{role}/{subject}", tag = "roles",
    params(("role" = String, Path, description = "tenant-admin, operator or system-admin"),
           ("subject" = String, Path, description = "user:NAME or group:NAME"), RoleParams),
    responses((status = 204, description = "It does not have the role"))
)]
async fn revoke_role(
    calls: Calls,
    Segments((role, subject)): Segments<(String, String)>,
    Params(RoleParams { tenant }): Params<RoleParams>,
) -> Result<StatusCode, Problem> {
    calls.admin().revoke_role(v1::RoleRequest { role, subject, tenant }).await?;
    Ok(StatusCode::NO_CONTENT)
}
