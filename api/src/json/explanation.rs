//! Why an allocation has its state.

use super::allocation::AllocationJson;
use super::task::TaskJson;
use super::values::{text, time};
use crate::v1;
use serde::Serialize;
use utoipa::ToSchema;

/// Why an allocation has its state, and, while it waits, what each node lacks.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Explanation)]
pub struct ExplanationJson {
    allocation: AllocationJson,
    /// If one task of a task group was asked for.
    task: Option<TaskJson>,
    summary: String,
    /// While it is pending: why each node was not chosen.
    nodes: Vec<NodeReasonJson>,
    /// While it is pending, in a queue with scores: what its score is the sum of.
    score: Option<ScoreJson>,
    /// While it is pending: changes with which it would begin now.
    sooner: Vec<String>,
    /// While it is pending: the last claim for it, if the quorum refused that.
    refused_claim: Option<RefusedClaimJson>,
    /// While it runs, with automatic checkpoints: what the checkpoint broker decides.
    checkpoint: Option<JudgementJson>,
}

/// Why a node was not chosen.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = NodeReason)]
pub struct NodeReasonJson {
    node: String,
    reason: String,
}

/// The score of an allocation that waits.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Score)]
pub struct ScoreJson {
    total: Option<f64>,
    /// The preemption class that counts in its queue.
    class: Option<u32>,
    /// The sum is multiplied by this.
    budget_factor: f64,
    terms: Vec<ScoreTermJson>,
}

/// A term of a score.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = ScoreTerm)]
pub struct ScoreTermJson {
    factor: String,
    weight: f64,
    value: f64,
    /// False: the value is the same for all work.
    known: bool,
}

/// A claim that a scheduler proposed and the quorum refused.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = RefusedClaim)]
pub struct RefusedClaimJson {
    at: Option<String>,
    conflicts: Vec<ClaimConflictJson>,
}

/// Why a claim was refused on one node.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = ClaimConflict)]
pub struct ClaimConflictJson {
    node: String,
    /// The allocation that has the wanted share; null: the conflict is not with an allocation.
    holder: Option<String>,
    reason: String,
}

/// The arguments for and against a checkpoint now.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = CheckpointJudgement)]
pub struct JudgementJson {
    verdict: String,
    terms: Vec<JudgementTermJson>,
}

/// One argument.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = CheckpointTerm)]
pub struct JudgementTermJson {
    name: String,
    /// With its unit.
    value: String,
    meaning: String,
}

impl ExplanationJson {
    /// An answer; `task`: the requested task, if one was requested.
    pub fn of(explained: &v1::ExplainResponse, task: Option<TaskJson>) -> Self {
        let reason = |n: &v1::explain_response::NodeReason| NodeReasonJson { node: n.node.clone(), reason: n.reason.clone() };
        Self {
            allocation: AllocationJson::from(explained.allocation.as_ref().unwrap_or(&v1::Allocation::default())),
            task,
            summary: explained.summary.clone(),
            nodes: explained.nodes.iter().map(reason).collect(),
            score: ScoreJson::of(explained),
            sooner: explained.sooner.clone(),
            refused_claim: explained.refused_claim.as_ref().map(RefusedClaimJson::from),
            checkpoint: explained.checkpoint.as_ref().map(JudgementJson::from),
        }
    }
}

impl ScoreJson {
    /// `None`: its queue has no scores.
    fn of(explained: &v1::ExplainResponse) -> Option<Self> {
        let term = |t: &v1::explain_response::ScoreTerm| ScoreTermJson {
            factor: t.factor.clone(),
            weight: t.weight,
            value: t.value,
            known: t.known,
        };
        (!explained.score.is_empty()).then(|| Self {
            total: explained.allocation.as_ref().and_then(|allocation| allocation.score),
            class: explained.allocation.as_ref().and_then(|allocation| allocation.class_in_queue),
            budget_factor: explained.budget_factor,
            terms: explained.score.iter().map(term).collect(),
        })
    }
}

impl From<&v1::RefusedClaim> for RefusedClaimJson {
    fn from(refused: &v1::RefusedClaim) -> Self {
        let conflict =
            |c: &v1::refused_claim::Conflict| ClaimConflictJson { node: c.node.clone(), holder: text(&c.holder), reason: c.reason.clone() };
        Self { at: time(refused.at_ms), conflicts: refused.conflicts.iter().map(conflict).collect() }
    }
}

impl From<&v1::CheckpointJudgement> for JudgementJson {
    fn from(judgement: &v1::CheckpointJudgement) -> Self {
        let term = |t: &v1::checkpoint_judgement::Term| JudgementTermJson {
            name: t.name.clone(),
            value: t.value.clone(),
            meaning: t.meaning.clone(),
        };
        Self { verdict: judgement.verdict.clone(), terms: judgement.terms.iter().map(term).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_has_its_score_only_where_there_are_scores() {
        let term = v1::explain_response::ScoreTerm { factor: "priority".into(), weight: 0.15, value: 5.0, known: true };
        let scored = v1::ExplainResponse {
            allocation: Some(v1::Allocation { score: Some(0.75), class_in_queue: Some(5), ..Default::default() }),
            score: vec![term],
            budget_factor: 1.0,
            ..Default::default()
        };
        let json = serde_json::to_value(ExplanationJson::of(&scored, None)).unwrap();
        let terms = serde_json::json!([{ "factor": "priority", "weight": 0.15, "value": 5.0, "known": true }]);
        assert_eq!(json["score"], serde_json::json!({ "total": 0.75, "class": 5, "budget_factor": 1.0, "terms": terms }));
        let fifo = v1::ExplainResponse { score: vec![], ..scored };
        assert!(serde_json::to_value(ExplanationJson::of(&fifo, None)).unwrap()["score"].is_null());
    }
}
