//! `/api/v1/nodes`, and holds of nodes.

use crate::calls::{Calls, Grpc};
use crate::input::{Body, NoParams, Params, Segments};
use crate::problem::Problem;
use axum::routing::{get, post};
use axum::{Json, Router};
use lattice_api::json::NodeJson;
use lattice_api::v1;
use lattice_api::v1::hold_time::Time;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, OpenApi, ToSchema};

#[derive(OpenApi)]
#[openapi(paths(list_nodes, get_node, cordon_node, uncordon_node, drain_node, undrain_node))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi()
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new()
        .route("/api/v1/nodes", get(list_nodes))
        .route("/api/v1/nodes/{id}", get(get_node))
        .route("/api/v1/nodes/{id}/cordon", post(cordon_node))
        .route("/api/v1/nodes/{id}/uncordon", post(uncordon_node))
        .route("/api/v1/nodes/{id}/drain", post(drain_node))
        .route("/api/v1/nodes/{id}/undrain", post(undrain_node))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct NodesParams {
    /// Accept the state of one member, which may be old.
    #[serde(default)]
    stale: bool,
    /// If the quorum does not answer: accept states from gossip.
    #[serde(default)]
    or_gossip: bool,
}

/// The nodes of the cluster.
#[derive(Serialize, ToSchema)]
struct Nodes {
    nodes: Vec<NodeJson>,
    /// How old this may be, in milliseconds, if a stale answer was accepted.
    age_ms: Option<u64>,
    /// Why the quorum did not answer, if states are from gossip.
    quorum_error: Option<String>,
}

/// Lists the nodes.
#[utoipa::path(
    get, path = "/api/v1/nodes", tag = "nodes", params(NodesParams),
    responses((status = 200, description = "All nodes", body = Nodes))
)]
async fn list_nodes(calls: Calls, Params(NodesParams { stale, or_gossip }): Params<NodesParams>) -> Result<Json<Nodes>, Problem> {
    let found = calls.nodes().list(v1::ListNodesRequest { stale, or_gossip }).await?.into_inner();
    Ok(Json(Nodes {
        nodes: found.nodes.iter().map(NodeJson::from).collect(),
        age_ms: found.age_ms,
        quorum_error: Some(found.quorum_error).filter(|why| !why.is_empty()),
    }))
}

/// One node.
#[utoipa::path(
    get, path = "/api/v1/nodes/{id}", tag = "nodes", params(("id" = String, Path, description = "Its name"), NodesParams),
    responses((status = 200, description = "The node", body = NodeJson))
)]
async fn get_node(
    calls: Calls,
    Segments(id): Segments<String>,
    Params(NodesParams { stale, or_gossip }): Params<NodesParams>,
) -> Result<Json<NodeJson>, Problem> {
    let found = calls.nodes().list(v1::ListNodesRequest { stale, or_gossip }).await?.into_inner();
    let node = found.nodes.iter().find(|node| node.id == id);
    let missing = || Problem::not_found(format!("there is no node {id:?}")).with_hint("GET /api/v1/nodes lists them");
    Ok(Json(NodeJson::from(node.ok_or_else(missing)?)))
}

/// A cordon.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Cordon {
    /// For people, 1 to 256 bytes.
    reason: String,
    /// It ends by itself after so long. Not given: when it is lifted.
    seconds: Option<u64>,
}

/// A drain.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Drain {
    /// For people, 1 to 256 bytes.
    reason: String,
    /// Work that still runs after so long is ended. Not given: the drain waits for it.
    deadline_seconds: Option<u64>,
    /// Of an urgent drain: a UUIDv4, the same for the same request. Work that can save itself does so, and continues elsewhere.
    urgent_id: Option<String>,
}

/// The answer to a hold.
#[derive(Serialize, ToSchema)]
struct HoldAnswer {
    node: String,
    /// Of a lifted drain: the allocations that an urgent drain had already asked to save themselves.
    preempting: Vec<String>,
}

fn after(parameter: &str, seconds: Option<u64>) -> Result<Option<v1::HoldTime>, Problem> {
    let too_long = || Problem::invalid(format!("{parameter}: that is too long"));
    let ms = |seconds: u64| seconds.checked_mul(1000).ok_or_else(too_long);
    let time = seconds.map(ms).transpose()?;
    Ok(time.map(|ms| v1::HoldTime { time: Some(Time::AfterMs(ms)) }))
}

async fn hold(calls: &Calls, request: v1::SetHoldRequest) -> Result<Json<HoldAnswer>, Problem> {
    let node = request.node.clone();
    let preempting = calls.nodes().set_hold(request).await?.into_inner().preempting;
    Ok(Json(HoldAnswer { node, preempting }))
}

async fn lift(calls: &Calls, node: String, kind: &str) -> Result<Json<HoldAnswer>, Problem> {
    let request = v1::LiftHoldRequest { node: node.clone(), kind: kind.to_owned() };
    let preempting = calls.nodes().lift_hold(request).await?.into_inner().preempting;
    Ok(Json(HoldAnswer { node, preempting }))
}

/// Keeps new work off a node; what runs there continues. For operators.
#[utoipa::path(
    post, path = "/api/v1/nodes/{id}/cordon", tag = "nodes", params(("id" = String, Path, description = "Its name")),
    request_body = Cordon,
    responses((status = 200, description = "It is cordoned", body = HoldAnswer))
)]
async fn cordon_node(
    calls: Calls,
    Segments(node): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
    Body(Cordon { reason, seconds }): Body<Cordon>,
) -> Result<Json<HoldAnswer>, Problem> {
    let until = after("seconds", seconds)?;
    hold(&calls, v1::SetHoldRequest { node, kind: "cordon".to_owned(), reason, until, ..Default::default() }).await
}

/// Lifts a cordon. For operators.
#[utoipa::path(
    post, path = "/api/v1/nodes/{id}/uncordon", tag = "nodes", params(("id" = String, Path, description = "Its name")),
    responses((status = 200, description = "It is not cordoned", body = HoldAnswer))
)]
async fn uncordon_node(
    calls: Calls,
    Segments(node): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<HoldAnswer>, Problem> {
    lift(&calls, node, "cordon").await
}

/// Drains a node: it gets no new work, and is Drained once its work has ended. For operators.
#[utoipa::path(
    post, path = "/api/v1/nodes/{id}/drain", tag = "nodes", params(("id" = String, Path, description = "Its name")),
    request_body = Drain,
    responses((status = 200, description = "It is being drained", body = HoldAnswer))
)]
async fn drain_node(
    calls: Calls,
    Segments(node): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
    Body(Drain { reason, deadline_seconds, urgent_id }): Body<Drain>,
) -> Result<Json<HoldAnswer>, Problem> {
    let deadline = after("deadline_seconds", deadline_seconds)?;
    let urgent_id = urgent_id.unwrap_or_default();
    hold(&calls, v1::SetHoldRequest { node, kind: "drain".to_owned(), reason, until: None, deadline, urgent_id }).await
}

/// Lifts a drain. For operators.
#[utoipa::path(
    post, path = "/api/v1/nodes/{id}/undrain", tag = "nodes", params(("id" = String, Path, description = "Its name")),
    responses((status = 200, description = "It is not drained", body = HoldAnswer))
)]
async fn undrain_node(
    calls: Calls,
    Segments(node): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<HoldAnswer>, Problem> {
    lift(&calls, node, "drain").await
}
