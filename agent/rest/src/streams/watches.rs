//! `GET /allocations/{id}/watch`, and `GET /watch`: the state of one allocation, or of nodes, allocations or leases, as
//! events.
//!
//! ```text
//!   GET /watch ─▶ list (all objects) ─▶ change ─▶ change …      id: GENERATION.REVISION
//!   again with Last-Event-ID ─▶ the changes since then; a list if the quorum has forgotten them
//! ```
//!
//! A large event comes in parts; all but the last have `more`, and only the last one has an id.

use super::events::{self, Message};
use crate::calls::Calls;
use crate::input::{NoParams, Params, Segments};
use crate::problem::Problem;
use axum::http::HeaderMap;
use axum::response::Response;
use lattice_api::MESSAGE_BYTES_MAX;
use lattice_api::allocation::state_from_name;
use lattice_api::json::{AllocationJson, LeaseJson, WatchedNodeJson};
use lattice_api::v1;
use lattice_api::v1::watch_request::What;
use lattice_api::v1::watch_service_client::WatchServiceClient;
use lattice_model::AllocationState;
use serde::{Deserialize, Serialize};
use tonic::Streaming;
use utoipa::{IntoParams, ToSchema};

/// The state of an allocation now, and again at each change, as events.
///
/// An event `allocation` has the allocation as a list of them has it: its program and what it depends on are in
/// `GET /allocations/{id}` alone. The last event is `end`, when it has ended, or
/// `error`. A client that connects again gets the present state.
#[utoipa::path(
    get,
    path = "/api/v1/allocations/{id}/watch",
    operation_id = "watchAllocation",
    tag = "allocations",
    params(("id" = String, Path, description = "The id, or the beginning of one")),
    responses(
        (status = 200, description = "Events", body = String, content_type = "text/event-stream"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn allocation(calls: Calls, Segments(id): Segments<String>, _: Params<NoParams>) -> Result<Response, Problem> {
    let request = v1::WatchAllocationRequest { key: id, entry: false, being_submitted: false };
    let stream = calls.allocations().watch(request).await?.into_inner();
    Ok(events::respond(futures::stream::unfold(OfOne::Watched(Box::new(stream)), OfOne::next)))
}

/// One allocation that is watched.
enum OfOne {
    Watched(Box<Streaming<v1::Allocation>>),
    /// In this state.
    Ended(String),
    Over,
}

impl OfOne {
    async fn next(self) -> Option<(Message, Self)> {
        let mut stream = match self {
            Self::Watched(stream) => stream,
            Self::Ended(state) => return Some((Message::new("end", &EndJson { state }), Self::Over)),
            Self::Over => return None,
        };
        Some(match stream.message().await {
            Ok(Some(allocation)) => {
                let message = Message::new("allocation", &AllocationJson::from(&allocation));
                let has_ended = state_from_name(&allocation.state).is_ok_and(AllocationState::is_terminal);
                (message, if has_ended { Self::Ended(allocation.state) } else { Self::Watched(stream) })
            }
            Ok(None) => (Message::stopped(), Self::Over),
            Err(status) => (Message::error(status), Self::Over),
        })
    }
}

/// How a watched allocation ended.
#[derive(Debug, Serialize)]
struct EndJson {
    state: String,
}

/// What is watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Watched {
    #[default]
    Allocations,
    Nodes,
    Leases,
}

/// What is watched, and whose.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct WatchQuery {
    /// What is watched.
    objects: Watched,
    /// Allocations of all users, not only the caller's own.
    all: bool,
}

/// One event of a watch.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WatchEvent)]
pub(super) struct WatchEventJson {
    /// More parts of the same event follow. It takes effect when it is complete.
    more: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allocations: Vec<AllocationJson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<WatchedNodeJson>,
    /// The ids of nodes that were removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes_removed: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    leases: Vec<LeaseJson>,
    /// The names of leases that ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    leases_ended: Vec<String>,
    /// Why changes were lost; a list follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    resync_reason: Option<String>,
}

impl From<v1::WatchEvent> for WatchEventJson {
    fn from(event: v1::WatchEvent) -> Self {
        Self {
            more: event.more,
            allocations: event.allocations.iter().map(AllocationJson::from).collect(),
            nodes: event.nodes.iter().map(WatchedNodeJson::from).collect(),
            nodes_removed: event.nodes_removed,
            leases: event.leases.iter().map(LeaseJson::from).collect(),
            leases_ended: event.leases_ended,
            resync_reason: Some(event.resync_reason).filter(|reason| !reason.is_empty()),
        }
    }
}

