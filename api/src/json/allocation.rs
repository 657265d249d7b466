//! Allocations.

use super::amount::AmountJson;
use super::attempt::AttemptJson;
use super::scaling::{ScalingJson, ScalingStateJson};
use super::state::{end_reason, ends_by_ms};
use super::task::TaskCountsJson;
use super::values::{disclosed, filled, text, time};
use crate::v1;
use serde::Serialize;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// An allocation. Times are RFC 3339 in UTC, or null.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Allocation)]
pub struct AllocationJson {
    id: String,
    /// Its job number; of a task group that of its first task. Null: of a lane or a replica.
    job: Option<u64>,
    /// Null, like `owner`, if it is another user's and the site hides that.
    name: Option<String>,
    state: String,
    reason: Option<String>,
    owner: Option<String>,
    nodes: Vec<String>,
    nodes_requested: u32,
    /// If it asked for a range of numbers, the largest.
    nodes_requested_max: Option<u32>,
    /// `tight`: of as few topology groups as possible; a number: of at most so many; `contiguous`: nodes that follow each other by name.
    topology: Option<String>,
    tasks_per_node: u32,
    exit_code: Option<i32>,
    requeue_count: u32,
    /// The number of its present or last claim, from 1.
    attempt: Option<u32>,
    /// Its ended claims.
    attempts: Vec<AttemptJson>,
    /// Null: a service without a walltime.
    walltime_seconds: Option<u64>,
    submitted_at: Option<String>,
    claimed_at: Option<String>,
    started_at: Option<String>,
    ended_at: Option<String>,
    tenant: Option<String>,
    vcluster: Option<String>,
    uenv: Option<String>,
    uenv_sha256: Option<String>,
    epoch: u64,
    share: Option<AmountJson>,
    network_domain: Option<String>,
    vni: Option<u32>,
    /// What the network domain does not enforce; only if one allocation was requested.
    network_note: Option<String>,
    on_isolation: Option<String>,
    /// Its silent nodes, and what decides whether their work goes on; only if one allocation was requested.
    isolation_note: Option<String>,
    expose: Vec<ExposedJson>,
    /// Its last complete checkpoint.
    checkpoint: Option<CheckpointRefJson>,
    preempted_count: u32,
    /// While it runs: that it must give its nodes back, or why it could not save itself.
    preemption: Option<String>,
    /// Whether it stays Suspended until somebody resumes it.
    held: bool,
    /// What it depends on; only if one allocation was requested.
    dependencies: Option<Vec<DependencyJson>>,
    /// The DAG whose step it is, and the step's name.
    dag: Option<String>,
    dag_step: Option<String>,
    project: Option<String>,
    /// Labels of its user.
    tags: BTreeMap<String, String>,
    /// Of a task group: its indices and limit, as in `0-99%20`.
    task_group: Option<String>,
    /// Of a task group: how many of its tasks are in each state; only if one allocation was requested.
    task_counts: Option<TaskCountsJson>,
    /// Of a lane: its task group, and which lane of it this is.
    lane_of: Option<String>,
    lane_number: Option<u32>,
    /// Of a scaled service: what its submission says of that, and how many replicas it has.
    scaling: Option<ScalingJson>,
    scaling_state: Option<ScalingStateJson>,
    /// Of a replica: its service, and its number there.
    replica_of: Option<String>,
    replica_number: Option<u32>,
    /// While its work is measured more closely: how, until when, and who requested it.
    telemetry: Option<String>,
    /// For a living allocation, in a few words: why it waits, or what is wrong while it runs.
    status_message: Option<String>,
    /// Its position, from 1, in the order of its vCluster's queue.
    queue_position: Option<u32>,
    /// While it waits: when it is expected to begin, if that is known.
    expected_start: Option<String>,
    /// While it waits in a queue that is ordered by scores: the class that counts there.
    class_in_queue: Option<u32>,
    /// Null, like `owner`, if it is another user's and the site hides that.
    preemption_class: Option<u32>,
    score: Option<f64>,
    /// The end of its walltime, if it runs and has one.
    ends_by: Option<String>,
    /// Use under its present or last claim, on the nodes that have been released: the peak memory on any of them, and
    /// the processor time on all of them.
    memory_peak_bytes: Option<u64>,
    cpu_seconds: Option<f64>,
    /// What runs and where, and the last lines of its standard error; only if one allocation was requested.
    command: Option<Vec<String>>,
    working_dir: Option<String>,
    script: Option<String>,
    last_stderr: Option<Vec<LastStderrLine>>,
    /// Before `begin`, it is not in its queue; by `deadline`, it must have ended.
    begin: Option<String>,
    deadline: Option<String>,
    /// The least walltime with which it may begin.
    walltime_min_seconds: Option<u64>,
    /// How much later in its queue it is than equal work, in minutes of waiting.
    nice: i32,
    comment: Option<String>,
    /// The reservation on whose nodes it begins.
    reservation: Option<String>,
    /// Of which events its user gets mail; only if one allocation was requested.
    mail: Option<MailJson>,
}

