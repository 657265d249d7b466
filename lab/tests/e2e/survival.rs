//! kill -9 of agents: work is not disturbed, and nothing of it is lost.

use crate::harness::{Group, NOBODY, Need, World, lab_program};
use lattice_lab::demo::Lines;
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;
use std::time::{Duration, Instant};

static SURVIVAL: Group = Group::large("survival");

pub fn trials() -> Vec<Trial> {
    vec![
        SURVIVAL.test("an_agent_killed_under_a_job_adopts_it_again", &[], other_agent),
        SURVIVAL.test("the_head_agent_too", &[], head_agent),
        SURVIVAL.test("a_scripts_launch_outlives_its_agents", &[], scripts_launch),
        SURVIVAL.test("a_dead_shim_is_reported_and_its_work_requeued_unless_its_policy_forbids_it", &[], dead_shim),
        SURVIVAL.test("work_of_a_dead_shim_is_killed_at_once_also_where_its_recorded_ends_cannot_be_read", &[], unreadable_ends),
        SURVIVAL.test("a_job_that_ends_while_its_agent_is_away_is_reported", &[], ends_meanwhile),
        SURVIVAL.test("walltime_holds_while_the_agent_is_away", &[], walltime_meanwhile),
        SURVIVAL.test("cancel_reaches_an_agent_when_it_is_back", &[], cancel_meanwhile),
        SURVIVAL.test("an_upgrade_of_every_agent_disturbs_nothing", &[], upgrade),
        SURVIVAL.test("killed_again_and_again_under_a_ring", &[], again_and_again),
        SURVIVAL.test("an_mpi_job_outlives_its_agents", &[Need::Mpich], mpi_job),
        SURVIVAL.test("the_scheduler_is_replaced", &[], scheduler),
        SURVIVAL.test("a_killed_agent_keeps_identity_and_rights", &[], rights),
    ]
}

fn ring_job(w: &World, lines: u32) -> String {
    let (program, lines) = (lab_program().to_string_lossy().into_owned(), lines.to_string());
    w.submit(&["--nodes", "3", "--tasks-per-node", "2", "--", &program, "pmi-ring", &lines, "50"])
}

fn complete(w: &World, id: &str, lines: u32) {
    w.completed(id);
    let mut got = Lines::default();
    w.ok(&["logs", id]).lines().for_each(|l| got.take(l));
    got.complete(6, lines).unwrap_or_else(|e| panic!("{e}"));
    w.assert_nothing_left();
}

fn lines_so_far(w: &World, id: &str) -> usize {
    w.log(id).lines().count()
}

fn other_agent(w: &World) {
    let id = ring_job(w, 160);
    w.wait_log(&id, "line 5 ");
    faults::kill_node(&w.dir, "n3").unwrap();
    let before = lines_so_far(w, &id);
    w.wait("the others' lines to go on", || lines_so_far(w, &id) > before + 20);
    faults::start_node(&w.dir, "n3").unwrap();
    // On a slow machine it may have ended before the agent was back.
    let state = text(&w.status(&id), "state");
    assert!(["Running", "Completed"].contains(&state.as_str()), "{state}");
    complete(w, &id, 160);
    assert_eq!(text(&w.status(&id), "requeue_count"), "0");
}

fn head_agent(w: &World) {
    let id = ring_job(w, 80);
    w.wait_log(&id, "line 5 ");
    let head = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    faults::kill_node(&w.dir, &head).unwrap();
    faults::start_node(&w.dir, &head).unwrap();
    complete(w, &id, 80);
}

