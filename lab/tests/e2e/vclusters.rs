//! vClusters: separate queues on separate nodes, through the CLI.

use crate::harness::{Group, NOBODY, World, ms};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;

static VCLUSTERS: Group = Group::small("vclusters");

pub fn trials() -> Vec<Trial> {
    vec![
        VCLUSTERS.test("a_queue_has_its_own_nodes_and_none_holds_up_another", &[], queues),
        VCLUSTERS.test("a_queue_with_a_cycle_interval_waits_for_its_next_round_and_no_other_does", &[], paced),
        VCLUSTERS.test("a_queue_is_shown_with_its_plan_as_a_chart", &[], shown_as_chart),
        VCLUSTERS.test("another_agent_serves_the_queues_of_one_that_died", &[], dies),
    ]
}

fn assert_refused(w: &World, args: &[&str], code: i32, pieces: &[&str]) {
    let done = w.run(args);
    assert_eq!(done.code(), code, "`lattice {}`: {}", args.join(" "), done.err());
    for piece in pieces {
        assert!(done.err().contains(piece), "`lattice {}` should say {piece:?}: {}", args.join(" "), done.err());
    }
}

fn vcluster(w: &World, name: &str) -> Value {
    w.lattice.json(&["admin", "vcluster", "show", name]).unwrap()
}

fn sleeper(w: &World, args: &[&str]) -> String {
    let id = w.submit(&[args, &["--", "/bin/sleep", "600"]].concat());
    w.running(&id);
    id
}

fn queues(w: &World) {
    assert_refused(w, &["submit", "--vcluster", "small", "--", "true"], 3, &["vCluster \"small\" not found; there are default", "hint: "]);
    for (kind, code) in [("sensitive-reservation", 4), ("lottery", 2)] {
        let named = [kind, "hpc-backfill", "interactive-fifo"];
        assert_refused(w, &["admin", "vcluster", "create", "--name=small", "--scheduler", kind], code, &named);
    }
    assert_eq!(vcluster(w, "default")["scheduler"], "hpc-backfill");
    assert_refused(w, &["admin", "vcluster", "set-weights", "--name=small", "--priority=0.2"], 3, &["vCluster \"small\" not found"]);
    assert_refused(w, &["admin", "vcluster", "create", "small", "--scheduler=fifo", "--description=x"], 4, &["--description is not built"]);
    let refused = w.run_as(NOBODY, &["admin", "vcluster", "create", "mine", "--scheduler=fifo"]);
    assert!(refused.code() == 4 && refused.err().contains("operator"), "{}", refused.err());

    w.ok(&["admin", "vcluster", "create", "--name=small", "--scheduler=interactive-fifo", "--nodes=n[2-3]"]);
    w.ok(&["admin", "vcluster", "create", "--name=physics", "--scheduler=hpc-backfill", "--tenant=physics"]);
    assert_eq!(vcluster(w, "physics")["scheduler"], "hpc-backfill");
    let listed = w.run_as(NOBODY, &["vcluster", "list"]);
    assert!(listed.out().contains("physics") && listed.out().contains("n[2-3]"), "{}{}", listed.out(), listed.err());
    assert_eq!(w.ok(&["nodes", "--vcluster", "small", "-o", "name"]), "n2\nn3\n");
    assert!(w.ok(&["nodes"]).contains("VCLUSTER"));
    assert_refused(w, &["submit", "--vcluster", "physics", "--", "true"], 4, &["tenant \"physics\" alone", "hint: "]);
    assert_refused(
        w,
        &["admin", "vcluster", "create", "--name=more", "--scheduler=fifo", "--nodes=n3"],
        4,
        &["n3 belongs to vCluster small", "hint: "],
    );

    // Each is placed on its own nodes, even if others are free.
    let first = sleeper(w, &["--vcluster", "small"]);
    let ours = sleeper(w, &[]);
    assert_eq!(w.status(&ours)["nodes"], serde_json::json!(["n1"]));
    let node = w.status(&first)["nodes"][0].as_str().unwrap().to_owned();
    assert!(["n2", "n3"].contains(&node.as_str()), "{node}");
    let big = w.submit(&["--vcluster", "small", "--nodes", "2", "--", "true"]);
    let waits = w.submit(&["--", "true"]);
    let behind = w.submit(&["--vcluster", "small", "--", "true"]);
    let explained = w.ok(&["explain", &behind]);
    assert!(explained.contains("in the queue of vCluster small (n[2-3])"), "{explained}");
    assert!(explained.contains("1 allocation submitted before it is served first"), "{explained}");
    let explained = w.ok(&["explain", &waits]);
    assert!(
        explained.contains("in the queue of vCluster default (n1)") && explained.contains("is of vCluster small, not of default"),
        "{explained}"
    );
    w.wait("the queue", || w.ok(&["vcluster", "queue", "small", "-o", "name"]) == format!("{big}\n{behind}\n"));
    assert_eq!((&vcluster(w, "small")["pending"], &vcluster(w, "small")["running"]), (&2.into(), &1.into()));
    // The large one waits for all nodes of a queue; the default queue continues as soon as its own node is free, and so
    // does physics there.
    w.ok(&["cancel", &ours]);
    w.completed(&waits);
    w.completed(&w.submit(&["--vcluster", "physics", "--tenant", "physics", "--", "true"]));
    assert_eq!(text(&w.status(&big), "state"), "Pending");
    assert_refused(w, &["admin", "vcluster", "delete", "small"], 4, &["has work that has not ended: 3 allocations", "hint: "]);
    w.ok(&["cancel", &first]);
    w.completed(&big);
    w.completed(&behind);

    // From now on `small` has n3, and the default queue has n1 and n2.
    w.ok(&["admin", "vcluster", "set-config", "--name=small", "--nodes=n3"]);
    let wide = w.submit(&["--nodes", "2", "--", "true"]);
    assert_eq!(w.completed(&wide)["nodes"], serde_json::json!(["n1", "n2"]));
    w.ok(&["admin", "vcluster", "delete", "small"]);
    w.ok(&["admin", "vcluster", "delete", "physics"]);
    let whole = w.submit(&["--nodes", "3", "--", "true"]);
    w.completed(&whole);
    let who = w.ok(&["audit", "query", "--type", "v-cluster-set,v-cluster-deleted"]);
    assert!(who.contains("small: scheduler interactive-fifo, tenant any, nodes n[2-3]"), "{who}");
}

