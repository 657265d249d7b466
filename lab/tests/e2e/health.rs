//! Health checks of nodes: the site's own program, on every node.

use crate::harness::{Group, World, configure};
use lattice_lab::faults;
use lattice_lab::lattice::{Lattice, text};
use libtest_mimic::Trial;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

static HEALTH: Group = Group {
    theme: "health",
    name: "health",
    nodes: 3,
    quorum: 1,
    tweak: |o| {
        let _ = fs::remove_dir_all(folder());
        fs::create_dir_all(folder()).unwrap();
        let [program, supply] = ["", ".supply"].map(|which| {
            let program = folder().join(format!("check{which}"));
            let finds = format!("{}/$LATTICE_NODE{which}", folder().display());
            fs::write(&program, format!("#!/bin/sh\n[ -e {finds} ] || exit 0\n. {finds}\n")).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            program
        });
        o.agent_lines = format!(
            "topology_group: row-2\nhealth:\n  period_seconds: 1\n  nics: [lo]\n  mounts: [/proc]\n  checks:\n  - {{name: fabric, program: {program:?}, timeout_seconds: 1}}\n  \
             - {{name: supply, program: {supply:?}, timeout_seconds: 1, failure: true}}\n"
        );
    },
};

pub fn trials() -> Vec<Trial> {
    vec![
        HEALTH.test("a_node_that_is_not_well_keeps_its_work_and_gets_no_more", &[], unwell),
        HEALTH.test("missing_devices_mounts_and_gpus_are_reported_until_they_exist", &[], absent),
        HEALTH.test("failed_hardware_is_down_at_once_until_it_is_repaired", &[], failed),
        HEALTH.test("the_drain_of_a_node_that_is_not_well_ends", &[], drained_unwell),
        HEALTH.test("a_node_that_was_not_well_and_is_silent_can_be_confirmed_dead", &[], silent_unwell),
        HEALTH.test("a_node_that_registers_and_is_not_well_was_never_ready", &[], registers_unwell),
        HEALTH.test("changes_without_a_quorum_are_in_the_nodes_history", &[], unreported_changes),
        HEALTH.test("a_warning_and_a_check_that_hangs_are_reported", &[], warning_and_hanging_check),
    ]
}

fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("lattice-health-{}", std::process::id()))
}

/// Sets what the site's program finds on a node.
fn finds(node: &str, script: &str) {
    fs::write(folder().join("next"), script).unwrap();
    fs::rename(folder().join("next"), folder().join(node)).unwrap();
}

/// Lets the site's program find nothing on a node.
fn clear_finding(node: &str) {
    fs::remove_file(folder().join(node)).unwrap();
}

/// State and reason from the quorum.
fn shown(w: &World, node: &str) -> (String, String) {
    let nodes = w.lattice.json(&["nodes"]).unwrap();
    let nodes = nodes.as_array().or_else(|| nodes["nodes"].as_array()).unwrap();
    let node = nodes.iter().find(|n| text(n, "id") == node).unwrap();
    (text(node, "state"), text(node, "reason"))
}

fn status(w: &World, node: &str) -> String {
    Lattice::to(&w.cluster(), node).unwrap().ok(&["node", "status"]).unwrap()
}

fn unwell(w: &World) {
    let go = w.dir.join("go");
    let job = w.submit(&["--nodes", "3", "--", "/bin/sh", "-c", &format!("echo up; until [ -e {} ]; do sleep 0.05; done", go.display())]);
    w.wait_log(&job, "up");
    finds("n2", "echo looking; echo link 3 is down; exit 2");
    w.wait("n2 to be Degraded", || shown(w, "n2").0 == "Degraded");
    assert_eq!(shown(w, "n2").1, "not well: fabric: link 3 is down");
    assert_eq!(text(&w.status(&job), "state"), "Running");
    fs::write(&go, "").unwrap();
    w.completed(&job);
    w.completed(&w.submit(&["--nodes", "2", "--", "/bin/true"]));
    let waits = w.submit(&["--nodes", "3", "--", "/bin/true"]);
    let why = w.ok(&["explain", &waits]);
    assert!(why.contains("link 3 is down"), "{why}");
    let own = status(w, "n2");
    assert!(own.contains("fabric") && own.contains("link 3 is down") && own.contains("no new work"), "{own}");
    clear_finding("n2");
    w.completed(&waits);
    assert_eq!(shown(w, "n2").0, "Ready");
}