/// The script's own `lattice launch` loses its agent: it continues where it was, and no line is lost or repeated.
fn scripts_launch(w: &World) {
    let lattice = lab_program().with_file_name("lattice");
    let text_of = format!(
        "#!/bin/sh\n#LATTICE --nodes=3\n{} launch -n 6 --no-kill-on-bad-exit -- /bin/sh -c 'for i in $(seq 80); do echo rank $LATTICE_RANK line $i end; sleep 0.05; done; \
         test $LATTICE_RANK != 4 || exit 9'\necho launch gave $?\n",
        lattice.display()
    );
    let id = w.submit(&[&w.script("outlives.sh", &text_of)]);
    w.wait_log(&id, "line 5 ");
    let nodes = w.status(&id)["nodes"].as_array().unwrap().clone();
    for node in &nodes[..2] {
        faults::kill_node(&w.dir, node.as_str().unwrap()).unwrap();
        faults::start_node(&w.dir, node.as_str().unwrap()).unwrap();
    }
    w.completed(&id);
    let log = w.log(&id);
    for rank in 0..6 {
        let of_rank: Vec<&str> = log.lines().filter(|l| l.starts_with(&format!("rank {rank} "))).collect();
        let wanted: Vec<String> = (1..=80).map(|i| format!("rank {rank} line {i} end")).collect();
        assert_eq!(of_rank, wanted, "rank {rank}");
    }
    assert!(log.contains("\nlaunch gave 9\n"), "{log}");
    let found = w.lattice.json(&["status", &id, "--steps"]).unwrap();
    let steps = found["steps"].as_array().unwrap();
    let shown: Vec<_> =
        steps.iter().map(|step| (text(step, "step"), text(step, "state"), step["ranks"].clone(), step["exit_code"].clone())).collect();
    let row = |step: &str, state: &str, ranks: u32, code: i32| (step.to_owned(), state.to_owned(), Value::from(ranks), Value::from(code));
    assert_eq!(shown, [row("batch", "Completed", 1, 0), row("0", "Failed", 6, 9)], "once, although its head began again");
    w.assert_nothing_left();
}

fn kill_shim(w: &World, id: &str) {
    let node = w.status(id)["nodes"][0].as_str().unwrap().to_owned();
    let status = w.at(&node).json(&["node", "status"]).unwrap();
    let local = status["allocations"].as_array().unwrap().iter().find(|a| a["id"] == id).unwrap().clone();
    let pid = i32::try_from(local["shim_pid"].as_i64().unwrap()).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
}

fn dead_shim(w: &World) {
    let id = w.submit(&["--", "/bin/sh", "-c", "echo attempt $LATTICE_REQUEUE_COUNT; test $LATTICE_REQUEUE_COUNT = 1 || sleep 60"]);
    w.wait_log(&id, "attempt 0");
    kill_shim(w, &id);
    let ended = w.completed(&id);
    assert_eq!(text(&ended, "requeue_count"), "1", "{ended}");
    assert_eq!(w.ok(&["logs", &id]), "attempt 1\n");
    let id = w.submit(&["--requeue=never", "--", "/bin/sh", "-c", "echo up; sleep 60"]);
    w.wait_log(&id, "up");
    kill_shim(w, &id);
    let ended = w.ended(&id);
    assert_eq!(text(&ended, "state"), "Failed", "{ended}");
    assert!(text(&ended, "reason").starts_with("node_lost "), "{ended}");
    w.assert_nothing_left();
}

fn unreadable_ends(w: &World) {
    let id = w.submit(&["--requeue=never", "--", "/bin/sh", "-c", "echo up; exec sleep 600"]);
    w.wait_log(&id, "up");
    let node = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    let epoch = w.status(&id)["epoch"].as_u64().unwrap();
    let exits = w.cluster().run_dir.join(&node).join(format!("state/alloc/{id}-{epoch}/exits"));
    let aside = exits.with_extension("aside");
    std::fs::rename(&exits, &aside).unwrap();
    std::fs::create_dir(&exits).unwrap();
    kill_shim(w, &id);
    let since = Instant::now();
    let root = lattice_lab::sweep::scopes_root(&w.cluster().cgroup_root).unwrap();
    w.wait("its work to be killed", || lattice_lab::sweep::processes_in(&root).is_empty());
    // The work must be killed before the agent stops its seven seconds of retries.
    assert!(since.elapsed() < Duration::from_secs(5), "its work lives on for {:?}", since.elapsed());
    std::fs::remove_dir(&exits).unwrap();
    std::fs::rename(&aside, &exits).unwrap();
    assert_eq!(text(&w.ended(&id), "state"), "Failed");
    w.assert_nothing_left();
}

fn ends_meanwhile(w: &World) {
    let id = w.submit(&["--", "/bin/sh", "-c", "echo begins; sleep 1.5; echo ends; exit 5"]);
    w.wait_log(&id, "begins");
    let node = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    let mark = w.cluster();
    faults::kill_node(&w.dir, &node).unwrap();
    // Its process is the sleep's parent; when only the shim is left in the scope, the program has ended.
    let root = lattice_lab::sweep::scopes_root(&mark.cgroup_root).unwrap();
    w.wait("the program to end without its agent", || lattice_lab::sweep::processes_in(&root).len() <= 1);
    faults::start_node(&w.dir, &node).unwrap();
    let ended = w.ended(&id);
    assert_eq!((text(&ended, "state").as_str(), text(&ended, "exit_code").as_str()), ("Failed", "5"), "{ended}");
    assert_eq!(w.ok(&["logs", &id]), "begins\nends\n");
    w.assert_nothing_left();
}