/// Changes of nodes, allocations or leases, as events.
///
/// The first event is `list`: all objects. Then each change comes once, in order, as an event `change`. The `id` of an event
/// is the position behind it: a client that connects again sends the last one as `Last-Event-ID`, and gets the changes
/// since then. An event `resync` says why that is not possible; a `list` follows. Of allocations, those that have not ended
/// are in a list, and the end of each is a change.
#[utoipa::path(
    get,
    path = "/api/v1/watch",
    operation_id = "watch",
    tag = "watch",
    params(("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was received"), WatchQuery),
    responses(
        (status = 200, description = "Events; each is a WatchEvent", body = String, content_type = "text/event-stream"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn watch(calls: Calls, Params(query): Params<WatchQuery>, headers: HeaderMap) -> Result<Response, Problem> {
    let WatchQuery { objects, all } = query;
    let since = events::last_event_id(&headers)?.map(parse_cursor).transpose()?;
    let what = match objects {
        Watched::Allocations => What::Allocations(v1::WatchedAllocations { key: String::new(), all_users: all }),
        Watched::Nodes => What::Nodes(v1::WatchedNodes {}),
        Watched::Leases => What::Leases(v1::WatchedLeases {}),
    };
    let mut watches = WatchServiceClient::new(calls.channel()).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let stream = watches.watch(v1::WatchRequest { what: Some(what), since }).await?.into_inner();
    Ok(events::respond(futures::stream::unfold(Some(stream), next)))
}

async fn next(stream: Option<Streaming<v1::WatchEvent>>) -> Option<(Message, Option<Streaming<v1::WatchEvent>>)> {
    let mut stream = stream?;
    Some(match stream.message().await {
        Ok(Some(event)) => (message_of(event), Some(stream)),
        Ok(None) => (Message::stopped(), None),
        Err(status) => (Message::error(status), None),
    })
}

fn message_of(event: v1::WatchEvent) -> Message {
    let name = match &event {
        _ if !event.resync_reason.is_empty() => "resync",
        v1::WatchEvent { list: true, .. } => "list",
        v1::WatchEvent { list: false, .. } => "change",
    };
    let id = event.cursor.map(|cursor| format!("{}.{}", cursor.generation, cursor.revision));
    Message::new(name, &WatchEventJson::from(event)).at(id)
}

/// The position that an id names.
fn parse_cursor(id: &str) -> Result<v1::WatchCursor, Problem> {
    let cursor = id.split_once('.').and_then(|(generation, revision)| {
        Some(v1::WatchCursor { generation: generation.parse().ok()?, revision: revision.parse().ok()? })
    });
    cursor.ok_or_else(|| events::unknown_id(id).with_hint("leave the header out to begin with a list"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_its_objects_and_the_position_behind_it() {
        let cursor = Some(v1::WatchCursor { generation: 2, revision: 77 });
        let event = v1::WatchEvent { leases_ended: vec!["build".into()], cursor, ..Default::default() };
        let want = serde_json::json!({"more": false, "leases_ended": ["build"]});
        assert_eq!(message_of(event).parts(), ("change", Some("2.77"), want));
        let nodes = v1::WatchEvent { nodes: vec![v1::Node { id: "n1".into(), ..Default::default() }], ..Default::default() };
        let (_, _, data) = message_of(nodes).parts();
        assert_eq!((&data["nodes"][0]["id"], data["nodes"][0].get("allocations")), (&"n1".into(), None), "what runs there is not known");
        let list = v1::WatchEvent { list: true, more: true, ..Default::default() };
        assert_eq!(message_of(list).parts(), ("list", None, serde_json::json!({"more": true})));
        let resync = v1::WatchEvent { resync_reason: "it was too long ago".into(), ..Default::default() };
        let want = serde_json::json!({"more": false, "resync_reason": "it was too long ago"});
        assert_eq!(message_of(resync).parts(), ("resync", None, want));
    }

    #[test]
    fn a_position_is_a_generation_and_a_revision() {
        assert_eq!(parse_cursor("2.77").unwrap(), v1::WatchCursor { generation: 2, revision: 77 });
        for wrong in ["", "2", "2.x", "2.77.1", "-1.2"] {
            let refused = serde_json::to_value(parse_cursor(wrong).unwrap_err()).unwrap();
            assert!(refused["detail"].as_str().unwrap().starts_with("Last-Event-ID: "), "{refused}");
        }
    }
}