/// Of what a user gets mail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Mail)]
pub struct MailJson {
    events: Vec<String>,
    /// An address or a name; null: the owner.
    user: Option<String>,
}

impl From<&v1::Mail> for MailJson {
    fn from(mail: &v1::Mail) -> Self {
        Self { events: mail.events.clone(), user: text(&mail.user) }
    }
}

/// One of the last lines of the standard error of ended work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct LastStderrLine {
    /// The launch's number; 0 is the script.
    pub launch: u32,
    /// The rank in that launch.
    pub rank: u32,
    /// The line, without its end.
    pub line: String,
}

/// The last complete checkpoint of an allocation.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = CheckpointRef)]
pub struct CheckpointRefJson {
    id: String,
    epoch: u64,
    step: Option<u64>,
    bytes: u64,
}

/// An allocation that another one depends on.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = DependencyStatus)]
pub struct DependencyJson {
    id: String,
    name: String,
    condition: String,
    /// Null: it has not ended, and the agent knows no more.
    state: Option<String>,
    met: bool,
}

impl From<&v1::DependencyStatus> for DependencyJson {
    fn from(d: &v1::DependencyStatus) -> Self {
        Self { id: d.id.clone(), name: d.name.clone(), condition: d.condition.clone(), state: text(&d.state), met: d.met }
    }
}

/// A port that an allocation exposes.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = ExposedPort)]
pub struct ExposedJson {
    name: String,
    port: u32,
    protocol: String,
}

impl From<&v1::connectivity::Expose> for ExposedJson {
    fn from(e: &v1::connectivity::Expose) -> Self {
        Self { name: e.name.clone(), port: e.port, protocol: e.protocol.clone() }
    }
}

impl From<&v1::CheckpointRef> for CheckpointRefJson {
    fn from(c: &v1::CheckpointRef) -> Self {
        Self { id: c.id.clone(), epoch: c.epoch, step: c.step, bytes: c.bytes }
    }
}

