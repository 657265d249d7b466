//! Topology of nodes, assignment of their parts, and protection of others' devices. GPUs are simulated.

use crate::gpus;
use crate::harness::{Group, JOB, NOBODY, Need, World, configure, counts_in_kernel, lab};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;

static GPUS: Group = Group {
    theme: "topology",
    name: "gpus",
    nodes: 1,
    quorum: 1,
    tweak: |o| {
        o.simulated_gpus = 4;
        o.agent_lines = gpus::seldom();
    },
};

static UNLIKE: Group = Group { theme: "topology", name: "unlike", nodes: 3, quorum: 1, tweak: |o| o.simulated_gpus = 4 };

pub fn trials() -> Vec<Trial> {
    vec![
        GPUS.test("a_node_counts_its_gpus_and_says_that_they_are_simulated", &[], capacity),
        GPUS.test("a_node_registers_its_wiring_and_work_asks_for_it", &[], wiring),
        GPUS.test("ranks_run_and_see_where_they_were_bound_to", &[], binding),
        GPUS.test("allocations_that_share_a_node_open_their_own_gpus_alone", &[], apart),
        GPUS.test("ranks_find_the_topology_and_their_part_of_it_in_a_file", &[], file),
        GPUS.test("ranks_of_a_whole_node_get_the_machine_as_hwloc_sees_it", &[Need::Mpich], hwloc),
        GPUS.test("gpus_and_a_sites_check_are_looked_at_behind_an_allocation", &[], gpus::looked_at_behind),
        UNLIKE.test("nodes_are_taken_by_what_they_have", &[], unlike),
    ]
}

/// `lattice node status -o json`.
fn node(world: &World) -> Value {
    serde_json::from_str(&world.ok(&["node", "status", "-o", "json"])).unwrap()
}

