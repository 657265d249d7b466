//! `GET /allocations/{id}/metrics`, and `…/metrics/stream`: what is measured of an allocation, now or as it comes.

use super::events::{self, Message};
use crate::calls::Calls;
use crate::input::{Params, Segments, list};
use crate::problem::Problem;
use axum::Json;
use axum::response::Response;
use lattice_api::measurements::{MetricsEventJson, TopJson};
use lattice_api::v1;
use serde::Deserialize;
use tonic::Streaming;
use utoipa::IntoParams;

/// Which numbers, and over which period.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct MetricsQuery {
    /// The period of means and maxima in milliseconds; 0: 30 s, or the whole run of ended work.
    duration_ms: u64,
    /// Also each GPU.
    per_gpu: bool,
    /// Also each rank; takes a second.
    per_rank: bool,
}

/// Which numbers, and how often.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct MetricsStreamQuery {
    /// Between two numbers of a node, in milliseconds: 1,000 to 3,600,000; 0: 5,000.
    interval_ms: u64,
    /// No numbers: only alerts, and what is about nodes.
    alerts_only: bool,
    /// Only these numbers, named as in the answer of `…/metrics`, with commas.
    metrics: Option<String>,
}

/// What an allocation uses on each of its nodes.
#[utoipa::path(
    get,
    path = "/api/v1/allocations/{id}/metrics",
    operation_id = "getAllocationMetrics",
    tag = "allocations",
    params(("id" = String, Path, description = "The id, or the beginning of one"), MetricsQuery),
    responses(
        (status = 200, description = "As `lattice top -o json`", body = TopJson),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn metrics(
    calls: Calls,
    Segments(id): Segments<String>,
    Params(query): Params<MetricsQuery>,
) -> Result<Json<TopJson>, Problem> {
    let MetricsQuery { duration_ms, per_gpu, per_rank } = query;
    let top = calls.allocations().top(v1::TopRequest { key: id, duration_ms, per_gpu, per_rank }).await?;
    Ok(Json(TopJson::from(top.get_ref())))
}

/// What the nodes of an allocation report while it runs, as events.
///
/// Begins with all alerts that are raised, and ends with the allocation: the last event is `end`, or `error`. Each event is
/// a MetricsEvent, as a line of `lattice watch -o json`. A client that connects again gets the raised alerts again.
#[utoipa::path(
    get,
    path = "/api/v1/allocations/{id}/metrics/stream",
    operation_id = "streamAllocationMetrics",
    tag = "allocations",
    params(("id" = String, Path, description = "The id, or the beginning of one"), MetricsStreamQuery),
    responses(
        (status = 200, description = "Events", body = String, content_type = "text/event-stream"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn stream(
    calls: Calls,
    Segments(id): Segments<String>,
    Params(query): Params<MetricsStreamQuery>,
) -> Result<Response, Problem> {
    let MetricsStreamQuery { interval_ms, alerts_only, metrics } = query;
    let metrics = list(metrics.as_deref());
    let request = v1::StreamMetricsRequest { key: id, interval_ms, alerts_only, metrics };
    let stream = calls.allocations().stream_metrics(request).await?.into_inner();
    Ok(events::respond(futures::stream::unfold(Some(stream), next)))
}

/// The next event. After `end` or `error` there is none.
async fn next(stream: Option<Streaming<v1::MetricsEvent>>) -> Option<(Message, Option<Streaming<v1::MetricsEvent>>)> {
    let mut stream = stream?;
    loop {
        match stream.message().await {
            Ok(Some(event)) => {
                // An event of a later version.
                let Some(event) = MetricsEventJson::of(&event) else { continue };
                let message = Message::new(event.name(), &event);
                let is_last = matches!(event, MetricsEventJson::End { .. });
                return Some((message, (!is_last).then_some(stream)));
            }
            Ok(None) => return Some((Message::stopped(), None)),
            Err(status) => return Some((Message::error(status), None)),
        }
    }
}
