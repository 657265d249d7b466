//! `GET /allocations/{id}/attach`, and `GET /sessions/{id}/terminal`: a terminal in a running allocation, as a WebSocket with
//! the subprotocol `lattice.attach.v1`.
//!
//! ```text
//!   client ── binary: what is typed · text: {"type": "resize", "rows": 40, "columns": 120}, {"type": "end"} ──▶ agent
//!   client ◀── binary: output · text: started, notice, ended, error ── agent        every 15 s: a ping
//! ```
//!
//! A refusal is sent as a problem, before the connection becomes a WebSocket. When the program ends, the agent sends
//! the text `ended` with its exit code, and closes. When the client closes, or does not answer pings, the terminal is
//! hung up. Output waits for the client, in the terminal and not in memory.

use crate::calls::Calls;
use crate::input::{Params, Segments};
use crate::problem::Problem;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use lattice_api::v1;
use lattice_api::v1::attach_event::What as Shown;
use lattice_api::v1::attach_request::{EndOfInput, Start, What as Typed};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};
use utoipa::{IntoParams, ToSchema};

/// The subprotocol, which a client must name.
const PROTOCOL: &str = "lattice.attach.v1";
/// The longest message of a client, in bytes. The agent accepts twice as much at once.
const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// What may wait for a client that does not read, in bytes: one piece of output, and what the protocol adds.
const WRITE_BUFFER_BYTES_MAX: usize = 1 << 20;
/// How many pieces of input may wait for the terminal.
const INPUT_QUEUE_LEN_MAX: usize = 16;
/// How often the client is asked whether it lives.
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// How long a client may be silent, and how long it may take nothing.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the agent waits for the client's answer to its close.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(5);
/// The longest reason in a close frame, in bytes (RFC 6455, 5.5: 125 with the code).
const REASON_BYTES_MAX: usize = 123;
/// The close code "Unauthorized" of the IANA registry.
const UNAUTHORIZED: u16 = 3000;

/// Where the terminal is, and what runs in it.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct AttachQuery {
    /// One of the allocation's nodes; left out: the first one.
    node: String,
    /// What a shell runs; left out: the owner's shell, interactive.
    command: Option<String>,
    /// The type of the client's terminal.
    term: String,
    /// The size of the client's terminal.
    rows: u32,
    columns: u32,
}

impl Default for AttachQuery {
    fn default() -> Self {
        Self { node: String::new(), command: None, term: "xterm-256color".to_owned(), rows: 24, columns: 80 }
    }
}

impl AttachQuery {
    fn start(self, key: String) -> Start {
        let argv = self.command.map(|line| vec!["/bin/sh".to_owned(), "-c".to_owned(), line]).unwrap_or_default();
        let size = Some(v1::TerminalSize { rows: self.rows, columns: self.columns });
        Start { key, node: self.node, argv, term: self.term, size, input_is_terminal: true, output_is_terminal: true }
    }
}

/// A text message of the client.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
#[schema(as = TerminalCommand)]
pub(super) enum CommandJson {
    /// The client's terminal has another size.
    Resize { rows: u32, columns: u32 },
    /// No more input follows; output continues.
    End {},
}

/// A text message of the agent.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "event", rename_all = "lowercase")]
#[schema(as = TerminalEvent)]
pub(super) enum EventJson {
    /// The terminal is open.
    Started { allocation: String, node: String },
    /// For people: why the terminal will close, or why its program could not be started.
    Notice { text: String },
    /// The program has ended; nothing follows.
    Ended {
        /// Its exit code, 128 + signal, 126 or 127; also 129 if the terminal was hung up.
        code: i32,
    },
    /// The terminal is lost; nothing follows.
    Error(Problem),
}

