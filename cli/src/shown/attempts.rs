//! Ended attempts of an allocation, as `status` and `explain` show them.

use super::values::{filled, short, time};
use crate::table::Table;
use lattice_api::v1;
use lattice_model::hostlist;
use serde::Serialize;

/// An ended attempt as JSON.
#[derive(Serialize)]
pub struct AttemptJson<'a> {
    number: u32,
    epoch: u64,
    nodes: Vec<String>,
    claimed_at: Option<String>,
    started_at: Option<String>,
    ended_at: Option<String>,
    reason: Option<&'a str>,
    by: Option<&'a str>,
}

impl<'a> From<&'a v1::Attempt> for AttemptJson<'a> {
    fn from(a: &'a v1::Attempt) -> Self {
        let nodes = hostlist::in_order(&a.nodes).map(|nodes| nodes.iter().map(ToString::to_string).collect());
        Self {
            number: a.number,
            epoch: a.epoch,
            nodes: nodes.unwrap_or_else(|_| vec![a.nodes.clone()]),
            claimed_at: time(a.claimed_at_ms),
            started_at: time(a.started_at_ms),
            ended_at: time(a.ended_at_ms),
            reason: filled(&a.reason),
            by: filled(&a.by),
        }
    }
}

/// Why each earlier attempt ended and who ended it, below a heading; empty if there was none.
pub fn attempts_text(a: &v1::Allocation) -> String {
    if a.attempts.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["ATTEMPT", "NODES", "STARTED", "ENDED", "BY", "REASON"]);
    for attempt in &a.attempts {
        table.row(vec![
            attempt.number.to_string(),
            attempt.nodes.clone(),
            time(attempt.started_at_ms).unwrap_or_default(),
            time(attempt.ended_at_ms).unwrap_or_default(),
            attempt.by.clone(),
            attempt.reason.clone(),
        ]);
    }
    let now = a.attempt.map_or_else(String::new, |number| format!("; this is attempt {number}"));
    format!("\nEarlier attempts (`lattice logs {} --attempt N` shows what each wrote){now}:\n{}", short(&a.id), table.text(&[]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attempt_says_why_it_ended_and_who_ended_it() {
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
        let a = v1::Allocation { id: "1f0c9a4e-5b7d".into(), attempts: vec![attempt], attempt: Some(2), ..Default::default() };
        let want = "
Earlier attempts (`lattice logs 1f0c9a4e --attempt N` shows what each wrote); this is attempt 2:
ATTEMPT  NODES   STARTED  ENDED                     BY   REASON
1        n[1-2]  —        2026-03-05T10:00:12.000Z  ada  node_lost n1: confirmed dead by ada: smoke
";
        assert_eq!(attempts_text(&a), want);
        assert_eq!(
            serde_json::to_value(AttemptJson::from(&a.attempts[0])).unwrap(),
            serde_json::json!({
                "number": 1, "epoch": 4, "nodes": ["n1", "n2"], "claimed_at": "2026-03-05T10:00:00.000Z", "started_at": null,
                "ended_at": "2026-03-05T10:00:12.000Z", "reason": "node_lost n1: confirmed dead by ada: smoke", "by": "ada",
            })
        );
        assert_eq!(attempts_text(&v1::Allocation::default()), "");
    }
}
