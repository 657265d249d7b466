//! Ended work of any age, and the store that has it.

use super::values::{text, time};
use crate::v1;
use lattice_model::usage::HOUR_MS;
use serde::Serialize;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Ended work, or its sums.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = History)]
pub struct HistoryJson {
    /// The newest first.
    work: Vec<HistoryRecordJson>,
    /// If sums were asked for: one for each user, tenant and project.
    sums: Vec<UseSumJson>,
    /// Null: there is no other page.
    next_page_token: Option<String>,
    /// How many ends the store does not have yet.
    behind: u64,
}

/// One ended allocation.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = HistoryRecord)]
pub struct HistoryRecordJson {
    /// The place in the order of all ends of the cluster, from 1.
    sequence: u64,
    id: String,
    /// Its job number. Null: of a lane or a replica.
    job: Option<u64>,
    /// The index of the task of a task group, if it was asked for. Absent: this is of the whole allocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<u32>,
    name: String,
    user: String,
    uid: u32,
    tenant: Option<String>,
    project: Option<String>,
    vcluster: Option<String>,
    tags: BTreeMap<String, String>,
    state: String,
    reason: Option<String>,
    exit_code: Option<i32>,
    /// A hostlist.
    nodes: String,
    node_count: u32,
    submitted_at: Option<String>,
    claimed_at: Option<String>,
    started_at: Option<String>,
    ended_at: Option<String>,
    requeue_count: u32,
    preempted_count: u32,
    /// Of all its attempts. Null: of a single task, of which the store has no use and no times.
    node_hours: Option<f64>,
    gpu_hours: Option<f64>,
    core_hours: Option<f64>,
    /// The task group, DAG or service that it is part of.
    part_of: Option<String>,
}

/// What a user used in a tenant and a project.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = UseSum)]
pub struct UseSumJson {
    user: String,
    tenant: Option<String>,
    project: Option<String>,
    /// Of ended allocations.
    count: u64,
    node_hours: f64,
    gpu_hours: f64,
    core_hours: f64,
}

/// The store of ended work.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = AccountingStatus)]
pub struct AccountingStatusJson {
    /// Whether ended work is stored.
    on: bool,
    /// The store's id.
    store: Option<String>,
    /// `sqlite` or `postgresql`; null: its agent does not answer.
    kind: Option<String>,
    /// The node of the agent that stores.
    node: Option<String>,
    /// The number of ends of this cluster.
    ended: u64,
    /// How many of them the store has.
    stored: u64,
    /// How many wait in the ledger.
    waiting: u64,
    /// How many the ledger could not keep until they were stored.
    dropped: u64,
    /// Why nothing is stored at present.
    problem: Option<String>,
    /// The sinks of the agent that stores: each gets every record of the store.
    sinks: Vec<AccountingSinkJson>,
}

/// A server or a file that gets every record of the store.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = AccountingSink)]
pub struct AccountingSinkJson {
    /// `http` or `file`.
    kind: String,
    /// The URL without a query, or the path. Null: it is shown to operators.
    target: Option<String>,
    /// The number of the last end that it has, with all before.
    delivered: u64,
    /// How many records of the store it does not have.
    waiting: u64,
    /// Since the end of the oldest of these.
    lag_seconds: f64,
    /// Why the latest delivery failed.
    problem: Option<String>,
}

fn hours(ms: u64) -> f64 {
    ms as f64 / HOUR_MS as f64
}

/// `None`: it is a single task.
fn of_job(work: &v1::HistoryRecord, ms: u64) -> Option<f64> {
    work.task.is_none().then(|| hours(ms))
}

impl From<&v1::UseSum> for UseSumJson {
    fn from(sum: &v1::UseSum) -> Self {
        Self {
            user: sum.user.clone(),
            tenant: text(&sum.tenant),
            project: text(&sum.project),
            count: sum.count,
            node_hours: hours(sum.node_ms),
            gpu_hours: hours(sum.gpu_ms),
            core_hours: hours(sum.core_ms),
        }
    }
}

