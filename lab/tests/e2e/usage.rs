//! What tenants and users have used, their budgets, and the bound of their work's class, through the CLI.

use crate::harness::{Group, NOBODY, World};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;
use std::time::Instant;

static USAGE: Group = Group::large("usage");

pub fn trials() -> Vec<Trial> {
    vec![
        USAGE.test("the_use_of_two_users_is_shown_and_survives_kill_9_of_every_member", &[], survives),
        USAGE.test("bad_numbers_and_classes_above_the_bound_are_refused", &[], refused),
        USAGE.test("a_tenant_is_shown_with_its_share_and_budgets", &[], shown),
    ]
}

/// The node-hours of the row with this kind and this name.
fn node_hours(rows: &Value, of: &str, name: &str) -> f64 {
    let rows = rows.as_array().unwrap();
    let row = rows.iter().find(|row| row["of"] == of && row["name"] == name);
    row.unwrap_or_else(|| panic!("no row of {of} {name}: {rows:?}"))["node_hours"].as_f64().unwrap()
}

fn usage(w: &World, args: &[&str]) -> Value {
    w.lattice.json(&[&["usage"], args].concat()).unwrap()
}

fn submit_as(w: &World, uid: u32, args: &[&str]) -> String {
    let done = w.run_as(uid, &[&["submit", "-o", "name"], args].concat());
    assert_eq!(done.code(), 0, "{}", done.err());
    done.out().trim().to_owned()
}

fn survives(w: &World) {
    w.ok(&["admin", "tenant", "create", "physics", "--fair-share-target=0.15", "--node-hours-budget=1", "--gpu-hours-budget=100"]);
    let me = text(&w.status(&w.submit(&["--hold", "--", "/bin/true"])), "owner");
    let before = node_hours(&usage(w, &["--user", &me]), "user", &me);
    let began = Instant::now();
    let args = ["--tenant=physics", "--project=higgs", "--nodes=2", "--", "/bin/sleep", "3"];
    let mine = w.submit(&args);
    let others = submit_as(w, NOBODY, &["--tenant=physics", "--", "/bin/sleep", "600"]);
    // Running work counts up to now.
    w.running(&others);
    let running = |w: &World| node_hours(&usage(w, &["--user=nobody"]), "user", "nobody");
    let first = running(w);
    w.wait("the use of running work to grow", || running(w) > first);
    w.completed(&mine);
    w.ok(&["cancel", &others]);
    w.ended(&others);
    // At least two nodes for three seconds, at most two nodes for the elapsed time.
    let project = usage(w, &["--tenant=physics", "--project=higgs"]);
    let of_project = node_hours(&project, "project", "physics");
    let passed = began.elapsed().as_secs_f64() / 3600.0;
    assert!((6.0 / 3600.0..=2.0 * passed).contains(&of_project), "{of_project} h in {passed} h");
    let rows = usage(w, &["--tenant=physics", "--user=nobody"]);
    let (of_tenant, of_nobody) = (node_hours(&rows, "tenant", "physics"), node_hours(&rows, "user", "nobody"));
    assert!((of_project + of_nobody - of_tenant).abs() < 1e-9, "{rows} {project}");
    let of_me = node_hours(&usage(w, &["--user", &me]), "user", &me) - before;
    assert!((of_me - of_project).abs() < 1e-9, "{of_me} {of_project}");
    // Every user may see a tenant's usage; without options users see their own.
    let seen = w.run_as(NOBODY, &["usage"]);
    assert!(seen.code() == 0 && seen.out().contains("user nobody"), "{}{}", seen.out(), seen.err());
    let seen = w.run_as(NOBODY, &["usage", "--tenant=physics", "--days=1"]);
    assert!(seen.out().contains("tenant physics  1 "), "{}{}", seen.out(), seen.err());
    assert!(seen.out().lines().all(|line| line.chars().count() <= 80), "{}", seen.out());
    for member in &w.cluster().members {
        faults::kill_member(&w.dir, member.id).unwrap();
    }
    for member in &w.cluster().members {
        faults::start_member(&w.dir, member.id).unwrap();
    }
    w.wait("the quorum to answer", || w.lattice.leader().is_ok_and(|leader| leader.is_some()) && w.lattice.nodes().is_ok());
    assert_eq!(usage(w, &["--tenant=physics", "--user=nobody"]), rows);
    assert_eq!(usage(w, &["--tenant=physics", "--project=higgs"]), project);
    // A budget of nothing is exceeded by the first use, and refuses no work.
    w.ok(&["admin", "tenant", "update", "physics", "--node-hours-budget=none", "--gpu-hours-budget=0"]);
    assert_eq!(usage(w, &["--tenant=physics"])[0]["budget_percent"], 0);
    w.ok(&["admin", "tenant", "update", "physics", "--node-hours-budget=0"]);
    assert_eq!(usage(w, &["--tenant=physics"])[0]["budget_percent"], 1000);
    w.completed(&w.submit(&["--tenant=physics", "--", "/bin/true"]));
    w.ok(&["admin", "tenant", "delete", "physics"]);
}

