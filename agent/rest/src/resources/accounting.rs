//! `/api/v1/accounting`: ended work of any age, and the store that has it.

use crate::calls::{Calls, Grpc};
use crate::input::{NoParams, Params, list, pairs};
use crate::page::paged;
use crate::problem::Problem;
use crate::time::past;
use axum::http::Uri;
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use lattice_api::json::{AccountingStatusJson, HistoryJson};
use lattice_api::v1;
use lattice_cli_syntax::tasks::JobOrTask;
use serde::Deserialize;
use utoipa::{IntoParams, OpenApi};

/// How far back a question without `since` looks, as that of `lattice history`.
const SINCE: &str = "7d";

#[derive(OpenApi)]
#[openapi(paths(get_history, get_accounting_status))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi()
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new().route("/api/v1/accounting/history", get(get_history)).route("/api/v1/accounting/status", get(get_accounting_status))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct HistoryParams {
    /// Of all users, not only the caller's own.
    #[serde(default)]
    all: bool,
    /// Only work of this user.
    user: Option<String>,
    /// Only work of this tenant.
    tenant: Option<String>,
    /// Only work of this project.
    project: Option<String>,
    /// Only work of this vCluster.
    vcluster: Option<String>,
    /// Only work of this name; `*` stands for any text.
    name: Option<String>,
    /// Only work that ended in these states, such as `Failed,Cancelled`.
    state: Option<String>,
    /// Only work with these job numbers, such as `12,14`; `42_7` is one task of task group 42.
    job: Option<String>,
    /// Only work with these tags, such as `campaign=42,owner=ada`.
    tag: Option<String>,
    /// Ended at or after it: RFC 3339, a day, or how long ago, such as `90d`. With `job`, the default is the beginning.
    #[param(default = "7d")]
    since: Option<String>,
    /// Ended before it; left out: now.
    until: Option<String>,
    /// Answer one record for each user, tenant and project: the sums.
    #[serde(default)]
    sum: bool,
    /// The most of a page: 1 to 1000.
    #[serde(default)]
    #[param(default = 100, maximum = 1000)]
    limit: u32,
    /// `next_page_token` of the page before.
    page_token: Option<String>,
}

/// The jobs and tasks of a list such as `12,42_7`.
fn jobs(text: Option<&str>) -> Result<Vec<JobOrTask>, Problem> {
    list(text).iter().map(|part| part.parse::<JobOrTask>().map_err(|error| Problem::invalid(format!("job: {part:?}: {error}")))).collect()
}

/// Ended work of any age, the newest first.
#[utoipa::path(
    get, path = "/api/v1/accounting/history", tag = "accounting", params(HistoryParams),
    responses((status = 200, description = "A page, or the sums", body = HistoryJson))
)]
async fn get_history(calls: Calls, uri: Uri, Params(params): Params<HistoryParams>) -> Result<Response, Problem> {
    let named = jobs(params.job.as_deref())?;
    let (jobs, tasks) = JobOrTask::divided(&named);
    // Whoever names a job means it, whenever it ended.
    let since = params.since.as_deref().or(if named.is_empty() { Some(SINCE) } else { None });
    let request = v1::HistoryRequest {
        all_users: params.all,
        user: params.user.unwrap_or_default(),
        tenant: params.tenant.unwrap_or_default(),
        project: params.project.unwrap_or_default(),
        vcluster: params.vcluster.unwrap_or_default(),
        name: params.name.unwrap_or_default(),
        states: list(params.state.as_deref()),
        tags: pairs("tag", params.tag.as_deref())?,
        from_ms: past("since", since)?.unwrap_or_default(),
        until_ms: past("until", params.until.as_deref())?.unwrap_or_default(),
        limit: params.limit,
        page_token: params.page_token.unwrap_or_default(),
        sum: params.sum,
        jobs,
        tasks,
    };
    let page = calls.accounting().history(request).await?.into_inner();
    Ok(paged(&uri, &page.next_page_token, &HistoryJson::from(&page)))
}

/// The store of ended work.
#[utoipa::path(
    get, path = "/api/v1/accounting/status", tag = "accounting",
    responses((status = 200, description = "Its status", body = AccountingStatusJson))
)]
async fn get_accounting_status(calls: Calls, Params(NoParams {}): Params<NoParams>) -> Result<Json<AccountingStatusJson>, Problem> {
    let status = calls.accounting().status(v1::AccountingStatusRequest {}).await?.into_inner();
    Ok(Json(AccountingStatusJson::from(&status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_numbers_and_tasks_are_named_by_their_index() {
        let job = |job, task| JobOrTask { job, task };
        assert_eq!(jobs(Some("12, 42_7,42[8]")).unwrap(), [job(12, None), job(42, Some(7)), job(42, Some(8))]);
        assert!(jobs(None).unwrap().is_empty());
        assert!(format!("{:?}", jobs(Some("12,x")).unwrap_err()).contains("job: "));
    }
}