impl From<&v1::HistoryResponse> for HistoryJson {
    fn from(page: &v1::HistoryResponse) -> Self {
        let records = page.work.iter().map(|work| HistoryRecordJson {
            sequence: work.sequence,
            id: work.id.clone(),
            job: (work.job > 0).then_some(work.job),
            task: work.task,
            name: work.name.clone(),
            user: work.user.clone(),
            uid: work.uid,
            tenant: text(&work.tenant),
            project: text(&work.project),
            vcluster: text(&work.vcluster),
            tags: work.tags.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            state: work.state.clone(),
            reason: text(&work.reason),
            exit_code: work.exit_code,
            nodes: work.nodes.clone(),
            node_count: work.node_count,
            submitted_at: time(work.submitted_at_ms),
            claimed_at: time(work.claimed_at_ms),
            started_at: time(work.started_at_ms),
            ended_at: time(work.ended_at_ms),
            requeue_count: work.requeue_count,
            preempted_count: work.preempted_count,
            node_hours: of_job(work, work.node_ms),
            gpu_hours: of_job(work, work.gpu_ms),
            core_hours: of_job(work, work.core_ms),
            part_of: text(&work.part_of),
        });
        Self {
            work: records.collect(),
            sums: page.sums.iter().map(UseSumJson::from).collect(),
            next_page_token: text(&page.next_page_token),
            behind: page.behind,
        }
    }
}

impl From<&v1::AccountingStatusResponse> for AccountingStatusJson {
    fn from(status: &v1::AccountingStatusResponse) -> Self {
        Self {
            on: status.is_on,
            store: text(&status.store),
            kind: text(&status.kind),
            node: text(&status.node),
            ended: status.ended,
            stored: status.stored,
            waiting: status.waiting,
            dropped: status.dropped,
            problem: text(&status.problem),
            sinks: status.sinks.iter().map(AccountingSinkJson::from).collect(),
        }
    }
}

impl From<&v1::AccountingSink> for AccountingSinkJson {
    fn from(sink: &v1::AccountingSink) -> Self {
        Self {
            kind: sink.kind.clone(),
            target: text(&sink.target),
            delivered: sink.delivered,
            waiting: sink.waiting,
            lag_seconds: sink.lag_ms as f64 / 1000.0,
            problem: text(&sink.problem),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_task_has_no_hours_instead_of_none_used() {
        let whole = v1::HistoryRecord { id: "1f".into(), job: 12, node_ms: HOUR_MS, ..Default::default() };
        let task = v1::HistoryRecord { id: "1f[7]".into(), job: 19, task: Some(7), node_ms: 0, ..whole.clone() };
        let page = v1::HistoryResponse { work: vec![whole, task], ..Default::default() };
        let json = serde_json::to_value(HistoryJson::from(&page)).unwrap();
        assert_eq!((json["work"][0]["node_hours"].as_f64(), json["work"][0].get("task")), (Some(1.0), None));
        assert_eq!((&json["work"][1]["node_hours"], &json["work"][1]["task"]), (&serde_json::Value::Null, &7.into()));
    }

    #[test]
    fn sums_are_in_hours() {
        let sum = v1::UseSum { user: "ada".into(), count: 2, node_ms: HOUR_MS / 2, ..Default::default() };
        let page = v1::HistoryResponse { sums: vec![sum], behind: 3, ..Default::default() };
        let json = serde_json::to_value(HistoryJson::from(&page)).unwrap();
        assert_eq!((&json["sums"][0]["node_hours"], &json["sums"][0]["tenant"]), (&serde_json::json!(0.5), &serde_json::Value::Null));
        assert_eq!((&json["behind"], &json["next_page_token"]), (&3.into(), &serde_json::Value::Null));
    }
}
