//! DAGs.

use super::values::{text, time};
use crate::v1;
use serde::Serialize;
use utoipa::ToSchema;

/// A DAG without its steps.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = DagSummary)]
pub struct DagSummaryJson {
    /// Null: nothing was submitted.
    id: Option<String>,
    name: String,
    owner: String,
    state: String,
    submitted_at: Option<String>,
    counts: StepCountsJson,
}

/// A DAG with its steps.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Dag)]
pub struct DagJson {
    /// Null: nothing was submitted.
    id: Option<String>,
    name: String,
    owner: String,
    /// Running until all steps have ended.
    state: String,
    submitted_at: Option<String>,
    counts: StepCountsJson,
    /// Each after those that it depends on.
    steps: Vec<DagStepJson>,
}

/// How many steps are in each state.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = StepCounts)]
pub struct StepCountsJson {
    unended: u32,
    completed: u32,
    failed: u32,
    cancelled: u32,
    not_needed: u32,
}

/// A step of a DAG.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = DagStep)]
pub struct DagStepJson {
    name: String,
    allocation: String,
    state: String,
    reason: Option<String>,
    not_needed: bool,
    depends_on: Vec<DagEdgeJson>,
}

/// A dependency of a step.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = DagEdge)]
pub struct DagEdgeJson {
    /// Null: it depends on an allocation that is no step of the DAG.
    step: Option<String>,
    allocation: String,
    name: Option<String>,
    condition: String,
}

impl From<v1::StepCounts> for StepCountsJson {
    fn from(counts: v1::StepCounts) -> Self {
        let v1::StepCounts { unended, completed, failed, cancelled, not_needed } = counts;
        Self { unended, completed, failed, cancelled, not_needed }
    }
}

impl From<&v1::DagEdge> for DagEdgeJson {
    fn from(edge: &v1::DagEdge) -> Self {
        Self { step: text(&edge.step), allocation: edge.allocation.clone(), name: text(&edge.name), condition: edge.condition.clone() }
    }
}

impl From<&v1::DagStepStatus> for DagStepJson {
    fn from(step: &v1::DagStepStatus) -> Self {
        Self {
            name: step.name.clone(),
            allocation: step.allocation.clone(),
            state: step.state.clone(),
            reason: text(&step.reason),
            not_needed: step.not_needed,
            depends_on: step.depends_on.iter().map(DagEdgeJson::from).collect(),
        }
    }
}

impl From<&v1::Dag> for DagSummaryJson {
    fn from(dag: &v1::Dag) -> Self {
        Self {
            id: text(&dag.id),
            name: dag.name.clone(),
            owner: dag.owner.clone(),
            state: dag.state.clone(),
            submitted_at: time(dag.submitted_at_ms),
            counts: StepCountsJson::from(dag.counts.unwrap_or_default()),
        }
    }
}

impl From<&v1::Dag> for DagJson {
    fn from(dag: &v1::Dag) -> Self {
        let DagSummaryJson { id, name, owner, state, submitted_at, counts } = DagSummaryJson::from(dag);
        Self { id, name, owner, state, submitted_at, counts, steps: dag.steps.iter().map(DagStepJson::from).collect() }
    }
}
