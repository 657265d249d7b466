//! Work gets what is its own of a node, and does not get at the rest.

use crate::harness::{Group, World};
use lattice_lab::lattice::text;
use lattice_lab::sweep;
use libtest_mimic::Trial;
use std::time::{Duration, Instant};

static ISOLATION: Group = Group::small("isolation");

pub fn trials() -> Vec<Trial> {
    vec![
        ISOLATION.test("a_fork_bomb_comes_to_its_limit_and_is_ended", &[], fork_bomb),
        ISOLATION.test("a_program_that_ignores_sigterm_is_killed", &[], ignores_sigterm),
        ISOLATION.test("nothing_is_left_of_ended_jobs", &[], World::assert_nothing_left),
    ]
}

/// Processes in all scopes of the cluster.
fn processes(w: &World) -> usize {
    sweep::scopes_root(&w.cluster().cgroup_root).map_or(0, |root| sweep::processes_in(&root).len())
}

/// The lab's agents allow the work of a whole node 1024 processes.
fn fork_bomb(w: &World) {
    let id = w.submit(&["--", "/bin/sh", "-c", "echo begun; b() { b | b & }; b; b; sleep 1000"]);
    w.wait_log(&id, "fork");
    // It is at its limit now, and stays there.
    assert!(processes(w) <= 1024 + 8, "{} processes", processes(w));
    // The node goes on: others run beside it, on the same machine.
    w.completed(&w.submit(&["--", "/bin/true"]));
    w.ok(&["cancel", &id]);
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    w.wait("the bomb to be gone", || processes(w) == 0);
}

fn ignores_sigterm(w: &World) {
    let id = w.submit(&["--", "/bin/sh", "-c", "trap '' TERM HUP INT; echo begun; while :; do sleep 0.1; done"]);
    w.wait_log(&id, "begun");
    let begun = Instant::now();
    w.ok(&["cancel", &id]);
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    w.wait("it to be gone", || processes(w) == 0);
    // The lab's grace is 2 s.
    assert!(begun.elapsed() < Duration::from_secs(10), "it took {:?}", begun.elapsed());
}
