//! `/api/v1/vclusters`.

use crate::calls::{Calls, Grpc};
use crate::etag::{IfMatch, Tag};
use crate::input::{Body, NoParams, Params, Segments};
use crate::problem::Problem;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use lattice_api::json::{AllocationJson, VClusterJson};
use lattice_api::v1;
use lattice_api::v1::set_v_cluster_request::NodeSet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::{OpenApi, ToSchema};

#[derive(OpenApi)]
#[openapi(paths(list_vclusters, get_vcluster, get_queue, put_vcluster, put_weights, delete_vcluster))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi()
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new()
        .route("/api/v1/vclusters", get(list_vclusters))
        .route("/api/v1/vclusters/{name}", get(get_vcluster).put(put_vcluster).delete(delete_vcluster))
        .route("/api/v1/vclusters/{name}/queue", get(get_queue))
        .route("/api/v1/vclusters/{name}/weights", put(put_weights))
}

/// The queues of the cluster.
#[derive(Serialize, ToSchema)]
struct VClusters {
    /// `default` first, then by name.
    vclusters: Vec<VClusterJson>,
}

/// Lists the queues.
#[utoipa::path(
    get, path = "/api/v1/vclusters", tag = "vclusters",
    responses((status = 200, description = "All of them", body = VClusters))
)]
async fn list_vclusters(calls: Calls, Params(NoParams {}): Params<NoParams>) -> Result<Json<VClusters>, Problem> {
    Ok(Json(VClusters { vclusters: all(&calls).await?.iter().map(VClusterJson::from).collect() }))
}

async fn all(calls: &Calls) -> Result<Vec<v1::VCluster>, Problem> {
    Ok(calls.vclusters().list(v1::ListVClustersRequest {}).await?.into_inner().vclusters)
}

async fn find(calls: &Calls, name: &str) -> Result<Option<v1::VCluster>, Problem> {
    Ok(all(calls).await?.into_iter().find(|vcluster| vcluster.name == name))
}

fn missing(name: &str) -> Problem {
    Problem::not_found(format!("there is no vCluster {name:?}")).with_hint("GET /api/v1/vclusters lists them")
}

/// The tag of the settings, not of the work in the queue.
fn tag_of(vcluster: &v1::VCluster) -> Result<Tag, Problem> {
    Tag::of(&VClusterJson::from(&v1::VCluster { pending: 0, running: 0, served_by: String::new(), ..vcluster.clone() }))
}

/// The queue of this name, with a status.
async fn show(calls: &Calls, name: &str, status: StatusCode) -> Result<Response, Problem> {
    let vcluster = find(calls, name).await?.ok_or_else(|| missing(name))?;
    Ok((status, tag_of(&vcluster)?.on(&VClusterJson::from(&vcluster))).into_response())
}

/// One queue.
#[utoipa::path(
    get, path = "/api/v1/vclusters/{name}", tag = "vclusters", params(("name" = String, Path, description = "Its name")),
    responses((status = 200, description = "The queue", body = VClusterJson, headers(("ETag" = String, description = "Of its settings"))))
)]
async fn get_vcluster(calls: Calls, Segments(name): Segments<String>, Params(NoParams {}): Params<NoParams>) -> Result<Response, Problem> {
    show(&calls, &name, StatusCode::OK).await
}

/// What waits in a queue.
#[derive(Serialize, ToSchema)]
struct Queue {
    /// The next one first, at most 1000.
    allocations: Vec<AllocationJson>,
    /// How many wait in all.
    waiting: u32,
}

/// What waits in a queue, in the order in which it is served.
#[utoipa::path(
    get, path = "/api/v1/vclusters/{name}/queue", tag = "vclusters", params(("name" = String, Path, description = "Of the queue")),
    responses((status = 200, description = "What waits", body = Queue))
)]
async fn get_queue(calls: Calls, Segments(name): Segments<String>, Params(NoParams {}): Params<NoParams>) -> Result<Json<Queue>, Problem> {
    let queue = calls.vclusters().queue(v1::VClusterQueueRequest { name }).await?.into_inner();
    Ok(Json(Queue { allocations: queue.allocations.iter().map(AllocationJson::from).collect(), waiting: queue.waiting }))
}

/// The settings of a queue. One that is left out stays as it is, or is the default of a new queue.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct VClusterSettings {
    /// hpc-backfill, ml-training, service-bin-pack, interactive-fifo or fifo; of a new queue only.
    scheduler: Option<String>,
    /// It accepts only work of this tenant; null: of all.
    #[serde(default, deserialize_with = "crate::input::given")]
    #[schema(value_type = Option<String>)]
    tenant: Option<Option<String>>,
    /// All of its own nodes; empty: it has none, and its work runs on those of the default queue.
    nodes: Option<Vec<String>>,
    /// The shortest time between two rounds of its scheduler, at most 600000.
    cycle_interval_ms: Option<u64>,
    /// Its work may use nodes that other queues lend.
    borrows: Option<bool>,
    /// The longest walltime of others' work on its idle nodes; null: it lends none.
    #[serde(default, deserialize_with = "crate::input::given")]
    #[schema(value_type = Option<u64>)]
    lend_ms: Option<Option<u64>>,
}

