//! Which nodes work gets, and how much of each: excluded nodes, alternatives and numbers of nodes with features, and GPUs
//! of all nodes together. GPUs are simulated.

use crate::harness::{Group, JOB, World};
use crate::topology::configured;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;

static CHOICES: Group = Group { theme: "node_choices", name: "node-choices", nodes: 4, quorum: 1, tweak: |o| o.simulated_gpus = 4 };

pub fn trials() -> Vec<Trial> {
    vec![
        CHOICES.test("work_gets_nodes_with_one_of_the_alternatives_and_none_that_is_excluded", &[], chosen),
        CHOICES.test("work_waits_for_nodes_that_have_what_it_asks_for_together", &[], waits),
        CHOICES.test("what_no_nodes_have_or_does_not_fit_is_refused_in_words", &[], refused),
        CHOICES.test("amounts_of_cores_gpus_and_all_nodes_are_the_shares_of_each_node", &[], amounts),
        CHOICES.test("salloc_says_what_was_given_for_each_gpu", &[], of_each_gpu),
        CHOICES.test("scripts_and_ranks_find_what_was_given_for_each_gpu", &[], for_each_gpu),
        CHOICES.test("contiguous_nodes_follow_each_other_by_their_names", &[], contiguous),
        CHOICES.test("ranks_are_spread_over_the_fewest_nodes_that_hold_them", &[], spread),
    ]
}

/// n1 and n3 are red, n2 is blue, n1 is fast.
fn colour(world: &World) {
    let known = || -> Vec<Vec<String>> {
        let nodes: Value = serde_json::from_str(&world.ok(&["nodes", "-o", "json"])).unwrap();
        nodes.as_array().unwrap().iter().map(|node| serde_json::from_value(node["features"].clone()).unwrap()).collect()
    };
    let wanted: [&[&str]; 4] = [&["red", "fast"], &["blue"], &["red"], &[]];
    let has_all = || {
        let known = known();
        known.len() == wanted.len() && known.iter().zip(wanted).all(|(has, wanted)| wanted.iter().all(|w| has.iter().any(|h| h == w)))
    };
    if !has_all() {
        for (number, features) in (1..).zip(wanted).filter(|(_, features)| !features.is_empty()) {
            configured(world, &format!("n{number}"), &format!("features: [{}]", features.join(", ")));
        }
        world.wait("the nodes to say what they have", has_all);
        world.wait("the nodes to be ready", || lattice_lab::up::wait_ready(&world.cluster(), JOB).is_ok());
    }
}