impl From<&v1::Allocation> for AllocationJson {
    fn from(a: &v1::Allocation) -> Self {
        Self {
            id: a.id.clone(),
            job: (a.number > 0).then_some(a.number),
            name: disclosed(&a.name, &a.owner).map(str::to_owned),
            state: a.state.clone(),
            reason: end_reason(a).map(str::to_owned),
            owner: text(&a.owner),
            nodes: a.nodes.clone(),
            nodes_requested: a.nodes_requested,
            nodes_requested_max: Some(a.nodes_requested_max).filter(|most| *most > 0),
            topology: text(&a.topology),
            tasks_per_node: a.tasks_per_node,
            exit_code: a.exit_code,
            requeue_count: a.requeue_count,
            attempt: a.attempt,
            attempts: a.attempts.iter().map(AttemptJson::from).collect(),
            walltime_seconds: (a.walltime_seconds > 0).then_some(a.walltime_seconds),
            submitted_at: time(a.submitted_at_ms),
            claimed_at: time(a.claimed_at_ms),
            started_at: time(a.started_at_ms),
            ended_at: time(a.ended_at_ms),
            tenant: text(&a.tenant),
            vcluster: text(&a.vcluster),
            uenv: text(&a.uenv),
            uenv_sha256: text(&a.uenv_sha256),
            epoch: a.epoch,
            share: a.share.as_ref().map(AmountJson::from),
            network_domain: a.connectivity.as_ref().and_then(|c| text(&c.network_domain)),
            vni: a.vni,
            network_note: text(&a.network_note),
            on_isolation: text(&a.on_isolation),
            isolation_note: text(&a.isolation_note),
            expose: a.connectivity.iter().flat_map(|c| &c.expose).map(ExposedJson::from).collect(),
            preempted_count: a.preempted_count,
            preemption: text(&a.preemption),
            held: a.held,
            dependencies: (!a.dependencies.is_empty()).then(|| a.dependencies.iter().map(DependencyJson::from).collect()),
            dag: text(&a.dag),
            dag_step: text(&a.dag_step),
            project: text(&a.project),
            tags: a.tags.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            task_group: text(&a.task_group),
            task_counts: a.tasks.as_ref().map(TaskCountsJson::from),
            lane_of: text(&a.lane_of),
            lane_number: filled(&a.lane_of).map(|_| a.lane_number),
            scaling: ScalingJson::of(a.scaling.as_ref()),
            scaling_state: a.scaling_state.as_ref().map(ScalingStateJson::from),
            replica_of: text(&a.replica_of),
            replica_number: filled(&a.replica_of).map(|_| a.replica_number),
            telemetry: text(&a.telemetry),
            status_message: text(&a.status_message),
            queue_position: (a.queue_position > 0).then_some(a.queue_position),
            expected_start: a.expected_start_ms.and_then(time),
            class_in_queue: a.class_in_queue,
            preemption_class: a.preemption_class,
            score: a.score,
            ends_by: ends_by_ms(a).and_then(time),
            memory_peak_bytes: a.memory_peak_bytes,
            cpu_seconds: a.cpu_ms.map(|ms| ms as f64 / 1e3),
            command: (!a.command.is_empty()).then(|| a.command.clone()),
            working_dir: text(&a.working_dir),
            script: text(&a.script),
            last_stderr: None,
            checkpoint: a.checkpoint.as_ref().map(CheckpointRefJson::from),
            begin: a.timing.as_ref().and_then(|timing| time(timing.begin_ms)),
            deadline: a.timing.as_ref().and_then(|timing| time(timing.deadline_ms)),
            walltime_min_seconds: a.timing.as_ref().map(|timing| timing.walltime_min_seconds).filter(|seconds| *seconds > 0),
            nice: a.nice,
            comment: text(&a.comment),
            reservation: text(&a.reservation),
            mail: a.mail.as_ref().map(MailJson::from),
        }
    }
}

