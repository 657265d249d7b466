//! What a node is made of, who has which part of it, and that nobody opens another's device. GPUs are simulated.

use crate::harness::{Group, JOB, NOBODY, World, lab};
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;

static GPUS: Group = Group { theme: "topology", name: "gpus", nodes: 1, quorum: 1, tweak: |o| o.simulated_gpus = 4 };

pub fn trials() -> Vec<Trial> {
    vec![
        GPUS.test("a_node_counts_its_gpus_and_says_that_they_are_simulated", &[], capacity),
        GPUS.test("ranks_run_and_see_where_they_were_bound_to", &[], binding),
        GPUS.test("allocations_that_share_a_node_open_their_own_gpus_alone", &[], apart),
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

/// The lines that a launch of its own printed, sorted.
fn lines(world: &World, args: &[&str], command: &str) -> Vec<String> {
    let done = world.run_for(&[&["launch"], args, &["--", "/bin/sh", "-c", command]].concat(), JOB);
    assert_eq!(done.code(), 0, "{args:?}: {}{}", done.out(), done.err());
    let mut lines: Vec<String> = done.out().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

const GPUS_SEEN: &str = "echo $LATTICE_SIMULATED_VISIBLE_DEVICES";

fn binding(world: &World) {
    let all: Vec<String> = node(world)["topology"]["cpu"]["cores"]
        .as_array()
        .unwrap()
        .iter()
        .map(|core| core["cpus"].as_array().unwrap().iter().map(Value::to_string).collect::<Vec<_>>().join(","))
        .collect();
    let ranks = all.len().to_string();
    let seen = lines(world, &["-n", &ranks, "--cpu-bind", "cores"], "taskset -cp $$ | sed 's/.*: //'");
    assert_eq!(seen, all, "each rank has one core, and no other rank has it");
    let status = lines(world, &["-n", "1", "--cpu-bind", "numa"], "grep Cpus_allowed_list /proc/self/status");
    assert_eq!(status.len(), 1);
    assert_eq!(lines(world, &["-n", "2"], GPUS_SEEN), ["SIM-0,SIM-1,SIM-2,SIM-3"; 2]);
    assert_eq!(lines(world, &["-n", "2", "--gpus-per-task", "2"], GPUS_SEEN), ["SIM-0,SIM-1", "SIM-2,SIM-3"]);
    // In a script: the launch's own word wins over the allocation's.
    let cli = world.dir.join("bin/lattice").display().to_string();
    let script = world.script(
        "bound.sh",
        &format!("#!/bin/sh\n{cli} launch -n 2 sh -c '{GPUS_SEEN}'\n{cli} launch -n 2 --gpu-bind none sh -c '{GPUS_SEEN}'\n"),
    );
    let id = world.submit(&["--gpus-per-task=1", &script]);
    world.completed(&id);
    let mut seen: Vec<String> = world.log(&id).lines().map(str::to_owned).collect();
    seen[..2].sort();
    assert_eq!(seen, ["SIM-0", "SIM-1", "SIM-0,SIM-1,SIM-2,SIM-3", "SIM-0,SIM-1,SIM-2,SIM-3"]);
    // More than there are.
    let refused = world.run_for(&["launch", "-n", "3", "--gpus-per-task", "2", "--", "/bin/true"], JOB);
    assert_eq!(refused.code(), 125, "{}{}", refused.out(), refused.err());
    let ended = world.status("@last");
    assert!(text(&ended, "reason").contains("--gpus"), "{ended}");
}

/// Tries every device, says what is its own, and waits for `go`.
fn tries_all(world: &World) -> String {
    let (devices, go) = (world.dir.join("n1"), world.dir.join("go"));
    let text = format!(
        "#!/bin/sh\nfor i in 0 1 2 3; do dd if={}/gpu$i count=0 2>&1 | head -1; done\n\
         echo own $LATTICE_SIMULATED_VISIBLE_DEVICES\ntaskset -cp $$\n\
         until test -e {}; do sleep 0.1; done\n",
        devices.display(),
        go.display()
    );
    world.script("tries.sh", &text)
}

/// Which devices it could open (there is no driver behind them), and which were kept from it.
fn opened(world: &World, id: &str) -> (Vec<usize>, Vec<usize>) {
    world.wait_log(id, "affinity list");
    let log = world.log(id);
    let with = |said: &str| (0..4).filter(|i| log.lines().any(|l| l.contains(&format!("gpu{i}'")) && l.contains(said))).collect();
    (with("No such device or address"), with("Operation not permitted"))
}

/// An allocation's GPUs and processors as `node status` has them.
fn has(world: &World, id: &str) -> (Vec<String>, String) {
    let status = node(world);
    let all = status["allocations"].as_array().unwrap();
    let one = all.iter().find(|a| a["id"] == id).unwrap_or_else(|| panic!("{id} is not in {status}"));
    (one["gpus"].as_array().unwrap().iter().map(|g| g.as_str().unwrap().to_owned()).collect(), text(one, "cpus"))
}

fn apart(world: &World) {
    let script = tries_all(world);
    let submit = |world: &World| world.submit(&["--cores=1", "--gpus=2", "--mem=64M", &script]);
    let (a, b) = (submit(world), submit(world));
    for id in [&a, &b] {
        world.running(id);
    }
    // The islands of two are the best connected pairs.
    let ((gpus_a, cpus_a), (gpus_b, cpus_b)) = (has(world, &a), has(world, &b));
    let mut pairs = [gpus_a.clone(), gpus_b.clone()];
    pairs.sort();
    assert_eq!(pairs, [["SIM-0", "SIM-1"], ["SIM-2", "SIM-3"]]);
    assert!(cpus_a != cpus_b && !cpus_a.is_empty(), "{cpus_a} {cpus_b}");
    for (id, gpus, cpus) in [(&a, &gpus_a, &cpus_a), (&b, &gpus_b, &cpus_b)] {
        let own: Vec<usize> = gpus.iter().map(|g| g.trim_start_matches("SIM-").parse().unwrap()).collect();
        let others: Vec<usize> = (0..4).filter(|i| !own.contains(i)).collect();
        assert_eq!(opened(world, id), (own, others), "{}", world.log(id));
        let log = world.log(id);
        assert!(log.contains(&format!("own {}\n", gpus.join(","))), "{log}");
        assert!(log.contains(&format!("affinity list: {cpus}\n")), "{log}");
    }
    // A restarted agent gives nothing twice: what a third one gets is what the first one left.
    assert_eq!(lab(&["node", "restart", "n1", "--dir", &world.dir.to_string_lossy()], JOB).code(), 0);
    world.wait("the agent to be back", || world.run(&["node", "status"]).code() == 0);
    let c = submit(world);
    assert_eq!(has(world, &a), (gpus_a.clone(), cpus_a.clone()));
    world.ok(&["cancel", &a]);
    world.running(&c);
    assert_eq!(has(world, &c), (gpus_a, cpus_a));
    assert_eq!(opened(world, &c).0.len(), 2);
    std::fs::write(world.dir.join("go"), "").unwrap();
    world.completed(&b);
    world.completed(&c);
}
