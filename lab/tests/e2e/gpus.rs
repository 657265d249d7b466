//! GPUs that are removed, added and break while the agent runs. They are simulated: the lab writes what an agent reads,
//! in place of a vendor's driver.

use crate::harness::{Group, JOB, World, lab};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Heartbeats, checks and registrations together: one heartbeat interval of a real cluster.
const ONE_HEARTBEAT: Duration = Duration::from_secs(10);

static GPUS: Group = Group {
    theme: "gpus",
    name: "breaking_gpus",
    nodes: 1,
    quorum: 1,
    tweak: |o| {
        o.simulated_gpus = 2;
        o.agent_lines = "health: {period_seconds: 1, gpu_policy: {version: 1, xids: {140: fail}}}\n".to_owned();
    },
};

pub fn trials() -> Vec<Trial> {
    vec![
        GPUS.test("work_that_loses_a_gpu_fails_with_its_name_and_other_work_continues", &[], hot_remove),
        GPUS.test("an_error_that_asks_for_a_drain_drains_the_node_once_and_says_which_gpu", &[], drain),
        GPUS.test("an_error_that_the_site_treats_as_a_failure_makes_the_node_down_at_once", &[], failed),
        GPUS.test("work_hit_by_an_error_is_requeued_by_its_policy_and_the_node_stays_ready", &[], hit),
        GPUS.test("an_error_of_a_program_is_a_warning_and_a_gpu_to_be_reset_is_not_offered", &[], warned),
    ]
}

/// `lattice-lab node gpu n1 …`.
fn gpu(w: &World, index: &str, what: &[&str]) {
    let dir = w.dir.to_string_lossy();
    let done = lab(&[&["node", "gpu", "n1", "--dir", &dir, "--gpu", index], what].concat(), JOB);
    assert_eq!(done.code(), 0, "{}", done.err());
}

fn node(w: &World) -> Value {
    let nodes: Value = serde_json::from_str(&w.ok(&["nodes", "-o", "json"])).unwrap();
    nodes[0].clone()
}

/// Waits until the quorum has this many GPUs of the node; returns how long that took.
fn offered(w: &World, gpus: u64) -> Duration {
    let began = Instant::now();
    w.wait(&format!("{gpus} GPUs to be offered"), || node(w)["gpus"] == gpus);
    began.elapsed()
}

fn until(w: &World, file: &str) -> String {
    format!("echo up; until [ -e {}/{file} ]; do sleep 0.05; done", w.dir.display())
}

fn with_gpu(w: &World, file: &str) -> String {
    let id = w.submit(&["--cores", "1", "--gpus", "1", "--requeue=never", "--", "/bin/sh", "-c", &until(w, file)]);
    w.wait_log(&id, "up");
    id
}

/// The node's GPUs that the allocation has.
fn has(w: &World, id: &str) -> String {
    let status: Value = serde_json::from_str(&w.ok(&["node", "status", "-o", "json"])).unwrap();
    let local = status["allocations"].as_array().unwrap().iter().find(|a| text(a, "id") == id).unwrap().clone();
    local["gpus"][0].as_str().unwrap().to_owned()
}

fn hot_remove(w: &World) {
    let (one, other) = (with_gpu(w, "go-1"), with_gpu(w, "go-1"));
    let lost = has(w, &one);
    gpu(w, lost.trim_start_matches("SIM-"), &["remove"]);
    let took = offered(w, 1);
    assert!(took < ONE_HEARTBEAT, "{took:?}");
    let ended = w.ended(&one);
    let reason = ended.to_string();
    assert!(text(&ended, "state") == "Failed" && reason.contains(&format!("its GPU {lost} is lost")), "{reason}");
    assert_eq!(text(&w.status(&other), "state"), "Running");
    let status = w.ok(&["node", "status"]);
    assert!(
        status.contains("1 healthy, 1 allocatable, 2 in all (policy version 1, with the site's own responses)")
            && status.contains(&format!("{lost}: lost")),
        "{status}"
    );
    assert!(w.ok(&["node", "history", "n1"]).contains(", 1 GPU"));
    // An agent that starts now has never seen it, nor has work that starts under that agent.
    faults::restart_node(&w.dir, "n1").unwrap();
    w.wait("n1 to be Ready", || text(&node(w), "state") == "Ready" && node(w)["gpus"] == 1);
    let device = w.dir.join("n1").join(lost.replace("SIM-", "gpu"));
    let late = format!("{}; cat {} 2>&1; true", until(w, "go-late"), device.display());
    let late = w.submit(&["--cores", "1", "--", "/bin/sh", "-c", &late]);
    w.wait_log(&late, "up");
    // Another allocation has the remaining one.
    let waits = w.submit(&["--cores", "1", "--gpus", "1", "--", "/bin/true"]);
    let why = w.ok(&["explain", &waits]);
    assert!(why.contains("1 GPU is wanted, 0 free"), "{why}");
    gpu(w, lost.trim_start_matches("SIM-"), &["add"]);
    let took = offered(w, 2);
    assert!(took < ONE_HEARTBEAT, "{took:?}");
    fs::write(w.dir.join("go-late"), "").unwrap();
    w.completed(&late);
    assert!(w.log(&late).contains("Operation not permitted"), "{}", w.log(&late));
    w.completed(&waits);
    assert_eq!(text(&w.status(&other), "state"), "Running");
    fs::write(w.dir.join("go-1"), "").unwrap();
    w.completed(&other);
}

