//! Ranks that communicate: MPI and PMI across three agents.

use crate::harness::{Folder, Group, JOB, Need, World, ended, lab_program, ms};
use lattice_lab::demo::Lines;
use lattice_lab::fences::{self, Wire};
use lattice_lab::image::{MOUNT_POINT, README};
use lattice_lab::lattice::text;
use lattice_lab::{faults, process, streams};
use libtest_mimic::Trial;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

static MPI: Group = Group::large("mpi");
/// Each node has its own network.
pub static WIDE: Group = Group { theme: "mpi", name: "mpi-wide", nodes: 8, quorum: 1, tweak: |o| o.netns = true };

pub fn trials() -> Vec<Trial> {
    vec![
        MPI.test("an_mpi_program_runs_as_one_world_from_an_image", &[Need::Mpich, Need::Mounts], mpich),
        MPI.test("mpi_finalize_and_abort_give_their_codes", &[Need::Mpich], mpi_abort),
        MPI.test("mpi_programs_go_on_without_spawn_and_find_names", &[Need::Mpich], spawn_and_names),
        MPI.test("programs_of_pmi_2_meet_and_abort_across_nodes", &[Need::Pmi2], pmi_2),
        MPI.test("names_are_found_on_other_nodes_while_agents_are_killed", &[Need::Pmi2], names_and_kills),
        MPI.test("programs_that_close_what_they_inherit_come_by_port", &[Need::Mpich, Need::Pmi2], by_port),
        MPI.test("a_pmi_ring_spans_the_nodes", &[], pmi_ring),
        MPI.test("a_hundred_fences_across_agents", &[], fences),
        MPI.test("one_rank_and_one_node_need_no_neighbours", &[], singles),
        MPI.test("a_rank_that_dies_after_init_brings_its_launch_down", &[], dead_rank),
        MPI.test("a_rank_that_leaves_without_finalize_does_too", &[], left_rank),
        MPI.test("abort_gives_its_code", &[], abort),
        MPI.test("programs_without_pmi_are_normal_jobs", &[], no_pmi),
        MPI.test("launches_inside_one_allocation_follow_each_other", &[], many_launches),
        WIDE.test("a_fence_of_eight_agents_is_timed_and_its_bytes_are_counted", &[Need::Hosts], timed_fence),
        WIDE.test("sixty_four_ranks_of_c_and_fortran_on_eight_nodes", &[Need::Mpich, Need::Hosts], wide),
    ]
}