/// Sets the settings of a queue, and creates it if there is none.
///
/// With `If-Match`, only if it has that tag.
#[utoipa::path(
    put, path = "/api/v1/vclusters/{name}", tag = "vclusters",
    params(("name" = String, Path, description = "Its name"),
           ("If-Match" = Option<String>, Header, description = "The ETag of what was read"),
           ("If-None-Match" = Option<String>, Header, description = "`*`: only create")),
    request_body = VClusterSettings,
    responses((status = 200, description = "It is changed", body = VClusterJson),
              (status = 201, description = "It is created", body = VClusterJson))
)]
async fn put_vcluster(
    calls: Calls,
    if_match: IfMatch,
    Segments(name): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
    Body(settings): Body<VClusterSettings>,
) -> Result<Response, Problem> {
    let before = find(&calls, &name).await?;
    if_match.check(before.as_ref().map(tag_of).transpose()?.as_ref())?;
    let VClusterSettings { scheduler, tenant, nodes, cycle_interval_ms, borrows, lend_ms } = settings;
    let tenant = tenant.map(Option::unwrap_or_default);
    let lend_ms = lend_ms.map(Option::unwrap_or_default);
    let Some(before) = before else {
        let scheduler = scheduler.ok_or_else(|| Problem::invalid(format!("vCluster {name:?} is new: scheduler is needed")))?;
        let request = v1::CreateVClusterRequest {
            name: name.clone(),
            scheduler,
            tenant: tenant.unwrap_or_default(),
            nodes: nodes.unwrap_or_default(),
            cycle_interval_ms: cycle_interval_ms.unwrap_or_default(),
            borrows: borrows.unwrap_or_default(),
            lend_ms: lend_ms.unwrap_or_default(),
        };
        if_match.made(calls.vclusters().create(request).await)?;
        return show(&calls, &name, StatusCode::CREATED).await;
    };
    if let Some(other) = scheduler.filter(|given| *given != before.scheduler) {
        let text = format!("vCluster {name:?} has the scheduler {}: it cannot be changed to {other}", before.scheduler);
        return Err(Problem::new(StatusCode::CONFLICT, "failed_precondition", text).with_hint("delete it and create it anew"));
    }
    let nodes = nodes.map(|nodes| NodeSet { nodes });
    let is_change = tenant.is_some() || nodes.is_some() || cycle_interval_ms.is_some() || borrows.is_some() || lend_ms.is_some();
    if is_change {
        let expected_version = if_match.names_a_tag().then_some(before.version);
        let name = name.clone();
        let request = v1::SetVClusterRequest { name, tenant, nodes, cycle_interval_ms, borrows, lend_ms, expected_version };
        if_match.made(calls.vclusters().set_config(request).await)?;
    }
    show(&calls, &name, StatusCode::OK).await
}

/// The weights of a queue's score.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Weights {
    /// First all weights are those of this profile: hpc-batch, ml-training, service, sensitive, interactive, or default.
    #[serde(default)]
    profile: String,
    /// Then these are set: 0 to 1000, with at most six decimals.
    #[serde(default)]
    weights: BTreeMap<String, f64>,
}

/// Sets the weights of a queue's score.
///
/// With `If-Match`, only if the queue has that tag.
#[utoipa::path(
    put, path = "/api/v1/vclusters/{name}/weights", tag = "vclusters",
    params(("name" = String, Path, description = "Of the queue"),
           ("If-Match" = Option<String>, Header, description = "The ETag of what was read")),
    request_body = Weights,
    responses((status = 200, description = "They are set", body = VClusterJson))
)]
async fn put_weights(
    calls: Calls,
    if_match: IfMatch,
    Segments(name): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
    Body(Weights { profile, weights }): Body<Weights>,
) -> Result<Response, Problem> {
    let weights = weights.into_iter().map(|(factor, weight)| v1::Weight { factor, weight }).collect();
    let mut expected_version = None;
    if if_match.is_given() {
        let before = find(&calls, &name).await?.ok_or_else(|| missing(&name))?;
        if_match.check(Some(&tag_of(&before)?))?;
        expected_version = if_match.names_a_tag().then_some(before.version);
    }
    let request = v1::SetWeightsRequest { name: name.clone(), profile, weights, expected_version };
    if_match.made(calls.vclusters().set_weights(request).await)?;
    show(&calls, &name, StatusCode::OK).await
}

/// Deletes a queue that has no work; its nodes belong to the default queue then.
#[utoipa::path(
    delete, path = "/api/v1/vclusters/{name}", tag = "vclusters", params(("name" = String, Path, description = "Its name")),
    responses((status = 204, description = "It is deleted"))
)]
async fn delete_vcluster(
    calls: Calls,
    Segments(name): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<StatusCode, Problem> {
    calls.vclusters().delete(v1::DeleteVClusterRequest { name }).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_is_of_the_settings_alone() {
        let queue = v1::VCluster { name: "gpu".into(), scheduler: "hpc-backfill".into(), ..Default::default() };
        let busy = v1::VCluster { pending: 2, running: 5, served_by: "n1".into(), ..queue.clone() };
        assert_eq!(tag_of(&queue).unwrap(), tag_of(&busy).unwrap());
        assert_ne!(tag_of(&queue).unwrap(), tag_of(&v1::VCluster { borrows: true, ..queue.clone() }).unwrap());
    }

    #[test]
    fn null_is_a_change_and_what_is_left_out_is_none() {
        let read = |text: &str| serde_json::from_str::<VClusterSettings>(text).unwrap();
        assert_eq!(read("{\"tenant\": null}").tenant, Some(None));
        assert_eq!(read("{}").tenant, None);
        assert!(serde_json::from_str::<VClusterSettings>("{\"tenants\": null}").is_err());
    }
}
