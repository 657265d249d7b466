//! `POST /allocations/{id}/tasks`: starts ranks inside a running allocation, and follows them as events. `DELETE
//! /allocations/{id}/launches/{launch}` ends a launch.
//!
//! The launch continues when its client disconnects. The same request with the same `Idempotency-Key` and the last id
//! as `Last-Event-ID` follows it again, and no rank is started twice.

use super::events::{self, Message};
use super::output::OutputJson;
use super::positions::Positions;
use crate::calls::Calls;
use crate::idempotency::IdempotencyKey;
use crate::input::{Body, NoParams, Params, Segments};
use crate::problem::Problem;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use lattice_api::v1;
use lattice_api::v1::launch_event::What;
use lattice_model::input::STDIN_VARIABLE;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tonic::Streaming;
use utoipa::ToSchema;

/// Ranks to start. What is left out is as in the allocation.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = LaunchRequest)]
pub(super) struct LaunchBody {
    /// The program and its arguments. It is looked up in the PATH of `env`.
    argv: Vec<String>,
    /// The number of all ranks; 0: `tasks_per_node` on each node.
    ranks: u32,
    /// 0: that of the allocation.
    tasks_per_node: u32,
    /// The first nodes of the allocation, this many; 0: all.
    nodes: u32,
    /// An absolute path.
    working_dir: String,
    /// The whole environment of the ranks, beside the variables that the agent sets.
    env: BTreeMap<String, String>,
    /// How ranks are placed on nodes: `block`, `cyclic` or `plane=N`.
    distribution: String,
    /// Cores for each rank.
    cpus_per_task: u32,
    /// What happens to the other ranks when one fails: `kill` or `keep`.
    on_bad_exit: String,
    /// To which processors each rank is bound: `none`, `cores`, `numa` or `sockets`.
    cpu_bind: String,
    /// GPUs for each rank alone.
    gpus_per_task: u32,
    /// Which GPUs each rank sees: `closest` or `none`.
    gpu_bind: String,
    /// `local`, `interleave`, `preferred` or `bind`.
    memory_policy: String,
    /// Report how each rank ended.
    exits: bool,
    #[schema(ignore)]
    stdin: Option<IgnoredAny>,
    #[schema(ignore)]
    pty: Option<IgnoredAny>,
}

impl LaunchBody {
    fn request(self, id: String, allocation: String, positions: &Positions) -> Result<v1::LaunchRequest, Problem> {
        let refused = |field: &str| {
            let problem = Problem::invalid(format!("{field}: a launch over REST has no input"));
            Err(problem.with_hint("`lattice launch` passes standard input on; a program that reads a terminal runs by `GET …/attach`"))
        };
        if self.stdin.is_some() {
            return refused("stdin");
        }
        if self.pty.is_some() {
            return refused("pty");
        }
        if self.env.contains_key(STDIN_VARIABLE) {
            return refused(&format!("env.{STDIN_VARIABLE}"));
        }
        let shape = v1::LaunchShape {
            distribution: self.distribution,
            cpus_per_task: self.cpus_per_task,
            on_bad_exit: self.on_bad_exit,
            nodes: self.nodes,
            ..Default::default()
        };
        let binding = v1::RankBinding {
            cpu_bind: self.cpu_bind,
            gpus_per_task: self.gpus_per_task,
            gpu_bind: self.gpu_bind,
            memory_policy: self.memory_policy,
        };
        Ok(v1::LaunchRequest {
            id,
            allocation,
            argv: self.argv,
            ranks: self.ranks,
            tasks_per_node: self.tasks_per_node,
            working_dir: self.working_dir,
            env: self.env.into_iter().collect(),
            received: positions.received(),
            pty: None,
            binding: Some(binding).filter(|binding| *binding != v1::RankBinding::default()),
            shape: Some(shape).filter(|shape| *shape != v1::LaunchShape::default()),
            exits: self.exits,
        })
    }
}

