//! REST over the calls of `lattice.v1`: JSON, events, terminals, OpenAPI.
//!
//! ```text
//!   /api/v1/… ──▶ input (path, query, body) ──▶ resources ──▶ calls ──▶ the services of lattice.v1
//!                                                   │ Status ──▶ problem
//!                                                   └ v1::* ───▶ lattice_api::json ──▶ body
//! ```
//!
//! This crate has no state and no tasks of its own. The edge has put the caller into the extensions of each request,
//! and each call gets them: [`calls`]. So a caller's rights and limits are those of gRPC.
//!
//! A JSON body has at most [`BODY_BYTES_MAX`] bytes. A parameter or a field that is not known is refused.

#![forbid(unsafe_code)]

mod calls;
mod etag;
mod idempotency;
mod input;
mod openapi;
mod page;
mod problem;
mod resources;
mod streams;
mod submission;
mod time;

pub use calls::Grpc;
pub use problem::Problem;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::sync::LazyLock;

/// Largest size of a body, in bytes.
pub const BODY_BYTES_MAX: usize = 2 * 1024 * 1024;
/// The path of the description, which needs no token.
pub const OPENAPI_PATH: &str = "/api/v1/openapi.json";

/// The description as JSON, made when it is first asked for.
static DESCRIPTION: LazyLock<String> = LazyLock::new(|| openapi::description().to_json().unwrap_or_default());

/// All paths under `/api/v1`. Requests have their whole paths, and the caller in their extensions.
pub fn router(grpc: Grpc) -> Router {
    Router::new()
        .merge(resources::routes())
        .merge(streams::routes())
        .route(OPENAPI_PATH, get(describe))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(map_response(with_headers))
        .with_state(grpc)
}

async fn describe() -> Response {
    ([(CONTENT_TYPE, "application/json")], DESCRIPTION.as_str()).into_response()
}

async fn no_such_path(uri: Uri) -> Problem {
    Problem::not_found(format!("there is nothing at {}", uri.path())).with_hint(format!("GET {OPENAPI_PATH} lists the paths"))
}

async fn no_such_method(method: Method, uri: Uri) -> Problem {
    let text = format!("{method} is not possible at {}", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "unimplemented", text).with_hint(format!("GET {OPENAPI_PATH} lists the methods"))
}

/// Adds headers: nobody keeps an answer, and no browser guesses its type.
async fn with_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests;
