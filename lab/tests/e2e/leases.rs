//! Leases for users' programs, and the holds that end them.

use crate::harness::{DAEMON, Group, NOBODY, World};
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;

static LEASES: Group = Group::small("leases");

pub fn trials() -> Vec<Trial> {
    vec![
        LEASES.test("one_holder_at_a_time_with_a_rising_token", &[], one_holder),
        LEASES.test("a_user_sees_no_others_tokens_and_cannot_release_others_leases", &[], others),
        LEASES.test("renewals_are_not_logged_and_a_lease_that_is_not_renewed_ends", &[], renewals),
        LEASES.test("a_cordoned_node_may_release_but_not_renew_and_its_scheduler_moves", &[], cordon),
        LEASES.test("quarantined_holders_are_listed_as_bad_and_revoked", &[], quarantine),
    ]
}

/// The CLI must end with this code, and its message must contain all of these texts.
fn refused(w: &World, args: &[&str], code: i32, pieces: &[&str]) {
    let done = w.run(args);
    assert_eq!(done.code(), code, "`lattice {}`: {}", args.join(" "), done.err());
    for piece in pieces {
        assert!(done.err().contains(piece), "`lattice {}` should say {piece:?}: {}", args.join(" "), done.err());
    }
}

fn leases(w: &World, more: &[&str]) -> Vec<Value> {
    w.lattice.json(&[&["lease", "list"], more].concat()).unwrap().as_array().unwrap().clone()
}

fn lease(w: &World, name: &str) -> Option<Value> {
    leases(w, &[]).into_iter().find(|l| text(l, "name") == name)
}

fn grant(w: &World, name: &str, ttl: &str) -> String {
    w.ok(&["lease", "grant", name, "--ttl", ttl, "-o", "name"]).trim().to_owned()
}

fn one_holder(w: &World) {
    let token = grant(w, "build", "1m");
    assert_eq!(grant(w, "build", "1m"), token, "the same holder again");
    // Neither another user nor another node gets the lease.
    let other = w.run_as(NOBODY, &["lease", "grant", "build"]);
    assert!(other.code() == 4 && other.err().contains("held by root at node n1"), "{}", other.err());
    let away = w.at("n2").run(&["lease", "grant", "build"], crate::harness::JOB).unwrap();
    assert!(away.code() == 4 && away.err().contains("hint: "), "{}", away.err());
    let not_theirs = w.run_as(NOBODY, &["lease", "renew", "build", "--token", &token]);
    assert!(not_theirs.code() == 4 && not_theirs.err().contains("is root's"), "{}", not_theirs.err());
    let not_operator = w.run_as(NOBODY, &["lease", "revoke", "build"]);
    assert!(not_operator.code() == 4 && not_operator.err().contains("operator"), "{}", not_operator.err());
    refused(w, &["lease", "grant", "scheduler/default"], 2, &["reserved for agents"]);
    refused(w, &["lease", "renew", "build", "--token", "999999"], 4, &["not the current token", "lattice lease grant"]);
    w.ok(&["lease", "release", "build", "--token", &token]);
    w.ok(&["lease", "release", "build", "--token", &token]);
    let theirs = w.run_as(DAEMON, &["lease", "grant", "build", "-o", "name"]);
    assert!(theirs.out().trim().parse::<u64>().unwrap() > token.parse::<u64>().unwrap(), "{}", theirs.err());
    refused(w, &["lease", "renew", "build", "--token", &token], 4, &["not the current token"]);
    assert!(w.ok(&["lease", "revoke", "build"]).contains("Revoked build"));
    refused(w, &["lease", "revoke", "build"], 3, &["no lease build"]);
}

fn others(w: &World) {
    w.wait("a scheduler", || !scheduler(w).is_empty());
    let token = grant(w, "roots", "1m");
    let theirs = w.run_as(NOBODY, &["lease", "grant", "theirs", "-o", "name"]).out().trim().parse::<u64>().unwrap();
    let seen = w.run_as(NOBODY, &["lease", "list", "-o", "json"]).out();
    let seen: Vec<Value> = serde_json::from_str::<Value>(&seen).unwrap().as_array().unwrap().clone();
    let token_of = |name: &str| seen.iter().find(|l| text(l, "name") == name).unwrap()["token"].clone();
    assert_eq!((token_of("scheduler/default"), token_of("roots"), token_of("theirs")), (Value::Null, Value::Null, theirs.into()));
    // Root sees all tokens. The right token alone does not permit a user to release another's lease.
    let schedulers = lease(w, "scheduler/default").unwrap()["token"].as_u64().unwrap().to_string();
    for (name, token, expected) in [("scheduler/default", &schedulers, "node n"), ("roots", &token, "is root's")] {
        let refused = w.run_as(NOBODY, &["lease", "release", name, "--token", token]);
        assert!(refused.code() == 4 && refused.err().contains(expected), "{name}: {}", refused.err());
    }
    assert_eq!(lease(w, "scheduler/default").unwrap()["token"].as_u64().unwrap().to_string(), schedulers, "the scheduler still holds it");
    w.ok(&["lease", "revoke", "roots", "theirs"]);
}