fn paced(w: &World) {
    const INTERVAL_MS: u64 = 4000;
    /// How much longer one claim may take than another, on a busy machine.
    const CLAIM_MS_MAX: u64 = 3000;
    // Another agent would not know when the last round was: n1 alone may hold leases.
    w.ok(&["node", "cordon", "n[2-3]", "--reason", "n1 is to schedule"]);
    w.ok(&["admin", "vcluster", "create", "--name=paced", "--scheduler=hpc-backfill"]);
    w.wait("n1 to schedule", || ["default", "paced"].iter().all(|name| text(&vcluster(w, name), "served_by") == "n1"));
    let set_interval = |interval| w.ok(&["admin", "vcluster", "set-config", "--name=paced", "--cycle-interval", interval]);
    // Held first, because a submission that fits is placed with its own commit, without a round. On a part of the node,
    // because work that waits for a round keeps its part from the other queue.
    let released = |queue| {
        let id = w.submit(&["--vcluster", queue, "--cores=1", "--hold", "--", "/bin/true"]);
        w.ok(&["resume", &id]);
        id
    };
    set_interval("4s");
    assert_eq!(vcluster(w, "paced")["cycle_interval_ms"], INTERVAL_MS);
    let claimed_ms = [(); 3].map(|()| ms(&w.completed(&released("paced")), "claimed_at"));
    assert!(claimed_ms[2] - claimed_ms[0] >= 2 * INTERVAL_MS - CLAIM_MS_MAX, "each is claimed in a round of its own: {claimed_ms:?}");

    set_interval("10m");
    // The scheduler that places this work knows the new interval, so work that is released later waits.
    w.completed(&released("default"));
    let waits = released("paced");
    w.completed(&released("default"));
    let now = w.status(&waits);
    assert_eq!(text(&now, "state"), "Pending", "the other queue has had a round since: {now}");
    set_interval("0");
    w.completed(&waits);
    w.ok(&["node", "uncordon", "n[2-3]"]);
    w.ok(&["admin", "vcluster", "delete", "paced"]);
}

