//! The scheduler's explanation of why an allocation waits, as a response.

use lattice_api::v1;
use lattice_model::NodeId;
use lattice_scheduler::{Explanation, Score, Term, WhyNot};

/// What is known of an allocation that waits.
pub(super) fn answer(why: Explanation, shown: &v1::Allocation) -> v1::ExplainResponse {
    let reason = |(node, why): (NodeId, WhyNot)| v1::explain_response::NodeReason { node: node.to_string(), reason: why.to_string() };
    let term = |term: &Term| v1::explain_response::ScoreTerm {
        factor: term.factor.name().to_owned(),
        weight: term.weight,
        value: term.value,
        known: term.is_known,
    };
    let score = why.score.as_ref();
    let allocation = v1::Allocation {
        expected_start_ms: why.start.map(|start| start.0),
        class_in_queue: score.map(|score| score.class.into()),
        score: score.map(Score::total),
        ..shown.clone()
    };
    v1::ExplainResponse {
        allocation: Some(allocation),
        nodes: why.nodes.into_iter().map(reason).collect(),
        score: score.into_iter().flat_map(|score| score.terms.iter().map(term)).collect(),
        budget_factor: score.map_or(1.0, |score| score.budget_factor),
        sooner: why.sooner.iter().map(ToString::to_string).collect(),
        ..v1::ExplainResponse::default()
    }
}