/// A network device, a mount and GPUs that are configured and missing.
fn absent(w: &World) {
    let (config, mount) = (w.dir.join("n3/agent.yaml"), w.dir.join("site-fs"));
    fs::create_dir(&mount).unwrap();
    let before = configure(&w.dir, "n3", &format!("health: {{nics: [lo, hsn9], mounts: [/proc, {mount:?}], expect: {{gpus: 4}}}}"));
    faults::restart_node(&w.dir, "n3").unwrap();
    let [nic, mounted, gpus] = [
        ("nic hsn9".to_owned(), "there is no such device"),
        (format!("mount {}", mount.display()), "nothing is mounted there"),
        ("gpus".to_owned(), "0 of 4 GPUs"),
    ];
    let is_reported = |(name, why): &(String, &str)| {
        let is_it =
            |line: &str| line.starts_with(&format!("  {name}: critical")) && line.contains(why) && line.contains("no new work here");
        status(w, "n3").lines().any(is_it)
    };
    w.wait("all three to be reported", || [&nic, &mounted, &gpus].iter().all(|check| is_reported(check)));
    w.wait("n3 to be Degraded for all three", || {
        let (state, why) = shown(w, "n3");
        state == "Degraded"
            && why.starts_with("not well: ")
            && [&nic, &mounted, &gpus].iter().all(|(name, of)| why.contains(&format!("{name}: {of}")))
    });
    let waits = w.submit(&["--nodes", "3", "--", "/bin/true"]);
    let why = w.ok(&["explain", &waits]);
    assert!(why.contains("nic hsn9: there is no such device"), "{why}");
    // Other nodes see it as well.
    let seen = w.ok(&["node", "status", "n3"]);
    assert!(seen.contains("0 of 4 GPUs"), "{seen}");
    nix::mount::mount(None::<&str>, &mount, Some("tmpfs"), nix::mount::MsFlags::empty(), Some("size=64k")).unwrap();
    w.wait("the mount to be well", || !is_reported(&mounted));
    assert!(is_reported(&nic) && is_reported(&gpus) && shown(w, "n3").0 == "Degraded");
    nix::mount::umount(&mount).unwrap();
    w.wait("the mount to be reported again", || is_reported(&mounted));
    fs::write(&config, &before).unwrap();
    faults::restart_node(&w.dir, "n3").unwrap();
    w.completed(&waits);
    assert_eq!(shown(w, "n3"), ("Ready".to_owned(), String::new()));
}

fn drained_unwell(w: &World) {
    w.ok(&["node", "cordon", "n[1,3]", "--reason", "jobs for n2"]);
    let go = w.dir.join("go");
    let job = w.submit(&["--", "/bin/sh", "-c", &format!("echo up; until [ -e {} ]; do sleep 0.05; done", go.display())]);
    let long = w.submit(&["--", "/bin/sh", "-c", "echo up; sleep 600"]);
    for job in [&job, &long] {
        w.wait_log(job, "up");
    }
    finds("n2", "echo link 3 is down; exit 2");
    w.wait("n2 to be Degraded", || shown(w, "n2").0 == "Degraded");
    // After the deadline the remaining work is ended, as on a healthy node.
    w.ok(&["node", "drain", "n2", "--reason", "link 3"]);
    let listed = w.ok(&["node", "list", "n2"]);
    assert!(listed.contains("(`lattice node undrain` lifts it)"), "{listed}");
    w.wait("n2 to be Draining, not well", || shown(w, "n2") == ("Draining".to_owned(), "not well: fabric: link 3 is down".to_owned()));
    fs::write(&go, "").unwrap();
    w.completed(&job);
    let drained = w.ok(&["node", "drain", "n2", "--reason", "link 3", "--deadline", "1s", "--wait"]);
    assert!(drained.contains("Node n2 is Drained"), "{drained}");
    w.wait("the other one to have ended", || text(&w.status(&long), "reason").contains("drain"));
    w.wait("n2 to show why", || shown(w, "n2") == ("Drained".to_owned(), "not well: fabric: link 3 is down".to_owned()));
    w.ok(&["node", "undrain", "n2"]);
    assert_eq!(shown(w, "n2"), ("Degraded".to_owned(), "not well: fabric: link 3 is down".to_owned()), "at once: nothing was placed on it");
    // A node that is Degraded and empty is Drained at once.
    w.ok(&["node", "drain", "n2", "--reason", "link 3", "--wait"]);
    clear_finding("n2");
    w.wait("n2 to be well", || shown(w, "n2") == ("Drained".to_owned(), String::new()));
    w.ok(&["node", "undrain", "n2"]);
    w.ok(&["node", "uncordon", "n[1,3]"]);
    w.wait("n2 to be Ready", || shown(w, "n2").0 == "Ready");
}

