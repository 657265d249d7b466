//! The steps of an allocation.

use super::values::{filled, time};
use crate::v1;
use serde::Serialize;
use utoipa::ToSchema;

/// The steps of an allocation, of its present or last attempt.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = JobSteps)]
pub struct JobStepsJson {
    /// Of the allocation.
    id: String,
    /// The script first, then by number; the newest 1,000 launches.
    steps: Vec<JobStepJson>,
    totals: JobStepTotalsJson,
    /// Why launches may be missing; null: none is.
    note: Option<String>,
}

/// A script or command, or a launch in it.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = JobStep)]
pub struct JobStepJson {
    /// `batch`: the script; else a number from 0, in the order in which launches began.
    step: String,
    /// The id of the launch; null: it is the script.
    launch: Option<String>,
    /// Of the program, without its directory.
    name: String,
    /// Running, Completed, Failed or Cancelled.
    state: String,
    reason: Option<String>,
    /// The highest of its ranks.
    exit_code: Option<i32>,
    ranks: u32,
    /// A hostlist; null: it is too long to be kept.
    nodes: Option<String>,
    node_count: u32,
    began_at: Option<String>,
    /// Null: it runs.
    ended_at: Option<String>,
}

/// How many launches of an allocation there were.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
#[schema(as = JobStepTotals)]
pub struct JobStepTotalsJson {
    begun: u64,
    completed: u64,
    failed: u64,
    cancelled: u64,
}

impl From<&v1::ListStepsResponse> for JobStepsJson {
    fn from(found: &v1::ListStepsResponse) -> Self {
        Self {
            id: found.id.clone(),
            steps: found.steps.iter().map(JobStepJson::from).collect(),
            totals: found.totals.as_ref().map(JobStepTotalsJson::from).unwrap_or_default(),
            note: filled(&found.note).map(str::to_owned),
        }
    }
}

impl From<&v1::JobStep> for JobStepJson {
    fn from(step: &v1::JobStep) -> Self {
        Self {
            step: step.step.clone(),
            launch: filled(&step.launch).map(str::to_owned),
            name: step.name.clone(),
            state: step.state.clone(),
            reason: filled(&step.reason).map(str::to_owned),
            exit_code: step.exit_code,
            ranks: step.ranks,
            nodes: filled(&step.nodes).map(str::to_owned),
            node_count: step.node_count,
            began_at: time(step.began_at_ms),
            ended_at: time(step.ended_at_ms),
        }
    }
}

impl From<&v1::JobStepTotals> for JobStepTotalsJson {
    fn from(totals: &v1::JobStepTotals) -> Self {
        let v1::JobStepTotals { begun, completed, failed, cancelled } = *totals;
        Self { begun, completed, failed, cancelled }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_all_their_fields() {
        let step = v1::JobStep {
            step: "0".into(),
            launch: "7a".into(),
            name: "sim".into(),
            state: "Running".into(),
            ranks: 4,
            nodes: "n[1-2]".into(),
            node_count: 2,
            began_at_ms: 1_772_704_812_000,
            ..Default::default()
        };
        let totals = Some(v1::JobStepTotals { begun: 1, ..Default::default() });
        let found = v1::ListStepsResponse { id: "1f".into(), steps: vec![step], totals, note: String::new() };
        assert_eq!(
            serde_json::to_value(JobStepsJson::from(&found)).unwrap(),
            serde_json::json!({
                "id": "1f",
                "steps": [{
                    "step": "0", "launch": "7a", "name": "sim", "state": "Running", "reason": null, "exit_code": null, "ranks": 4,
                    "nodes": "n[1-2]", "node_count": 2, "began_at": "2026-03-05T10:00:12.000Z", "ended_at": null,
                }],
                "totals": {"begun": 1, "completed": 0, "failed": 0, "cancelled": 0},
                "note": null,
            })
        );
    }
}