/// One event of a launch.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(tag = "event", rename_all = "lowercase")]
#[schema(as = LaunchEvent)]
pub(super) enum LaunchEventJson {
    /// The ranks are being started. `launch` is the id, `number` the one in the allocation.
    Started { launch: String, number: u32, ranks: u32, nodes: Vec<String> },
    /// A piece of output.
    Output(OutputJson),
    /// For people: what is missing.
    Notice { node: Option<String>, text: String },
    /// How some of the ranks ended, in ascending order of ranks.
    Exits { exits: Vec<RankExitJson> },
    /// The launch has ended.
    End {
        /// The highest of the ranks' codes; 128 + signal for a rank that a signal ended.
        code: i32,
        /// Why it was ended; null: it ended by itself.
        aborted: Option<String>,
    },
}

/// How a rank ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = RankExit)]
pub(super) struct RankExitJson {
    rank: u32,
    node: String,
    /// exited, signalled, not_started, lost (with its node)
    ended: String,
    /// Its exit code, or the signal.
    value: u32,
}

impl LaunchEventJson {
    /// The event; `None` if this agent does not know its kind.
    fn of(event: v1::LaunchEvent) -> Option<Self> {
        let filled = |text: String| Some(text).filter(|text| !text.is_empty());
        Some(match event.what? {
            What::Started(v1::launch_event::Started { launch, number, ranks, nodes }) => Self::Started { launch, number, ranks, nodes },
            What::Output(chunk) if !chunk.notice.is_empty() => Self::Notice { node: filled(chunk.node), text: chunk.notice },
            What::Output(chunk) => Self::Output(chunk.into()),
            What::Exits(exits) => {
                let exit =
                    |one: v1::launch_event::RankExit| RankExitJson { rank: one.rank, node: one.node, ended: one.ended, value: one.value };
                Self::Exits { exits: exits.exits.into_iter().map(exit).collect() }
            }
            What::Ended(ended) => Self::End { code: ended.code, aborted: filled(ended.aborted) },
        })
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Started { .. } => "started",
            Self::Output(_) => "output",
            Self::Notice { .. } => "notice",
            Self::Exits { .. } => "exits",
            Self::End { .. } => "end",
        }
    }
}

