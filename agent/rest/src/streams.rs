//! Resources that are streams: output, measurements and changes as server-sent events, launches, and terminals as WebSockets.
//!
//! ```text
//!   logs, launches ──┐
//!   metrics, watches ┴▶ events (SSE) ──▶ client        positions: what a client has, as the id of an event
//!   terminals ◀──WebSocket──▶ client
//! ```
//!
//! Nothing is queued here: each stream reads the next message of its call when the client has taken the one before. What the
//! handlers queue for a slow client is bounded there, and the edge cuts a client that takes nothing.

mod events;
mod launches;
mod logs;
mod metrics;
mod output;
mod positions;
mod terminals;
mod watches;

use crate::calls::Grpc;
use axum::Router;
use axum::routing::{delete, get, post};
use utoipa::OpenApi;

/// The routes.
pub(crate) fn routes() -> Router<Grpc> {
    Router::new()
        .route("/api/v1/allocations/{id}/attach", get(terminals::attach))
        .route("/api/v1/allocations/{id}/launches/{launch}", delete(launches::abort))
        .route("/api/v1/allocations/{id}/logs", get(logs::logs))
        .route("/api/v1/allocations/{id}/metrics", get(metrics::metrics))
        .route("/api/v1/allocations/{id}/metrics/stream", get(metrics::stream))
        .route("/api/v1/allocations/{id}/tasks", post(launches::launch))
        .route("/api/v1/allocations/{id}/watch", get(watches::allocation))
        .route("/api/v1/sessions/{id}/terminal", get(terminals::session))
        .route("/api/v1/watch", get(watches::watch))
}

/// These resources in the description of the API. The bodies of events are schemas without a response: a
/// stream of them is a text.
pub(crate) fn openapi() -> utoipa::openapi::OpenApi {
    Streams::openapi()
}

#[derive(OpenApi)]
#[openapi(
    paths(
        launches::abort,
        launches::launch,
        logs::logs,
        metrics::metrics,
        metrics::stream,
        terminals::attach,
        terminals::session,
        watches::allocation,
        watches::watch
    ),
    components(schemas(
        launches::LaunchEventJson,
        lattice_api::measurements::MetricsEventJson,
        logs::LogEventJson,
        terminals::CommandJson,
        terminals::EventJson,
        watches::WatchEventJson,
        watches::Watched
    ))
)]
struct Streams;
