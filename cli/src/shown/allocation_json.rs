//! Allocations as JSON. The fields are documented and stable.

use super::amounts::AmountJson;
use super::attempts::AttemptJson;
use super::network::{domain, exposed};
use super::scaling::{ScalingJson, ScalingStateJson};
use super::state::end_reason;
use super::tasks::TaskCountsJson;
use super::values::{disclosed, filled, time};
use super::walltime::ends_by_ms;
use crate::last_stderr::{LastStderr, LastStderrLine};
use lattice_api::v1;
use serde::Serialize;
use std::collections::BTreeMap;

/// An allocation as JSON. Times are RFC 3339 in UTC, or null.
#[derive(Serialize)]
pub struct AllocationJson<'a> {
    id: &'a str,
    /// `None`, like `owner`, if it is another user's and the site hides that.
    name: Option<&'a str>,
    state: &'a str,
    reason: Option<&'a str>,
    owner: Option<&'a str>,
    nodes: &'a [String],
    nodes_requested: u32,
    /// If it asked for a range of numbers, the largest.
    nodes_requested_max: Option<u32>,
    /// `tight`: its nodes are in as few topology groups as possible.
    topology: Option<&'a str>,
    tasks_per_node: u32,
    exit_code: Option<i32>,
    requeue_count: u32,
    /// The number of its present or last claim, from 1.
    attempt: Option<u32>,
    /// Its ended claims.
    attempts: Vec<AttemptJson<'a>>,
    /// `None`: a service without a walltime.
    walltime_seconds: Option<u64>,
    submitted_at: Option<String>,
    claimed_at: Option<String>,
    started_at: Option<String>,
    ended_at: Option<String>,
    tenant: Option<&'a str>,
    vcluster: Option<&'a str>,
    uenv: Option<&'a str>,
    uenv_sha256: Option<&'a str>,
    epoch: u64,
    share: Option<AmountJson>,
    network_domain: Option<&'a str>,
    vni: Option<u32>,
    /// What the network domain does not enforce; only if one allocation was requested.
    network_note: Option<&'a str>,
    on_isolation: Option<&'a str>,
    /// Its silent nodes, and what decides whether their work goes on; only if one allocation was requested.
    isolation_note: Option<&'a str>,
    expose: Vec<ExposedJson<'a>>,
    /// Its last complete checkpoint.
    checkpoint: Option<CheckpointJson<'a>>,
    preempted_count: u32,
    /// While it runs: that it must give its nodes back, or why it could not save itself.
    preemption: Option<&'a str>,
    /// Whether it stays Suspended until somebody resumes it.
    held: bool,
    /// What it depends on; only if one allocation was requested.
    dependencies: Option<Vec<DependencyJson<'a>>>,
    /// The DAG whose step it is, and the step's name.
    dag: Option<&'a str>,
    dag_step: Option<&'a str>,
    /// Labels of its user.
    tags: BTreeMap<&'a str, &'a str>,
    /// Of a task group: its indices and limit, as in `0-99%20`.
    task_group: Option<&'a str>,
    /// Of a task group: how many of its tasks are in each state; only if one allocation was requested.
    task_counts: Option<TaskCountsJson>,
    /// Of a lane: its task group, and which lane of it this is.
    lane_of: Option<&'a str>,
    lane_number: Option<u32>,
    /// Of a scaled service: what its submission says of that, and how many replicas it has.
    scaling: Option<ScalingJson>,
    scaling_state: Option<ScalingStateJson<'a>>,
    /// Of a replica: its service, and its number there.
    replica_of: Option<&'a str>,
    replica_number: Option<u32>,
    /// While its work is measured more closely: how, until when, and who requested it.
    telemetry: Option<&'a str>,
    /// For a living allocation, in a few words: why it waits, or what is wrong while it runs.
    status_message: Option<&'a str>,
    /// Its position, from 1, in the order of its vCluster's queue.
    queue_position: Option<u32>,
    /// While it waits: when it is expected to begin, if that is known.
    expected_start: Option<String>,
    /// While it waits in a queue that is ordered by scores: the class that counts there.
    class_in_queue: Option<u32>,
    /// `None`, like `owner`, if it is another user's and the site hides that.
    preemption_class: Option<u32>,
    score: Option<f64>,
    /// The end of its walltime, if it runs and has one.
    ends_by: Option<String>,
    /// Use under its present or last claim, on the nodes that have been released: the peak memory on any of them, and
    /// the processor time on all of them.
    memory_peak_bytes: Option<u64>,
    cpu_seconds: Option<f64>,
    /// What runs and where, and the last lines of its standard error; only if one allocation was requested.
    command: Option<&'a [String]>,
    working_dir: Option<&'a str>,
    script: Option<&'a str>,
    last_stderr: Option<&'a [LastStderrLine]>,
}

/// A checkpoint of an allocation as JSON.
#[derive(Serialize)]
pub struct CheckpointJson<'a> {
    id: &'a str,
    epoch: u64,
    step: Option<u64>,
    bytes: u64,
}

