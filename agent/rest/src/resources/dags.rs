//! `/api/v1/dags`.

use crate::calls::{Calls, Grpc};
use crate::idempotency::IdempotencyKey;
use crate::input::{Body, DryRunParams, NoParams, Params, Segments, StaleParams, list};
use crate::page::paged;
use crate::problem::Problem;
use crate::submission;
use axum::http::header::LOCATION;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use lattice_api::json::{DagJson, DagSummaryJson};
use lattice_api::v1;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, OpenApi, ToSchema};

#[derive(OpenApi)]
#[openapi(paths(submit_dag, list_dags, get_dag, cancel_dag))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi()
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new().route("/api/v1/dags", post(submit_dag).get(list_dags)).route("/api/v1/dags/{id}", get(get_dag).delete(cancel_dag))
}

/// A DAG to be submitted, as the file of `lattice dag submit` has it; a `script` is the text of a script.
#[derive(Deserialize, ToSchema)]
#[schema(value_type = Object, example = json!({"name": "flow", "allocations": [{"name": "a", "entrypoint": "true"}]}))]
struct SubmittedDag(Map<String, Value>);

/// A DAG that was submitted, or only checked.
#[derive(Serialize, ToSchema)]
struct DagSubmitted {
    dag: DagJson,
    warnings: Vec<String>,
}

/// Submits a DAG: all of its allocations, or none.
///
/// Durable when answered. With the header `Idempotency-Key` the request may be repeated: it is made once.
#[utoipa::path(
    post, path = "/api/v1/dags", tag = "dags",
    params(DryRunParams, ("Idempotency-Key" = Option<String>, Header, description = "The id of the DAG (a UUID), or any text")),
    request_body = SubmittedDag,
    responses((status = 201, description = "It is submitted", body = DagSubmitted),
              (status = 200, description = "Of a dry run", body = DagSubmitted))
)]
async fn submit_dag(
    calls: Calls,
    key: IdempotencyKey,
    Params(DryRunParams { dry_run }): Params<DryRunParams>,
    Body(SubmittedDag(body)): Body<SubmittedDag>,
) -> Result<Response, Problem> {
    let id = key.id(&["dag"], &calls).await?;
    let (request, mut warnings) = submission::read(move || submission::dag(body, id, dry_run)).await?;
    let done = Box::pin(calls.dags().submit(request)).await?.into_inner();
    warnings.extend(done.warnings);
    let dag = done.dag.unwrap_or_default();
    let answer = Json(DagSubmitted { dag: DagJson::from(&dag), warnings });
    if dry_run {
        return Ok(answer.into_response());
    }
    Ok((StatusCode::CREATED, [(LOCATION, format!("/api/v1/dags/{id}"))], answer).into_response())
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Of all users, not only the caller's own.
    #[serde(default)]
    all: bool,
    /// Only those of this user.
    user: Option<String>,
    /// Only those in these states, such as `Running,Failed`.
    state: Option<String>,
    /// The most of a page: 1 to 1000.
    #[serde(default)]
    #[param(default = 100, maximum = 1000)]
    limit: u32,
    /// `next_page_token` of the page before.
    page_token: Option<String>,
}

/// A page of DAGs.
#[derive(Serialize, ToSchema)]
struct DagsPage {
    /// The newest first, without their steps.
    dags: Vec<DagSummaryJson>,
    /// Null: this is the last page.
    next_page_token: Option<String>,
}

/// Lists DAGs, the newest first.
#[utoipa::path(
    get, path = "/api/v1/dags", tag = "dags", params(ListParams),
    responses((status = 200, description = "A page", body = DagsPage))
)]
async fn list_dags(calls: Calls, uri: Uri, Params(params): Params<ListParams>) -> Result<Response, Problem> {
    let request = v1::ListDagsRequest {
        all_users: params.all || params.user.is_some(),
        user: params.user.unwrap_or_default(),
        states: list(params.state.as_deref()),
        limit: params.limit,
        page_token: params.page_token.unwrap_or_default(),
    };
    let page = calls.dags().list(request).await?.into_inner();
    let next = page.next_page_token;
    let body = DagsPage {
        dags: page.dags.iter().map(DagSummaryJson::from).collect(),
        next_page_token: Some(next.clone()).filter(|token| !token.is_empty()),
    };
    Ok(paged(&uri, &next, &body))
}

/// One DAG with its steps.
#[utoipa::path(
    get, path = "/api/v1/dags/{id}", tag = "dags",
    params(("id" = String, Path, description = "The id, or the beginning of one"), StaleParams),
    responses((status = 200, description = "The DAG", body = DagJson))
)]
async fn get_dag(
    calls: Calls,
    Segments(key): Segments<String>,
    Params(StaleParams { stale }): Params<StaleParams>,
) -> Result<Json<DagJson>, Problem> {
    let dag = calls.dags().get(v1::GetDagRequest { key, stale }).await?.into_inner();
    Ok(Json(DagJson::from(&dag)))
}

/// A DAG that was cancelled.
#[derive(Serialize, ToSchema)]
struct CancelledDag {
    id: String,
    /// How many steps had not ended.
    steps: u32,
    /// If all had ended before: its state.
    state: Option<String>,
}

/// Cancels all steps of a DAG that have not ended.
#[utoipa::path(
    delete, path = "/api/v1/dags/{id}", tag = "dags", params(("id" = String, Path, description = "The id, or the beginning of one")),
    responses((status = 200, description = "How many steps had not ended", body = CancelledDag))
)]
async fn cancel_dag(
    calls: Calls,
    Segments(key): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<CancelledDag>, Problem> {
    let v1::CancelDagResponse { id, steps, state } = calls.dags().cancel(v1::CancelDagRequest { key }).await?.into_inner();
    Ok(Json(CancelledDag { id, steps, state: Some(state).filter(|state| !state.is_empty()) }))
}