impl AllocationJson {
    /// A requested allocation, with the last lines of its standard error.
    pub fn of_one(a: &v1::Allocation, last_stderr: &[LastStderrLine]) -> Self {
        let last_stderr = (!last_stderr.is_empty()).then(|| last_stderr.to_vec());
        Self { last_stderr, ..Self::from(a) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_builders::{pending, running, service};

    #[test]
    fn json_has_what_is_documented() {
        let share = Some(v1::Amount { cores: 2, memory_bytes: 1024, gpus: 0 });
        let a = v1::Allocation { number: 12, exit_code: Some(0), requeue_count: 1, share, ..running() };
        let mut json = serde_json::to_value(AllocationJson::from(&a)).unwrap();
        // Separate: json! accepts only a limited number of fields.
        let apart =
            ["attempt", "attempts", "expected_start", "class_in_queue", "score"].map(|field| json.as_object_mut().unwrap().remove(field));
        assert_eq!(json.as_object_mut().unwrap().remove("job"), Some(12.into()));
        let timed = ["begin", "deadline", "walltime_min_seconds", "comment", "reservation", "mail"];
        let timed = timed.map(|field| json.as_object_mut().unwrap().remove(field));
        assert_eq!(timed, [const { Some(serde_json::Value::Null) }; 6]);
        assert_eq!(json.as_object_mut().unwrap().remove("nice"), Some(0.into()));
        let taken = |field: &str| json.as_object_mut().unwrap().remove(field);
        let none = ["nodes_requested_max", "topology", "preemption_class", "dependencies", "dag", "dag_step"].map(taken);
        assert_eq!(json.as_object_mut().unwrap().remove("tags"), Some(serde_json::json!({})));
        assert_eq!(json.as_object_mut().unwrap().remove("project"), Some(serde_json::Value::Null));
        let tagged = v1::Allocation { tags: [("campaign".to_owned(), "42".to_owned())].into(), ..running() };
        let tagged = serde_json::to_value(AllocationJson::from(&tagged)).unwrap();
        assert_eq!(tagged["tags"], serde_json::json!({"campaign": "42"}));
        let of_tasks = ["task_group", "task_counts", "lane_of", "lane_number"].map(|field| json.as_object_mut().unwrap().remove(field));
        let of_replicas =
            ["scaling", "scaling_state", "replica_of", "replica_number"].map(|field| json.as_object_mut().unwrap().remove(field));
        let null = || Some(serde_json::Value::Null);
        assert_eq!(of_tasks, [null(), null(), null(), null()]);
        assert_eq!(of_replicas, [null(), null(), null(), null()]);
        let scaled = serde_json::to_value(AllocationJson::from(&service())).unwrap();
        assert_eq!((&scaled["scaling"]["replicas_max"], &scaled["scaling_state"]["running"]), (&6.into(), &3.into()));
        let replica = v1::Allocation { replica_of: "2f".into(), replica_number: 0, ..running() };
        let replica = serde_json::to_value(AllocationJson::from(&replica)).unwrap();
        assert_eq!((&replica["replica_of"], &replica["replica_number"]), (&"2f".into(), &0.into()));
        let lane = v1::Allocation { lane_of: "2f".into(), lane_number: 0, ..running() };
        let lane = serde_json::to_value(AllocationJson::from(&lane)).unwrap();
        assert_eq!((&lane["lane_of"], &lane["lane_number"]), (&"2f".into(), &0.into()));
        let tasks = Some(v1::TaskCounts { total: 10, ..Default::default() });
        let group = v1::Allocation { task_group: "0-9%2".into(), tasks, ..running() };
        let group = serde_json::to_value(AllocationJson::from(&group)).unwrap();
        assert_eq!((&group["task_group"], &group["task_counts"]["total"]), (&"0-9%2".into(), &10.into()));
        assert!(group["ends_by"].is_null(), "its tasks have a walltime each");
        assert_eq!(apart, [null(), Some(serde_json::json!([])), null(), null(), null()]);
        assert_eq!(none, [null(), null(), Some(5.into()), null(), null(), null()]);
        let waits = v1::Allocation { expected_start_ms: Some(1_772_704_812_034), ..pending() };
        assert_eq!(serde_json::to_value(AllocationJson::from(&waits)).unwrap()["expected_start"], "2026-03-05T10:00:12.034Z");
        assert_eq!(
            json,
            serde_json::json!({
                "id": "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88", "name": "training-run", "state": "Running", "reason": null,
                "owner": "ada", "nodes": ["n1", "n2", "n3"], "nodes_requested": 3, "tasks_per_node": 2, "exit_code": 0,
                "requeue_count": 1, "walltime_seconds": 259_200, "submitted_at": "2026-03-05T10:00:00.000Z",
                "claimed_at": "2026-03-05T10:00:01.000Z", "started_at": "2026-03-05T10:00:12.000Z", "ended_at": null,
                "tenant": null, "vcluster": "ml-training", "uenv": null, "uenv_sha256": null, "epoch": 4,
                "share": {"cores": 2, "memory_bytes": 1024, "gpus": 0}, "network_domain": null, "vni": null, "network_note": null,
                "on_isolation": null, "isolation_note": null,
                "expose": [],
                "checkpoint": null, "preempted_count": 0, "preemption": null, "held": false, "telemetry": null,
                "status_message": null, "queue_position": null, "ends_by": "2026-03-08T10:00:12.000Z",
                "memory_peak_bytes": null, "cpu_seconds": null, "command": null, "working_dir": null, "script": null, "last_stderr": null,
            })
        );
        let dependency = |id: &str, state: &str, met| v1::DependencyStatus {
            id: id.into(),
            name: "prep".into(),
            condition: "success".into(),
            state: state.into(),
            met,
        };
        let depends = v1::Allocation { dependencies: vec![dependency("1f", "Completed", true), dependency("2f", "", false)], ..pending() };
        assert_eq!(
            serde_json::to_value(AllocationJson::from(&depends)).unwrap()["dependencies"],
            serde_json::json!([
                {"id": "1f", "name": "prep", "condition": "success", "state": "Completed", "met": true},
                {"id": "2f", "name": "prep", "condition": "success", "state": null, "met": false},
            ])
        );
        let completed = v1::Allocation { state: "Completed".into(), reason: "completed".into(), vcluster: String::new(), ..running() };
        let json = serde_json::to_value(AllocationJson::from(&completed)).unwrap();
        assert_eq!((&json["reason"], &json["vcluster"]), (&serde_json::Value::Null, &serde_json::Value::Null));
    }
}