fn refused(w: &World) {
    w.ok(&["admin", "tenant", "create", "physics", "--class-max=5"]);
    for (wrong, said) in [
        ("--fair-share-target=1.5", "from 0 to 1"),
        ("--fair-share-target=-0.1", "from 0 to 1"),
        ("--fair-share-target=lots", "from 0 to 1"),
        ("--burst-allowance=0.5", "from 1 to 1000"),
        ("--gpu-hours-budget=-1", "a number, or none"),
        ("--node-hours-budget=1.5", "a number, or none"),
        ("--node-hours-budget=99999999999999999", "at most"),
        ("--class-max=11", "from 0 to 10"),
    ] {
        let done = w.run(&["admin", "tenant", "update", "physics", wrong]);
        assert!(done.code() == 2 && done.err().contains(said), "{wrong}: {} {}", done.code(), done.err());
    }
    for wrong in
        [&["admin", "limits", "--budget-period-days=0"][..], &["admin", "limits", "--budget-period-days=367"], &["usage", "--days=0"]]
    {
        assert_eq!(w.run(wrong).code(), 2, "{wrong:?}");
    }
    let done = w.run(&["usage", "--days=91"]);
    assert!(done.code() == 2 && done.err().contains("1 to 90 days"), "{} {}", done.code(), done.err());
    let done = w.run(&["usage", "--tenant=physx"]);
    assert!(done.code() == 3 && done.err().contains("did you mean"), "{} {}", done.code(), done.err());
    let done = w.run(&["submit", "--tenant=physics", "--preemption-class=6", "--", "/bin/true"]);
    assert_eq!(done.code(), 4, "{}", done.err());
    for piece in ["may have preemption classes up to 5; this has 6", "give --preemption-class 5 or less"] {
        assert!(done.err().contains(piece), "{}", done.err());
    }
    w.completed(&w.submit(&["--tenant=physics", "--", "/bin/true"]));
    w.ok(&["admin", "tenant", "delete", "physics"]);
}

fn shown(w: &World) {
    let created = w.ok(&[
        "admin",
        "tenant",
        "create",
        "physics",
        "--fair-share-target=0.15",
        "--burst-allowance=1.5",
        "--gpu-hours-budget=150000",
        "--node-hours-budget=500000",
        "--class-max=7",
    ]);
    for piece in ["Fair share:", "0.15", "1.5", "150000", "500000"] {
        assert!(created.contains(piece), "{piece}: {created}");
    }
    w.ok(&["admin", "tenant", "set-quota", "physics", "--class-max=none"]);
    let tenant = w.lattice.json(&["admin", "tenant", "show", "physics"]).unwrap();
    assert_eq!((&tenant["fair_share_target"], &tenant["burst_allowance"]), (&0.15.into(), &1.5.into()), "{tenant}");
    assert_eq!((&tenant["gpu_hours_budget"], &tenant["class_max"]), (&150_000.into(), &Value::Null), "{tenant}");
    assert!(w.ok(&["admin", "limits", "--budget-period-days=30"]).contains("Budget period, in days:"));
    let usage = usage(w, &["--tenant=physics"]);
    assert_eq!((&usage[0]["days"], &usage[0]["budget_period_days"], &usage[0]["budget_percent"]), (&30.into(), &30.into(), &0.into()));
    w.ok(&["admin", "limits", "--budget-period-days=90"]);
    w.ok(&["admin", "tenant", "delete", "physics"]);
}
