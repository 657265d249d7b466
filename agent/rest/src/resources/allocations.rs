//! `/api/v1/allocations`.

mod answers;
mod checkpoints;
mod control;
mod steps;
mod tasks;

use crate::calls::{Calls, Grpc};
use crate::etag::{IfMatch, Tag};
use crate::idempotency::IdempotencyKey;
use crate::input::{Body, DryRunParams, NoParams, Params, Segments, StaleParams, list, pairs};
use crate::page::paged;
use crate::problem::Problem;
use crate::submission;
use answers::{AllocationState, Submitted};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use lattice_api::json::{AllocationJson, ExplanationJson};
use lattice_api::v1;
use lattice_api::v1::update_allocation_request::Walltime;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use tonic::Code;
use utoipa::{IntoParams, OpenApi, ToSchema};

/// The most allocations of a page.
const LIST_MAX: u32 = 1000;

#[derive(OpenApi)]
#[openapi(paths(submit_allocation, list_allocations, get_allocation, update_allocation, cancel_allocation, explain_allocation))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi()
        .merge_from(checkpoints::openapi())
        .merge_from(control::openapi())
        .merge_from(steps::openapi())
        .merge_from(tasks::openapi())
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new()
        .route("/api/v1/allocations", post(submit_allocation).get(list_allocations))
        .route("/api/v1/allocations/{id}", get(get_allocation).patch(update_allocation).delete(cancel_allocation))
        .route("/api/v1/allocations/{id}/explain", get(explain_allocation))
        .merge(checkpoints::routes())
        .merge(control::routes())
        .merge(steps::routes())
        .merge(tasks::routes())
}

/// An allocation to be submitted: the fields of a step of `lattice dag submit`, of which the name may be left out. A
/// `script` is the text of a script. `hold` (true or false) holds it from its submission on; `session` makes it a session,
/// which has no program. Without `chdir` it runs in `/`.
#[derive(Deserialize, ToSchema)]
#[schema(value_type = Object, example = json!({"entrypoint": ["./sim"], "nodes": 2, "walltime": "2h", "chdir": "/home/ada"}))]
pub(crate) struct SubmittedAllocation(Map<String, Value>);

/// Submits an allocation.
///
/// Durable when answered. With the header `Idempotency-Key` the request may be repeated: it is made once.
#[utoipa::path(
    post, path = "/api/v1/allocations", tag = "allocations",
    params(DryRunParams, ("Idempotency-Key" = Option<String>, Header, description = "The id of the allocation (a UUID), or any text")),
    request_body = SubmittedAllocation,
    responses((status = 201, description = "It is submitted", body = Submitted),
              (status = 200, description = "Of a dry run", body = Submitted))
)]
async fn submit_allocation(
    calls: Calls,
    key: IdempotencyKey,
    Params(params): Params<DryRunParams>,
    Body(SubmittedAllocation(body)): Body<SubmittedAllocation>,
) -> Result<Response, Problem> {
    let submission::Submission { spec, wait_for_nodes, warnings } = submission::read(move || submission::allocation(body)).await?;
    let id = key.id(&["allocation"], &calls).await?.to_string();
    let request = v1::SubmitRequest { id, spec: Some(spec), wait_for_nodes, dry_run: params.dry_run };
    let done = Box::pin(calls.allocations().submit(request)).await?.into_inner();
    Ok(Submitted::of(done, warnings).respond())
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Of all users, not only the caller's own.
    #[serde(default)]
    all: bool,
    /// Only those in these states, such as `Running,Pending`.
    state: Option<String>,
    /// Only those of this user.
    user: Option<String>,
    /// Only those with this name.
    name: Option<String>,
    /// Only those in this vCluster's queue.
    vcluster: Option<String>,
    /// Only those of this tenant.
    tenant: Option<String>,
    /// Only those of this project.
    project: Option<String>,
    /// Only those on this node.
    node: Option<String>,
    /// Only those with these tags, such as `campaign=42,owner=ada`.
    tag: Option<String>,
    /// The lanes of this task group, or the replicas of this service; its whole id.
    lanes_of: Option<String>,
    /// The most of a page: 1 to 1000.
    #[serde(default)]
    #[param(default = 100, maximum = 1000)]
    limit: u32,
    /// `next_page_token` of the page before.
    page_token: Option<String>,
    /// Accept the state of one member, which may be old.
    #[serde(default)]
    stale: bool,
}

/// A page of allocations.
#[derive(Serialize, ToSchema)]
struct AllocationsPage {
    allocations: Vec<AllocationJson>,
    /// Null: this is the last page. A page may have fewer than requested and not be the last.
    next_page_token: Option<String>,
    /// How old this may be, in milliseconds, if a stale answer was accepted.
    age_ms: Option<u64>,
}