fn silent_unwell(w: &World) {
    finds("n2", "echo link 3 is down; exit 2");
    w.wait("n2 to be Degraded", || shown(w, "n2").0 == "Degraded");
    let confirm_dead = ["node", "confirm-dead", "n2", "--yes", "--reason", "no power"];
    let refused = w.run(&confirm_dead);
    assert!(refused.code() == 4 && refused.err().contains("still sends heartbeats"), "{}", refused.err());
    faults::kill_node(&w.dir, "n2").unwrap();
    w.wait("n2 to be silent", || shown(w, "n2").1.contains("silent"));
    // One of the two nodes sends heartbeats: the request for it is refused, and the other one is executed.
    let both = w.run(&["node", "confirm-dead", "n[1-2]", "--yes", "--reason", "no power"]);
    assert!(both.code() == 4 && both.err().contains("node n1") && both.out().contains("Node n2 is Down"), "{}{}", both.out(), both.err());
    assert_eq!(shown(w, "n2").0, "Down");
    let history = w.ok(&["node", "history", "n[1-2]"]);
    assert!(history.contains("NODE") && history.contains("NodeConfirmedDead"), "{history}");
    faults::start_node(&w.dir, "n2").unwrap();
    clear_finding("n2");
    w.wait("n2 to be Ready", || shown(w, "n2").0 == "Ready");
}

fn failed(w: &World) {
    let waits = |name: &str| w.wait(&format!("{name} to be Down"), || shown(w, name).0 == "Down");
    finds("n3.supply", "sleep 60");
    w.wait("n3 to be Degraded", || shown(w, "n3").0 == "Degraded");
    assert!(!shown(w, "n3").1.contains("hardware"), "a program that hangs says nothing about the hardware: {:?}", shown(w, "n3"));
    finds("n3.supply", "echo no voltage; exit 2");
    waits("n3");
    assert!(shown(w, "n3").1.contains("its hardware failed, says node:n3: supply: no voltage"), "{:?}", shown(w, "n3"));
    assert!(w.ok(&["node", "history", "n3"]).contains("failure: supply: no voltage"));
    w.wait("n3 to show the remedy", || status(w, "n3").contains("lattice node repaired"));
    // An operator confirms that n2 is dead, with a job whose requeue policy is the default: a lost node requeues it.
    w.ok(&["node", "cordon", "n1", "--reason", "a job for n2"]);
    let job = w.submit(&["--", "/bin/sh", "-c", "echo attempt $LATTICE_REQUEUE_COUNT; [ $LATTICE_REQUEUE_COUNT = 1 ] || sleep 600"]);
    w.wait_log(&job, "attempt 0");
    w.ok(&["node", "uncordon", "n1"]);
    let before = w.status(&job);
    assert_eq!(before["nodes"], serde_json::json!(["n2"]));
    w.ok(&["node", "fail", "n2", "--reason", "PSU 1"]);
    assert!(shown(w, "n2").0 == "Down" && shown(w, "n2").1.contains("its hardware failed, says root@n1: PSU 1"));
    assert_eq!(text(&w.status(&job), "state"), "Running", "nobody confirmed that it does not run");
    let output = w.ok(&["node", "fail", "n2", "--reason", "PSU 1", "--off", "--yes"]);
    assert!(output.contains("lattice node repaired n2"), "{output}");
    let ended = w.completed(&job);
    assert_eq!((text(&ended, "requeue_count").as_str(), &ended["nodes"]), ("1", &serde_json::json!(["n1"])), "{ended}");
    assert_eq!(ended["submitted_at"], before["submitted_at"]);
    w.ok(&["node", "repaired", "n2"]);
    w.wait("n2 to be Ready", || shown(w, "n2").0 == "Ready");
    // The check is well again, and the node stays Down until an operator acts.
    clear_finding("n3.supply");
    w.wait("the check to be well", || !status(w, "n3").contains("supply: failure"));
    assert_eq!(shown(w, "n3").0, "Down");
    assert_eq!(w.lattice.json(&["node", "status", "n3"]).unwrap()["fact"]["reported"]["topology_group"], "row-2");
    // The hold returns until the leader knows that the check is well.
    w.wait("n3 to be Ready", || {
        w.run(&["node", "repaired", "n3"]);
        shown(w, "n3").0 == "Ready"
    });
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
}

