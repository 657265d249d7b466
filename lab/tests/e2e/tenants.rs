//! Tenants and their hard quotas, through the CLI.

use crate::harness::{Group, NOBODY, World};
use lattice_lab::lattice::text;
use libtest_mimic::Trial;

static TENANTS: Group = Group::small("tenants");

pub fn trials() -> Vec<Trial> {
    vec![
        TENANTS.test("work_larger_than_a_quota_is_refused_with_the_documented_text", &[], refused),
        TENANTS.test("work_that_a_quota_stops_now_is_accepted_and_waits_for_headroom", &[], waits),
        TENANTS.test("work_that_needs_a_part_of_a_node_is_placed_where_the_quota_allows_it", &[], parts),
        TENANTS.test("schedulers_that_race_exceed_no_quota", &[], race),
        TENANTS.test("shares_of_two_tenants_meet_on_a_node_only_where_the_policy_allows_it", &[], share_policy),
        TENANTS.test("exclusive_work_shares_a_node_with_its_users_work_alone", &[], exclusive_user),
        TENANTS.test("tenants_are_operators_business", &[], operators),
    ]
}

fn sleeper(w: &World, args: &[&str]) -> String {
    let id = w.submit(&[&["--tenant", "physics"], args, &["--", "/bin/sleep", "600"]].concat());
    w.running(&id);
    id
}

fn assert_refused(w: &World, args: &[&str], pieces: &[&str]) {
    let done = w.run(args);
    assert_eq!(done.code(), 4, "`lattice {}`: {}", args.join(" "), done.err());
    for piece in pieces {
        assert!(done.err().contains(piece), "`lattice {}` should say {piece:?}: {}", args.join(" "), done.err());
    }
}

fn refused(w: &World) {
    w.ok(&["admin", "tenant", "create", "--name=physics", "--max-nodes=2"]);
    let excess = "tenant \"physics\" would exceed max_nodes quota (current: 0, requested: 3, limit: 2)";
    assert_refused(
        w,
        &["submit", "--tenant", "physics", "--nodes", "3", "--", "true"],
        &["allocation rejected", excess, "hint: ask for less"],
    );
    // A tenant that does not exist has no quota, and its submissions are refused.
    let unknown = w.run(&["submit", "--tenant", "physx", "--", "true"]);
    assert_eq!(unknown.code(), 3, "{}", unknown.err());
    assert!(unknown.err().contains("there is no tenant \"physx\"; did you mean \"physics\"?"), "{}", unknown.err());
    // Other tenants are not affected, and a submission that fits is accepted.
    let other = w.submit(&["--", "true"]);
    let fits = w.submit(&["--tenant", "physics", "--", "true"]);
    for id in [&other, &fits] {
        assert_eq!(text(&w.ended(id), "state"), "Completed");
    }
    assert_refused(w, &["admin", "tenant", "create", "physics", "--max-nodes=7"], &["exists already", "admin tenant update physics"]);
    w.ok(&["admin", "tenant", "delete", "physics"]);
    assert_eq!(w.run(&["admin", "tenant", "show", "physics"]).code(), 3);
}

fn waits(w: &World) {
    w.ok(&["admin", "tenant", "create", "physics", "--max-nodes=3"]);
    let first = sleeper(w, &["--nodes", "2"]);
    // Waiting work is not counted: it is accepted, and waits for quota.
    let second = w.submit(&["--tenant", "physics", "--nodes", "2", "--", "true"]);
    w.wait("its reason", || text(&w.status(&second), "reason").contains("waiting for quota headroom"));
    let explained = w.ok(&["explain", &second]);
    assert!(explained.contains("would exceed max_nodes quota (current: 2, requested: 2, limit: 3)"), "{explained}");
    // It does not block the work behind it.
    let other = w.submit(&["--", "true"]);
    assert_eq!(text(&w.ended(&other), "state"), "Completed");
    // The quota is lowered below the running work, which continues.
    w.ok(&["admin", "tenant", "update", "physics", "--max-nodes=1"]);
    let third = w.submit(&["--tenant", "physics", "--", "true"]);
    w.wait("its reason", || text(&w.status(&third), "reason").contains("exceeds max_nodes quota (current: 2, requested: 1, limit: 1)"));
    assert_eq!(text(&w.status(&first), "state"), "Running");
    w.ok(&["admin", "tenant", "update", "physics", "--max-nodes=2", "--max-concurrent-allocations=1"]);
    w.wait("its reason", || text(&w.status(&third), "reason").contains("max_nodes quota (current: 2, requested: 1, limit: 2)"));
    let shown = w.lattice.json(&["admin", "tenant", "show", "physics"]).unwrap();
    assert_eq!((&shown["nodes"], &shown["allocations"]), (&2.into(), &1.into()), "{shown}");
    w.ok(&["cancel", &first]);
    for id in [&second, &third] {
        assert_eq!(text(&w.ended(id), "state"), "Completed");
    }
    w.ok(&["admin", "tenant", "delete", "physics"]);
}

