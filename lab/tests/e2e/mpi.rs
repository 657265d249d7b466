//! Ranks that work together: MPI and PMI across three agents.

use crate::harness::{Group, JOB, Need, World, ended, lab_program, ms};
use lattice_lab::demo::Lines;
use lattice_lab::image::{MOUNT_POINT, README};
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;

static MPI: Group = Group::large("mpi");

pub fn trials() -> Vec<Trial> {
    vec![
        MPI.test("an_mpi_program_runs_as_one_world_from_an_image", &[Need::Mpich, Need::Mounts], mpich),
        MPI.test("mpi_finalize_and_abort_give_their_codes", &[Need::Mpich], mpi_abort),
        MPI.test("a_pmi_ring_spans_the_nodes", &[], pmi_ring),
        MPI.test("a_hundred_fences_across_agents", &[], fences),
        MPI.test("one_rank_and_one_node_need_no_neighbours", &[], singles),
        MPI.test("a_rank_that_dies_after_init_brings_its_launch_down", &[], dead_rank),
        MPI.test("a_rank_that_leaves_without_finalize_does_too", &[], left_rank),
        MPI.test("abort_gives_its_code", &[], abort),
        MPI.test("programs_without_pmi_are_normal_jobs", &[], no_pmi),
        MPI.test("launches_inside_one_allocation_follow_each_other", &[], many_launches),
    ]
}

/// Waits for its end and counts every line of the ring's log, with and without labels.
fn whole_log(w: &World, id: &str, ranks: u32, count: u32) {
    w.completed(id);
    for args in [&["logs", id][..], &["logs", "--label", id]] {
        let mut lines = Lines::default();
        w.ok(args).lines().for_each(|l| lines.take(l));
        lines.complete(ranks, count).unwrap_or_else(|e| panic!("{args:?}: {e}"));
    }
}

fn ring(lines: &str, interval_ms: &str, more: &[&str]) -> Vec<String> {
    let program = lab_program().to_string_lossy().into_owned();
    [&["--", &program, "pmi-ring", lines, interval_ms], more].concat().iter().map(|s| (*s).to_owned()).collect()
}

fn submit_ring(w: &World, shape: &[&str], lines: &str, interval_ms: &str, more: &[&str]) -> String {
    let ring = ring(lines, interval_ms, more);
    w.submit(&[shape, &ring.iter().map(String::as_str).collect::<Vec<_>>()].concat())
}

fn mpich(w: &World) {
    let image = w.image().to_string_lossy().into_owned();
    let program = format!("{MOUNT_POINT}/bin/ring");
    let readme = format!("{MOUNT_POINT}/README");
    // MPI must see two ranks a node, as the mapping says, though all of them are on one machine here.
    let id = w.submit(&[
        "--nodes",
        "3",
        "--tasks-per-node",
        "2",
        "--uenv",
        &image,
        "--env",
        "RING_LOCAL_SIZE=2",
        "--",
        &program,
        "20",
        "20",
        &readme,
        README,
    ]);
    whole_log(w, &id, 6, 20);
    let nodes: std::collections::BTreeSet<String> =
        w.ok(&["logs", &id]).lines().filter_map(|l| l.rsplit(' ').next().map(str::to_owned)).collect();
    assert_eq!(nodes.len(), 3, "{nodes:?}");
    w.assert_nothing_left();
}

fn mpi_abort(w: &World) {
    let program = w.ring().program().to_string_lossy().into_owned();
    // The file is not there, so every rank calls MPI_Abort(9).
    let began = std::time::Instant::now();
    let done = w.run(&["launch", "-N", "2", "-n", "4", "--", &program, "1000", "10", "/nonexistent/file", "x"]);
    assert_eq!(done.code(), 9, "{}", done.err());
    assert!(began.elapsed() < JOB);
}

fn pmi_ring(w: &World) {
    let id = submit_ring(w, &["--nodes", "3", "--tasks-per-node", "2"], "30", "10", &[]);
    whole_log(w, &id, 6, 30);
}

