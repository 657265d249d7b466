//! `/api/v1/audit`, and its signed export.

use crate::calls::{Calls, Grpc};
use crate::input::{Params, list};
use crate::problem::Problem;
use crate::time::past;
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use futures::stream;
use lattice_api::audit::record_to_model;
use lattice_api::json::AuditRecordJson;
use lattice_api::v1;
use serde::{Deserialize, Serialize};
use tonic::{Status, Streaming};
use utoipa::{IntoParams, OpenApi, ToSchema};

/// Records in a page if the request has no limit.
const LIMIT_DEFAULT: u32 = 100;
/// What an export begins with: `docs/audit.md` has the format.
const EXPORT_BEGIN: &str = "{\"format\":\"lattice-audit-export/1\",\"pages\":[\n";
const EXPORT_END: &str = "\n]}\n";

#[derive(OpenApi)]
#[openapi(paths(query_audit, export_audit))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi()
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new().route("/api/v1/audit", get(query_audit)).route("/api/v1/audit/export", get(export_audit))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct AuditParams {
    /// The user who did it, or the owner of the allocation that it was done to.
    user: Option<String>,
    /// The id of an allocation, or the beginning of one.
    allocation: Option<String>,
    /// The job number of an allocation; not with `allocation`.
    #[serde(default)]
    job: u64,
    node: Option<String>,
    /// The id of the token with which it was requested: 16 hexadecimal digits.
    token: Option<String>,
    /// Any of these types, such as `AttachStarted,LogsRead`.
    r#type: Option<String>,
    /// From then on: RFC 3339, a day, or how long ago, such as `7d`.
    since: Option<String>,
    /// Before it.
    until: Option<String>,
    /// Only records after this number: `upto` of the page before.
    #[serde(default)]
    after: u64,
    /// The most of a page: 1 to 10000.
    #[param(default = 100, maximum = 10000)]
    limit: Option<u32>,
}

/// A page of the audit log.
#[derive(Serialize, ToSchema)]
struct AuditPage {
    /// In the order of the chain. A page may have none and not be the last.
    records: Vec<AuditRecordJson>,
    /// The next page begins after this number; in the last page it is `end`.
    upto: u64,
    end: u64,
    /// The first record on the members' disks.
    begins: u64,
    /// Where earlier records are.
    archive: Option<String>,
}

/// Queries the audit log, the oldest record first.
#[utoipa::path(
    get, path = "/api/v1/audit", tag = "audit", params(AuditParams),
    responses((status = 200, description = "A page", body = AuditPage))
)]
async fn query_audit(calls: Calls, Params(params): Params<AuditParams>) -> Result<Json<AuditPage>, Problem> {
    let filter = v1::AuditFilter {
        user: params.user.unwrap_or_default(),
        allocation: params.allocation.unwrap_or_default(),
        job: params.job,
        node: params.node.unwrap_or_default(),
        types: list(params.r#type.as_deref()),
        since_ms: past("since", params.since.as_deref())?,
        until_ms: past("until", params.until.as_deref())?,
        token: params.token.unwrap_or_default(),
    };
    let limit = params.limit.unwrap_or(LIMIT_DEFAULT);
    let request = v1::QueryAuditRequest { filter: Some(filter), after: params.after, limit };
    let page = calls.admin().query_audit(request).await?.into_inner();
    let record = |record: &v1::AuditRecord| {
        let record = record_to_model(record).map_err(|bad| Problem::internal(format!("the agent sent an invalid record: {bad}")))?;
        Ok(AuditRecordJson::from(&record))
    };
    Ok(Json(AuditPage {
        records: page.records.iter().map(record).collect::<Result<_, Problem>>()?,
        upto: page.upto,
        end: page.end,
        begins: page.begins,
        archive: Some(page.archive).filter(|archive| !archive.is_empty()),
    }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ExportParams {
    /// The user who did it, or the owner of the allocation that it was done to.
    user: Option<String>,
    /// The id of an allocation, or the beginning of one.
    allocation: Option<String>,
    /// The job number of an allocation; not with `allocation`.
    #[serde(default)]
    job: u64,
    node: Option<String>,
    /// The id of the token with which it was requested: 16 hexadecimal digits.
    token: Option<String>,
    /// Any of these types, such as `AttachStarted,LogsRead`.
    r#type: Option<String>,
    /// From then on: RFC 3339, a day, or how long ago, such as `7d`.
    since: Option<String>,
    /// Before it.
    until: Option<String>,
}

/// Exports the audit log: the signed bundle of `lattice audit export`, for system admins.
///
/// It is sent while it is made. If the connection breaks, the JSON is not complete: ask again.
#[utoipa::path(
    get, path = "/api/v1/audit/export", tag = "audit", params(ExportParams),
    responses((status = 200, description = "The bundle, which can be verified without Lattice", body = String, content_type = "application/json"))
)]
async fn export_audit(calls: Calls, Params(params): Params<ExportParams>) -> Result<Response, Problem> {
    let filter = v1::AuditFilter {
        user: params.user.unwrap_or_default(),
        allocation: params.allocation.unwrap_or_default(),
        job: params.job,
        node: params.node.unwrap_or_default(),
        types: list(params.r#type.as_deref()),
        since_ms: past("since", params.since.as_deref())?,
        until_ms: past("until", params.until.as_deref())?,
        token: params.token.unwrap_or_default(),
    };
    let mut pages = calls.admin().export_audit(v1::ExportAuditRequest { filter: Some(filter) }).await?.into_inner();
    // An error at once is answered as a problem.
    let first = pages.message().await?;
    let parts = stream::try_unfold((pages, ExportPart::First(first)), next_part);
    Ok(([(CONTENT_TYPE, "application/json")], Body::from_stream(parts)).into_response())
}

/// What follows in an export.
enum ExportPart {
    First(Option<v1::SignedAuditPage>),
    Rest,
    Nothing,
}

type Pages = Streaming<v1::SignedAuditPage>;

async fn next_part((mut pages, part): (Pages, ExportPart)) -> Result<Option<(Bytes, (Pages, ExportPart))>, Status> {
    let (text, next) = match part {
        ExportPart::First(Some(page)) => (format!("{EXPORT_BEGIN}{}", page_text(&page)), ExportPart::Rest),
        ExportPart::First(None) => (format!("{EXPORT_BEGIN}{EXPORT_END}"), ExportPart::Nothing),
        ExportPart::Rest => match pages.message().await? {
            Some(page) => (format!(",\n{}", page_text(&page)), ExportPart::Rest),
            None => (EXPORT_END.to_owned(), ExportPart::Nothing),
        },
        ExportPart::Nothing => return Ok(None),
    };
    Ok(Some((Bytes::from(text), (pages, next))))
}

fn page_text(page: &v1::SignedAuditPage) -> String {
    serde_json::json!({ "body": page.body, "member": page.member, "key": page.key, "signature": page.signature }).to_string()
}
