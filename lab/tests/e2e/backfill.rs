//! Backfill: short work overtakes a large allocation that waits, and does not delay it.

use crate::harness::{Group, World};
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;

static BACKFILL: Group = Group::small("backfill");

pub fn trials() -> Vec<Trial> {
    vec![BACKFILL.test("short_work_overtakes_and_the_large_one_begins_when_it_can", &[], overtakes)]
}

fn overtakes(w: &World) {
    let held = w.submit(&["--name", "held", "--walltime", "10m", "--", "/bin/sleep", "600"]);
    w.running(&held);
    let until = text(&w.status(&held), "ends_by");
    let large = w.submit(&["--name", "large", "-N", "3", "--walltime", "5m", "--", "/bin/true"]);
    let long = w.submit(&["--name", "long", "--walltime", "30m", "--", "/bin/true"]);
    let short = w.submit(&["--name", "short", "--walltime", "2m", "--", "/bin/true"]);
    w.completed(&short);

    // The large allocation waits for the node of the first, and the long one would delay it.
    let waits = |id: &str| {
        let now = w.status(id);
        assert_eq!(text(&now, "state"), "Pending", "{now}");
        now
    };
    assert_eq!(text(&waits(&large), "expected_start"), until);
    let after = text(&waits(&long), "expected_start");
    assert!(after > until, "the long one is expected after the large one: {after}, {until}");
    let reasons: Vec<Value> = serde_json::from_str(&w.ok(&["status", "-o", "json", "--state", "pending"])).unwrap();
    let reason = |id: &str| text(reasons.iter().find(|a| a["id"] == id).unwrap(), "status_message");
    assert_eq!(reason(&large), format!("starts ~{}Z: next, 2 of 3 free", &until[11..16]));
    assert!(reason(&long).ends_with("Z: 1 ahead"), "{}", reason(&long));
    let explained = w.ok(&["explain", &large]);
    assert!(explained.contains(&format!("it is next; expected to start at {until} on n[1-3]")), "{explained}");
    let explained = w.ok(&["explain", &long]);
    assert!(explained.contains("1 allocation of its queue is ahead of it"), "{explained}");
    assert!(explained.contains(&format!("is reserved for allocation {} from {until} on", &large[..8])), "{explained}");

    w.ok(&["cancel", &held]);
    let (large, long) = (w.completed(&large), w.completed(&long));
    assert!(text(&large, "started_at") < text(&long, "started_at") && text(&large, "started_at") < until, "{large} {long}");
    assert!(large["expected_start"].is_null(), "{large}");
}
