//! An MPI program on four nodes saves itself, loses a node, and continues elsewhere at the step after its checkpoint.

use crate::harness::{Group, Need, World, fresh_dir};
use crate::mpi;
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;
use std::fs;
use std::path::Path;

static CHECKPOINT_MPI: Group = Group { theme: "checkpoint_mpi", name: "checkpoint-mpi", nodes: 5, quorum: 1, tweak: |_| {} };

pub fn trials() -> Vec<Trial> {
    vec![
        CHECKPOINT_MPI.test("a_job_of_four_nodes_that_loses_one_counts_no_step_twice", &[Need::Mpich], one_of_four),
        CHECKPOINT_MPI.test("a_job_of_three_nodes_that_is_asked_in_calls_goes_on_in_the_step_behind", &[Need::Mpich], in_calls),
    ]
}

fn one_of_four(w: &World) {
    let program = mpi::compiled(w, "chain.c", include_str!("checkpoint/chain.c"), Path::new("mpicc.mpich"), &[]);
    let go = fresh_dir("mpi-chain-go");
    let end = go.to_string_lossy().into_owned();
    let shape = ["--nodes", "4", "--tasks-per-node", "2", "--checkpoint=signal", "--requeue"];
    let id = w.submit(&[&shape[..], &["--", &program, &end]].concat());
    w.running(&id);
    w.wait_log(&id, "step 0 5\n");
    let done = w.run(&["checkpoint", "create", &id, "--deadline", "20s", "-o", "json"]);
    assert_eq!(done.code(), 0, "{}\n{}", done.err(), w.log(&id));
    let created: Value = serde_json::from_str(&done.out()).unwrap();
    let saved = created["step"].as_u64().unwrap();
    // The program has continued for a while when the node is lost.
    w.wait_log(&id, &format!("step 0 {}\n", saved + 3));
    let lost = w.status(&id)["nodes"][2].as_str().unwrap().to_owned();
    faults::lose_node(&w.dir, &lost).unwrap();
    // The node is silent, and an operator has confirmed that it is dead.
    w.wait("its death to be believed", || w.run(&["node", "confirm-dead", &lost, "--yes", "--reason", "it burns"]).code() == 0);
    w.wait("it to run again", || text(&w.status(&id), "requeue_count") == "1");
    w.running(&id);
    assert!(!w.status(&id)["nodes"].as_array().unwrap().iter().any(|n| *n == lost.as_str()));
    w.wait_log(&id, &format!("step 1 {}\n", saved + 3));
    fs::write(&go, "").unwrap();
    w.completed(&id);
    let log = w.log(&id);
    assert!(log.contains(&format!("restored {saved}\n")), "{log}");
    let counted: Vec<u64> = log.lines().filter_map(|line| line.strip_prefix("step 1 ")?.parse().ok()).collect();
    let expected: Vec<u64> = (saved + 1..).take(counted.len()).collect();
    assert_eq!(counted, expected, "each step behind the checkpoint, once");
    assert!(log.contains(&format!("final {}\n", expected.last().unwrap())), "{log}");
    fs::remove_file(&go).unwrap();
    faults::start_node(&w.dir, &lost).unwrap();
    w.wait("the node to be back", || w.lattice.json(&["nodes"]).unwrap().as_array().unwrap().iter().all(|n| text(n, "state") == "Ready"));
    w.assert_nothing_left();
}

fn in_calls(w: &World) {
    let program = mpi::compiled(w, "chain.c", include_str!("checkpoint/chain.c"), Path::new("mpicc.mpich"), &[]);
    let (go, lattice) = (fresh_dir("mpi-calls-go"), w.dir.join("bin/lattice").display().to_string());
    let end = go.to_string_lossy().into_owned();
    let shape = ["--nodes", "3", "--tasks-per-node", "2", "--checkpoint=grpc", "--requeue=never"];
    let id = w.submit(&[&shape[..], &["--", &program, &end, &lattice]].concat());
    w.running(&id);
    w.wait_log(&id, "step 0 5\n");
    // More than once: after a request the program waits for the next one.
    for _ in 0..2 {
        w.ok(&["checkpoint", "create", &id, "--deadline", "20s"]);
    }
    w.ok(&["checkpoint", "verify", &id]);
    w.ok(&["preempt", &id]);
    w.wait("it to go on", || w.log(&id).contains("restored "));
    let saved = w.status(&id)["checkpoint"]["step"].as_u64().unwrap();
    w.wait_log(&id, &format!("step 0 {}\n", saved + 3));
    fs::write(&go, "").unwrap();
    let over = w.completed(&id);
    assert_eq!(over["preempted_count"], 1, "{over}");
    let log = w.log(&id);
    let (_, after) = log.split_once(&format!("restored {saved}\n")).unwrap_or_else(|| panic!("step {saved}: {log}"));
    let counted: Vec<u64> = after.lines().filter_map(|line| line.strip_prefix("step 0 ")?.parse().ok()).collect();
    assert_eq!(counted, (saved + 1..).take(counted.len()).collect::<Vec<_>>(), "each step behind the checkpoint, once");
    fs::remove_file(&go).unwrap();
    w.assert_nothing_left();
}
