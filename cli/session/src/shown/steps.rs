//! The steps of an allocation: its script, and its launches.

use super::values::time;
use super::walltime::clock;
use crate::output::TableSize;
use crate::table::{Fit, Table};
use lattice_api::v1;
use lattice_model::time::Timestamp;

/// How the table is made narrower.
const FIT: Fit<'_> =
    Fit { left_out: &["BEGAN"], shortened: &[("NAME", 12)], wrapped: &[("NODES", 8), ("REASON", 16)], left_out_last: &["ELAPSED"] };

/// The steps, in their order.
pub fn steps_table(steps: &[v1::JobStep], now: Timestamp, size: TableSize) -> String {
    let mut table = Table::new(&["STEP", "NAME", "STATE", "EXIT CODE", "RANKS", "NODES", "BEGAN", "ELAPSED", "REASON"]);
    for step in steps {
        let end = if step.ended_at_ms == 0 { now } else { Timestamp(step.ended_at_ms) };
        let nodes = if step.nodes.is_empty() { format!("{} nodes", step.node_count) } else { step.nodes.clone() };
        let exit_code = step.exit_code.map(|code| code.to_string()).unwrap_or_default();
        // The state and the exit code say it already.
        let is_plain = step.reason == "completed" || step.reason == format!("exit_code {exit_code}");
        table.row(vec![
            step.step.clone(),
            step.name.clone(),
            step.state.clone(),
            exit_code,
            step.ranks.to_string(),
            nodes,
            time(step.began_at_ms).unwrap_or_default(),
            clock(end.since_ms(Timestamp(step.began_at_ms)) / 1000),
            if is_plain { String::new() } else { step.reason.clone() },
        ]);
    }
    table.on_screen(&["REASON"], &FIT, size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_has_its_state_and_how_long_it_ran() {
        let batch = v1::JobStep {
            step: "batch".into(),
            name: "batch".into(),
            state: "Running".into(),
            ranks: 1,
            nodes: "n1".into(),
            node_count: 1,
            began_at_ms: 1_772_704_800_000,
            is_entry: true,
            ..Default::default()
        };
        let failed = v1::JobStep {
            step: "0".into(),
            name: "sim".into(),
            state: "Failed".into(),
            reason: "exit_code 3".into(),
            exit_code: Some(3),
            ranks: 4,
            nodes: "n[1-2]".into(),
            node_count: 2,
            began_at_ms: 1_772_704_801_000,
            ended_at_ms: 1_772_704_811_000,
            ..Default::default()
        };
        let cancelled = v1::JobStep {
            step: "1".into(),
            state: "Cancelled".into(),
            reason: "cancelled by ada".into(),
            exit_code: Some(130),
            nodes: String::new(),
            node_count: 4096,
            ..failed.clone()
        };
        let want = "\
STEP   NAME   STATE      EXIT CODE  RANKS  NODES       BEGAN                     ELAPSED   REASON
batch  batch  Running    —          1      n1          2026-03-05T10:00:00.000Z  00:00:12  —
0      sim    Failed     3          4      n[1-2]      2026-03-05T10:00:01.000Z  00:00:10  —
1      sim    Cancelled  130        4      4096 nodes  2026-03-05T10:00:01.000Z  00:00:10  cancelled by ada
";
        assert_eq!(steps_table(&[batch, failed, cancelled], Timestamp(1_772_704_812_000), TableSize::default()), want);
    }
}