fn walltime_meanwhile(w: &World) {
    let id = w.submit(&[
        "--walltime",
        "2s",
        "--",
        "/bin/sh",
        "-c",
        "trap 'echo got TERM; exit 1' TERM; echo begins; while :; do sleep 0.1; done",
    ]);
    w.wait_log(&id, "begins");
    let node = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    let root = lattice_lab::sweep::scopes_root(&w.cluster().cgroup_root).unwrap();
    faults::kill_node(&w.dir, &node).unwrap();
    w.wait("the shim to end it by itself", || lattice_lab::sweep::processes_in(&root).len() <= 1);
    faults::start_node(&w.dir, &node).unwrap();
    let ended = w.ended(&id);
    assert_eq!((text(&ended, "state").as_str(), text(&ended, "reason").as_str()), ("Failed", "walltime_exceeded"), "{ended}");
    assert!(w.log(&id).contains("got TERM"));
    w.assert_nothing_left();
}

fn cancel_meanwhile(w: &World) {
    let id = w.submit(&["--nodes", "3", "--", "/bin/sleep", "60"]);
    w.running(&id);
    faults::kill_node(&w.dir, "n3").unwrap();
    w.ok(&["cancel", &id]);
    faults::start_node(&w.dir, "n3").unwrap();
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    w.assert_nothing_left();
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
}

fn upgrade(w: &World) {
    let id = ring_job(w, 100);
    w.wait_log(&id, "line 3 ");
    for node in ["n1", "n2", "n3"] {
        faults::restart_node(&w.dir, node).unwrap();
    }
    complete(w, &id, 100);
}

fn again_and_again(w: &World) {
    let id = ring_job(w, 100);
    w.wait_log(&id, "line 3 ");
    for node in ["n2", "n1", "n3", "n2"] {
        faults::kill_node(&w.dir, node).unwrap();
        faults::start_node(&w.dir, node).unwrap();
    }
    complete(w, &id, 100);
}

fn mpi_job(w: &World) {
    let program = w.ring().program().to_string_lossy().into_owned();
    let id = w.submit(&["--nodes", "3", "--tasks-per-node", "2", "--", &program, "60", "50"]);
    w.wait_log(&id, "line 5 ");
    for node in ["n2", "n1"] {
        faults::kill_node(&w.dir, node).unwrap();
        faults::start_node(&w.dir, node).unwrap();
    }
    complete(w, &id, 60);
}

fn scheduler(w: &World) {
    // One of the agents holds the scheduler's lease.
    for node in ["n1", "n2", "n3"] {
        faults::kill_node(&w.dir, node).unwrap();
        let other = if node == "n1" { "n2" } else { "n1" };
        // Until the scheduler's gossip has noticed, work may still be placed there, and waits for the node to return.
        for at in ["n1", "n2", "n3"].into_iter().filter(|n| *n != node) {
            w.wait("gossip to notice", || !alive(&w.at(at).ok(&["gossip", "members"]).unwrap(), node));
        }
        let id = w.at(other).ok(&["submit", "-o", "name", "--", "/bin/true"]).unwrap();
        let ended = w.at(other).ended_within(id.trim(), crate::harness::JOB).unwrap();
        assert_eq!(text(&ended, "state"), "Completed", "without {node}: {ended}");
        faults::start_node(&w.dir, node).unwrap();
    }
}

fn alive(members: &str, node: &str) -> bool {
    members.lines().any(|l| l.starts_with(node) && l.contains("alive"))
}

fn rights(w: &World) {
    let done = w.run_as(NOBODY, &["submit", "-o", "name", "--", "/bin/sh", "-c", "echo begins; sleep 60"]);
    let id = done.out().trim().to_owned();
    w.wait("it to run", || text(&w.status(&id), "state") == "Running");
    let node = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    faults::kill_node(&w.dir, &node).unwrap();
    faults::start_node(&w.dir, &node).unwrap();
    let intruder = w.run_as(crate::harness::DAEMON, &["logs", &id]);
    assert_eq!(intruder.code(), 4, "{}{}", intruder.out(), intruder.err());
    assert_eq!(w.run_as(NOBODY, &["logs", &id]).out(), "begins\n");
    assert_eq!(w.run_as(NOBODY, &["cancel", &id]).code(), 0);
    w.ended(&id);
}