/// An allocation that another one depends on, as JSON.
#[derive(Serialize)]
pub struct DependencyJson<'a> {
    id: &'a str,
    name: &'a str,
    condition: &'a str,
    /// `None`: it has not ended, and the agent knows no more.
    state: Option<&'a str>,
    met: bool,
}

impl<'a> From<&'a v1::DependencyStatus> for DependencyJson<'a> {
    fn from(d: &'a v1::DependencyStatus) -> Self {
        Self { id: &d.id, name: &d.name, condition: &d.condition, state: filled(&d.state), met: d.met }
    }
}

/// An exposed port as JSON.
#[derive(Serialize)]
pub struct ExposedJson<'a> {
    name: &'a str,
    port: u32,
    protocol: &'a str,
}

impl<'a> From<&'a v1::Allocation> for AllocationJson<'a> {
    fn from(a: &'a v1::Allocation) -> Self {
        Self {
            id: &a.id,
            name: disclosed(&a.name, &a.owner),
            state: &a.state,
            reason: end_reason(a),
            owner: filled(&a.owner),
            nodes: &a.nodes,
            nodes_requested: a.nodes_requested,
            nodes_requested_max: Some(a.nodes_requested_max).filter(|most| *most > 0),
            topology: filled(&a.topology),
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
            tenant: filled(&a.tenant),
            vcluster: filled(&a.vcluster),
            uenv: filled(&a.uenv),
            uenv_sha256: filled(&a.uenv_sha256),
            epoch: a.epoch,
            share: a.share.as_ref().map(AmountJson::from),
            network_domain: domain(a),
            vni: a.vni,
            network_note: filled(&a.network_note),
            on_isolation: filled(&a.on_isolation),
            isolation_note: filled(&a.isolation_note),
            expose: exposed(a).iter().map(|e| ExposedJson { name: &e.name, port: e.port, protocol: &e.protocol }).collect(),
            preempted_count: a.preempted_count,
            preemption: filled(&a.preemption),
            held: a.held,
            dependencies: (!a.dependencies.is_empty()).then(|| a.dependencies.iter().map(DependencyJson::from).collect()),
            dag: filled(&a.dag),
            dag_step: filled(&a.dag_step),
            tags: a.tags.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect(),
            task_group: filled(&a.task_group),
            task_counts: a.tasks.as_ref().map(TaskCountsJson::from),
            lane_of: filled(&a.lane_of),
            lane_number: filled(&a.lane_of).map(|_| a.lane_number),
            scaling: ScalingJson::of(a.scaling.as_ref()),
            scaling_state: a.scaling_state.as_ref().map(ScalingStateJson::from),
            replica_of: filled(&a.replica_of),
            replica_number: filled(&a.replica_of).map(|_| a.replica_number),
            telemetry: filled(&a.telemetry),
            status_message: filled(&a.status_message),
            queue_position: (a.queue_position > 0).then_some(a.queue_position),
            expected_start: a.expected_start_ms.and_then(time),
            class_in_queue: a.class_in_queue,
            preemption_class: a.preemption_class,
            score: a.score,
            ends_by: ends_by_ms(a).and_then(time),
            memory_peak_bytes: a.memory_peak_bytes,
            cpu_seconds: a.cpu_ms.map(|ms| ms as f64 / 1e3),
            command: (!a.command.is_empty()).then_some(&a.command[..]),
            working_dir: filled(&a.working_dir),
            script: filled(&a.script),
            last_stderr: None,
            checkpoint: a.checkpoint.as_ref().map(|c| CheckpointJson { id: &c.id, epoch: c.epoch, step: c.step, bytes: c.bytes }),
        }
    }
}

impl<'a> AllocationJson<'a> {
    /// A requested allocation, with the last lines of its standard error.
    pub fn of_one(a: &'a v1::Allocation, stderr: &'a LastStderr) -> Self {
        let last_stderr = (!stderr.lines.is_empty()).then_some(&stderr.lines[..]);
        Self { last_stderr, ..Self::from(a) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{pending, running, service};
    use super::*;

    #[test]
    fn json_has_what_is_documented() {
        let share = Some(v1::Amount { cores: 2, memory_bytes: 1024, gpus: 0 });
        let a = v1::Allocation { exit_code: Some(0), requeue_count: 1, share, ..running() };
        let mut json = serde_json::to_value(AllocationJson::from(&a)).unwrap();
        // Separate: json! accepts only a limited number of fields.
        let apart =
            ["attempt", "attempts", "expected_start", "class_in_queue", "score"].map(|field| json.as_object_mut().unwrap().remove(field));
        let taken = |field: &str| json.as_object_mut().unwrap().remove(field);
        let none = ["nodes_requested_max", "topology", "preemption_class", "dependencies", "dag", "dag_step"].map(taken);
        assert_eq!(json.as_object_mut().unwrap().remove("tags"), Some(serde_json::json!({})));
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
