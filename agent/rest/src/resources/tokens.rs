//! `/api/v1/tokens`.

use crate::calls::{Calls, Grpc};
use crate::input::{Body, NoParams, Params, Segments};
use crate::problem::Problem;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get};
use axum::{Json, Router};
use lattice_api::json::AccessTokenJson;
use lattice_api::v1;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, OpenApi, ToSchema};

#[derive(OpenApi)]
#[openapi(paths(issue_token, list_tokens, revoke_token))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi()
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new().route("/api/v1/tokens", get(list_tokens).post(issue_token)).route("/api/v1/tokens/{id}", delete(revoke_token))
}

/// A token to be issued.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct TokenRequest {
    /// What it is for, at most 64 bytes.
    name: String,
    /// As whom its bearer acts; not root.
    account: String,
    /// `read`, `work` and `admin`, several with commas.
    scopes: String,
    /// Until it expires: 1 to 366.
    days: u32,
}

/// A new token.
#[derive(Serialize, ToSchema)]
struct IssuedToken {
    /// The token itself. Nobody can read it again.
    token: String,
    #[serde(flatten)]
    issued: AccessTokenJson,
}

/// Issues a token with which a program calls the API; for system admins.
#[utoipa::path(
    post, path = "/api/v1/tokens", tag = "tokens", request_body = TokenRequest,
    responses((status = 201, description = "It is issued", body = IssuedToken))
)]
async fn issue_token(
    calls: Calls,
    Params(NoParams {}): Params<NoParams>,
    Body(TokenRequest { name, account, scopes, days }): Body<TokenRequest>,
) -> Result<Response, Problem> {
    let done = calls.admin().issue_token(v1::IssueTokenRequest { name, account, scopes, days }).await?.into_inner();
    let issued = done.issued.unwrap_or_default();
    let location = format!("/api/v1/tokens/{}", issued.id);
    let body = Json(IssuedToken { token: done.token, issued: AccessTokenJson::from(&issued) });
    Ok((StatusCode::CREATED, [(LOCATION, location)], body).into_response())
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TokensParams {
    /// Only those of this account.
    #[serde(default)]
    account: String,
}

/// Tokens, without their secrets.
#[derive(Serialize, ToSchema)]
struct Tokens {
    /// By account, then by id.
    tokens: Vec<AccessTokenJson>,
}

/// Lists tokens: system admins see all, others those of their own account.
#[utoipa::path(
    get, path = "/api/v1/tokens", tag = "tokens", params(TokensParams),
    responses((status = 200, description = "The tokens", body = Tokens))
)]
async fn list_tokens(calls: Calls, Params(TokensParams { account }): Params<TokensParams>) -> Result<Json<Tokens>, Problem> {
    let found = calls.admin().list_tokens(v1::ListTokensRequest { account }).await?.into_inner();
    Ok(Json(Tokens { tokens: found.tokens.iter().map(AccessTokenJson::from).collect() }))
}

/// Revokes a token. It opens nothing any more, everywhere after ten seconds at the latest.
#[utoipa::path(
    delete, path = "/api/v1/tokens/{id}", tag = "tokens", params(("id" = String, Path, description = "16 hexadecimal digits")),
    responses((status = 200, description = "It is revoked", body = AccessTokenJson))
)]
async fn revoke_token(
    calls: Calls,
    Segments(id): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<AccessTokenJson>, Problem> {
    let revoked = calls.admin().revoke_token(v1::RevokeTokenRequest { id }).await?.into_inner();
    Ok(Json(AccessTokenJson::from(&revoked)))
}
