//! `/api/v1/tenants/{name}/projects`.

use crate::calls::{Calls, Grpc};
use crate::input::{NoParams, Params, Segments};
use crate::problem::Problem;
use axum::http::StatusCode;
use axum::routing::{get, put};
use axum::{Json, Router};
use lattice_api::json::ProjectJson;
use lattice_api::v1;
use serde::Serialize;
use utoipa::{OpenApi, ToSchema};

#[derive(OpenApi)]
#[openapi(paths(list_projects, put_project, delete_project, put_project_member, delete_project_member))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi()
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new()
        .route("/api/v1/tenants/{name}/projects", get(list_projects))
        .route("/api/v1/tenants/{name}/projects/{project}", put(put_project).delete(delete_project))
        .route("/api/v1/tenants/{name}/projects/{project}/members/{subject}", put(put_project_member).delete(delete_project_member))
}

/// The registered projects of a tenant.
#[derive(Serialize, ToSchema)]
struct Projects {
    /// By name. Empty: work of the tenant may name any.
    projects: Vec<ProjectJson>,
}

/// Lists the registered projects of a tenant.
#[utoipa::path(
    get, path = "/api/v1/tenants/{name}/projects", tag = "tenants", params(("name" = String, Path, description = "Of the tenant")),
    responses((status = 200, description = "All projects", body = Projects))
)]
async fn list_projects(
    calls: Calls,
    Segments(tenant): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<Projects>, Problem> {
    let found = calls.admin().list_projects(v1::ListProjectsRequest { tenant }).await?.into_inner();
    Ok(Json(Projects { projects: found.projects.iter().map(ProjectJson::from).collect() }))
}

/// Registers a project of a tenant.
#[utoipa::path(
    put, path = "/api/v1/tenants/{name}/projects/{project}", tag = "tenants",
    params(("name" = String, Path, description = "Of the tenant"), ("project" = String, Path, description = "Of the project")),
    responses((status = 204, description = "It is registered"))
)]
async fn put_project(
    calls: Calls,
    Segments((tenant, project)): Segments<(String, String)>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<StatusCode, Problem> {
    calls.admin().create_project(v1::ProjectRequest { tenant, project }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Deletes a project of a tenant; its work continues.
#[utoipa::path(
    delete, path = "/api/v1/tenants/{name}/projects/{project}", tag = "tenants",
    params(("name" = String, Path, description = "Of the tenant"), ("project" = String, Path, description = "Of the project")),
    responses((status = 204, description = "It is deleted"))
)]
async fn delete_project(
    calls: Calls,
    Segments((tenant, project)): Segments<(String, String)>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<StatusCode, Problem> {
    calls.admin().delete_project(v1::ProjectRequest { tenant, project }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes an account a member of a project.
#[utoipa::path(
    put, path = "/api/v1/tenants/{name}/projects/{project}/members/{subject}", tag = "tenants",
    params(("name" = String, Path, description = "Of the tenant"), ("project" = String, Path, description = "Of the project"),
           ("subject" = String, Path, description = "user:NAME")),
    responses((status = 204, description = "It is a member"))
)]
async fn put_project_member(
    calls: Calls,
    Segments((tenant, project, subject)): Segments<(String, String, String)>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<StatusCode, Problem> {
    calls.admin().add_project_member(v1::ProjectMemberRequest { tenant, project, subject }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Removes a member of a project.
#[utoipa::path(
    delete, path = "/api/v1/tenants/{name}/projects/{project}/members/{subject}", tag = "tenants",
    params(("name" = String, Path, description = "Of the tenant"), ("project" = String, Path, description = "Of the project"),
           ("subject" = String, Path, description = "user:NAME")),
    responses((status = 204, description = "It is no member"))
)]
async fn delete_project_member(
    calls: Calls,
    Segments((tenant, project, subject)): Segments<(String, String, String)>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<StatusCode, Problem> {
    calls.admin().remove_project_member(v1::ProjectMemberRequest { tenant, project, subject }).await?;
    Ok(StatusCode::NO_CONTENT)
}