/// Lists allocations, the newest first.
#[utoipa::path(
    get, path = "/api/v1/allocations", tag = "allocations", params(ListParams),
    responses((status = 200, description = "A page", body = AllocationsPage))
)]
async fn list_allocations(calls: Calls, uri: Uri, Params(params): Params<ListParams>) -> Result<Response, Problem> {
    let request = v1::ListAllocationsRequest {
        all_users: params.all || params.user.is_some(),
        states: list(params.state.as_deref()),
        limit: params.limit.min(LIST_MAX),
        page_token: params.page_token.unwrap_or_default(),
        stale: params.stale,
        user: params.user.unwrap_or_default(),
        name: params.name.unwrap_or_default(),
        vcluster: params.vcluster.unwrap_or_default(),
        tenant: params.tenant.unwrap_or_default(),
        project: params.project.unwrap_or_default(),
        node: params.node.unwrap_or_default(),
        lanes_of: params.lanes_of.unwrap_or_default(),
        tags: pairs("tag", params.tag.as_deref())?,
        without_outlook: false,
    };
    let page = calls.allocations().list(request).await?.into_inner();
    let next = page.next_page_token;
    let body = AllocationsPage {
        allocations: page.allocations.iter().map(AllocationJson::from).collect(),
        next_page_token: Some(next.clone()).filter(|token| !token.is_empty()),
        age_ms: page.age_ms,
    };
    Ok(paged(&uri, &next, &body))
}

/// One allocation.
///
/// The id may be the beginning of one, of at least 4 digits. `ID[3]` names a replica of a service.
#[utoipa::path(
    get, path = "/api/v1/allocations/{id}", tag = "allocations",
    params(("id" = String, Path, description = "The id, or the beginning of one"), StaleParams),
    responses((status = 200, description = "The allocation", body = AllocationJson,
        headers(("ETag" = String, description = "Of its settings"))))
)]
async fn get_allocation(
    calls: Calls,
    Segments(key): Segments<String>,
    Params(StaleParams { stale }): Params<StaleParams>,
) -> Result<Response, Problem> {
    let found = calls.allocations().get(v1::GetAllocationRequest { key, stale }).await?.into_inner();
    Ok(tag_of(&found)?.on(&AllocationJson::from(&found)))
}

/// The tag of what PATCH changes.
fn tag_of(a: &v1::Allocation) -> Result<Tag, Problem> {
    Tag::of(&(&a.id, a.version))
}

/// What is to change; the rest stays as it is.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AllocationChange {
    /// Counted from the beginning of the work.
    walltime_seconds: Option<u64>,
    /// So much more than now; negative: less. Not with `walltime_seconds`.
    walltime_more_seconds: Option<i64>,
    /// 0 to 10
    preemption_class: Option<u32>,
    name: Option<String>,
    /// Empty: none.
    project: Option<String>,
    /// These tags get these values, the others stay; null removes a tag.
    #[serde(default)]
    tags: BTreeMap<String, Option<String>>,
    /// Of scaled services only.
    replicas_min: Option<u32>,
    /// Of scaled services only.
    replicas_max: Option<u32>,
    /// Of services that scale by a metric only: a decimal number.
    scale_target: Option<String>,
    /// Of scaled services only: what decides how many replicas it has. Another metric than before needs a `scale_target`.
    scale_metric: Option<String>,
    /// Of services that scale by a metric only, in milliseconds.
    scale_interval_ms: Option<u64>,
    /// Of services that scale by a metric only, in milliseconds.
    scale_up_window_ms: Option<u64>,
    /// Of services that scale by a metric only, in milliseconds.
    scale_down_window_ms: Option<u64>,
    /// Of services that scale by a metric only: a decimal number, the part of the target.
    scale_down_threshold: Option<String>,
    /// Of services that scale by a metric only, in milliseconds.
    scale_cooldown_ms: Option<u64>,
    /// Of work that has not begun: it is not in its queue before this time, in milliseconds since 1970.
    begin_ms: Option<u64>,
    /// Of work that has not begun: it must have ended by this time, in milliseconds since 1970; 0: it has no deadline any
    /// more.
    deadline_ms: Option<u64>,
    /// How much later in its queue it is than equal work, in minutes of waiting. Operators alone may make it smaller,
    /// below 0.
    nice: Option<i32>,
    /// For people; empty: none.
    comment: Option<String>,
    /// Of work that has not begun: the reservation on whose nodes it begins; empty: none.
    reservation: Option<String>,
}

