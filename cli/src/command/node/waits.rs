//! The work left on a node that a drain waits for.

use lattice_api::v1;
use lattice_cli_session::output::TableSize;
use lattice_cli_session::shown::{disclosed, filled, short, time};
use lattice_cli_session::table::{Fit, Table};
use serde_json::{Value, json};

/// How the table is made narrower.
const FIT: Fit<'_> = Fit {
    left_out: &["SINCE"],
    shortened: &[("NAME", 8), ("OWNER", 8), ("ENDS", 17)],
    wrapped: &[("DETAIL", 16)],
    left_out_last: &["ENDS"],
};

/// A table of the work, and notes for what has no column; empty if no work is left.
pub fn text(found: &v1::NodeWaitsResponse, size: TableSize) -> String {
    if found.waits.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["ALLOCATION", "NAME", "OWNER", "STANDS", "SINCE", "ENDS", "DETAIL"]);
    for wait in &found.waits {
        table.row(vec![
            short(&wait.allocation).to_owned(),
            wait.name.clone(),
            wait.owner.clone(),
            if wait.ended { "ended, not released" } else { "runs" }.to_owned(),
            time(wait.since_ms).unwrap_or_default(),
            time(wait.ends_ms).unwrap_or_default(),
            wait.detail.clone(),
        ]);
    }
    let mut text = table.on_screen(&["NAME", "OWNER", "SINCE", "ENDS", "DETAIL"], &FIT, size);
    if found.more > 0 {
        text.push_str(&format!("and {} more\n", found.more));
    }
    if found.waits.iter().any(|wait| wait.ended && wait.detail.is_empty()) {
        let node = found.node.as_ref().map_or("", |node| node.id.as_str());
        text.push_str(&format!("`lattice node status` on {node} shows why work that has ended is not released\n"));
    }
    text
}

/// The same as JSON.
pub fn json(found: &v1::NodeWaitsResponse) -> Value {
    let wait = |wait: &v1::NodeWait| {
        json!({
            "allocation": wait.allocation, "name": disclosed(&wait.name, &wait.owner), "owner": filled(&wait.owner), "ended": wait.ended,
            "since": time(wait.since_ms), "ends": time(wait.ends_ms), "detail": wait.detail,
        })
    };
    found.waits.iter().map(wait).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_cli_session::table::{NARROW, assert_fits};

    #[test]
    fn running_and_ended_work_are_distinguished() {
        let wait = |ended, detail: &str| v1::NodeWait {
            allocation: "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".into(),
            owner: "ada".into(),
            name: "sim".into(),
            since_ms: 1_772_704_800_000,
            ends_ms: if ended { 0 } else { 1_772_708_400_000 },
            ended,
            detail: detail.into(),
        };
        let node = Some(v1::Node { id: "n1".into(), ..Default::default() });
        let found = v1::NodeWaitsResponse { node, waits: vec![wait(false, ""), wait(true, "")], more: 2 };
        let want = "\
ALLOCATION  NAME  OWNER  STANDS               SINCE                     ENDS
1f0c9a4e    sim   ada    runs                 2026-03-05T10:00:00.000Z  2026-03-05T11:00:00.000Z
1f0c9a4e    sim   ada    ended, not released  2026-03-05T10:00:00.000Z  —
and 2 more
`lattice node status` on n1 shows why work that has ended is not released
";
        assert_eq!(text(&found, TableSize::default()), want);
        let wide = v1::NodeWaitsResponse { waits: vec![wait(true, "a process does not end: it waits for a file system")], ..found };
        assert_fits(&text(&wide, NARROW));
        assert_eq!(text(&v1::NodeWaitsResponse::default(), TableSize::default()), "");
    }
}
