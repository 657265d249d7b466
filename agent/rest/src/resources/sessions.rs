//! `/api/v1/sessions`.

use crate::calls::{Calls, Grpc};
use crate::idempotency::IdempotencyKey;
use crate::input::{Body, NoParams, Params, Segments};
use crate::problem::Problem;
use axum::http::StatusCode;
use axum::routing::{delete, get};
use axum::{Json, Router};
use lattice_api::json::SessionJson;
use lattice_api::v1;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, OpenApi, ToSchema};

#[derive(OpenApi)]
#[openapi(paths(create_session, list_sessions, delete_session))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi()
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new().route("/api/v1/sessions", get(list_sessions).post(create_session)).route("/api/v1/sessions/{id}", delete(delete_session))
}

/// A session to be opened.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SessionRequest {
    /// The id of a running allocation that was submitted with `session`.
    allocation: String,
}

/// Opens a session in a running allocation of the caller.
///
/// With the header `Idempotency-Key` the request may be repeated: it is made once.
#[utoipa::path(
    post, path = "/api/v1/sessions", tag = "sessions",
    params(("Idempotency-Key" = Option<String>, Header, description = "The id of the session (a UUID), or any text")),
    request_body = SessionRequest,
    responses((status = 201, description = "It is open", body = SessionJson))
)]
async fn create_session(
    calls: Calls,
    idempotency: IdempotencyKey,
    Params(NoParams {}): Params<NoParams>,
    Body(SessionRequest { allocation }): Body<SessionRequest>,
) -> Result<(StatusCode, Json<SessionJson>), Problem> {
    let id = idempotency.id(&["session", &allocation], &calls).await?.to_string();
    let session = calls.sessions().create(v1::CreateSessionRequest { id, allocation }).await?.into_inner();
    Ok((StatusCode::CREATED, Json(SessionJson::from(&session))))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SessionsParams {
    /// Of all users, not only the caller's own.
    #[serde(default)]
    all: bool,
}

/// Open sessions.
#[derive(Serialize, ToSchema)]
struct Sessions {
    sessions: Vec<SessionJson>,
}

/// Lists open sessions.
#[utoipa::path(
    get, path = "/api/v1/sessions", tag = "sessions", params(SessionsParams),
    responses((status = 200, description = "The sessions", body = Sessions))
)]
async fn list_sessions(calls: Calls, Params(SessionsParams { all }): Params<SessionsParams>) -> Result<Json<Sessions>, Problem> {
    let found = calls.sessions().list(v1::ListSessionsRequest { all_users: all }).await?.into_inner();
    Ok(Json(Sessions { sessions: found.sessions.iter().map(SessionJson::from).collect() }))
}

/// Ends a session and its allocation.
#[utoipa::path(
    delete, path = "/api/v1/sessions/{id}", tag = "sessions",
    params(("id" = String, Path, description = "The id of the session or of its allocation, or the beginning of one")),
    responses((status = 200, description = "It has ended", body = SessionJson))
)]
async fn delete_session(
    calls: Calls,
    Segments(key): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<SessionJson>, Problem> {
    let ended = calls.sessions().delete(v1::DeleteSessionRequest { key }).await?.into_inner();
    Ok(Json(SessionJson::from(&ended)))
}