/// The best fit for physics's work is n1, of which another tenant has a part; its quota allows n2 alone.
fn parts(w: &World) {
    w.ok(&["admin", "tenant", "create", "physics", "--max-nodes=1"]);
    let nodes = w.lattice.json(&["nodes"]).unwrap();
    let cores = nodes.as_array().unwrap().iter().find(|n| n["id"] == "n2").and_then(|n| n["cores"].as_u64()).unwrap();
    let others = w.submit(&["--cores=1", "-w", "n1", "--", "/bin/sleep", "600"]);
    w.running(&others);
    let first = sleeper(w, &["--cores=1", "-w", "n2"]);
    let second = sleeper(w, &[&format!("--cores={}", cores - 1)]);
    assert_eq!(w.status(&second)["nodes"], serde_json::json!(["n2"]));
    // n2 is full: the next one waits for the quota, says so, and blocks nobody.
    let third = w.submit(&["--tenant", "physics", "--cores=1", "--", "/bin/true"]);
    let excess = "would exceed max_nodes quota (current: 1, requested: 1, limit: 1); of the nodes that the tenant uses, 0 can take it now";
    w.wait("its reason", || w.ok(&["explain", &third]).contains(excess));
    assert!(text(&w.status(&third), "reason").contains(excess), "{}", w.status(&third));
    w.completed(&w.submit(&["--cores=1", "--", "/bin/true"]));
    assert_eq!(text(&w.status(&third), "state"), "Pending");
    w.ok(&["cancel", &second]);
    w.completed(&third);
    for id in [&first, &others] {
        w.ok(&["cancel", id]);
        w.ended(id);
    }
    w.ok(&["admin", "tenant", "delete", "physics"]);
}

/// Restores the share policy, whatever the result of the test.
struct PolicyRestored<'a>(&'a World);

impl Drop for PolicyRestored<'_> {
    fn drop(&mut self) {
        let _ = self.0.run(&["admin", "limits", "--share-policy=anyone"]);
    }
}

fn share_policy(w: &World) {
    for tenant in ["physics", "chemistry"] {
        w.ok(&["admin", "tenant", "create", tenant, "--max-nodes=3"]);
    }
    let policy = || text(&w.lattice.json(&["admin", "limits"]).unwrap(), "share_policy");
    assert_eq!(policy(), "anyone", "it is the default");
    assert_eq!(w.run_as(NOBODY, &["admin", "limits", "--share-policy=user"]).code(), 4, "operators set it");
    let _restored = PolicyRestored(w);
    assert!(w.ok(&["admin", "limits", "--share-policy=tenant"]).contains("Share policy:"));
    assert_eq!(policy(), "tenant");
    assert!(w.ok(&["audit", "query", "--type", "limits-set"]).contains("share_policy tenant"));
    let core = |tenant: &str, walltime: &str| {
        w.submit(&["--tenant", tenant, "--cores=1", "-w", "n1", "--walltime", walltime, "--", "/bin/sleep", "600"])
    };
    let first = core("physics", "1h");
    w.running(&first);
    // A core of n1 is free, and the other tenant does not get it.
    let theirs = core("chemistry", "1h");
    w.wait("its reason in the list", || w.ok(&["status"]).contains("work of another tenant"));
    let held = "holds work of another tenant";
    let explained = w.ok(&["explain", &theirs]);
    assert!(explained.contains(held) && explained.contains("a node holds shares of one tenant at a time"), "{explained}");
    // The same tenant gets it: its work ends before the other's reservation begins.
    let second = core("physics", "10m");
    w.running(&second);
    assert_eq!(text(&w.status(&theirs), "state"), "Pending");
    // The other tenant's work waits until the first tenant has no work there.
    w.ok(&["cancel", &first]);
    w.ended(&first);
    // Its core is free once the node has released it; only the core of the second is claimed then.
    w.wait("a core of n1 to be free", || {
        let nodes = w.lattice.json(&["nodes"]).unwrap();
        nodes.as_array().unwrap().iter().any(|node| text(node, "id") == "n1" && node["committed"]["cores"] == 1)
    });
    assert!(w.ok(&["explain", &theirs]).contains(held), "the second still holds n1");
    assert_eq!(text(&w.status(&theirs), "state"), "Pending");
    w.ok(&["cancel", &second]);
    w.running(&theirs);
    // Where anyone shares with anyone, both run.
    w.ok(&["admin", "limits", "--share-policy=anyone"]);
    let beside = core("physics", "1h");
    w.running(&beside);
    assert_eq!(text(&w.status(&theirs), "state"), "Running");
    for id in [&theirs, &beside] {
        w.ok(&["cancel", id]);
        w.ended(id);
    }
    for tenant in ["physics", "chemistry"] {
        w.ok(&["admin", "tenant", "delete", tenant]);
    }
}