fn capacity(world: &World) {
    let nodes: Value = serde_json::from_str(&world.ok(&["nodes", "-o", "json"])).unwrap();
    assert_eq!(nodes[0]["gpus"], 4, "{nodes}");
    assert!(nodes[0]["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 0 && bytes % (64 << 20) == 0), "{nodes}");
    let status = node(world);
    let gpus = status["topology"]["gpu"]["gpus"].as_array().unwrap();
    assert!(gpus.len() == 4 && gpus.iter().all(|g| g["vendor"] == "simulated"), "{status}");
    assert!(status["degraded"].as_array().unwrap().iter().any(|d| d.as_str().unwrap().contains("SIMULATED")), "{status}");
    let is_degraded = |piece: &str| status["degraded"].as_array().unwrap().iter().any(|d| d.as_str().unwrap().starts_with(piece));
    assert!(is_degraded("GPU memory: is not cleared between allocations"), "{status}");
    let cores = status["topology"]["cpu"]["cores"].as_array().unwrap();
    let cpus: usize = cores.iter().map(|c| c["cpus"].as_array().unwrap().len()).sum();
    assert_eq!(nodes[0]["cores"], cpus);
    let shown = world.ok(&["node", "status"]);
    assert!(shown.contains("SIMULATED") && shown.contains("processors"), "{shown}");
}

/// The lab's GPUs are two islands of two: 100 GB/s within one, and 10 between them.
fn wiring(world: &World) {
    let nodes: Value = serde_json::from_str(&world.ok(&["nodes", "-o", "json"])).unwrap();
    let cores: u64 = nodes[0]["domains"].as_array().unwrap().iter().map(|domain| domain["cores"].as_u64().unwrap()).sum();
    assert!(cores > 0 && nodes[0]["cores"] == cores, "{nodes}");
    assert_eq!(nodes[0]["gpu_links_percent"], serde_json::json!([100, 10, 10]));
    let status = node(world);
    assert!(nodes[0]["sockets"].as_u64().is_some_and(|sockets| sockets > 0), "{nodes}");
    for key in ["domains", "sockets", "cxl_memory_bytes", "gpu_links_percent"] {
        assert_eq!(status[key], nodes[0][key], "{key}");
    }
    for shown in [world.ok(&["node", "status"]), world.ok(&["nodes", "-o", "wide"])] {
        assert!(shown.to_lowercase().contains("domains") && shown.contains(" × "), "{shown}");
    }
    let share = ["--cores=1", "--gpus=2", "--mem=64M", "--", "/bin/true"];
    let id = world.submit(&[&["-C", "prefer_same_numa"][..], &share].concat());
    world.completed(&id);
    for (args, why) in [
        (&["-C", "allow_cxl_memory", "--cpus", "1"][..], "allow_cxl_memory is for whole nodes"),
        (&["-C", "prefer_local_memory", "-C", "memory_policy=interleave"], "prefer_local_memory contradicts memory_policy=interleave"),
        (&["-C", "prefer_same_numa=maybe"], "prefer_same_numa must be true or false"),
    ] {
        let refused = world.run(&[&["submit"], args, &["--", "/bin/true"]].concat());
        assert!(refused.code() == 2 && refused.err().contains(why), "{args:?}: {}", refused.err());
    }
    let whole = world.submit(&["-C", "allow_cxl_memory,prefer_local_memory", "--", "/bin/sleep", "300"]);
    world.running(&whole);
    let waits = world.submit(&share);
    let explanation: Value = serde_json::from_str(&world.ok(&["explain", "-o", "json", &waits])).unwrap();
    let terms = explanation["score"]["terms"].as_array().unwrap();
    let topology = terms.iter().find(|term| term["factor"] == "topology").unwrap();
    // The two GPUs have the fastest link, which counts 0.7.
    assert!(topology["known"] == true && topology["value"].as_f64().is_some_and(|value| value > 0.7), "{topology}");
    world.ok(&["cancel", &whole]);
    world.completed(&waits);
}

/// Changes a node's configuration and starts its agent with it.
pub fn configured(world: &World, node: &str, more: &str) {
    configure(&world.dir, node, more);
    faults::restart_node(&world.dir, node).unwrap();
}

/// n1 has no GPUs, n2 has four, and so has n3, which also has features from its site.
fn unlike(world: &World) {
    configured(world, "n1", "simulated_gpus: []");
    configured(world, "n3", "features: [nvme_scratch, rack=7]");
    let nodes = || serde_json::from_str::<Value>(&world.ok(&["nodes", "-o", "json"])).unwrap();
    let features = |at: usize| -> Vec<String> { serde_json::from_value(nodes()[at]["features"].clone()).unwrap() };
    // The machine may have the library of PMIx, and a kernel that reports files which work opens.
    let plain = |features: &[String]| {
        features.iter().filter(|f| !["pmix", "telemetry_audit"].contains(&f.as_str())).eq(["checkpoints", "run_lease", "telemetry_debug"])
    };
    world.wait("the nodes to say what they have", || plain(&features(0)) && features(2).iter().any(|f| f == "nvme_scratch"));
    world.wait("the nodes to be ready", || lattice_lab::up::wait_ready(&world.cluster(), JOB).is_ok());
    // A kernel that cannot count may still audit, which needs less.
    assert!(!counts_in_kernel() || features(0).contains(&"telemetry_audit".to_owned()), "{}", nodes());
    assert!(features(1).contains(&"gpu".to_owned()) && nodes()[0]["gpus"] == 0, "{}", nodes());
    let model = features(1).iter().find_map(|f| f.strip_prefix("gpu_type=").map(str::to_owned)).unwrap();
    assert!(world.ok(&["nodes", "-o", "wide"]).contains("FEATURES"), "{}", world.ok(&["nodes"]));

    let on = |args: &[&str]| lines(world, args, "echo $LATTICE_NODE");
    assert_eq!(on(&["-N", "1", "-n", "1"]), ["n1"]);
    // Shares that just ended may not be released yet: any node but the first will do.
    for args in [&["-n", "2", "--gpus-per-task", "2"][..], &["-C", "gpu"], &["--constraint", &format!("gpu_type={model}")]] {
        let nodes = on(args);
        assert!(!nodes.is_empty() && nodes.iter().all(|node| node != "n1"), "{args:?}: {nodes:?}");
    }
    assert_eq!(on(&["--constraint", "nvme_scratch"]), ["n3"]);
    assert_eq!(on(&["--constraint=rack:7,gpu_count=4", "-C", "nvme_scratch"]), ["n3"]);
    let script = "#!/bin/sh\n#LATTICE constraint=nvme_scratch memory_policy=interleave tasks-per-node=1\necho $LATTICE_NODE\n\
                  lattice launch -n 1 -- sed -n 's/^Mems_allowed_list:.//p' /proc/self/status >/dev/null\n";
    let id = world.submit(&[&world.script("where.sh", script)]);
    world.wait("it to end", || text(&world.status(&id), "state") != "Pending");
    assert_eq!(world.status(&id)["nodes"][0], "n3");
    world.ok(&["cancel", &id]);

    for (args, summary, n1) in [
        (&["--nodes", "3", "--gpus-per-task", "1"][..], "has 2 that could ever serve it", "has 0 GPUs; its tasks there want 1"),
        (&["-C", "nowhere"], "has 0 that could ever serve it", "lacks the feature nowhere"),
        (&["-C", "a|b"], "has 0 that could ever serve it", "has none of the alternatives a|b"),
        (&["-C", "memory_gb>=100000"], "has 0 that could ever serve it", "of memory; 100000.0 GiB is wanted"),
    ] {
        let refused = world.run(&[&["submit"], args, &["--", "/bin/true"]].concat());
        assert!(refused.code() == 4 && refused.err().contains(summary) && refused.err().contains(n1), "{args:?}: {}", refused.err());
        let waits = world.run(&[&["submit", "-q", "-o", "name", "--wait-for-nodes"], args, &["--", "/bin/true"]].concat());
        assert!(waits.code() == 0 && waits.err().contains(summary), "{args:?}: {}", waits.err());
        let id = waits.out().trim().to_owned();
        let explanation = world.ok(&["explain", &id]);
        assert!(explanation.contains(summary) && explanation.contains(n1), "{args:?}: {explanation}");
        world.ok(&["cancel", &id]);
    }
    let refused = world.run(&["submit", "-C", "a|b&c", "--", "/bin/true"]);
    assert!(refused.code() == 2 && refused.err().contains("a|b&c"), "{}", refused.err());
}

fn file(world: &World) {
    let script = world.script("topology.sh", "#!/bin/sh\necho \"$LATTICE_TOPOLOGY_FILE\"\ncat \"$LATTICE_TOPOLOGY_FILE\"\n");
    let submitted = world.run_as(NOBODY, &["submit", "-o", "name", &script]);
    let id = submitted.out().trim().to_owned();
    world.completed(&id);
    let log = world.log(&id);
    let (path, json) = log.split_once('\n').unwrap();
    let topology: Value = serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {log}"));
    assert_eq!((text(&topology, "node"), topology["assigned"]["gpus"].as_array().unwrap().len()), ("n1".to_owned(), 4), "{topology}");
    assert_eq!(topology["gpu"], node(world)["topology"]["gpu"]);
    assert!(!topology["assigned"]["cpus"].as_array().unwrap().is_empty());
    world.wait("the file to go", || !std::path::Path::new(path).exists());
    // Each rank of a launch has the same file as well.
    let ranks =
        world.run_for(&["launch", "-n", "2", "--", "/bin/sh", "-c", "test -r $LATTICE_TOPOLOGY_FILE && echo $LATTICE_TOPOLOGY_FILE"], JOB);
    let lines: Vec<String> = ranks.out().lines().map(str::to_owned).collect();
    assert!(lines.len() == 2 && lines[0] == lines[1] && lines[0].ends_with(".json"), "{lines:?} {}", ranks.err());
}

/// The sorted output of a launch with its own allocation.
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
    // In a script the launch's own option takes precedence over the allocation's.
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
    // More than any node has: it waits for a node that has them.
    let id = world.submit(&["--tasks-per-node", "3", "--gpus-per-task", "2", "--wait-for-nodes", "--", "/bin/true"]);
    let explanation = world.ok(&["explain", &id]);
    assert!(explanation.contains("has 4 GPUs; its tasks there want 6"), "{explanation}");
    world.ok(&["cancel", &id]);
    // In an existing allocation it is refused.
    let id = world.submit(&["--", "/bin/sleep", "300"]);
    world.running(&id);
    let refused = world.run_for(&["launch", "--alloc", &id, "-n", "3", "--gpus-per-task", "2", "--", "/bin/true"], JOB);
    assert!(refused.code() != 0 && refused.err().contains("GPU"), "{}{}", refused.out(), refused.err());
    world.ok(&["cancel", &id]);
    world.ended(&id);
}

/// Tries every device, prints the results, and waits for `go`.
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

/// The devices that [`tries_all`] could open (they have no driver), and those that were denied.
fn opened(world: &World, id: &str) -> (Vec<usize>, Vec<usize>) {
    world.wait_log(id, "affinity list");
    let log = world.log(id);
    let with = |error: &str| (0..4).filter(|i| log.lines().any(|l| l.contains(&format!("gpu{i}'")) && l.contains(error))).collect();
    (with("No such device or address"), with("Operation not permitted"))
}

/// An allocation's GPUs and processors in `node status`.
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
    // A restarted agent gives nothing twice: a third allocation gets what the first one released.
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

/// MPICH includes hwloc. Each rank prints the file's path, and the number of processors in it.
fn hwloc(world: &World) {
    let script =
        "echo ${HWLOC_XMLFILE:-none} ${HWLOC_THISSYSTEM:-none} $([ -r \"$HWLOC_XMLFILE\" ] && grep -c 'type=\"PU\"' \"$HWLOC_XMLFILE\")";
    let hwloc_of = |options: &[&str], begins: &[&str]| {
        let done = world.run_as(NOBODY, &[begins, options, &["--", "/bin/sh", "-c", script]].concat());
        assert_eq!(done.code(), 0, "{}", done.err());
        done.out().trim().to_owned()
    };
    let cpus =
        node(world)["topology"]["cpu"]["cores"].as_array().unwrap().iter().map(|c| c["cpus"].as_array().unwrap().len()).sum::<usize>();
    // The agent may have just started.
    let mut output = String::new();
    world.wait("the file", || {
        output = hwloc_of(&[], &["launch", "-n", "1"]);
        output != "none none"
    });
    let words: Vec<&str> = output.split(' ').collect();
    assert!(words[0].ends_with("/topology/lattice-hwloc.xml"), "{output}");
    assert_eq!(words[1..], ["1", &cpus.to_string()], "{output}");
    // For a part of a node, or for programs that configure hwloc themselves, there is no file.
    assert_eq!(hwloc_of(&["--cores", "1"], &["launch", "-n", "1"]), "none none");
    assert_eq!(hwloc_of(&["--env", "HWLOC_XMLFILE=/nowhere"], &["launch", "-n", "1"]), "/nowhere none");
    // Work that a rank submits gets its own values, and not those of the rank.
    let alone = format!("--cores 1 --env HWLOC_XMLFILE={} --env HWLOC_THISSYSTEM=1", words[0]);
    assert_eq!(hwloc_of(&alone.split(' ').collect::<Vec<_>>(), &["launch", "-n", "1"]), "none none");
}