/// Waits for the job's end and counts every line of the ring's log, with and without labels.
pub fn whole_log(w: &World, id: &str, ranks: u32, count: u32) {
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

pub fn submit_ring(w: &World, shape: &[&str], lines: &str, interval_ms: &str, more: &[&str]) -> String {
    let ring = ring(lines, interval_ms, more);
    w.submit(&[shape, &ring.iter().map(String::as_str).collect::<Vec<_>>()].concat())
}

fn mpich(w: &World) {
    let image = w.image().to_string_lossy().into_owned();
    let program = format!("{MOUNT_POINT}/bin/ring");
    let readme = format!("{MOUNT_POINT}/README");
    // MPI must see two ranks on each node, as in the mapping, though all of them are on one machine here.
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
    // The file does not exist, so every rank calls MPI_Abort(9).
    let began = std::time::Instant::now();
    let done = w.run(&["launch", "-N", "2", "-n", "4", "--", &program, "1000", "10", "/nonexistent/file", "x"]);
    assert_eq!(done.code(), 9, "{}", done.err());
    assert!(began.elapsed() < JOB);
}

/// Compiles a program of this directory into the cluster's directory.
pub fn compiled(w: &World, file: &str, source: &str, compiler: &Path, libraries: &[&str]) -> String {
    let file = w.dir.join(file);
    let program = file.with_extension("");
    std::fs::write(&file, source).unwrap();
    let done = process::run(Command::new(compiler).args(["-O1", "-o"]).arg(&program).arg(&file).args(libraries), JOB).unwrap();
    assert_eq!(done.code(), 0, "{}", done.err());
    program.to_string_lossy().into_owned()
}

pub fn pmi_2_program(w: &World) -> String {
    compiled(w, "pmi2.c", include_str!("mpi/pmi2.c"), Path::new("cc"), &["-lpmi2"])
}

fn pmi_2(w: &World) {
    let program = pmi_2_program(w);
    for (nodes, ranks) in [(3, 6), (1, 3)] {
        let (nodes, ranks) = (nodes.to_string(), ranks.to_string());
        let done = w.run(&["launch", "-N", &nodes, "-n", &ranks, "--", &program, "exchange", &nodes]);
        assert_eq!(done.code(), 0, "{} {}", done.out(), done.err());
        assert_eq!(
            done.out().lines().filter(|line| line.contains(&format!(" of {ranks} on n"))).count().to_string(),
            ranks,
            "{}",
            done.out()
        );
    }
    let began = std::time::Instant::now();
    let done = w.run(&["launch", "-N", "3", "-n", "3", "--", &program, "abort"]);
    assert_eq!(done.code(), 7, "the code that its rank ended with: {}", done.err());
    let id = w.ok(&["status", "--limit", "1", "-o", "name"]);
    let reason = text(&w.status(id.trim()), "reason");
    assert!(reason.contains("rank 1 aborted the launch with code 7: \"no convergence; sorry\""), "{reason}");
    assert!(began.elapsed() < JOB);
    w.assert_nothing_left();
}

fn by_port(w: &World) {
    let program = pmi_2_program(w);
    let ranks = ["launch", "-N", "2", "-n", "4"];
    let done = w.run(&[&ranks[..], &["--pmi-port", "--", &program, "exchange", "2", "close"]].concat());
    assert_eq!((done.code(), done.out().lines().count()), (0, 4), "{} {}", done.out(), done.err());
    // Without `--pmi-port` the program finds no server, and reports that.
    let done = w.run(&[&ranks[..], &["--", &program, "exchange", "2", "close"]].concat());
    assert_ne!(done.code(), 0, "{} {}", done.out(), done.err());
    // With the option, all launches of an allocation have a PMI port; PMI-1 works as well.
    let ring = w.ring().program().to_string_lossy().into_owned();
    let script = w.script(
        "by-port.sh",
        &format!("#!/bin/sh\n#LATTICE --pmi-port\n{0}/lattice launch -n 4 -- {ring} 3 1 && {0}/lattice launch -- /bin/sh -c 'echo fd ${{PMI_FD:-none}}'\n", w.dir.join("bin").display()),
    );
    let id = w.submit(&["--nodes", "2", &script]);
    w.completed(&id);
    let log = w.log(&id);
    assert_eq!((log.matches("rank ").count(), log.matches("fd none").count()), (12, 2), "{log}");
    w.assert_nothing_left();
}

fn spawn_and_names(w: &World) {
    let mpicc = crate::harness::machine().mpicc.clone().expect("it is needed");
    let program = compiled(w, "names.c", include_str!("mpi/names.c"), &mpicc, &[]);
    for nodes in ["1", "2"] {
        let done = w.run(&["launch", "-N", nodes, "-n", "2", "--", &program]);
        assert_eq!((done.code(), done.out().matches("went on, sum 1").count()), (0, 2), "{nodes}: {} {}", done.out(), done.err());
    }
}

fn names_and_kills(w: &World) {
    let program = compiled(w, "names2.c", include_str!("mpi/names2.c"), Path::new("cc"), &["-lpmi2"]);
    found_over_kills(w, 3, &[], &program);
}

/// Ranks of `program`, one on each node, publish, look up and unpublish names while all agents are killed. Returns the
/// allocation.
pub fn found_over_kills(w: &World, count: usize, options: &[&str], program: &str) -> String {
    let folder = Folder::new("published");
    let at = |file: &str| folder.0.join(file);
    let (nodes, folder) = (count.to_string(), folder.0.to_string_lossy());
    let id = w.submit(&[&["--nodes", &nodes], options, &["--", program, &folder]].concat());
    let all_are = |what: &str| (0..count).all(|rank| at(&format!("{what}.{rank}")).exists());
    w.wait("it to be published", || all_are("published"));
    let nodes = w.status(&id)["nodes"].clone();
    let nodes: Vec<String> = nodes.as_array().unwrap().iter().map(|n| n.as_str().unwrap().to_owned()).collect();
    // The head, the forwarding agents and the callers: what was acknowledged survives them all.
    for node in &nodes {
        faults::kill_node(&w.dir, node).unwrap();
        faults::start_node(&w.dir, node).unwrap();
    }
    std::fs::write(at("go"), "").unwrap();
    w.wait("it to be found", || all_are("found"));
    for node in &nodes {
        faults::kill_node(&w.dir, node).unwrap();
    }
    std::fs::write(at("ask"), "").unwrap();
    w.wait("all to ask while nobody carries it", || all_are("asks"));
    // One of the callers' agents restarts before the head, the others after it.
    for node in [&nodes[1], &nodes[0]].into_iter().chain(&nodes[2..]) {
        faults::start_node(&w.dir, node).unwrap();
    }
    w.completed(&id);
    assert_eq!(w.log(&id).matches(" knows").count(), count, "{}", w.log(&id));
    w.assert_nothing_left();
    id
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

/// One rank misbehaves; its neighbours wait for ever. The launch must end within 2 s.
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
    assert!(took <= 2_000, "ended {took} ms after the death, which is more than 2 s");
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
    // A rank may end early with an error if the option allows it: the others continue.
    let id = w.submit(&[
        "--nodes",
        "3",
        "--no-kill-on-bad-exit",
        "--",
        "/bin/sh",
        "-c",
        "test $LATTICE_RANK = 1 && exit 5; sleep 1; echo lived",
    ]);
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

/// The programs of `bench mpi`: ranks that only enter fences, and the same bytes down the same tree.
fn timed_fence(w: &World) {
    let held = w.submit(&["--nodes", "8", "--", "/bin/sleep", "300"]);
    w.running(&held);
    let lab = lab_program().to_string_lossy().into_owned();
    let launch = |ranks: &str, rank: &[&str]| {
        let done = w.run_for(&[&["launch", "--alloc", &held, "-N", "8", "--tasks-per-node", ranks, "--", &lab], rank].concat(), 3 * JOB);
        assert_eq!(done.code(), 0, "{}", done.err());
        done.out()
    };
    let data = 8 * 4 * (800 + 4);
    let all = |wire: &BTreeMap<String, Wire>, times: u64| {
        assert_eq!(wire.len(), 8, "{wire:?}");
        // Seven nodes receive everything; the head, which receives their contributions, sends everything seven times.
        let least = |of: fn(&Wire) -> u64| wire.values().map(of).min().unwrap();
        let most = |of: fn(&Wire) -> u64| wire.values().map(of).max().unwrap();
        assert!(most(|w| w.received) >= times * data && most(|w| w.sent) >= 7 * times * data, "{wire:?}");
        assert!(least(|w| w.received) < 2 * times * data && most(|w| w.sent) < 14 * times * data, "{wire:?}");
    };
    let report: fences::RankReport = serde_json::from_str(&launch("4", &["pmi-fence", "--fences", "2", "--bytes", "800"])).unwrap();
    assert_eq!(report.fences.len(), 2);
    assert!(report.fences.iter().all(|f| f.first_ms > 0.0 && f.last_ms > 0.0 && f.last_ms < 10_000.0), "{report:?}");
    all(&report.wire, 2);
    let (dir, bytes) = (w.dir.to_string_lossy().into_owned(), data.to_string());
    let report: streams::RankReport = serde_json::from_str(&launch("1", &["pmi-streams", "--dir", &dir, "--bytes", &bytes])).unwrap();
    assert!(report.took_ms.len() == 3 && report.took_ms.iter().all(|ms| *ms > 0.0 && *ms < 10_000.0), "{report:?}");
    all(&report.wire, 3);
    w.ok(&["cancel", &held]);
    w.ended(&held);
    w.assert_nothing_left();
}

fn wide(w: &World) {
    let mpicc = crate::harness::machine().mpicc.clone().expect("it is needed");
    let c = compiled(w, "world.c", include_str!("mpi/world.c"), &mpicc, &[]);
    let fortran = compiled(w, "sum.f90", include_str!("mpi/sum.f90"), Path::new("mpifort.mpich"), &[]);
    let held = w.submit(&["--nodes", "8", "--tasks-per-node", "8", "--", "/bin/sleep", "300"]);
    w.running(&held);
    let launch = |command: &[&str]| w.run_for(&[&["launch", "--alloc", &held, "--"], command].concat(), 3 * JOB);
    let done = launch(&[&c, "8"]);
    assert_eq!((done.code(), done.out().as_str()), (0, "64 ranks, 8 a node\n"), "{}", done.err());
    let done = launch(&[&fortran]);
    assert_eq!((done.code(), done.out().as_str()), (0, "fortran: 64 ranks, 2016\n"), "{}", done.err());
    let killed: [(&str, &[&str]); 2] = [
        // The second case: another rank already waits for it.
        ("before", &["rank 5 on n1 was killed by signal 9", "n1: rank 5 ended with code 137 (128 + signal 9) without MPI_Init"]),
        ("after", &["n1: rank 5 ended with code 137 (128 + signal 9) between MPI_Init and MPI_Finalize"]),
    ];
    for (when, whys) in killed {
        let done = launch(&[&c, "8", when]);
        assert!(done.code() == 137 && whys.iter().any(|why| done.err().contains(why)), "{when}: {} {}", done.code(), done.err());
    }
    w.ok(&["cancel", &held]);
    w.ended(&held);
    w.assert_nothing_left();
}
