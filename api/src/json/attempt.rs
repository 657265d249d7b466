//! Ended attempts of an allocation.

use super::values::{text, time};
use crate::v1;
use lattice_model::hostlist;
use serde::Serialize;
use utoipa::ToSchema;

/// A claim that ended without ending the allocation.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Attempt)]
pub struct AttemptJson {
    /// 1 for the first claim.
    number: u32,
    epoch: u64,
    nodes: Vec<String>,
    claimed_at: Option<String>,
    /// Null: its nodes never reported that they were prepared.
    started_at: Option<String>,
    ended_at: Option<String>,
    reason: Option<String>,
    /// A user, `quorum`, or `node:NAME`.
    by: Option<String>,
}

impl From<&v1::Attempt> for AttemptJson {
    fn from(a: &v1::Attempt) -> Self {
        let nodes = hostlist::in_order(&a.nodes).map(|nodes| nodes.iter().map(ToString::to_string).collect());
        Self {
            number: a.number,
            epoch: a.epoch,
            nodes: nodes.unwrap_or_else(|_| vec![a.nodes.clone()]),
            claimed_at: time(a.claimed_at_ms),
            started_at: time(a.started_at_ms),
            ended_at: time(a.ended_at_ms),
            reason: text(&a.reason),
            by: text(&a.by),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_has_the_names_of_its_nodes_and_its_times() {
        let attempt = v1::Attempt {
            number: 1,
            epoch: 4,
            nodes: "n[1-2]".into(),
            claimed_at_ms: 1_772_704_800_000,
            started_at_ms: 0,
            ended_at_ms: 1_772_704_812_000,
            reason: "node_lost n1: confirmed dead by ada: smoke".into(),
            by: "ada".into(),
        };
        assert_eq!(
            serde_json::to_value(AttemptJson::from(&attempt)).unwrap(),
            serde_json::json!({
                "number": 1, "epoch": 4, "nodes": ["n1", "n2"], "claimed_at": "2026-03-05T10:00:00.000Z", "started_at": null,
                "ended_at": "2026-03-05T10:00:12.000Z", "reason": "node_lost n1: confirmed dead by ada: smoke", "by": "ada",
            })
        );
    }
}
