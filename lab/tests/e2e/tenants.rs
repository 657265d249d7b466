//! Tenants and their hard quotas, through the CLI.

use crate::harness::{Group, NOBODY, World};
use lattice_lab::lattice::text;
use libtest_mimic::Trial;

static TENANTS: Group = Group::small("tenants");

pub fn trials() -> Vec<Trial> {
    vec![
        TENANTS.test("what_would_exceed_a_quota_is_refused_in_the_documents_words", &[], refused),
        TENANTS.test("what_was_taken_before_a_quota_was_lowered_waits_for_headroom", &[], waits),
        TENANTS.test("schedulers_that_race_exceed_no_quota", &[], race),
        TENANTS.test("tenants_are_operators_business", &[], operators),
    ]
}

fn sleeper(w: &World, args: &[&str]) -> String {
    let id = w.submit(&[&["--tenant", "physics"], args, &["--", "/bin/sleep", "600"]].concat());
    w.running(&id);
    id
}

fn says(w: &World, args: &[&str], pieces: &[&str]) {
    let done = w.run(args);
    assert_eq!(done.code(), 4, "`lattice {}`: {}", args.join(" "), done.err());
    for piece in pieces {
        assert!(done.err().contains(piece), "`lattice {}` should say {piece:?}: {}", args.join(" "), done.err());
    }
}

fn refused(w: &World) {
    w.ok(&["admin", "tenant", "create", "--name=physics", "--max-nodes=2"]);
    let id = sleeper(w, &[]);
    let told = "tenant \"physics\" would exceed max_nodes quota (current: 1, requested: 2, limit: 2)";
    says(w, &["submit", "--tenant", "physics", "--nodes", "2", "--", "true"], &["allocation rejected", told, "hint: "]);
    // Nobody else is concerned, and what fits is taken.
    let other = w.submit(&["--tenant", "biology", "--", "true"]);
    let fits = w.submit(&["--tenant", "physics", "--", "true"]);
    for id in [&other, &fits] {
        assert_eq!(text(&w.ended(id), "state"), "Completed");
    }
    w.ok(&["admin", "tenant", "update", "physics", "--max-nodes=none", "--max-concurrent-allocations=1"]);
    says(w, &["submit", "--tenant", "physics", "--", "true"], &["max_concurrent_allocations quota (current: 1, requested: 1, limit: 1)"]);
    let shown = w.lattice.json(&["admin", "tenant", "show", "physics"]).unwrap();
    assert_eq!((&shown["nodes"], &shown["allocations"]), (&1.into(), &1.into()), "{shown}");
    w.ok(&["cancel", &id]);
    w.ended(&id);
    let again = w.submit(&["--tenant", "physics", "--", "true"]);
    assert_eq!(text(&w.ended(&again), "state"), "Completed");
    says(w, &["admin", "tenant", "create", "physics", "--max-nodes=7"], &["exists already", "admin tenant update physics"]);
    w.ok(&["admin", "tenant", "delete", "physics"]);
    assert_eq!(w.run(&["admin", "tenant", "show", "physics"]).code(), 3);
}

fn waits(w: &World) {
    w.ok(&["admin", "tenant", "create", "physics", "--max-nodes=3"]);
    let first = sleeper(w, &["--nodes", "2"]);
    // All three nodes are wanted: it is taken, and waits for nodes.
    w.ok(&["admin", "tenant", "update", "physics", "--max-nodes=5"]);
    let second = w.submit(&["--tenant", "physics", "--nodes", "2", "--", "true"]);
    w.ok(&["admin", "tenant", "update", "physics", "--max-nodes=3"]);
    w.wait("its reason", || text(&w.status(&second), "reason").contains("waiting for quota headroom"));
    let explained = w.ok(&["explain", &second]);
    assert!(explained.contains("would exceed max_nodes quota (current: 2, requested: 2, limit: 3)"), "{explained}");
    // It keeps nobody waiting behind it.
    let other = w.submit(&["--", "true"]);
    assert_eq!(text(&w.ended(&other), "state"), "Completed");
    // Lowered below what runs: that goes on.
    w.ok(&["admin", "tenant", "update", "physics", "--max-nodes=1"]);
    says(w, &["submit", "--tenant", "physics", "--", "true"], &["exceeds max_nodes quota (current: 2, requested: 1, limit: 1)"]);
    assert_eq!(text(&w.status(&first), "state"), "Running");
    w.ok(&["admin", "tenant", "update", "physics", "--max-nodes=2"]);
    w.ok(&["cancel", &first]);
    assert_eq!(text(&w.ended(&second), "state"), "Completed");
    w.ok(&["admin", "tenant", "delete", "physics"]);
}

fn race(w: &World) {
    w.ok(&["admin", "tenant", "create", "physics", "--max-concurrent-allocations=1"]);
    // Three that may not run beside each other, through three agents at once: one after the other, or refused.
    let through = ["n1", "n2", "n3"].map(|agent| w.at(agent));
    let submitted: Vec<String> = std::thread::scope(|scope| {
        let submit = |lattice: &'_ lattice_lab::lattice::Lattice| {
            let done =
                lattice.run(&["submit", "-o", "name", "--tenant", "physics", "--", "/bin/sleep", "0.3"], crate::harness::JOB).unwrap();
            match done.code() {
                0 => Some(done.out().trim().to_owned()),
                4 => {
                    assert!(done.err().contains("max_concurrent_allocations quota"), "{}", done.err());
                    None
                }
                code => panic!("{code}: {}", done.err()),
            }
        };
        let tries: Vec<_> = through.iter().map(|lattice| scope.spawn(move || submit(lattice))).collect();
        tries.into_iter().filter_map(|t| t.join().unwrap()).collect()
    });
    assert!(!submitted.is_empty());
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
    says(w, &["admin", "tenant", "delete", "physics"], &["has work", "hint: "]);
    w.ok(&["cancel", &id]);
    w.ended(&id);
    w.ok(&["admin", "tenant", "delete", "physics"]);
}
