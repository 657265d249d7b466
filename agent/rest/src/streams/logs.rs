//! `GET /allocations/{id}/logs`: the output of an allocation, as events, as lines of JSON, or as it is.

use super::events::{self, Message};
use super::output::{OutputJson, OutputStream};
use super::positions::Positions;
use crate::calls::Calls;
use crate::input::{Params, Segments};
use crate::problem::Problem;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use lattice_api::allocation::state_from_name;
use lattice_api::v1;
use lattice_cli_syntax::UsageError;
use lattice_cli_syntax::time::parse_past;
use lattice_model::time::Timestamp;
use lattice_model::{AllocationState, millis};
use serde::{Deserialize, Serialize};
use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::time::sleep;
use tonic::{Status, Streaming};
use utoipa::{IntoParams, ToSchema};

const EVENTS: &str = "text/event-stream";
const LINES: &str = "application/x-ndjson";
const TEXT: &str = "text/plain";
/// How long the quorum may take to know the end of work whose output is complete, and how often it is asked.
const END_WAIT_MAX: Duration = Duration::from_secs(10);
const END_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Which part of the output, and whether what follows is sent as well.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct LogsQuery {
    /// Send what follows, too, until the allocation has ended.
    follow: bool,
    /// Only this output.
    stream: Option<OutputStream>,
    /// Only this rank.
    rank: Option<u32>,
    /// Only this node.
    node: Option<String>,
    /// Only this many last lines of each output.
    tail: Option<u64>,
    /// Only what was written after this time: RFC 3339, a day, or how long ago, such as `10m`.
    since: Option<String>,
    /// Only what was written until this time.
    until: Option<String>,
    /// The output of this attempt, from 1; not with `follow`.
    attempt: Option<u32>,
    /// The output of the attempt before the present one; not with `follow`.
    previous: bool,
    /// Say when each piece was written.
    timestamps: bool,
    /// Of a task group: the output of the task with this index.
    task: Option<u32>,
}

impl LogsQuery {
    fn request(&self, key: String, positions: &Positions, now: Timestamp) -> Result<v1::LogsRequest, UsageError> {
        let past = |name: &str, text: &Option<String>| text.as_deref().map(|text| parse_past(name, text, now)).transpose();
        Ok(v1::LogsRequest {
            key,
            follow: self.follow,
            stream: self.stream.map_or_else(String::new, |stream| stream.name().to_owned()),
            rank: self.rank,
            node: self.node.clone().unwrap_or_default(),
            received: positions.received(),
            // A client that continues has the last lines.
            tail: self.tail.filter(|_| positions.is_empty()),
            since_ms: past("since", &self.since)?,
            until_ms: past("until", &self.until)?,
            being_submitted: false,
            attempt: self.attempt,
            previous: self.previous,
            timestamps: self.timestamps,
            task: self.task,
            launch: None,
        })
    }
}

/// One event of the output of an allocation.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "event", rename_all = "lowercase")]
#[schema(as = LogEvent)]
pub(super) enum LogEventJson {
    /// A piece of output.
    Output(OutputJson),
    /// For people: what is missing, or that another attempt begins.
    Notice { node: Option<String>, text: String },
    /// Everything was sent. With `follow`: the work has ended.
    End {
        /// The state of the allocation, or of the task; null without `follow`.
        state: Option<String>,
        exit_code: Option<i32>,
    },
    /// Nothing more can be sent.
    Error(Problem),
}

impl LogEventJson {
    fn name(&self) -> &'static str {
        match self {
            Self::Output(_) => "output",
            Self::Notice { .. } => "notice",
            Self::End { .. } => "end",
            Self::Error(_) => "error",
        }
    }
}

/// How output is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Events,
    Lines,
    Text,
}

impl Format {
    /// The first one that the client accepts. Without a preference: events if output is followed, else JSON lines.
    fn accepted(headers: &HeaderMap, follow: bool) -> Result<Self, Problem> {
        let usual = if follow { Self::Events } else { Self::Lines };
        let mut accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).peekable();
        if accepted.peek().is_none() {
            return Ok(usual);
        }
        let mut types = accepted.flat_map(|value| value.split(',')).map(|one| one.split(';').next().unwrap_or_default().trim());
        let known = |name: &str| match name {
            EVENTS => Some(Self::Events),
            LINES | "application/json" => Some(Self::Lines),
            TEXT | "text/*" => Some(Self::Text),
            "*/*" => Some(usual),
            _ => None,
        };
        let refused = || {
            let text = format!("Accept: output is sent as {EVENTS}, {LINES} or {TEXT}");
            Problem::new(StatusCode::NOT_ACCEPTABLE, "invalid_argument", text)
        };
        types.find_map(known).ok_or_else(refused)
    }
}

