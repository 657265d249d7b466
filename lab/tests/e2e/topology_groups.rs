//! Topology groups, and allocations of a range of numbers of nodes.

use crate::harness::{Group, World, binaries, configure};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;

static GROUPS: Group = Group { theme: "topology_groups", name: "topology-groups", nodes: 5, quorum: 1, tweak: |_| {} };

pub fn trials() -> Vec<Trial> {
    vec![
        GROUPS.test("work_is_placed_in_few_groups_and_tight_work_waits_for_them", &[], groups),
        GROUPS.test("of_a_range_work_gets_the_nodes_that_are_free", &[], range),
    ]
}

/// n1 and n3 are in one row, the others in another.
fn in_rows(w: &World) {
    let known = |w: &World| -> Vec<String> {
        let nodes = w.lattice.json(&["nodes"]).unwrap();
        nodes.as_array().unwrap().iter().map(|node| text(node, "topology_group")).collect()
    };
    let rows = ["row-1", "row-2", "row-1", "row-2", "row-2"];
    if known(w) != rows {
        for (number, row) in (1..).zip(rows) {
            let node = format!("n{number}");
            configure(&w.dir, &node, &format!("topology_group: {row}\n"));
            faults::restart_node(&w.dir, &node).unwrap();
        }
        w.wait("all nodes to be known with their groups", || known(w) == rows);
    }
    assert!(w.ok(&["nodes", "-o", "wide"]).contains("row-2"));
}

fn nodes_of(w: &World, id: &str) -> Vec<String> {
    let status = w.status(id);
    status["nodes"].as_array().unwrap().iter().map(|node| node.as_str().unwrap().to_owned()).collect()
}

fn hold(w: &World, node: &str) -> String {
    let id = w.submit(&["-w", node, "--walltime", "10m", "--", "/bin/sleep", "600"]);
    w.running(&id);
    id
}

fn groups(w: &World) {
    in_rows(w);
    for (count, nodes) in [("2", ["n1", "n3"].as_slice()), ("3", &["n2", "n4", "n5"])] {
        let id = w.submit(&["-N", count, "--", "/bin/true"]);
        w.completed(&id);
        assert_eq!(nodes_of(w, &id), nodes);
    }
    let first = hold(w, "n1");
    let others = [hold(w, "n2"), hold(w, "n4")];
    let tight = w.submit(&["-N", "2", "--topology", "tight", "--walltime", "5m", "--", "/bin/sleep", "300"]);
    let any = w.submit(&["-N", "2", "--walltime", "2m", "--", "/bin/true"]);
    w.completed(&any);
    assert_eq!(nodes_of(w, &any), ["n3", "n5"]);
    let waits = w.status(&tight);
    assert_eq!((text(&waits, "state"), text(&waits, "topology")), ("Pending".to_owned(), "tight".to_owned()), "{waits}");
    let why = w.ok(&["explain", &tight]);
    assert!(why.contains("in as few topology groups as possible") && why.contains("(--topology any)"), "{why}");
    let limited = w.submit(&["-N", "2", "--topology", "1", "--topology-wait", "15s", "--walltime", "1m", "--", "/bin/true"]);
    let why = w.ok(&["explain", &limited]);
    assert!(why.contains("in at most 1 topology group (until "), "{why}");
    w.completed(&limited);
    assert_eq!(nodes_of(w, &limited), ["n3", "n5"]);
    w.ok(&["cancel", &first]);
    w.running(&tight);
    assert_eq!(nodes_of(w, &tight), ["n1", "n3"]);
    for id in others.iter().chain([&tight]) {
        w.ok(&["cancel", id]);
    }
    let refused = w.run(&["submit", "-N", "2", "-C", "topology=tight", "--", "/bin/true"]);
    assert!(refused.code() != 0 && refused.err().contains("--topology any or --topology tight"), "{}", refused.err());
}

fn range(w: &World) {
    in_rows(w);
    let ran = |args: &[&str]| {
        let id = w.submit(&[args, &["--", "/bin/sh", "-c", "echo $LATTICE_RANK of $LATTICE_NPROCS"]].concat());
        w.completed(&id);
        let mut lines: Vec<String> = w.log(&id).lines().map(str::to_owned).collect();
        lines.sort_unstable();
        (nodes_of(w, &id), lines)
    };
    let ranks = |count: usize| (0..count).map(|rank| format!("{rank} of {count}")).collect::<Vec<_>>();
    let (nodes, lines) = ran(&["-N", "2-8"]);
    assert_eq!((nodes.len(), lines), (5, ranks(5)));
    let held = hold(w, "n1");
    let (nodes, lines) = ran(&["-N", "2-8"]);
    assert_eq!((nodes.len(), lines), (4, ranks(4)));
    let launches = format!("#!/bin/sh\necho $LATTICE_NNODES nodes\nexec {} launch /bin/echo up\n", binaries().lattice().display());
    let id = w.submit(&["-N", "2-8", "--tasks-per-node", "2", &w.script("launches.sh", &launches)]);
    w.completed(&id);
    assert_eq!(w.log(&id), format!("4 nodes\n{}", "up\n".repeat(8)));
    let (nodes, lines) = ran(&["-N", "2-6", "-n", "6"]);
    assert_eq!((nodes.len(), lines), (4, ranks(6)), "the number of ranks is what was asked for");
    let (nodes, _) = ran(&["-N", "1-9", "--topology", "tight"]);
    assert_eq!(nodes, ["n2", "n4", "n5"]);
    let waits = w.submit(&["-N", "5-8", "--walltime", "1m", "--", "/bin/true"]);
    let listed = w.ok(&["status", "--state", "pending"]);
    assert!(listed.contains("5-8"), "{listed}");
    w.ok(&["cancel", &held]);
    w.completed(&waits);
    for (args, why) in [
        (["-N", "2-8", "-n", "4"], "some would have none of its 4 ranks"),
        (["-N", "2-3", "-w", "n1,n2"], "a list of the exact nodes"),
        (["-N", "3-2", "-n", "4"], "smaller than the first"),
    ] {
        let refused = w.run(&[&["submit"], &args[..], &["--", "/bin/true"]].concat());
        assert!(refused.code() == 2 && refused.err().contains(why), "{args:?}: {} {}", refused.code(), refused.err());
    }
}