/// Starts ranks inside a running allocation, and follows them to their end, as events.
///
/// Each event is a LaunchEvent; the last one is `end` or `error`. With an `Idempotency-Key` the request can be
/// repeated: it then follows the launch that was started first. Ranks have no input: `stdin` and `pty` are refused. When the
/// client disconnects, the launch goes on; a DELETE ends it.
#[utoipa::path(
    post,
    path = "/api/v1/allocations/{id}/tasks",
    operation_id = "launchRanks",
    tag = "allocations",
    params(
        ("id" = String, Path, description = "The id, or the beginning of one"),
        ("Idempotency-Key" = Option<String>, Header, description = "The same text again follows the same launch; a UUID is its id"),
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was received")
    ),
    request_body = LaunchBody,
    responses(
        (status = 200, description = "Events", body = String, content_type = "text/event-stream"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn launch(
    calls: Calls,
    Segments(id): Segments<String>,
    _: Params<NoParams>,
    key: IdempotencyKey,
    headers: HeaderMap,
    Body(body): Body<LaunchBody>,
) -> Result<Response, Problem> {
    let positions = match events::last_event_id(&headers)? {
        Some(id) => Positions::parse(id)?,
        None => Positions::default(),
    };
    let launch = key.id(&["launch", &id], &calls).await?.to_string();
    let request = body.request(launch, id, &positions)?;
    let stream = calls.allocations().launch(request).await?.into_inner();
    Ok(events::respond(futures::stream::unfold(Some(Followed { stream, positions }), next)))
}

/// Ends a launch: its ranks get SIGTERM, then SIGKILL.
#[utoipa::path(
    delete,
    path = "/api/v1/allocations/{id}/launches/{launch}",
    operation_id = "abortLaunch",
    tag = "allocations",
    params(
        ("id" = String, Path, description = "The id, or the beginning of one"),
        ("launch" = String, Path, description = "The id of the launch, as in its event `started`")
    ),
    responses(
        (status = 204, description = "It is being ended"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn abort(
    calls: Calls,
    Segments((id, launch)): Segments<(String, String)>,
    _: Params<NoParams>,
) -> Result<StatusCode, Problem> {
    calls.allocations().abort_launch(v1::AbortLaunchRequest { id: launch, allocation: id }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A launch that is followed.
struct Followed {
    stream: Streaming<v1::LaunchEvent>,
    positions: Positions,
}

async fn next(followed: Option<Followed>) -> Option<(Message, Option<Followed>)> {
    let Followed { mut stream, mut positions } = followed?;
    loop {
        match stream.message().await {
            Ok(Some(event)) => {
                let mut id = None;
                if let Some(What::Output(chunk)) = &event.what
                    && chunk.notice.is_empty()
                {
                    positions.record(chunk);
                    id = positions.id();
                }
                // An event of a later version.
                let Some(event) = LaunchEventJson::of(event) else { continue };
                let message = Message::new(event.name(), &event).at(id);
                let is_last = matches!(event, LaunchEventJson::End { .. });
                return Some((message, (!is_last).then_some(Followed { stream, positions })));
            }
            Ok(None) => return Some((Message::stopped(), None)),
            Err(status) => return Some((Message::error(status), None)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(json: &str) -> Result<v1::LaunchRequest, String> {
        let body: LaunchBody = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let request = body.request("2f".into(), "1f0c".into(), &Positions::default());
        request.map_err(|problem| serde_json::to_value(problem).unwrap()["detail"].as_str().unwrap().to_owned())
    }

    #[test]
    fn a_launch_follows_its_body_and_otherwise_the_allocation() {
        let plain = request(r#"{"argv": ["/bin/true"]}"#).unwrap();
        let want = v1::LaunchRequest { id: "2f".into(), allocation: "1f0c".into(), argv: vec!["/bin/true".into()], ..Default::default() };
        assert_eq!(plain, want);
        let more = request(r#"{"argv": ["a"], "ranks": 4, "nodes": 2, "cpu_bind": "cores", "env": {"A": "b"}, "exits": true}"#).unwrap();
        assert_eq!((more.ranks, more.shape.unwrap().nodes, more.binding.unwrap().cpu_bind.as_str()), (4, 2, "cores"));
        assert_eq!((more.env["A"].as_str(), more.exits), ("b", true));
    }

    #[test]
    fn input_and_unknown_fields_are_refused_by_name() {
        let refused = |json: &str| request(json).unwrap_err();
        assert_eq!(refused(r#"{"argv": ["cat"], "stdin": "all"}"#), "stdin: a launch over REST has no input");
        assert_eq!(refused(r#"{"argv": ["vi"], "pty": {"rows": 24}}"#), "pty: a launch over REST has no input");
        let by_variable = refused(r#"{"argv": ["cat"], "env": {"LATTICE_STDIN": "all"}}"#);
        assert_eq!(by_variable, "env.LATTICE_STDIN: a launch over REST has no input");
        assert!(refused(r#"{"arg": ["cat"]}"#).contains("unknown field `arg`"));
    }

    #[test]
    fn an_event_has_its_kind() {
        let ended = v1::launch_event::Ended { code: 137, aborted: String::new() };
        let event = LaunchEventJson::of(v1::LaunchEvent { what: Some(What::Ended(ended)) }).unwrap();
        assert_eq!(event, LaunchEventJson::End { code: 137, aborted: None });
        let json = serde_json::to_value(&event).unwrap();
        assert_eq!(json, serde_json::json!({"event": "end", "code": 137, "aborted": null}));
        let notice = v1::LogChunk { notice: "n2 does not answer".into(), ..Default::default() };
        let event = LaunchEventJson::of(v1::LaunchEvent { what: Some(What::Output(notice)) }).unwrap();
        assert_eq!((event.name(), &event), ("notice", &LaunchEventJson::Notice { node: None, text: "n2 does not answer".into() }));
        assert_eq!(LaunchEventJson::of(v1::LaunchEvent::default()), None);
    }
}