fn exclusive_user(w: &World) {
    let core = |args: &[&str]| w.submit(&[args, &["--cores=1", "-w", "n1", "--", "/bin/sleep", "600"]].concat());
    let theirs = |args: &[&str]| {
        let done = w.run_as(NOBODY, &[&["submit", "-o", "name", "--cores=1", "-w", "n1"], args, &["--", "/bin/sleep", "600"]].concat());
        assert_eq!(done.code(), 0, "{}", done.err());
        done.out().trim().to_owned()
    };
    let first = core(&["--exclusive=user", "-t", "1h"]);
    w.running(&first);
    // A core of n1 is free, and the other user does not get it; the same user does.
    let waits = theirs(&["-t", "1h"]);
    let explained = w.ok(&["explain", &waits]);
    assert!(explained.contains("holds work that shares a node only with its user's"), "{explained}");
    assert_eq!(text(&w.status(&waits), "state"), "Pending");
    let second = core(&["-t", "10m"]);
    w.running(&second);
    for id in [&first, &second] {
        w.ok(&["cancel", id]);
        w.ended(id);
    }
    w.running(&waits);
    // Exclusive work waits for another user's work as well.
    let exclusive = core(&["--exclusive=user", "-t", "1h"]);
    w.wait("its reason", || w.ok(&["explain", &exclusive]).contains("holds work of another user"));
    w.ok(&["cancel", &waits]);
    w.running(&exclusive);
    w.ok(&["cancel", &exclusive]);
    w.ended(&exclusive);
}

fn race(w: &World) {
    w.ok(&["admin", "tenant", "create", "physics", "--max-concurrent-allocations=1"]);
    // Three jobs that may not run at the same time are submitted through three agents, and run one after the other.
    let through = ["n1", "n2", "n3"].map(|agent| w.at(agent));
    let submitted: Vec<String> = std::thread::scope(|scope| {
        let submit = |lattice: &'_ lattice_lab::lattice::Lattice| {
            let args = ["submit", "-o", "name", "--tenant", "physics", "--", "/bin/sleep", "0.3"];
            let done = lattice.run(&args, crate::harness::JOB).unwrap();
            assert_eq!(done.code(), 0, "{}", done.err());
            done.out().trim().to_owned()
        };
        let tries: Vec<_> = through.iter().map(|lattice| scope.spawn(move || submit(lattice))).collect();
        tries.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let ended: Vec<_> = submitted.iter().map(|id| w.ended(id)).collect();
    let mut times: Vec<(String, String)> = ended.iter().map(|a| (text(a, "started_at"), text(a, "ended_at"))).collect();
    times.sort_unstable();
    assert!(times.windows(2).all(|pair| pair[0].1 <= pair[1].0), "two ran at once: {times:?}");
    w.ok(&["admin", "tenant", "delete", "physics"]);
}

fn operators(w: &World) {
    let refused = w.run_as(NOBODY, &["admin", "tenant", "create", "mine", "--max-nodes=9"]);
    assert!(refused.code() == 4 && refused.err().contains("operator"), "{}", refused.err());
    w.ok(&["admin", "tenant", "create", "physics", "--max-nodes=2"]);
    let listed = w.run_as(NOBODY, &["admin", "tenant", "list"]);
    assert!(listed.out().contains("physics"), "{} {}", listed.out(), listed.err());
    let who = w.ok(&["audit", "query", "--type", "tenant-set"]);
    assert!(who.contains("physics: max_nodes 2, max_concurrent_allocations unlimited"), "{who}");
    assert_eq!(w.run(&["admin", "tenant", "update", "nobodys", "--max-nodes=1"]).code(), 3);
    assert_eq!(w.run(&["admin", "tenant", "update", "physics"]).code(), 2);
    let id = sleeper(w, &[]);
    assert_refused(w, &["admin", "tenant", "delete", "physics"], &["has work", "hint: "]);
    w.ok(&["cancel", &id]);
    w.ended(&id);
    w.ok(&["admin", "tenant", "delete", "physics"]);
}
