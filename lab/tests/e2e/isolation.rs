//! Work gets its own part of a node, and cannot reach the rest.

use crate::harness::{Group, World};
use lattice_lab::lattice::text;
use lattice_lab::sweep;
use libtest_mimic::Trial;
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

static ISOLATION: Group = Group::small("isolation");

pub fn trials() -> Vec<Trial> {
    vec![
        ISOLATION.test("jobs_share_nodes_and_the_one_too_many_waits_with_the_reason", &[], shared_nodes),
        ISOLATION.test("the_limits_of_a_share_are_in_the_kernel", &[], limits_in_the_kernel),
        ISOLATION.test("limits_that_do_not_apply_here_are_named", &[], shows_what_is_unlimited),
        ISOLATION.test("a_fork_bomb_comes_to_its_limit_and_is_ended", &[], fork_bomb),
        ISOLATION.test("a_program_that_ignores_sigterm_is_killed", &[], ignores_sigterm),
        ISOLATION.test("nothing_is_left_of_ended_jobs", &[], World::assert_nothing_left),
    ]
}

/// Processes in all scopes of the cluster.
fn processes(w: &World) -> usize {
    sweep::scopes_root(&w.cluster().cgroup_root).map_or(0, |root| sweep::processes_in(&root).len())
}

/// The nodes' cores, and the number that is committed.
fn cores(w: &World) -> (u64, u64) {
    let nodes: Value = serde_json::from_str(&w.ok(&["nodes", "-o", "json"])).unwrap();
    let sum = |pointer: &str| nodes.as_array().unwrap().iter().map(|n| n.pointer(pointer).unwrap().as_u64().unwrap()).sum();
    (sum("/cores"), sum("/committed/cores"))
}

fn shared_nodes(w: &World) {
    w.wait("nothing to be committed", || cores(w).1 == 0);
    let all = cores(w).0;
    let jobs: Vec<String> = (0..all).map(|_| w.submit(&["--cores", "1", "--", "/bin/sleep", "300"])).collect();
    for id in &jobs {
        w.running(id);
    }
    let one = w.status(&jobs[0]);
    assert_eq!(one["share"]["cores"], 1, "{one}");
    assert!(w.ok(&["status", &jobs[0]]).contains("Share:      1 core of each node\n"));
    assert_eq!(cores(w), (all, all));
    assert!(w.ok(&["nodes"]).contains("0 of "), "the table says that nothing is free: {}", w.ok(&["nodes"]));
    // Neither a share nor a whole node is free, and explain shows what there is.
    let late = w.submit(&["--cores", "1", "--", "/bin/true"]);
    let explanation = w.ok(&["explain", &late]);
    assert!(explanation.contains("wants 1 core of one node") && explanation.contains("1 core is wanted, 0 free"), "{explanation}");
    let whole = w.submit(&["--", "/bin/true"]);
    assert!(w.ok(&["explain", &whole]).contains("is taken by allocation"), "{}", w.ok(&["explain", &whole]));
    w.ok(&["cancel", &jobs[0]]);
    w.completed(&late);
    w.ok(&[&["cancel"], &jobs.iter().skip(1).map(String::as_str).collect::<Vec<_>>()[..]].concat());
    w.completed(&whole);
    // A request that no node can satisfy is refused; work that waits for other nodes never blocks the queue.
    let refused = w.run(&["submit", "--cores", "100000", "--", "/bin/true"]);
    assert!(
        refused.code() == 4 && refused.err().contains("100000 are wanted") && refused.err().contains("--wait-for-nodes"),
        "{}",
        refused.err()
    );
    let unitless = w.run(&["submit", "--mem", "16", "--", "/bin/true"]);
    assert!(unitless.code() == 2 && unitless.err().contains("write 16M (MiB) or 16G (GiB)"), "{}", unitless.err());
    let never = w.submit(&["--cores", "100000", "--wait-for-nodes", "--", "/bin/true"]);
    w.completed(&w.submit(&["--mem", "64M", "--", "/bin/true"]));
    assert!(w.ok(&["explain", &never]).contains("has 0 that could ever serve it"), "{}", w.ok(&["explain", &never]));
    w.ok(&["cancel", &never]);
    let refused = w.run(&["submit", "--shared", "--", "/bin/true"]);
    assert!(refused.code() != 0 && refused.err().contains("--cores"), "{}", refused.err());
}