/// A terminal in a running allocation (WebSocket).
///
/// The subprotocol is `lattice.attach.v1`. Binary messages are what is typed, and output. Text messages are a
/// TerminalCommand from the client, and a TerminalEvent from the agent. The token is in the header `Authorization`, as in
/// every request.
#[utoipa::path(
    get,
    path = "/api/v1/allocations/{id}/attach",
    operation_id = "attachTerminal",
    tag = "allocations",
    params(("id" = String, Path, description = "The id, or the beginning of one"), AttachQuery),
    responses(
        (status = 101, description = "The connection is a WebSocket now"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn attach(
    calls: Calls,
    Segments(id): Segments<String>,
    Params(query): Params<AttachQuery>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Problem> {
    let upgrade = accepted(upgrade)?;
    open(&calls, query.start(id), upgrade).await
}

/// A terminal in a session (WebSocket), as `attachTerminal`.
#[utoipa::path(
    get,
    path = "/api/v1/sessions/{id}/terminal",
    operation_id = "openSessionTerminal",
    tag = "sessions",
    params(("id" = String, Path, description = "The id of the session, or a unique prefix of at least 4 digits"), AttachQuery),
    responses(
        (status = 101, description = "The connection is a WebSocket now"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn session(
    calls: Calls,
    Segments(id): Segments<String>,
    Params(query): Params<AttachQuery>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Problem> {
    let upgrade = accepted(upgrade)?;
    let sessions = calls.sessions().list(v1::ListSessionsRequest { all_users: false }).await?.into_inner().sessions;
    let v1::InteractiveSession { allocation, node, .. } = named(sessions, &id)?;
    let start = query.start(allocation);
    let start = if start.node.is_empty() { Start { node, ..start } } else { start };
    open(&calls, start, upgrade).await
}

/// The session with this id.
fn named(sessions: Vec<v1::InteractiveSession>, id: &str) -> Result<v1::InteractiveSession, Problem> {
    let mut found = sessions.into_iter().filter(|session| id.len() >= 4 && session.id.starts_with(id));
    match (found.next(), found.next()) {
        (Some(session), None) => Ok(session),
        (Some(_), Some(_)) => Err(Problem::invalid(format!("{id} could be more than one session")).with_hint("give more digits")),
        (None, _) => Err(Problem::not_found(format!("you have no session {id:?}")).with_hint("`GET /api/v1/sessions` lists yours")),
    }
}

/// Refuses clients that do not speak the protocol.
fn accepted(upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>) -> Result<WebSocketUpgrade, Problem> {
    let refused =
        |why: &str| Problem::invalid(why).with_hint(format!("a terminal is a WebSocket over HTTP/1.1 with the subprotocol {PROTOCOL}"));
    let upgrade = upgrade.map_err(|rejection| refused(&rejection.body_text()))?;
    let upgrade = upgrade
        .protocols([PROTOCOL])
        .max_message_size(MESSAGE_BYTES_MAX)
        .max_frame_size(MESSAGE_BYTES_MAX)
        .max_write_buffer_size(WRITE_BUFFER_BYTES_MAX);
    if upgrade.selected_protocol().is_none() {
        return Err(refused("the subprotocol is not named"));
    }
    Ok(upgrade)
}

/// Opens the terminal, and then the WebSocket.
async fn open(calls: &Calls, start: Start, upgrade: WebSocketUpgrade) -> Result<Response, Problem> {
    let (input, requests) = mpsc::channel(INPUT_QUEUE_LEN_MAX);
    let first = v1::AttachRequest { what: Some(Typed::Start(start)) };
    input.try_send(first).map_err(|_| Problem::internal("the first message of a terminal cannot be sent"))?;
    let events = calls.allocations().attach(ReceiverStream::new(requests)).await?.into_inner();
    Ok(upgrade.on_upgrade(move |socket| relay(socket, input, events)))
}

/// Carries input and output until the program has ended, or one of both sides is gone.
async fn relay(socket: WebSocket, input: mpsc::Sender<v1::AttachRequest>, events: Streaming<v1::AttachEvent>) {
    let (mut to_client, mut from_client) = socket.split();
    let close = tokio::select! {
        close = show(&mut to_client, events) => close,
        close = type_on(&mut from_client, input) => close,
    };
    // The client may be gone already.
    if let Ok(Ok(())) = timeout(CLIENT_TIMEOUT, to_client.send(Message::Close(close))).await {
        // Reads further input: otherwise the connection is reset, and the client loses the last messages.
        let rest = async { while let Some(Ok(_)) = from_client.next().await {} };
        let _ = timeout(CLOSE_WAIT_MAX, rest).await;
    }
}

/// Sends output until the program has ended, or the client takes nothing more. Returns why it closes.
async fn show(to_client: &mut SplitSink<WebSocket, Message>, mut events: Streaming<v1::AttachEvent>) -> Option<CloseFrame> {
    let mut pings = interval(PING_INTERVAL);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let (message, close) = tokio::select! {
            event = events.message() => shown(event),
            _ = pings.tick() => (Some(Message::Ping(Bytes::new())), None),
        };
        if let Some(message) = message {
            match timeout(CLIENT_TIMEOUT, to_client.send(message)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return None,
            }
        }
        if close.is_some() {
            return close;
        }
    }
}

/// The message for an event, and whether the terminal closes with it.
fn shown(event: Result<Option<v1::AttachEvent>, Status>) -> (Option<Message>, Option<CloseFrame>) {
    let event = match event {
        Ok(Some(event)) => event,
        Ok(None) => return lost(Status::unavailable("the agent is being stopped: the terminal is closed")),
        Err(status) => return lost(status),
    };
    match event.what {
        Some(Shown::Output(bytes)) => (Some(Message::Binary(bytes.into())), None),
        Some(Shown::Started(started)) => (text(&EventJson::Started { allocation: started.allocation, node: started.node }), None),
        Some(Shown::Notice(notice)) => (text(&EventJson::Notice { text: notice }), None),
        Some(Shown::Ended(ended)) => {
            let reason = format!("exit {}", ended.code);
            (text(&EventJson::Ended { code: ended.code }), Some(close_frame(close_code::NORMAL, &reason)))
        }
        // An event of a later version.
        None => (None, None),
    }
}

/// The messages for a terminal that is lost.
fn lost(status: Status) -> (Option<Message>, Option<CloseFrame>) {
    let code = match status.code() {
        Code::Unauthenticated => UNAUTHORIZED,
        Code::Unavailable => close_code::AGAIN,
        _ => close_code::ERROR,
    };
    let frame = close_frame(code, status.message());
    (text(&EventJson::Error(status.into())), Some(frame))
}

fn close_frame(code: u16, reason: &str) -> CloseFrame {
    let line = reason.lines().next().unwrap_or_default();
    let end = (0..=line.len().min(REASON_BYTES_MAX)).rev().find(|at| line.is_char_boundary(*at)).unwrap_or(0);
    CloseFrame { code, reason: line[..end].into() }
}

fn text(event: &EventJson) -> Option<Message> {
    serde_json::to_string(event).ok().map(|text| Message::Text(text.into()))
}

/// Forwards what is typed until the client closes, is silent for too long, or breaks the protocol. Returns why it closes.
/// The end of the input's queue hangs the terminal up.
async fn type_on(from_client: &mut SplitStream<WebSocket>, input: mpsc::Sender<v1::AttachRequest>) -> Option<CloseFrame> {
    loop {
        let message = match timeout(CLIENT_TIMEOUT, from_client.next()).await {
            Ok(Some(Ok(message))) => message,
            // A client that is gone gets no reason.
            Ok(Some(Err(_)) | None) => return None,
            Err(_) => return Some(close_frame(close_code::POLICY, "the client does not answer pings")),
        };
        let what = match typed(message) {
            Ok(Some(what)) => what,
            Ok(None) => continue,
            Err(close) => return Some(close),
        };
        if input.send(v1::AttachRequest { what: Some(what) }).await.is_err() {
            // The events say why the terminal has ended.
            return std::future::pending().await;
        }
    }
}

/// What a message of the client says; `None`: nothing for the terminal.
fn typed(message: Message) -> Result<Option<Typed>, CloseFrame> {
    match message {
        Message::Binary(bytes) => Ok(Some(Typed::Input(bytes.into()))),
        Message::Text(text) => match serde_json::from_str(&text) {
            Ok(CommandJson::Resize { rows, columns }) => Ok(Some(Typed::Size(v1::TerminalSize { rows, columns }))),
            Ok(CommandJson::End {}) => Ok(Some(Typed::End(EndOfInput {}))),
            Err(error) => Err(close_frame(close_code::POLICY, &format!("a text message is not a command: {error}"))),
        },
        Message::Close(_) => Err(close_frame(close_code::NORMAL, "")),
        Message::Ping(_) | Message::Pong(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(what: Shown) -> Result<Option<v1::AttachEvent>, Status> {
        Ok(Some(v1::AttachEvent { what: Some(what) }))
    }

    #[test]
    fn the_client_types_bytes_and_commands_its_terminal_by_texts() {
        assert_eq!(typed(Message::Binary(Bytes::from_static(b"ls\n"))), Ok(Some(Typed::Input(b"ls\n".to_vec()))));
        let resize = typed(Message::Text(r#"{"type": "resize", "rows": 40, "columns": 120}"#.into()));
        assert_eq!(resize, Ok(Some(Typed::Size(v1::TerminalSize { rows: 40, columns: 120 }))));
        assert_eq!(typed(Message::Text(r#"{"type": "end"}"#.into())), Ok(Some(Typed::End(EndOfInput {}))));
        assert_eq!(typed(Message::Pong(Bytes::new())), Ok(None));
        for wrong in ["ls", r#"{"type": "close"}"#, r#"{"type": "resize", "rows": -1, "columns": 2}"#, r#"{"type": "end", "more": 1}"#] {
            let close = typed(Message::Text(wrong.into())).unwrap_err();
            assert_eq!(close.code, close_code::POLICY, "{wrong}");
        }
    }

    #[test]
    fn the_end_of_the_program_closes_with_its_exit_code() {
        let (message, close) = shown(event(Shown::Ended(v1::attach_event::Ended { code: 3 })));
        assert_eq!(message, Some(Message::Text(r#"{"event":"ended","code":3}"#.into())));
        assert_eq!(close, Some(CloseFrame { code: 1000, reason: "exit 3".into() }));
        let (message, close) = shown(event(Shown::Output(b"x".to_vec())));
        assert_eq!((message, close), (Some(Message::Binary(Bytes::from_static(b"x"))), None));
    }

    #[test]
    fn a_lost_terminal_says_why() {
        let code = |status| shown(Err(status)).1.unwrap().code;
        assert_eq!(code(Status::unauthenticated("the token has expired")), 3000);
        assert_eq!(code(Status::unavailable("n2 is gone")), 1013);
        assert_eq!(code(Status::internal("broken")), 1011);
        let (message, close) = shown(Ok(None));
        assert_eq!(close.unwrap().reason.as_str(), "the agent is being stopped: the terminal is closed");
        assert!(matches!(message, Some(Message::Text(text)) if text.contains("\"event\":\"error\"")));
    }

    #[test]
    fn a_reason_fits_into_its_frame() {
        let frame = close_frame(1011, &"é".repeat(100));
        assert_eq!((frame.reason.len(), frame.code), (122, 1011));
        assert_eq!(close_frame(1011, "one\ntwo").reason.as_str(), "one");
    }

    #[test]
    fn a_session_is_named_by_its_id() {
        let session = |id: &str| v1::InteractiveSession { id: id.into(), allocation: format!("of-{id}"), ..Default::default() };
        let all = || vec![session("11110000"), session("11112222")];
        assert_eq!(named(all(), "11112").unwrap().allocation, "of-11112222");
        let status = |id| serde_json::to_value(named(all(), id).unwrap_err()).unwrap()["status"].clone();
        assert_eq!([status("1111"), status("2222"), status("")], [400, 404, 404]);
    }

    #[test]
    fn a_terminal_without_a_command_has_the_owners_shell() {
        let start = AttachQuery::default().start("1f0c".into());
        assert_eq!((start.argv.len(), start.size), (0, Some(v1::TerminalSize { rows: 24, columns: 80 })));
        let query = AttachQuery { command: Some("top -b".into()), ..Default::default() };
        assert_eq!(query.start("1f0c".into()).argv, ["/bin/sh", "-c", "top -b"]);
    }
}
