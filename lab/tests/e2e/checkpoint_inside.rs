//! Where the site restricts work to its own allocation, requests of work over the node's socket may concern only that
//! allocation, even if the same user owns another one.

use crate::checkpoint::{Chain, last};
use crate::harness::{Group, World};
use libtest_mimic::Trial;

static INSIDE: Group = Group {
    theme: "checkpoint_inside",
    name: "checkpoint-narrow",
    nodes: 2,
    quorum: 1,
    tweak: |options| options.agent_lines = "work: {may: own_allocation}".to_owned(),
};

pub fn trials() -> Vec<Trial> {
    vec![INSIDE.test("work_asks_about_its_own_allocation_and_no_other", &[], own_alone)]
}

fn own_alone(w: &World) {
    let (own, other) = (Chain::submit(w, &[], &["--nodes", "1"]), Chain::submit(w, &[], &["--nodes", "1"]));
    assert_eq!(other.create(w).code(), 0);
    let others_last = last(w, &other.id);
    // Both allocations are root's, and root may use both from outside.
    w.ok(&["checkpoint", "list", &other.id]);
    let lattice = w.dir.join("bin/lattice").display().to_string();
    let inside =
        |asks: &str| w.run(&["launch", "--alloc", &own.id, "-n", "1", "sh", "-c", &format!("{lattice} {asks} 2>&1; echo gave $?")]);
    // Work need not name its own allocation.
    let made = inside("checkpoint create -o name").out();
    let own_last = last(w, &own.id);
    assert!(made.contains(&own_last) && made.ends_with("gave 0\n"), "{made}");
    for asks in ["list", "show", "verify"] {
        let output = inside(&format!("checkpoint {asks} {}", own.id)).out();
        assert!(output.ends_with("gave 0\n"), "{asks}: {output}");
    }
    let other_id = &other.id;
    let asked = [
        format!("checkpoint create {other_id}"),
        format!("checkpoint list {other_id}"),
        format!("checkpoint show {other_id}"),
        format!("checkpoint verify {other_id}"),
        format!("checkpoint rm {other_id} {others_last}"),
        format!("preempt {other_id}"),
        format!("status {other_id}"),
        format!("explain {other_id}"),
        format!("cancel {other_id}"),
        format!("logs {other_id}"),
        "status".to_owned(),
        "submit -- /bin/true".to_owned(),
    ];
    for asks in asked {
        let output = inside(&asks).out();
        let expected = format!("this process is work of allocation {} and may act for that one alone", &own.id[..8]);
        assert!(output.contains(&expected) && output.ends_with("gave 4\n"), "{asks}: {output}");
    }
    assert_eq!(last(w, other_id), others_last, "it was not asked");
    other.end(w);
    own.end(w);
    w.assert_nothing_left();
}
