//! Ended attempts of an allocation, as `status` and `explain` show them.

use super::values::{short, time};
use crate::output::TableSize;
use crate::table::{Fit, Table};
use lattice_api::v1;

/// How the table is made narrower.
const FIT: Fit<'_> = Fit {
    left_out: &[],
    shortened: &[("STARTED", 17), ("ENDED", 17), ("BY", 8)],
    wrapped: &[("NODES", 8), ("REASON", 16)],
    left_out_last: &["STARTED"],
};

/// A table of why each earlier attempt ended and who ended it; empty if there was none.
pub fn attempts_text(a: &v1::Allocation, size: TableSize) -> String {
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
    format!(
        "\nEarlier attempts (`lattice logs {} --attempt N` shows what each wrote){now}:\n{}",
        short(&a.id),
        table.on_screen(&[], &FIT, size)
    )
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
        assert_eq!(attempts_text(&a, TableSize::default()), want);
        assert_eq!(attempts_text(&v1::Allocation::default(), TableSize::default()), "");
    }
}