/// The file of the site's check of [`seldom`], and its findings.
fn sites(file: &str) -> PathBuf {
    std::env::temp_dir().join(format!("lattice-seldom-{}{file}", std::process::id()))
}

/// An agent's configuration with which it checks nothing for an hour without a reason.
pub fn seldom() -> String {
    let (program, finds) = (sites(""), sites(".finds"));
    fs::write(&program, format!("#!/bin/sh\n[ -e {0} ] || exit 0\n. {0}\n", finds.display())).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    format!("health:\n  period_seconds: 3600\n  checks: [{{name: fan, program: {program:?}}}]\n")
}

/// A node with [`seldom`]'s configuration checks itself after work has ended.
pub fn looked_at_behind(w: &World) {
    gpu(w, "3", &["ecc", "2"]);
    fs::write(sites(".finds"), "echo it is loud; exit 1").unwrap();
    w.completed(&w.submit(&["--cores", "1", "--", "/bin/true"]));
    let expected = ["SIM-3: 2 memory errors that could not be corrected", "fan: warning", "it is loud"];
    w.wait("the problem to be reported", || {
        let status = w.ok(&["node", "status"]);
        expected.iter().all(|expected| status.contains(expected))
    });
    for file in ["", ".finds"] {
        fs::remove_file(sites(file)).unwrap();
    }
}

fn drain(w: &World) {
    let runs = with_gpu(w, "go-2");
    gpu(w, "1", &["xid", "79"]);
    let finds = "gpu SIM-1: XID 79 (the GPU has fallen off the bus): drain the node";
    let stands = |state: &str| text(&node(w), "state") == state && text(&node(w), "reason").contains(finds);
    w.wait("n1 to be Draining", || stands("Draining"));
    let asked = || w.ok(&["node", "history", "n1"]).matches(&format!("drain: {finds}")).count();
    assert_eq!(asked(), 1);
    let listed = w.ok(&["node", "list", "n1"]);
    assert!(listed.contains("node:n1") && listed.contains("(`lattice node undrain` lifts it)"), "{listed}");
    let status = w.ok(&["node", "status"]);
    assert!(status.contains("the node asks to be drained") && status.contains("1 healthy, 1 allocatable, 2 in all"), "{status}");
    let waits = w.submit(&["--cores", "1", "--", "/bin/true"]);
    let why = w.ok(&["explain", &waits]);
    assert!(why.contains("SIM-1") && why.contains("XID 79"), "{why}");
    assert_eq!([&waits, &runs].map(|id| text(&w.status(id), "state")), ["Pending", "Running"]);
    fs::write(w.dir.join("go-2"), "").unwrap();
    w.completed(&runs);
    w.wait("n1 to be Drained", || stands("Drained"));
    // If an operator lifts the drain, it is not set again, not even by a restarted agent that finds the same.
    w.ok(&["node", "undrain", "n1"]);
    assert!(stands("Degraded"));
    let incarnation = || w.lattice.json(&["node", "status"]).ok().and_then(|status| status["incarnation"].as_u64());
    let before = incarnation();
    faults::restart_node(&w.dir, "n1").unwrap();
    w.wait("another life that finds the same", || {
        incarnation() > before && stands("Degraded") && w.ok(&["node", "status"]).contains("the node asks to be drained")
    });
    // Repaired: the bus found it again, between two checks.
    gpu(w, "1", &["remove"]);
    gpu(w, "1", &["add"]);
    w.completed(&waits);
    offered(w, 2);
    assert_eq!(asked(), 1, "{}", w.ok(&["node", "history", "n1"]));
}

fn failed(w: &World) {
    let stands = |state: &str| text(&node(w), "state") == state;
    gpu(w, "0", &["xid", "140"]);
    w.wait("n1 to be Down", || stands("Down"));
    let reason = text(&node(w), "reason");
    assert!(
        reason.contains("its hardware failed, says node:n1: gpu SIM-0: XID 140 (memory error that could not be recovered)"),
        "{reason}"
    );
    gpu(w, "0", &["remove"]);
    gpu(w, "0", &["add"]);
    w.wait("the check to be well", || !w.ok(&["node", "status"]).contains("SIM-0: failure"));
    assert!(stands("Down"), "nobody has confirmed a repair");
    // Until the leader has received that, the failure returns.
    w.wait("n1 to be Ready", || {
        w.run(&["node", "repaired", "n1"]);
        stands("Ready")
    });
    offered(w, 2);
}