/// The sorted output of a launch with its own allocation.
fn lines(world: &World, args: &[&str], command: &str) -> Vec<String> {
    let done = world.run_for(&[&["launch"], args, &["--", "/bin/sh", "-c", command]].concat(), JOB);
    assert_eq!(done.code(), 0, "{args:?}: {}{}", done.out(), done.err());
    let mut lines: Vec<String> = done.out().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn chosen(world: &World) {
    colour(world);
    let on = |args: &[&str]| lines(world, args, "echo $LATTICE_NODE");
    assert_eq!(on(&["-N", "2", "-C", "[red|blue]"]), ["n1", "n3"], "both have the same");
    assert_eq!(on(&["-N", "3", "-C", "red|blue"]), ["n1", "n2", "n3"]);
    assert_eq!(on(&["-N", "2", "-C", "(red|blue)&fast|blue"]), ["n1", "n2"]);
    assert_eq!(on(&["-N", "3", "-C", "red*2&blue*1"]), ["n1", "n2", "n3"]);
    assert_eq!(on(&["-N", "2", "-C", "[fast*1&blue*1]", "-C", "memory_gb>=0"]), ["n1", "n2"]);
    assert_eq!(on(&["-N", "2", "-x", "n[1,4]"]), ["n2", "n3"]);
    let file = world.dir.join("broken.nodes");
    std::fs::write(&file, "# out of use\nn1\nn2,n3\n").unwrap();
    assert_eq!(on(&["--exclude", file.to_str().unwrap()]), ["n4"]);
    let script = world.script("either.sh", "#!/bin/sh\n#LATTICE constraint=fast|blue exclude=n1\necho $LATTICE_NODE\n");
    let id = world.submit(&[&script]);
    world.completed(&id);
    assert!(world.log(&id).lines().any(|line| line == "n2"), "{}", world.log(&id));
}

fn waits(world: &World) {
    colour(world);
    let holds = world.submit(&["-w", "n1", "--", "/bin/sleep", "300"]);
    world.running(&holds);
    let same = world.submit(&["-N", "2", "-C", "[red|blue]", "--", "/bin/true"]);
    let counted = world.submit(&["-N", "3", "-C", "red*2", "--", "/bin/true"]);
    let excluding = world.submit(&["-x", "n2,n3,n4", "--", "/bin/true"]);
    for (id, wants) in [
        (&same, "wants 2 nodes, all with the same of red|blue"),
        (&counted, "wants 3 nodes, 2 with red"),
        (&excluding, "is excluded by --exclude"),
    ] {
        assert_eq!(text(&world.status(id), "state"), "Pending");
        let explanation = world.ok(&["explain", id]);
        assert!(explanation.contains(wants), "{explanation}");
    }
    world.ok(&["cancel", &holds]);
    for id in [&same, &counted, &excluding] {
        world.completed(id);
    }
}

fn refused(world: &World) {
    colour(world);
    for (args, code, why) in [
        (&["-C", "red|blue&fast"][..], 2, "& after | can mean two things"),
        (&["-C", "!red"], 2, "! is not supported"),
        (&["-N", "3", "-C", "red*2&blue*2"], 2, "2 with red and 2 with blue are 4 nodes, and it asks for 3 nodes"),
        (&["-N", "3", "-C", "[red|blue]"], 4, "wants 3 nodes, all with the same of red|blue; this cluster has 2 that could ever serve it"),
        (&["-N", "4", "-C", "red*3"], 4, "wants 4 nodes, 3 with red; this cluster has 2 that could ever serve it"),
        (&["-C", "green|yellow"], 4, "n[1-4] has none of the alternatives green|yellow"),
        (&["-x", "n[1-4]"], 4, "n[1-4] is excluded by --exclude"),
        (&["-x", "n1", "-w", "n1"], 2, "n1 is one of the nodes asked for"),
        (&["-C", "core_count>=100000"], 4, "100000 are wanted"),
        (&["-C", "socket_count>=1000"], 4, "1000 are wanted"),
        (&["-G", "3", "-N", "2"], 2, "--gpus-total 3 does not divide evenly over 2 nodes"),
        (&["--mem-per-gpu", "1G"], 2, "--mem-per-gpu needs a number of GPUs"),
        (&["--tasks-per-gpu", "2"], 2, "--tasks-per-gpu needs a number of GPUs"),
        (&["-G", "2", "--tasks-per-gpu=2", "-n", "3"], 2, "--tasks-per-gpu 2 on 2 GPUs is 4 ranks, and --ntasks is 3"),
        (&["--mem=0", "--cores=1"], 2, "--mem=0 asks for all memory of each node, and --cores for a share"),
    ] {
        let refused = world.run(&[&["submit"], args, &["--", "/bin/true"]].concat());
        assert!(refused.code() == code && refused.err().contains(why), "{args:?}: {} {}", refused.code(), refused.err());
    }
}

fn amounts(world: &World) {
    let checked = |args: &[&str]| -> Value {
        let options = ["submit", "--dry-run", "-o", "json"];
        serde_json::from_str(&world.ok(&[&options, args, &["--", "/bin/true"]].concat())).unwrap()
    };
    let both = checked(&["-G", "4", "-N", "2", "--cpus-per-gpu=1", "--mem-per-gpu=16M"]);
    assert_eq!([&both["gpus"], &both["cores"], &both["memory_bytes"]], [&json!(2), &json!(2), &json!(32 << 20)], "{both}");
    let cores = checked(&["--mem-per-core=8M", "-n", "2"]);
    assert_eq!([&cores["cores"], &cores["memory_bytes"]], [&json!(2), &json!(16 << 20)], "{cores}");
    let whole = checked(&["--mem=0", "-x", "n2", "-C", "(red|blue)&fast"]);
    assert_eq!([&whole["cores"], &whole["memory_bytes"]], [&Value::Null, &Value::Null], "{whole}");
    assert_eq!([&whole["exclude"], &whole["features"]], [&json!(["n2"]), &json!("(red|blue)")], "{whole}");
    let seen = lines(world, &["-G", "4", "-N", "2", "-n", "2", "--mem-per-gpu=16M"], "echo $LATTICE_SIMULATED_VISIBLE_DEVICES");
    assert!(seen.len() == 2 && seen.iter().all(|gpus| gpus.split(',').count() == 2), "{seen:?}");
}

/// Prints the two variables of GPUs.
const OF_GPUS: &str = "echo ${SLURM_CPUS_PER_GPU-unset} ${SLURM_NTASKS_PER_GPU-unset}";

/// A new directory with Slurm's commands.
fn links(world: &World, name: &str) -> PathBuf {
    let dir = world.dir.join(name);
    std::fs::create_dir_all(&dir).unwrap();
    world.ok(&["compat", "install", "--dir", dir.to_str().unwrap()]);
    dir
}

fn for_each_gpu(world: &World) {
    let dir = links(world, "gpu-job-links");
    let prints = |id: &str, wanted: &[(&str, usize)]| {
        world.completed(id);
        let log = world.log(id);
        for (line, times) in wanted {
            assert_eq!(log.matches(&format!("{line}\n")).count(), *times, "{line}: {log}");
        }
    };
    // Of a script, its step and that step's ranks.
    let says = |name: &str, lines: &str| {
        let srun = dir.join("srun");
        let inside = OF_GPUS.replacen("echo", "echo rank", 1);
        let of_script = OF_GPUS.replacen("echo", "echo script", 1);
        world.script(name, &format!("#!/bin/bash\n{lines}\n{of_script}\n{} /bin/sh -c '{inside}'\n", srun.display()))
    };
    let both = says("both-of-gpu.sh", "#SBATCH -N 1 -G 1 --cpus-per-gpu=2 --ntasks-per-gpu=1 -t 5");
    prints(&world.submit(&[&both]), &[("script 2 1", 1), ("rank 2 1", 1)]);
    let ranks = says("ranks-of-gpu.sh", "#SBATCH -N 1 --gpus-per-node=1 --ntasks-per-gpu=2 -t 5");
    prints(&world.submit(&[&ranks]), &[("script unset 2", 1), ("rank unset 2", 2)]);
    let neither = says("none-of-gpu.sh", "#SBATCH -N 1 -G 1 -t 5");
    prints(&world.submit(&[&neither]), &[("script unset unset", 1), ("rank unset unset", 1)]);
    // Of jobs without a script.
    let ours = lines(world, &["--slurm-env", "-N", "2", "-G", "2", "--tasks-per-gpu=1"], OF_GPUS);
    assert_eq!(ours, ["unset 1", "unset 1"]);
    let srun = world.lattice.clone().with_program(&dir.join("srun"));
    let done = srun.run(&["-N", "1", "-G", "1", "--ntasks-per-gpu=2", "/bin/sh", "-c", OF_GPUS], JOB).unwrap();
    assert_eq!((done.code(), done.out().as_str()), (0, "unset 2\nunset 2\n"), "{}", done.err());
    assert!(done.err().contains("--ntasks-per-gpu=2: each rank sees all GPUs of the job on its node"), "{}", done.err());
    // Each rank has a GPU of its own.
    let gpu = "echo $LATTICE_SIMULATED_VISIBLE_DEVICES";
    let done = srun.run(&["-N", "1", "-G", "2", "--ntasks-per-gpu=1", "/bin/sh", "-c", gpu], JOB).unwrap();
    let out = done.out();
    let seen: BTreeSet<&str> = out.lines().collect();
    assert!(done.code() == 0 && seen.len() == 2 && !out.contains(','), "{out}{}", done.err());
}

fn of_each_gpu(world: &World) {
    let dir = links(world, "gpu-links");
    let says = format!("{OF_GPUS}; {}/srun echo step", dir.display());
    let salloc = world.lattice.clone().with_program(&dir.join("salloc"));
    let run = |options: &[&str]| {
        let done = salloc.run(&[options, &["-N", "1", "-t", "5", "/bin/sh", "-c", &says]].concat(), JOB).unwrap();
        assert!(!done.timed_out && done.code() == 0, "{options:?}: {}{}", done.out(), done.err());
        // Neither variable is an option of the step.
        assert!(!done.err().contains("per-gpu"), "{options:?}: {}", done.err());
        done.out()
    };
    assert_eq!(run(&["-G", "1", "--cpus-per-gpu=1", "--ntasks-per-gpu=1"]), "1 1\nstep\n");
    assert_eq!(run(&["-G", "1"]), "unset unset\nstep\n");
}

fn contiguous(world: &World) {
    let holds = world.submit(&["-w", "n2", "--", "/bin/sleep", "300"]);
    world.running(&holds);
    assert_eq!(lines(world, &["-N", "2", "--topology", "contiguous"], "echo $LATTICE_NODE"), ["n3", "n4"]);
    let script = world.script("contiguous.sh", "#!/bin/sh\n#SBATCH -N 3 --contiguous -t 5\necho on $SLURM_JOB_NODELIST\n");
    let waits = world.submit(&[&script]);
    let explanation = world.ok(&["explain", &waits]);
    assert!(explanation.contains("wants 3 nodes that follow each other by name"), "{explanation}");
    world.ok(&["cancel", &holds]);
    world.completed(&waits);
    let log = world.log(&waits);
    assert!(log.contains("on n[1-3]") || log.contains("on n[2-4]"), "{log}");
    let refused = world.run(&["submit", "-N", "5", "--topology", "contiguous", "--", "/bin/true"]);
    assert!(refused.code() == 4 && refused.err().contains("this cluster has 4 that could ever serve it"), "{}", refused.err());
}

fn spread(world: &World) {
    let nodes: Value = serde_json::from_str(&world.ok(&["nodes", "-o", "json"])).unwrap();
    let cores = nodes[0]["cores"].as_u64().unwrap();
    // The node of each rank.
    let on = |ranks: u64, more: &[&str]| {
        let ranks = ranks.to_string();
        lines(world, &[&["--spread", "-n", &ranks][..], more].concat(), "echo $LATTICE_NODE")
    };
    let different = |mut nodes: Vec<String>| {
        nodes.dedup();
        nodes.len()
    };
    let one = on(cores, &["--mem-per-core=8M"]);
    assert_eq!((one.len() as u64, different(one)), (cores, 1));
    for more in [&["--mem-per-core=8M"][..], &[]] {
        let two = on(cores + 1, more);
        assert_eq!((two.len() as u64, different(two)), (cores + 1, 2), "{more:?}");
    }
    // Half of each node is held, so no node has all cores.
    let half = cores.div_ceil(2).to_string();
    let holds = world.submit(&["-N", "4", "--cores", &half, "--", "/bin/sleep", "300"]);
    world.running(&holds);
    if cores > 1 {
        let several = on(cores, &["--mem-per-core=8M"]);
        assert!(several.len() as u64 == cores && different(several.clone()) > 1, "{several:?}");
    }
    let ranks = (cores + 1).to_string();
    let waits = world.submit(&["--spread", "-n", &ranks, "--", "/bin/true"]);
    let explanation = world.ok(&["explain", &waits]);
    assert!(explanation.contains(&format!("wants 2 nodes for {ranks} ranks")), "{explanation}");
    world.ok(&["cancel", &holds]);
    world.completed(&waits);
    let ranks = (4 * cores + 1).to_string();
    for (args, code, why) in [
        (&["--spread", "-n", &ranks][..], 4, format!("wants 1 core for each of {ranks} ranks, in equal parts on 1 to {ranks} nodes")),
        (&["--spread"], 2, "--spread needs a number of ranks".to_owned()),
        (&["--spread", "-n", "2", "-N", "2"], 2, "--nodes has no meaning".to_owned()),
    ] {
        let refused = world.run(&[&["submit"], args, &["--", "/bin/true"]].concat());
        assert!(refused.code() == code && refused.err().contains(&why), "{args:?}: {} {}", refused.code(), refused.err());
    }
}