fn fences(w: &World) {
    let id = submit_ring(w, &["--nodes", "3", "--tasks-per-node", "2"], "100", "0", &["--fence-every", "1"]);
    whole_log(w, &id, 6, 100);
}

fn singles(w: &World) {
    let id = submit_ring(w, &[], "3", "1", &["--fence-every", "1"]);
    whole_log(w, &id, 1, 3);
    let id = submit_ring(w, &["--tasks-per-node", "4"], "3", "1", &["--fence-every", "1"]);
    whole_log(w, &id, 4, 3);
}

/// One rank misbehaves in the middle; its neighbours wait for ever. The end comes within 2 s of the deed.
fn brought_down(w: &World, deed: &str) -> Value {
    let id =
        submit_ring(w, &["--nodes", "3", "--tasks-per-node", "2"], "100000", "10", &["--culprit", "3", "--at-line", "5", "--deed", deed]);
    let ended = w.ended(&id);
    let log = w.log(&id);
    let at = log.lines().find_map(|l| l.strip_prefix("rank 3 misbehaves at ")?.strip_suffix(" ms")?.parse::<u64>().ok());
    let at = at.unwrap_or_else(|| panic!("{ended}\n{log}"));
    let took = ms(&ended, "ended_at").saturating_sub(at);
    assert_eq!(text(&ended, "state"), "Failed", "{ended}");
    assert!(text(&ended, "reason").contains("launch_aborted"), "{ended}");
    assert!(took <= 2_000, "brought down {took} ms after the deed, which is more than 2 s");
    w.assert_nothing_left();
    ended
}

fn dead_rank(w: &World) {
    let ended = brought_down(w, "kill");
    assert!(text(&ended, "reason").contains('3'), "it says which rank: {ended}");
    assert_eq!(text(&brought_down(w, "exit"), "exit_code"), "3");
}

fn left_rank(w: &World) {
    let ended = brought_down(w, "leave");
    assert_ne!(text(&ended, "exit_code"), "0", "an exit code of 0 without finalize is no success: {ended}");
}

fn abort(w: &World) {
    assert_eq!(text(&brought_down(w, "abort"), "exit_code"), "7");
}

fn no_pmi(w: &World) {
    let id = w.submit(&["--nodes", "3", "--", "/bin/hostname"]);
    w.completed(&id);
    assert_eq!(w.ok(&["logs", &id]).lines().count(), 3);
    // One ends early and badly, which is its own affair: the others go on.
    let id = w.submit(&["--nodes", "3", "--", "/bin/sh", "-c", "test $LATTICE_RANK = 1 && exit 5; sleep 1; echo lived"]);
    let now = w.ended(&id);
    assert_eq!((text(&now, "state").as_str(), text(&now, "exit_code").as_str()), ("Failed", "5"), "{now}");
    assert_eq!(w.ok(&["logs", &id]), "lived\nlived\n");
}

fn many_launches(w: &World) {
    let held = w.submit(&["--nodes", "2", "--tasks-per-node", "2", "--", "/bin/sleep", "60"]);
    w.running(&held);
    for n in ["1", "2", "4"] {
        let done = w.run(&["launch", "--alloc", &held, "-n", n, "--", "/bin/sh", "-c", "echo $LATTICE_NPROCS"]);
        assert_eq!((done.code(), done.out()), (0, format!("{n}\n").repeat(n.parse().unwrap())), "{}", done.err());
    }
    let ring = ring("5", "1", &[]);
    let args: Vec<&str> = ["launch", "--alloc", &held].into_iter().chain(ring.iter().map(String::as_str)).collect();
    let done = w.run(&args);
    let mut lines = Lines::default();
    done.out().lines().for_each(|l| lines.take(l));
    lines.complete(4, 5).unwrap_or_else(|e| panic!("{e}: {}", done.err()));
    assert!(!ended(&w.status(&held)), "the allocation goes on without its launches");
    w.ok(&["cancel", &held]);
    let after = w.run(&["launch", "--alloc", &held, "--", "/bin/true"]);
    assert_eq!(after.code(), 125, "{}", after.err());
}