/// The output of an allocation.
///
/// As events (`text/event-stream`), lines of JSON (`application/x-ndjson`) or as the program wrote it (`text/plain`, both
/// outputs mixed, without notices). The `id` of an event is the position behind it: a client that connects again sends the
/// last one as `Last-Event-ID`, and gets what follows. The last event is `end` when everything was sent, or
/// `error`; a connection that closes without either broke.
#[utoipa::path(
    get,
    path = "/api/v1/allocations/{id}/logs",
    operation_id = "readAllocationLogs",
    tag = "allocations",
    params(
        ("id" = String, Path, description = "The id, or the beginning of one"),
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was received"),
        LogsQuery
    ),
    responses(
        (status = 200, description = "The output; each event is a LogEvent", content(
            (String = "text/event-stream"), (String = "application/x-ndjson"), (String = "text/plain")
        )),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn logs(
    calls: Calls,
    Segments(id): Segments<String>,
    Params(query): Params<LogsQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let format = Format::accepted(&headers, query.follow)?;
    let positions = match events::last_event_id(&headers)? {
        Some(id) => Positions::parse(id)?,
        None => Positions::default(),
    };
    let request = query.request(id.clone(), &positions, now())?;
    let stream = calls.allocations().logs(request).await?.into_inner();
    let reading = Reading { calls, key: id, follow: query.follow, task: query.task, stream, positions, is_over: false };
    Ok(respond(reading.parts(), format))
}

fn respond(parts: impl Stream<Item = Part> + Send + 'static, format: Format) -> Response {
    match format {
        Format::Events => events::respond(parts.map(|part| {
            let (id, event) = part.into_event();
            Message::new(event.name(), &event).at(id)
        })),
        Format::Lines => {
            let lines = parts.map(|part| {
                let mut line = serde_json::to_vec(&part.into_event().1)?;
                line.push(b'\n');
                Ok::<_, serde_json::Error>(Bytes::from(line))
            });
            ([(header::CONTENT_TYPE, LINES)], Body::from_stream(lines)).into_response()
        }
        Format::Text => {
            let pieces = parts.filter_map(|part| std::future::ready(part.into_bytes()));
            ([(header::CONTENT_TYPE, TEXT)], Body::from_stream(pieces)).into_response()
        }
    }
}

fn now() -> Timestamp {
    Timestamp(millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
}

/// What is sent.
enum Part {
    /// `id`: the position behind it.
    Chunk {
        chunk: v1::LogChunk,
        id: Option<String>,
    },
    End {
        state: Option<String>,
        exit_code: Option<i32>,
    },
    Failed(Status),
}

impl Part {
    /// The event, and its id.
    fn into_event(self) -> (Option<String>, LogEventJson) {
        match self {
            Self::Chunk { chunk: v1::LogChunk { node, notice, .. }, .. } if !notice.is_empty() => {
                (None, LogEventJson::Notice { node: Some(node).filter(|node| !node.is_empty()), text: notice })
            }
            Self::Chunk { chunk, id } => (id, LogEventJson::Output(chunk.into())),
            Self::End { state, exit_code } => (None, LogEventJson::End { state, exit_code }),
            Self::Failed(status) => (None, LogEventJson::Error(status.into())),
        }
    }

    /// The bytes that a program wrote. A stream that failed breaks the connection: otherwise it would look like the end
    /// of the output.
    fn into_bytes(self) -> Option<io::Result<Bytes>> {
        match self {
            Self::Chunk { chunk, .. } => Some(Ok(Bytes::from(chunk.data))).filter(|_| chunk.notice.is_empty()),
            Self::End { .. } => None,
            Self::Failed(status) => Some(Err(io::Error::other(status))),
        }
    }
}

/// Output that is being sent.
struct Reading {
    calls: Calls,
    key: String,
    follow: bool,
    task: Option<u32>,
    stream: Streaming<v1::LogChunk>,
    positions: Positions,
    is_over: bool,
}

impl Reading {
    fn parts(self) -> impl Stream<Item = Part> + Send + 'static {
        futures::stream::unfold(self, |mut reading| async move { Some((reading.next().await?, reading)) })
    }

    async fn next(&mut self) -> Option<Part> {
        if self.is_over {
            return None;
        }
        match self.stream.message().await {
            Ok(Some(chunk)) => {
                self.positions.record(&chunk);
                let id = if chunk.notice.is_empty() { self.positions.id() } else { None };
                Some(Part::Chunk { chunk, id })
            }
            Ok(None) => {
                self.is_over = true;
                Some(self.end().await)
            }
            Err(status) => {
                self.is_over = true;
                Some(Part::Failed(status))
            }
        }
    }

    /// The last part. An agent that stops closes its streams as if they were complete, so work that is followed must
    /// have ended. The quorum knows of that end a moment after the last output.
    async fn end(&self) -> Part {
        if !self.follow {
            return Part::End { state: None, exit_code: None };
        }
        let begin = Instant::now();
        loop {
            match self.outcome().await {
                Ok((state, exit_code)) if state_from_name(&state).is_ok_and(AllocationState::is_terminal) => {
                    return Part::End { state: Some(state), exit_code };
                }
                Ok(_) if begin.elapsed() < END_WAIT_MAX => sleep(END_CHECK_INTERVAL).await,
                Ok(_) => return Part::Failed(Status::unavailable(events::STOPPED)),
                Err(status) => return Part::Failed(status),
            }
        }
    }

    /// The state and the exit code of the allocation, or of the task.
    async fn outcome(&self) -> Result<(String, Option<i32>), Status> {
        let key = self.key.clone();
        if self.task.is_none() {
            let now = self.calls.allocations().get(v1::GetAllocationRequest { key, stale: false }).await?.into_inner();
            return Ok((now.state, now.exit_code));
        }
        let request = v1::GetTasksRequest { key, index: self.task, limit: 1, stale: false };
        let found = self.calls.allocations().get_tasks(request).await?.into_inner().ranges.into_iter().next();
        Ok(found.map_or_else(Default::default, |task| (task.state, task.exit_code)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    fn accepted(accept: Option<&str>, follow: bool) -> Result<Format, Problem> {
        let headers = accept.map(|accept| (header::ACCEPT, accept.parse().unwrap()));
        Format::accepted(&HeaderMap::from_iter(headers), follow)
    }

    #[test]
    fn the_client_chooses_how_output_is_sent() {
        assert_eq!(accepted(None, true), Ok(Format::Events));
        assert_eq!(accepted(None, false), Ok(Format::Lines));
        assert_eq!(accepted(Some("*/*"), true), Ok(Format::Events));
        assert_eq!(accepted(Some("text/html, text/plain;q=0.5, */*"), false), Ok(Format::Text));
        assert_eq!(accepted(Some("application/x-ndjson"), true), Ok(Format::Lines));
        assert_eq!(accepted(Some("text/event-stream"), false), Ok(Format::Events));
        let refused = "Accept: output is sent as text/event-stream, application/x-ndjson or text/plain";
        assert_eq!(accepted(Some("image/png"), false), Err(Problem::new(StatusCode::NOT_ACCEPTABLE, "invalid_argument", refused)));
    }

    #[test]
    fn a_client_that_continues_gets_no_last_lines_again() {
        let query = LogsQuery { tail: Some(5), since: Some("10s".into()), stream: Some(OutputStream::Stderr), ..Default::default() };
        let begins = query.request("1f0c".into(), &Positions::default(), Timestamp(60_000)).unwrap();
        assert_eq!((begins.tail, begins.since_ms, begins.stream.as_str()), (Some(5), Some(50_000), "stderr"));
        let continues = query.request("1f0c".into(), &Positions::parse("3;0.0.out.0.4").unwrap(), Timestamp(0)).unwrap();
        assert_eq!((continues.tail, continues.received.len()), (None, 1));
        let wrong = LogsQuery { until: Some("soon".into()), ..Default::default() };
        let refused = wrong.request("1f0c".into(), &Positions::default(), Timestamp(0)).unwrap_err();
        assert_eq!(refused.what, "until: \"soon\" is not a time");
    }

    fn output(data: &[u8]) -> Part {
        let chunk = v1::LogChunk { node: "n1".into(), data: data.to_vec(), epoch: 1, bytes: 4, ..Default::default() };
        Part::Chunk { chunk, id: Some("1;0.0.out.0.4".into()) }
    }

    fn all() -> Vec<Part> {
        let notice = v1::LogChunk { notice: "it began again".into(), ..Default::default() };
        let end = Part::End { state: Some("Completed".into()), exit_code: Some(0) };
        vec![output(b"a\n"), Part::Chunk { chunk: notice, id: None }, output(&[0xff, b'\n']), end]
    }

    #[tokio::test]
    async fn output_is_sent_in_each_format() {
        let sent = async |format| {
            let response = respond(futures::stream::iter(all()), format);
            response.into_body().collect().await.unwrap().to_bytes()
        };
        assert_eq!(sent(Format::Text).await, b"a\n\xff\n".as_slice());
        let lines = sent(Format::Lines).await;
        let lines: Vec<serde_json::Value> =
            lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(|line| serde_json::from_slice(line).unwrap()).collect();
        assert_eq!(lines.len(), 4);
        assert_eq!((&lines[0]["event"], &lines[0]["text"], &lines[2]["base64"]), (&"output".into(), &"a\n".into(), &"/wo=".into()));
        assert_eq!((&lines[1]["event"], &lines[3]["state"]), (&"notice".into(), &"Completed".into()));
        let events = sent(Format::Events).await;
        let events = String::from_utf8(events.to_vec()).unwrap();
        assert!(events.starts_with("event: output\ndata: {\"event\":\"output\",\"node\":\"n1\""), "{events}");
        assert!(events.contains("\nid: 1;0.0.out.0.4\n") && events.contains("event: end\ndata: {\"event\":\"end\""), "{events}");
    }

    #[tokio::test]
    async fn text_that_broke_off_is_no_complete_answer() {
        let failed = Part::Failed(Status::unavailable("the node does not answer"));
        let response = respond(futures::stream::iter([output(b"a\n"), failed]), Format::Text);
        assert!(response.into_body().collect().await.is_err());
    }
}