fn warning_and_hanging_check(w: &World) {
    finds("n1", "echo the fan is loud; exit 1");
    w.wait("the warning", || status(w, "n1").contains("the fan is loud"));
    assert_eq!(shown(w, "n1").0, "Ready");
    // The check of the kernel's memory controllers finds nothing, or nothing bad.
    let checks = w.lattice.json(&["node", "status"]).unwrap()["checks"].clone();
    let memory = checks.as_array().unwrap().iter().find(|check| text(check, "name") == "memory_errors").unwrap().clone();
    let has_edac = fs::exists("/sys/devices/system/edac/mc/mc0/ce_count").unwrap();
    assert_eq!(text(&memory, "finding"), if has_edac { "ok" } else { "unsupported" }, "{memory}");
    finds("n3", "sleep 60");
    w.wait("n3 to be Degraded", || shown(w, "n3").0 == "Degraded");
    assert!(shown(w, "n3").1.contains("did not end in time"), "{:?}", shown(w, "n3"));
    clear_finding("n1");
    clear_finding("n3");
    w.wait("n3 to be Ready", || shown(w, "n3").0 == "Ready");
    // The last test of its cluster.
    fs::remove_dir_all(folder()).unwrap();
}

fn registers_unwell(w: &World) {
    finds("n3", "echo link 3 is down; exit 2");
    w.wait("n3 to be Degraded", || shown(w, "n3").0 == "Degraded");
    let waits = w.submit(&["--nodes", "3", "--", "/bin/true"]);
    let incarnation = || w.at("n3").json(&["node", "status"]).ok().and_then(|status| status["incarnation"].as_u64());
    let before = incarnation().unwrap();
    let times_ready = || w.ok(&["node", "history", "n3"]).matches("-> Ready").count();
    let ready_before = times_ready();
    faults::restart_node(&w.dir, "n3").unwrap();
    w.wait("another incarnation to be registered", || incarnation().is_some_and(|now| now > before));
    // The check finds the same before the first session, so no work is placed in between.
    let (state, reason) = shown(w, "n3");
    assert!(state == "Degraded" && reason.starts_with("not well: "), "{state}: {reason}");
    assert_eq!(times_ready(), ready_before, "{}", w.ok(&["node", "history", "n3"]));
    assert_eq!(text(&w.status(&waits), "state"), "Pending");
    clear_finding("n3");
    w.completed(&waits);
    assert!(times_ready() > ready_before);
}

/// The quorum is down, and the agent is killed before and after it reports the changes.
fn unreported_changes(w: &World) {
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
    let recorded = || {
        let records = w.lattice.json(&["node", "history", "n2"]).unwrap();
        let records = records.as_array().unwrap().iter().filter(|record| text(record, "action") == "NodeUnheard");
        // A change reported by an agent that died before the acknowledgement is reported again, with the same time.
        let mut details: Vec<String> = records.map(|record| text(record, "detail")).collect();
        details.dedup();
        details
    };
    let before = recorded().len();
    faults::kill_member(&w.dir, 1).unwrap();
    w.wait("n2 to lose its session", || status(w, "n2").contains("no session"));
    finds("n2", "echo link 9 is down; exit 2");
    w.wait("n2 to see it", || status(w, "n2").contains("link 9 is down"));
    clear_finding("n2");
    w.wait("n2 to be well", || !status(w, "n2").contains("no new work"));
    // The agent has stored the first change and its end by now.
    finds("n2", "echo link 10 is down; exit 2");
    w.wait("n2 to see another one", || status(w, "n2").contains("link 10 is down"));
    clear_finding("n2");
    faults::kill_node(&w.dir, "n2").unwrap();
    faults::begin_node(&w.dir, "n2", &[], &[("LATTICE_FAILPOINT", "unreported-health-unsent")]).unwrap();
    faults::start_member(&w.dir, 1).unwrap();
    w.wait("the agent to die before it reports", || !w.cluster().node("n2").unwrap().daemon.alive());
    faults::begin_node(&w.dir, "n2", &[], &[("LATTICE_FAILPOINT", "unreported-health-sent")]).unwrap();
    w.wait("the agent to die after it has reported", || !w.cluster().node("n2").unwrap().daemon.alive());
    faults::start_node(&w.dir, "n2").unwrap();
    // Both in this order. The checks of a busy machine may have found more in between.
    w.wait("its history to have both", || {
        let recorded = recorded();
        let mut details = recorded[before..].iter();
        details.any(|detail| detail.ends_with(": not well: fabric: link 9 is down")) && details.any(|detail| detail.ends_with(": well"))
    });
    w.wait("all to be Ready", || w.lattice.nodes().unwrap().iter().all(|(_, state)| state == "Ready"));
}