fn hit(w: &World) {
    let never = with_gpu(w, "go-3");
    let again = w.submit(&["--cores", "1", "--gpus", "1", "--requeue=on_node_failure", "--", "/bin/sh", "-c", &until(w, "go-3")]);
    w.wait_log(&again, "up");
    let (of_never, of_again) = (has(w, &never), has(w, &again));
    let index = |gpu: &str| gpu.trim_start_matches("SIM-").to_owned();
    // An error of a copy engine: no other test uses it.
    gpu(w, &index(&of_never), &["xid", "39"]);
    let ended = w.ended(&never);
    let reason = ended.to_string();
    assert!(text(&ended, "state") == "Failed" && reason.contains(&format!("its GPU {of_never} reported XID 39 (copy engine)")), "{reason}");
    let epoch = || w.status(&again)["epoch"].as_u64();
    let first = epoch();
    assert_eq!(text(&w.status(&again), "state"), "Running", "it has another GPU");
    gpu(w, &index(&of_again), &["xid", "39"]);
    w.wait("it to run once more", || epoch() > first && text(&w.status(&again), "state") == "Running");
    // GPUs and node are well: the allocation that has the GPU now did not have it then.
    assert_eq!((text(&node(w), "state"), &node(w)["gpus"]), ("Ready".to_owned(), &Value::from(2)));
    let later = with_gpu(w, "go-3");
    fs::write(w.dir.join("go-3"), "").unwrap();
    w.completed(&again);
    w.completed(&later);
    // Reset for the next test: the bus found them again.
    for index in ["0", "1"] {
        gpu(w, index, &["remove"]);
        gpu(w, index, &["add"]);
    }
    w.wait("that to be seen", || !w.ok(&["node", "status"]).contains("XID 39"));
    offered(w, 2);
}

fn warned(w: &World) {
    let status = || w.ok(&["node", "status"]);
    gpu(w, "0", &["xid", "31"]);
    w.wait("the warning", || status().contains("SIM-0: XID 31 (memory page fault): the program must be started again"));
    assert!(status().contains("2 healthy, 2 allocatable, 2 in all") && status().contains("gpu SIM-0: warning"), "{}", status());
    gpu(w, "0", &["hot", "90"]);
    w.wait("the heat", || status().contains("90 °C, at which it slows itself down"));
    assert!(status().contains("1 healthy, 2 allocatable, 2 in all"), "{}", status());
    gpu(w, "0", &["throttle", "heat"]);
    w.wait("the clocks", || status().contains("its clocks are held down: heat: look after it"));
    gpu(w, "0", &["throttle"]);
    gpu(w, "0", &["nvlink", "3"]);
    w.wait("the link", || status().contains("SIM-0: 1 of 4 NVLinks are down: reset the GPU") && !status().contains("held down"));
    offered(w, 1);
    gpu(w, "0", &["nvlink", "4"]);
    offered(w, 2);
    gpu(w, "1", &["ecc", "3"]);
    w.wait("the memory errors", || status().contains("SIM-1: 3 memory errors that could not be corrected: look after it"));
    assert!(status().contains("0 healthy, 2 allocatable, 2 in all"), "{}", status());
    // Work that has these GPUs gets the same findings.
    let id = w.submit(&["--cores", "1", "--gpus", "2", "--", "/bin/sh", "-c", &until(w, "go-4")]);
    w.wait_log(&id, "up");
    let diagnosis: Value = serde_json::from_str(&w.ok(&["diag", &id, "-o", "json"])).unwrap();
    let findings = diagnosis["nodes"][0]["findings"].as_array().unwrap();
    for (gpu, what) in [("SIM-0", "90 °C, at which it slows itself down"), ("SIM-1", "3 memory errors that could not be corrected")] {
        let of = findings.iter().find(|f| f["part"] == "gpus" && f["subject"] == gpu).unwrap_or_else(|| panic!("{diagnosis:#}"));
        assert!(of["problem"] == true && text(of, "text").contains(what), "{of}");
    }
    std::fs::write(w.dir.join("go-4"), "").unwrap();
    w.completed(&id);
    gpu(w, "1", &["xid", "95"]);
    offered(w, 1);
    assert!(status().contains("SIM-1: XID 95 (memory error, not contained): reset the GPU"), "{}", status());
    assert_eq!(text(&node(w), "state"), "Ready");
    w.completed(&w.submit(&["--cores", "1", "--gpus", "1", "--", "/bin/true"]));
}
