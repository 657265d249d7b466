//! Streams as server-sent events (`text/event-stream`).
//!
//! ```text
//!   call ──message──▶ Event { event: name, id: position, data: one line of JSON } ──▶ client
//!     └── nothing for 15 s: a comment, so that the client and proxies see that the connection lives
//! ```
//!
//! The client's connection pulls: as long as it takes nothing, no message is read from the call, and nothing is queued here.
//! A stream that is complete ends with the event `end`, and one that failed with `error`, whose data is a problem as in other
//! answers. A connection that closes without either broke, and the client connects again.

use crate::problem::Problem;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt};
use serde::Serialize;
use std::convert::Infallible;
use std::time::Duration;
use tonic::Status;

/// How long a stream may be silent.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);
/// Keeps nginx, and others that know this header, from buffering a stream.
const NO_BUFFERING: (&str, &str) = ("x-accel-buffering", "no");
/// The header with the id of the last event that a client got.
const LAST_EVENT_ID: &str = "last-event-id";
/// How much of a wrong id is shown.
const ID_CHARACTERS_SHOWN_MAX: usize = 100;
/// The text of a stream that ends before what it follows has ended.
pub(super) const STOPPED: &str =
    "the agent stopped sending before the end\nhint: connect again, with the id of the last event as Last-Event-ID";

/// One event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    event: &'static str,
    id: Option<String>,
    data: String,
}

impl Message {
    /// `data` becomes one line of JSON.
    pub(super) fn new(event: &'static str, data: &impl Serialize) -> Self {
        // Only maps whose keys are no texts fail, and no data has those.
        Self { event, id: None, data: serde_json::to_string(data).unwrap_or_default() }
    }

    /// Sets the position of a client that has this event. The id has neither line ends nor null characters.
    pub(super) fn at(self, id: Option<String>) -> Self {
        Self { id, ..self }
    }

    /// The last event of a stream that failed.
    pub(super) fn error(status: Status) -> Self {
        Self::new("error", &Problem::from(status))
    }

    /// The last event of a stream that the agent closed before what it follows has ended: the agent stops.
    pub(super) fn stopped() -> Self {
        Self::error(Status::unavailable(STOPPED))
    }

    /// Its name, its id, and its data.
    #[cfg(test)]
    pub(super) fn parts(&self) -> (&'static str, Option<&str>, serde_json::Value) {
        (self.event, self.id.as_deref(), serde_json::from_str(&self.data).unwrap())
    }

    fn into_event(self) -> Event {
        let event = Event::default().event(self.event).data(self.data);
        match self.id {
            Some(id) => event.id(id),
            None => event,
        }
    }
}

/// The answer with these events.
pub(super) fn respond(messages: impl Stream<Item = Message> + Send + 'static) -> Response {
    respond_at(messages, HEARTBEAT_INTERVAL)
}

fn respond_at(messages: impl Stream<Item = Message> + Send + 'static, heartbeat: Duration) -> Response {
    let events = messages.map(|message| Ok::<_, Infallible>(message.into_event()));
    let keep_alive = KeepAlive::new().interval(heartbeat).text("heartbeat");
    ([NO_BUFFERING], Sse::new(events).keep_alive(keep_alive)).into_response()
}

/// The id of the last event that the client got; `None`: the client has none.
pub(super) fn last_event_id(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(id) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let id = id.to_str().map_err(|_| unknown_id("bytes that are no text"))?;
    Ok(Some(id).filter(|id| !id.is_empty()))
}

/// The refusal of an id that no event had.
pub(super) fn unknown_id(id: &str) -> Problem {
    let id: String = id.chars().take(ID_CHARACTERS_SHOWN_MAX).collect();
    Problem::invalid(format!("Last-Event-ID: {id:?} is not the id of an event of this stream"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    async fn text(response: Response) -> String {
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn an_event_has_a_name_an_id_and_one_line_of_json() {
        let messages = [
            Message::new("output", &serde_json::json!({"text": "a\nb"})).at(Some("3;0.0.out.0.4".to_owned())),
            Message::new("end", &serde_json::json!({"state": "Completed"})),
        ];
        let response = respond(futures::stream::iter(messages));
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!((header("content-type"), header("cache-control")), ("text/event-stream".into(), "no-cache".into()));
        let want = "event: output\ndata: {\"text\":\"a\\nb\"}\nid: 3;0.0.out.0.4\n\nevent: end\ndata: {\"state\":\"Completed\"}\n\n";
        assert_eq!(text(response).await, want);
    }

    #[tokio::test]
    async fn a_silent_stream_has_heartbeats() {
        let (end, ends) = tokio::sync::oneshot::channel::<()>();
        let late = futures::stream::once(async move {
            ends.await.unwrap();
            Message::new("end", &())
        });
        let mut body = respond_at(late, Duration::from_millis(20)).into_body();
        let (mut sent, mut end) = (String::new(), Some(end));
        while let Some(frame) = body.frame().await {
            sent.push_str(std::str::from_utf8(&frame.unwrap().into_data().unwrap()).unwrap());
            if sent.starts_with(": heartbeat\n\n: heartbeat\n\n")
                && let Some(end) = end.take()
            {
                end.send(()).unwrap();
            }
        }
        assert!(end.is_none() && sent.ends_with("event: end\ndata: null\n\n"), "{sent}");
    }

    #[tokio::test]
    async fn nothing_is_read_ahead_for_a_client_that_does_not_read() {
        let read = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = read.clone();
        let endless = futures::stream::repeat_with(move || {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Message::new("output", &"x")
        });
        let mut body = respond(endless).into_body();
        for _ in 0..3 {
            body.frame().await.unwrap().unwrap();
        }
        assert_eq!(read.load(std::sync::atomic::Ordering::Relaxed), 3);
    }

    #[test]
    fn an_empty_position_is_none() {
        let with = |id: &'static str| HeaderMap::from_iter([(LAST_EVENT_ID.parse().unwrap(), id.parse().unwrap())]);
        assert_eq!(last_event_id(&HeaderMap::new()).unwrap(), None);
        assert_eq!(last_event_id(&with("")).unwrap(), None);
        assert_eq!(last_event_id(&with("3;0.0.out.0.4")).unwrap(), Some("3;0.0.out.0.4"));
    }
}