fn renewals(w: &World) {
    let token = grant(w, "short", "1s");
    let audited = |w: &World| w.lattice.json(&["quorum", "status"]).unwrap()["audit_records"].as_u64().unwrap();
    let revision = |w: &World| w.lattice.json(&["quorum", "status"]).unwrap()["revision"].as_u64().unwrap();
    let (before, records) = (revision(w), audited(w));
    for _ in 0..15 {
        w.ok(&["lease", "renew", "short", "--token", &token]);
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(lease(w, "short").is_some(), "renewed for longer than its time to live");
    // A signature of the audit chain may be among them.
    let (entries, audited) = (revision(w) - before, audited(w) - records);
    assert!(entries <= 4 && audited <= 4, "15 renewals, and the scheduler's own, left {entries} entries and {audited} records");
    w.wait("its end", || lease(w, "short").is_none());
    refused(w, &["lease", "renew", "short", "--token", &token], 4, &["not the current token"]);
}

fn scheduler(w: &World) -> String {
    lease(w, "scheduler/default").map(|l| text(&l, "holder")).unwrap_or_default()
}

fn cordon(w: &World) {
    let token = grant(w, "mine", "1m");
    w.wait("a scheduler", || !scheduler(w).is_empty());
    let busy = scheduler(w);
    let mut nodes = vec!["n1"];
    if busy != "n1" {
        nodes.push(&busy);
    }
    w.ok(&[&["node", "cordon"], &nodes[..], &["--reason", "new fan"]].concat());
    refused(w, &["lease", "renew", "mine", "--token", &token], 4, &["under cordon by root@n1: new fan", "lattice node uncordon n1"]);
    refused(w, &["lease", "grant", "another"], 4, &["under cordon"]);
    w.ok(&["lease", "release", "mine", "--token", &token]);
    // Another agent schedules now, and avoids the cordoned nodes.
    w.wait("another scheduler", || !["", "n1", &busy].contains(&scheduler(w).as_str()));
    let id = w.submit(&["--nodes", "1", "--", "/bin/true"]);
    let ended = w.completed(&id);
    assert!(!ended["nodes"].to_string().contains("n1"), "{ended}");
    let waits = w.submit(&["--nodes", "3", "--", "/bin/true"]);
    w.wait("the reason", || w.ok(&["explain", &waits]).contains("under cordon by root"));
    w.ok(&[&["node", "uncordon"], &nodes[..]].concat());
    w.completed(&waits);
    let nobody = w.run_as(NOBODY, &["node", "cordon", "n1", "--reason", "x"]);
    assert!(nobody.code() == 4 && nobody.err().contains("operator"), "{}", nobody.err());
    refused(w, &["node", "cordon", "n99", "--reason", "x"], 3, &["n99"]);
}

fn quarantine(w: &World) {
    grant(w, "suspect", "1m");
    w.ok(&["node", "quarantine", "n1", "--reason", "ECC errors"]);
    let problematic: Vec<String> = leases(w, &["--problem"]).iter().map(|l| text(l, "name")).collect();
    assert!(problematic.contains(&"suspect".to_owned()), "{problematic:?}");
    assert!(w.ok(&["lease", "list"]).contains("ECC errors"));
    let revoked = w.ok(&["lease", "revoke", "--problem", "-o", "name"]);
    assert!(revoked.lines().any(|l| l == "suspect"), "{revoked}");
    assert_eq!(leases(w, &["--problem"]), Vec::<Value>::new());
    assert!(w.ok(&["lease", "revoke", "--problem"]).is_empty(), "nothing is left");
    w.ok(&["node", "release", "n1"]);
    grant(w, "suspect", "1s");
}