fn shown_as_chart(w: &World) {
    w.ok(&["admin", "vcluster", "create", "--name=small", "--scheduler=hpc-backfill", "--nodes=n[2-3]"]);
    w.wait("the empty queue", || w.run(&["vcluster", "small"]).out().ends_with("\n\nnothing runs and nothing waits\n"));
    let runs = w.submit(&["--vcluster", "small", "--name", "sleeper", "-N", "2", "--walltime", "1h", "--", "/bin/sleep", "600"]);
    w.running(&runs);
    let waits = w.submit(&["--vcluster", "small", "--name", "behind", "--walltime", "3m", "--", "/bin/true"]);
    let service = w.submit(&["--vcluster", "small", "--name", "large", "-N", "2", "--service", "--", "/bin/sleep", "600"]);

    let ids = |shown: &Value, list: &str| -> Vec<String> { shown[list].as_array().unwrap().iter().map(|a| text(a, "id")).collect() };
    w.wait("the plan", || {
        let shown = w.lattice.json(&["vcluster", "small"]).unwrap_or_else(|e| panic!("{e:#}"));
        ids(&shown, "running") == [runs.as_str()]
            && ids(&shown, "waiting") == [waits.as_str(), service.as_str()]
            && text(&shown["waiting"][0], "expected_start") == text(&shown["running"][0], "ends_by")
    });
    let shown = w.lattice.json(&["vcluster", "small"]).unwrap();
    assert_eq!((text(&shown["vcluster"], "name"), &shown["vcluster"]["nodes"]), ("small".to_owned(), &serde_json::json!(["n2", "n3"])));
    assert_eq!(shown["waiting_left_out"], 0);

    let chart = w.ok(&["vcluster", "small"]);
    assert!(chart.contains("\nNodes:      n[2-3] (2)\n") && chart.contains("\nWork:       1 running, 2 waiting\n"), "{chart}");
    assert!(
        chart.contains("  now         +15m        +30m        +45m") && chart.lines().all(|line| line.chars().count() <= 80),
        "{chart}"
    );
    let row = |id: &str| chart.lines().find(|line| line.starts_with(&id[..8])).unwrap_or_else(|| panic!("{chart}"));
    let (runs_row, waits_row, service_row) = (row(&runs), row(&waits), row(&service));
    assert!(runs_row.contains("  sleeper  2      =") && runs_row.ends_with("==="), "{chart}");
    assert!(waits_row.contains("  behind   1        ") && waits_row.ends_with("--"), "{chart}");
    assert!(service_row.contains("  large    2        ") && service_row.ends_with("->"), "{chart}");
    let bar_begins = |row: &str| row.find(" -").map(|before| before + 1).unwrap_or_else(|| panic!("{chart}"));
    let ends = runs_row.len();
    assert!([ends - 1, ends].contains(&bar_begins(waits_row)), "one begins in the cell in which the other ends: {chart}");
    assert!(bar_begins(waits_row) < bar_begins(service_row), "{chart}");

    assert_eq!(w.ok(&["vcluster", "show", "small"]).lines().next(), chart.lines().next());
    assert_eq!(w.ok(&["vcluster", "small", "-o", "name"]), "small\n");
    assert!(w.ok(&["vcluster", "-o", "yaml", "small"]).ends_with("\nwaiting_left_out: 0\n"));
    let seen = w.run_as(NOBODY, &["vcluster", "small"]);
    assert!(seen.code() == 0 && seen.out().contains("sleeper"), "{}{}", seen.out(), seen.err());
    assert_refused(w, &["vcluster", "lst"], 3, &["vCluster \"lst\" not found", "hint: `lattice vcluster list` shows the vClusters"]);
    assert_refused(w, &["vcluster", "small", "list"], 2, &["\"small\" and a command", "hint: "]);

    w.ok(&["cancel", &service]);
    w.ok(&["cancel", &runs]);
    w.completed(&waits);
    w.ok(&["admin", "vcluster", "delete", "small"]);
}

fn dies(w: &World) {
    w.ok(&["admin", "vcluster", "create", "--name=small", "--scheduler=fifo", "--nodes=n2"]);
    let served_by = |w: &World| text(&vcluster(w, "small"), "served_by");
    w.wait("its scheduler", || !["", "null"].contains(&served_by(w).as_str()));
    let (before, ours) = (served_by(w), sleeper(w, &["--vcluster", "small"]));
    let waits = w.submit(&["--vcluster", "small", "--", "true"]);
    // Not on n1, whose agent the tests use.
    let other = if before == "n1" { "n3" } else { "n1" };
    let lattice = w.at(other);
    faults::kill_node(&w.dir, &before).unwrap();
    let show = ["admin", "vcluster", "show", "small"];
    w.wait("another scheduler", || {
        let now = lattice.json(&show).map(|v| text(&v, "served_by")).unwrap_or_default();
        !["", "null", before.as_str()].contains(&now.as_str())
    });
    if before == "n2" {
        faults::heal(&w.dir, crate::harness::JOB).unwrap();
    }
    lattice.ok(&["cancel", &ours]).unwrap();
    let ended = lattice.ended_within(&waits, crate::harness::JOB).unwrap();
    assert_eq!((text(&ended, "state"), &ended["nodes"]), ("Completed".into(), &serde_json::json!(["n2"])));
    faults::heal(&w.dir, crate::harness::JOB).unwrap();
    w.ok(&["admin", "vcluster", "delete", "small"]);
}
