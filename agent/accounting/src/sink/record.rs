//! Ended work as sinks get it: an object of JSON.

use lattice_model::ended_work::EndedWork;
use serde::Serialize;
use std::collections::BTreeMap;

/// One record. Numbers are exact: milliseconds, and no hours.
#[derive(Debug, Serialize)]
pub(crate) struct SinkRecord<'a> {
    /// Its identity, the same whenever it is sent: a receiver ignores a record whose identity it has.
    record: String,
    sequence: u64,
    /// This replaces the record with this `sequence`: its project or tags were corrected. `None`: it is the first one.
    corrects: Option<u64>,
    id: String,
    /// `None`: the work is a lane or a replica.
    job: Option<u64>,
    name: &'a str,
    user: &'a str,
    uid: u32,
    tenant: &'a str,
    project: &'a str,
    vcluster: &'a str,
    tags: &'a BTreeMap<String, String>,
    state: String,
    reason: &'a str,
    exit_code: Option<i32>,
    /// A hostlist.
    nodes: &'a str,
    node_count: u32,
    submitted_at: String,
    claimed_at: Option<String>,
    started_at: Option<String>,
    ended_at: String,
    requeue_count: u32,
    preempted_count: u32,
    /// Nodes, GPUs and cores × milliseconds of all its attempts.
    node_ms: u64,
    gpu_ms: u64,
    core_ms: u64,
    part_of: Option<String>,
}

impl<'a> From<&'a EndedWork> for SinkRecord<'a> {
    fn from(work: &'a EndedWork) -> Self {
        Self {
            record: format!("{}/{}", work.allocation, work.sequence),
            sequence: work.sequence,
            corrects: work.corrects,
            id: work.allocation.to_string(),
            job: (work.job > 0).then_some(work.job),
            name: &work.name,
            user: &work.user,
            uid: work.uid,
            tenant: &work.tenant,
            project: &work.project,
            vcluster: &work.vcluster,
            tags: &work.tags,
            state: work.state.to_string(),
            reason: &work.reason,
            exit_code: work.exit_code,
            nodes: &work.nodes,
            node_count: work.node_count,
            submitted_at: work.submitted_at.to_string(),
            claimed_at: work.claimed_at.map(|at| at.to_string()),
            started_at: work.started_at.map(|at| at.to_string()),
            ended_at: work.ended_at.to_string(),
            requeue_count: work.requeue_count,
            preempted_count: work.preempted_count,
            node_ms: work.used.node_ms,
            gpu_ms: work.used.gpu_ms,
            core_ms: work.core_ms,
            part_of: work.part_of.map(|id| id.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::ended;

    #[test]
    fn a_record_names_itself_and_has_exact_numbers() {
        let record = serde_json::to_value(SinkRecord::from(&ended(3))).unwrap();
        assert_eq!(record["record"], "00000000-0000-0000-0000-000000000003/3");
        assert_eq!((&record["job"], &record["node_ms"], &record["exit_code"]), (&103.into(), &2000.into(), &(-3).into()));
        assert_eq!(record["tags"], serde_json::json!({"run": "3"}));
        let lane = EndedWork { job: 0, started_at: None, ..ended(4) };
        let record = serde_json::to_value(SinkRecord::from(&lane)).unwrap();
        assert!(record["job"].is_null() && record["started_at"].is_null(), "{record}");
    }
}
