//! What a node is made of, who has which part of it, and that nobody opens another's device. GPUs are simulated.

use crate::harness::{Group, JOB, NOBODY, World};
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;

static GPUS: Group = Group { theme: "topology", name: "gpus", nodes: 1, quorum: 1, tweak: |o| o.simulated_gpus = 4 };

pub fn trials() -> Vec<Trial> {
    vec![
        GPUS.test("a_node_counts_its_gpus_and_says_that_they_are_simulated", &[], capacity),
        GPUS.test("ranks_find_the_topology_and_their_part_of_it_in_a_file", &[], file),
    ]
}

/// `lattice node status -o json`.
fn node(world: &World) -> Value {
    serde_json::from_str(&world.ok(&["node", "status", "-o", "json"])).unwrap()
}

fn capacity(world: &World) {
    let nodes: Value = serde_json::from_str(&world.ok(&["nodes", "-o", "json"])).unwrap();
    assert_eq!(nodes[0]["gpus"], 4, "{nodes}");
    let status = node(world);
    let gpus = status["topology"]["gpu"]["gpus"].as_array().unwrap();
    assert!(gpus.len() == 4 && gpus.iter().all(|g| g["vendor"] == "simulated"), "{status}");
    assert!(status["degraded"].as_array().unwrap().iter().any(|d| d.as_str().unwrap().contains("SIMULATED")), "{status}");
    let cores = status["topology"]["cpu"]["cores"].as_array().unwrap();
    let cpus: usize = cores.iter().map(|c| c["cpus"].as_array().unwrap().len()).sum();
    assert_eq!(nodes[0]["cores"], cpus);
    let shown = world.ok(&["node", "status"]);
    assert!(shown.contains("SIMULATED") && shown.contains("processors"), "{shown}");
}

fn file(world: &World) {
    let script = world.script("topology.sh", "#!/bin/sh\necho \"$LATTICE_TOPOLOGY_FILE\"\ncat \"$LATTICE_TOPOLOGY_FILE\"\n");
    let submitted = world.run_as(NOBODY, &["submit", "-o", "name", &script]);
    let id = submitted.out().trim().to_owned();
    world.completed(&id);
    let log = world.log(&id);
    let (path, json) = log.split_once('\n').unwrap();
    let told: Value = serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {log}"));
    assert_eq!((text(&told, "node"), told["assigned"]["gpus"].as_array().unwrap().len()), ("n1".to_owned(), 4), "{told}");
    assert_eq!(told["gpu"], node(world)["topology"]["gpu"]);
    assert!(!told["assigned"]["cpus"].as_array().unwrap().is_empty());
    world.wait("the file to go", || !std::path::Path::new(path).exists());
    // Each rank of a launch has it as well, the same one.
    let ranks =
        world.run_for(&["launch", "-n", "2", "--", "/bin/sh", "-c", "test -r $LATTICE_TOPOLOGY_FILE && echo $LATTICE_TOPOLOGY_FILE"], JOB);
    let lines: Vec<String> = ranks.out().lines().map(str::to_owned).collect();
    assert!(lines.len() == 2 && lines[0] == lines[1] && lines[0].ends_with(".json"), "{lines:?} {}", ranks.err());
}
