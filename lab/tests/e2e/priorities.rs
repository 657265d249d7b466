//! The order of a queue by score and class, weights changed while it runs, and preemption by the
//! scheduler.

use crate::harness::{Group, World, fresh_dir};
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;

static PRIORITIES: Group = Group::small("priorities");

pub fn trials() -> Vec<Trial> {
    vec![
        PRIORITIES.test("a_queue_follows_the_shares_of_tenants_until_its_weights_are_changed", &[], weighs),
        PRIORITIES.test("work_of_a_lower_class_gives_its_nodes_back_and_runs_again", &[], preempts),
        PRIORITIES.test("weights_and_classes_that_make_no_sense_are_refused", &[], refuses),
    ]
}

/// The names of what waits in the default queue, in order.
fn waiting(w: &World) -> Vec<String> {
    let queue: Vec<Value> = serde_json::from_str(&w.ok(&["explain", "--queue", "-o", "json"])).unwrap();
    queue.iter().map(|a| text(a, "name")).collect()
}

fn weighs(w: &World) {
    for tenant in ["much", "little"] {
        w.ok(&["admin", "tenant", "create", tenant, "--fair-share-target", "0.5"]);
    }
    let used = w.submit(&["--tenant", "much", "-N", "3", "--walltime", "5m", "--", "/bin/sleep", "2"]);
    w.completed(&used);
    let held = w.submit(&["--name", "held", "-N", "3", "--walltime", "10m", "--", "/bin/sleep", "600"]);
    w.running(&held);
    let of = |tenant: &str| w.submit(&["--name", tenant, "--tenant", tenant, "-N", "3", "--walltime", "5m", "--", "/bin/true"]);
    let (much, little) = (of("much"), of("little"));
    w.wait("the tenant that has used less to be first", || waiting(w) == ["little", "much"]);
    let explained: Value = serde_json::from_str(&w.ok(&["explain", &little, "-o", "json"])).unwrap();
    let terms = explained["score"]["terms"].as_array().unwrap();
    let fair_share = terms.iter().find(|term| term["factor"] == "fair-share").unwrap();
    assert_eq!(
        (&fair_share["value"], &fair_share["weight"], &fair_share["known"]),
        (&1.0.into(), &0.2.into(), &true.into()),
        "{explained}"
    );
    assert_eq!(explained["score"]["class"], 5);
    let shown = w.ok(&["explain", &much]);
    let line = |factor: &str| shown.lines().find(|line| line.starts_with(factor)).unwrap_or_else(|| panic!("{shown}"));
    assert!(line("fair-share").contains(" 0.000 ") && line("energy").ends_with("the same for all"), "{shown}");

    // From the next round on, the time of waiting alone decides.
    let set = w.ok(&["admin", "vcluster", "set-weights", "default", "--fair-share", "0", "--priority=0"]);
    assert!(set.contains("Weights of its score (set by an operator):") && set.contains("fair-share 0"), "{set}");
    w.wait("the one that was submitted first to be first", || waiting(w) == ["much", "little"]);
    w.ok(&["cancel", &held]);
    let (much, little) = (w.completed(&much), w.completed(&little));
    assert!(text(&much, "started_at") < text(&little, "started_at"), "{much} {little}");
    let reset = w.ok(&["admin", "vcluster", "set-weights", "default", "--profile", "default"]);
    assert!(reset.contains("(those of its scheduler)") && reset.contains("fair-share 0.2"), "{reset}");
    let audit = w.ok(&["audit", "query", "--type", "v-cluster-set"]);
    assert!(audit.contains("fair-share 0 "), "{audit}");
}

fn preempts(w: &World) {
    let dir = fresh_dir("priorities");
    std::fs::create_dir(&dir).unwrap();
    let mark = dir.join("began");
    let body = format!("test -e {0} || {{ touch {0}; sleep 600; }}", mark.display());
    let scavenger = ["--name", "scavenger", "--preemption-class", "1", "--requeue=always", "--walltime", "30m", "-N", "3"];
    let victim = w.submit(&[&scavenger[..], &["--", "/bin/sh", "-c", &body]].concat());
    w.wait("it to have begun", || mark.exists());
    let urgent = w.submit(&["--name", "usual", "-N", "2", "--walltime", "5m", "--", "/bin/true"]);
    w.completed(&urgent);
    let again = w.completed(&victim);
    assert_eq!((&again["requeue_count"], &again["attempt"]), (&1.into(), &2.into()), "{again}");
    let reason = text(&again["attempts"][0], "reason");
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(reason.contains("preempted by scheduler") && reason.contains(&format!("allocation {} of class 5", &urgent[..8])), "{reason}");

    // Work of the usual class is left alone by work that calls itself urgent.
    let usual = w.submit(&["--name", "long", "--requeue=always", "-N", "3", "--walltime", "30m", "--", "/bin/sleep", "600"]);
    w.running(&usual);
    let loud = w.submit(&["--name", "loud", "--preemption-class", "9", "--walltime", "5m", "--", "/bin/true"]);
    let shown = w.ok(&["explain", &loud]);
    assert!(shown.contains("among work of class 5"), "{shown}");
    assert_eq!(text(&w.status(&usual), "state"), "Running");
    w.ok(&["cancel", &usual]);
    w.completed(&loud);
}

fn refuses(w: &World) {
    let refused = |args: &[&str], code: i32, piece: &str| {
        let done = w.run(args);
        assert!(done.code() == code && done.err().contains(piece), "`lattice {}`: {}", args.join(" "), done.err());
    };
    let set = ["admin", "vcluster", "set-weights", "default"];
    for (weight, piece) in [("-0.1", "from 0 to 1000"), ("NaN", "from 0 to 1000"), ("1001", "from 0 to 1000"), ("much", "invalid float")] {
        refused(&[&set[..], &["--fair-share", weight]].concat(), 2, piece);
    }
    refused(&set, 2, "nothing to change");
    refused(&[&set[..], &["--profile", "lottery"]].concat(), 2, "not a weight profile");
    let zero = ["priority", "wait-time", "fair-share", "topology", "data-readiness", "backlog", "energy", "checkpoint", "conformance"];
    let zero: Vec<String> = zero.iter().map(|factor| format!("--{factor}=0")).collect();
    let zero: Vec<&str> = zero.iter().map(String::as_str).collect();
    refused(&[&set[..], &zero[..]].concat(), 2, "all weights would be 0");
    refused(&["admin", "vcluster", "set-config", "default", "--cycle-interval", "11m"], 2, "at most 600 s");
    refused(&["admin", "vcluster", "set-config", "default", "--tenant", "x"], 2, "its weights and its interval can be set");
    w.ok(&["admin", "vcluster", "create", "line", "--scheduler", "fifo"]);
    refused(&["admin", "vcluster", "set-weights", "line", "--fair-share", "1"], 2, "in the order of submission");
    w.ok(&["admin", "vcluster", "delete", "line"]);
    let default: Value = w.lattice.json(&["admin", "vcluster", "show", "default"]).unwrap();
    assert_eq!(
        (&default["weights_set"], &default["weights"]["fair-share"]),
        (&false.into(), &0.2.into()),
        "nothing has changed: {default}"
    );
}