/// An allocation's limit file, in whichever tree it is.
fn limit(w: &World, id: &str, v2: &str, v1: &str) -> Option<String> {
    let cluster = w.cluster();
    let of = |root: PathBuf| sweep::scopes_below(&root).into_iter().filter(|p| p.to_string_lossy().contains(id));
    let v2 = sweep::scopes_root(&cluster.cgroup_root).into_iter().flat_map(of).map(|p| p.join("work").join(v2));
    let v1 = sweep::v1_roots(&cluster.cgroup_root).into_iter().flat_map(of).map(|p| p.join(v1));
    v2.chain(v1).find_map(|file| std::fs::read_to_string(file).ok()).map(|text| text.trim().to_owned())
}

fn limits_in_the_kernel(w: &World) {
    let size = cores(w).0 / 3;
    let script = "for f in /proc/self/cgroup; do cat $f; done; echo begun; sleep 300";
    let id = w.submit(&["--cores", "1", "--", "/bin/sh", "-c", script]);
    w.wait_log(&id, "begun");
    let cpus = limit(w, &id, "cpuset.cpus", "cpuset.cpus");
    assert!(cpus.as_deref().is_some_and(|c| c.parse::<u32>().is_ok()), "one processor: {cpus:?}");
    assert_eq!(limit(w, &id, "pids.max", "pids.max"), Some((1024 / size).max(64).to_string()), "its part of what a whole node may have");
    let part = 10_000 / size;
    match (limit(w, &id, "io.weight", "blkio.bfq.weight"), w.ok(&["nodes", "-o", "json"]).contains("io-weight")) {
        (Some(weight), false) => {
            let value: u64 = weight.split_whitespace().next_back().unwrap().parse().unwrap();
            assert!(value == part || value == (part / 10).max(1), "{weight}: its part, in the kernel's terms");
        }
        (None, is_shown) => {
            assert!(is_shown || !w.ok(&["node", "status"]).contains("disks by weight"), "not set, and not said to be lacking");
        }
        (Some(weight), true) => panic!("the weight is {weight}, and it is reported as missing"),
    }
    // The work itself is in these groups, since its first instruction.
    let log = w.log(&id);
    let in_group = |name: &str| log.lines().any(|l| l.contains(&format!(":{name}:")) && l.contains(&id));
    let v1 = !sweep::v1_roots(&w.cluster().cgroup_root).is_empty();
    assert!(!v1 || (in_group("cpu") && in_group("pids")), "{log}");
    w.ok(&["cancel", &id]);
    w.wait("its groups to be gone", || limit(w, &id, "pids.max", "pids.max").is_none());
    // Work with a whole node is limited only in its processes, and may use every processor.
    let id = w.submit(&["--", "/bin/sh", "-c", "nproc; echo begun; sleep 300"]);
    w.wait_log(&id, "begun");
    assert_eq!(limit(w, &id, "pids.max", "pids.max").as_deref(), Some("1024"));
    assert_eq!(w.log(&id), format!("{}\nbegun\n", std::thread::available_parallelism().unwrap()));
    w.ok(&["cancel", &id]);
}

/// The lab uses the memory controller only in the v2 tree, not in version 1.
fn shows_what_is_unlimited(w: &World) {
    let status = w.ok(&["node", "status"]);
    let v2_has = sweep::scopes_root(&w.cluster().cgroup_root)
        .and_then(|root| std::fs::read_to_string(root.join("cgroup.controllers")).ok())
        .is_some_and(|c| c.split_whitespace().any(|c| c == "memory"));
    assert_eq!(!v2_has, status.contains("memory limits: memory is not limited"), "{status}");
    assert!(!status.contains("pids limits:"), "{status}");
    // The list of nodes shows it as well.
    let nodes: Value = serde_json::from_str(&w.ok(&["nodes", "-o", "json"])).unwrap();
    for node in nodes.as_array().unwrap() {
        let unenforced_limits: Vec<&str> = node["unenforced_limits"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!((unenforced_limits.contains(&"memory"), unenforced_limits.contains(&"pids")), (!v2_has, false), "{node}");
    }
}

/// The lab's agents allow the work of a whole node 1024 processes.
fn fork_bomb(w: &World) {
    // A process beside the bomb, which leaves no space for it, must stay until it is cancelled.
    let id = w.submit(&["--", "/bin/sh", "-c", "echo begun; b() { b | b & }; (b; b) & exec sleep 1000"]);
    w.wait_log(&id, "fork");
    // It has reached its limit, and stays there.
    assert!(processes(w) <= 1024 + 8, "{} processes", processes(w));
    // The node works on: other work runs on the same machine.
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