/// Changes an allocation that has not ended; or the project and the tags in the record of one that has.
///
/// Durable when answered. With `If-Match`, only if it has that tag.
#[utoipa::path(
    patch, path = "/api/v1/allocations/{id}", tag = "allocations",
    params(("id" = String, Path, description = "The id, or the beginning of one"),
           ("If-Match" = Option<String>, Header, description = "The ETag of what was read")),
    request_body = AllocationChange,
    responses((status = 200, description = "The allocation as it is now; of one that had ended, as it was then", body = AllocationJson),
              (status = 204, description = "The record of ended work is corrected, which the quorum does not know any more"))
)]
async fn update_allocation(
    calls: Calls,
    if_match: IfMatch,
    Segments(key): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
    Body(change): Body<AllocationChange>,
) -> Result<Response, Problem> {
    let walltime = match (change.walltime_seconds, change.walltime_more_seconds) {
        (Some(_), Some(_)) => return Err(Problem::invalid("give walltime_seconds or walltime_more_seconds, not both")),
        (Some(seconds), None) => Some(Walltime::WalltimeSeconds(seconds)),
        (None, Some(more)) => Some(Walltime::WalltimeMoreSeconds(more)),
        (None, None) => None,
    };
    let mut expected_version = None;
    if if_match.is_given() {
        let now = calls.allocations().get(v1::GetAllocationRequest { key: key.clone(), stale: false }).await?.into_inner();
        if_match.check(Some(&tag_of(&now)?))?;
        // The quorum compares it with the change: somebody else may be faster.
        expected_version = if_match.names_a_tag().then_some(now.version);
    }
    let request = v1::UpdateAllocationRequest {
        key,
        walltime,
        preemption_class: change.preemption_class,
        name: change.name,
        project: change.project,
        tags: change.tags.into_iter().map(|(name, value)| (name, value.unwrap_or_default())).collect(),
        replicas_min: change.replicas_min,
        replicas_max: change.replicas_max,
        scale_target: change.scale_target,
        scale_metric: change.scale_metric,
        scale_interval_ms: change.scale_interval_ms,
        scale_up_window_ms: change.scale_up_window_ms,
        scale_down_window_ms: change.scale_down_window_ms,
        scale_down_threshold: change.scale_down_threshold,
        scale_cooldown_ms: change.scale_cooldown_ms,
        begin_ms: change.begin_ms,
        deadline_ms: change.deadline_ms,
        nice: change.nice,
        comment: change.comment,
        reservation: change.reservation,
        expected_version,
    };
    let key = if_match.made(calls.allocations().update(request).await)?.into_inner().id;
    let now = match calls.allocations().get(v1::GetAllocationRequest { key, stale: false }).await {
        Ok(found) => found.into_inner(),
        // The quorum has forgotten it: the record in the accounting store is corrected.
        Err(error) if error.code() == Code::NotFound => return Ok(StatusCode::NO_CONTENT.into_response()),
        Err(error) => return Err(error.into()),
    };
    Ok(tag_of(&now)?.on(&AllocationJson::from(&now)))
}

/// Cancels an allocation.
///
/// Durable when answered; the allocation's state shows the progress. To cancel one that has ended changes nothing.
#[utoipa::path(
    delete, path = "/api/v1/allocations/{id}", tag = "allocations",
    params(("id" = String, Path, description = "The id, or the beginning of one")),
    responses((status = 200, description = "It is cancelled, or had ended before", body = AllocationState))
)]
async fn cancel_allocation(
    calls: Calls,
    Segments(key): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<AllocationState>, Problem> {
    let v1::CancelResponse { id, state } = calls.allocations().cancel(v1::CancelRequest { key }).await?.into_inner();
    Ok(Json(AllocationState { id, state }))
}

/// Why an allocation has its state.
#[utoipa::path(
    get, path = "/api/v1/allocations/{id}/explain", tag = "allocations",
    params(("id" = String, Path, description = "The id, or the beginning of one")),
    responses((status = 200, description = "The reasons", body = ExplanationJson))
)]
async fn explain_allocation(
    calls: Calls,
    Segments(key): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<ExplanationJson>, Problem> {
    let explained = calls.allocations().explain(v1::ExplainRequest { key }).await?.into_inner();
    Ok(Json(ExplanationJson::of(&explained, None)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_is_of_the_version_and_of_nothing_else() {
        let tag = |a: &v1::Allocation| tag_of(a).unwrap();
        let first = v1::Allocation { id: "1f".into(), name: "sim".into(), version: 1, ..Default::default() };
        let progress = v1::Allocation { state: "Running".into(), status_message: "x".into(), epoch: 4, ..first.clone() };
        assert_eq!(tag(&first), tag(&progress));
        assert_ne!(tag(&first), tag(&v1::Allocation { version: 2, ..first.clone() }));
        assert_ne!(tag(&first), tag(&v1::Allocation { id: "2f".into(), ..first.clone() }));
    }
}
