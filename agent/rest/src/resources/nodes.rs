//! `/api/v1/nodes`.

use crate::calls::{Calls, Grpc};
use crate::input::{Params, Segments};
use crate::problem::Problem;
use axum::routing::get;
use axum::{Json, Router};
use lattice_api::json::NodeJson;
use lattice_api::v1;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, OpenApi, ToSchema};

#[derive(OpenApi)]
#[openapi(paths(list_nodes, get_node))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi()
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new().route("/api/v1/nodes", get(list_nodes)).route("/api/v1/nodes/{id}", get(get_node))
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
