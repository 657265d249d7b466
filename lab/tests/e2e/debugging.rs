//! Debug mode of an allocation: who may request it, how soon it starts, which samples are stored, and how it ends.

use crate::counting::programs_of;
use crate::harness::{DAEMON, Group, JOB, NOBODY, Need, World, alone, binaries, close, counts_in_kernel, fresh_dir};
use crate::topology::configured;
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

static DEBUGGING: Group = Group {
    theme: "debugging",
    name: "debugging",
    nodes: 2,
    quorum: 1,
    tweak: |o| {
        o.simulated_gpus = 1;
        o.log_lines = "logs: {flush_seconds: 1}".to_owned();
    },
};

pub fn trials() -> Vec<Trial> {
    vec![
        DEBUGGING.test("measurements_are_stored_from_the_request_until_the_end", &[Need::Zstd], stored),
        DEBUGGING.test("the_first_measurement_comes_within_a_second", &[Need::Zstd], soon),
        DEBUGGING.test("ends_at_its_time_despite_a_killed_agent_and_without_a_quorum", &[Need::Zstd], by_itself),
        DEBUGGING.test("is_refused_to_others_than_the_owner_and_on_nodes_without_a_store", &[], refused),
        alone("debugging::an_agent_with_several_allocations_measures_all_of_them", &[], full),
    ]
}

fn runs(w: &World, args: &[&str]) -> String {
    let id = w.submit(&[args, &["--", "/bin/sh", "-c", "while :; do :; done"]].concat());
    w.running(&id);
    id
}

/// The objects with an allocation's raw measurements from one node.
fn objects(w: &World, id: &str, node: &str) -> Vec<PathBuf> {
    let dir = w.dir.join(format!("objects/default/default/{id}/telemetry/{node}"));
    let mut found: Vec<PathBuf> = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    // An object has another name until its upload is complete.
    found.retain(|path| path.extension().is_some_and(|extension| extension == "zst"));
    found.sort();
    found
}

/// The lines of these objects.
fn lines(w: &World, id: &str, node: &str) -> Vec<Value> {
    let files = objects(w, id, node);
    if files.is_empty() {
        return Vec::new();
    }
    let done = Command::new("zstd").args(["-dcq"]).args(&files).output().unwrap();
    assert!(done.status.success(), "{files:?}: {}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8(done.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

fn looks(lines: &[Value]) -> Vec<&Value> {
    lines.iter().filter(|line| line["at_ms"].is_u64()).collect()
}

/// The number of samples that each node has stored, from `lattice top`; `None`: it is not in debug mode.
fn points(w: &World, id: &str) -> Vec<Option<f64>> {
    let top = w.lattice.json(&["top", id]).unwrap();
    let of = |node: &Value| {
        let one = node["measured"].as_array().unwrap().iter().find(|one| one["name"] == "debug_points")?;
        one["now"].as_f64()
    };
    top["nodes"].as_array().unwrap().iter().map(of).collect()
}

fn in_debug(w: &World, id: &str) -> bool {
    points(w, id).iter().all(Option::is_some)
}

fn stored(w: &World) {
    let id = runs(w, &["-N", "2", "--cores", "1", "--gpus", "1"]);
    w.wait("both nodes to measure the allocation", || {
        w.lattice.json(&["top", &id]).is_ok_and(|top| top["nodes"][1]["measured"][0].is_object())
    });
    assert_eq!(points(w, &id), [None, None]);
    assert!(w.ok(&["telemetry", "--alloc", &id]).contains("prod"));
    let programs = || ["n1", "n2"].map(|node| programs_of(w.cluster().node(node).unwrap().daemon.process.as_ref().unwrap().pid));
    let loaded = programs();
    assert!(!counts_in_kernel() || loaded.iter().all(|of| of.len() >= 8), "{loaded:?}");
    // The mode is set through the agent of the other node.
    let began = Instant::now();
    let answer = w.at("n2").ok(&["telemetry", "--alloc", &id, "--mode=debug", "--duration=10m"]).unwrap();
    assert!(answer.contains("debug") && answer.contains(&format!("{id}/telemetry/")), "{answer}");
    let is_so = lattice_lab::process::until(JOB, || in_debug(w, &id));
    let took = began.elapsed();
    eprintln!("in debug mode after {took:.2?}");
    // The promised second, and more for unoptimised binaries.
    assert!(is_so && took < Duration::from_secs(5), "{took:?}");
    let now = w.status(&id);
    assert!(text(&now, "telemetry").starts_with("debug until 2") && text(&now, "telemetry").ends_with("asked for by root"), "{now}");
    assert!(w.ok(&["status", &id]).contains("Telemetry"));
    assert!(w.ok(&["telemetry", "--alloc", &id]).contains("debug until"));
    for node in ["n1", "n2"] {
        w.wait("measurements of each node in the store", || looks(&lines(w, &id, node)).len() >= 5);
    }
    assert_eq!(programs(), loaded, "the programs in the kernel are unchanged");
    w.ok(&["telemetry", "--alloc", &id, "--mode=prod"]);
    w.wait("both nodes to end debug mode", || points(w, &id) == [None, None]);
    assert_eq!(programs(), loaded);
    assert_eq!(w.status(&id)["telemetry"], Value::Null);
    for node in ["n1", "n2"] {
        let state = w.cluster().run_dir.join(node).join("state/traces");
        w.wait("all measurements to be in the store", || fs::read_dir(&state).is_ok_and(|mut left| left.next().is_none()));
        let lines = lines(w, &id, node);
        let header = &lines[0];
        let read = w.at("n2").ok(&["telemetry", "--alloc", &id, "--read", "--node", node]).unwrap();
        let read: Vec<Value> = read.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(read, lines, "the owner reads what is in the store");
        assert_eq!(
            (text(header, "allocation"), text(header, "node"), text(header, "by")),
            (id.clone(), node.to_owned(), "root".to_owned())
        );
        assert_eq!(lines[1]["metrics"]["cpu_cores"]["unit"], "cores", "{}", lines[1]);
        let looks = looks(&lines);
        let times: Vec<u64> = looks.iter().map(|look| look["at_ms"].as_u64().unwrap()).collect();
        assert!(times.windows(2).all(|two| two[0] < two[1]), "{times:?}");
        let seconds = (times[times.len() - 1] - times[0]) as f64 / 1e3;
        // A busy machine measures less often, but far more often than the 30 s of production mode.
        assert!(looks.len() as f64 >= seconds / 3.0, "{} measurements in {seconds} s", looks.len());
        assert!(looks.iter().any(|look| look["values"]["cpu_cores"].as_f64().is_some_and(|cores| cores > 0.02)), "{looks:?}");
        assert!(looks.iter().all(|look| look["values"]["memory_used"].as_f64().is_some_and(|bytes| bytes > 0.0)), "{looks:?}");
    }
    let audit = w.ok(&["audit", "query", "--alloc", &id]);
    assert_eq!(audit.matches("TelemetryModeSet").count(), 2, "{audit}");
    w.ok(&["cancel", &id]);
    w.ended(&id);
}

fn soon(w: &World) {
    // Each time another allocation: one allocation gets at most one early look a minute.
    for _ in 0..3 {
        let id = w.submit(&["--cores", "1", "--", "/bin/sleep", "600"]);
        w.running(&id);
        let node = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
        w.wait("the allocation to be measured", || {
            w.lattice.json(&["top", &id]).is_ok_and(|top| top["nodes"][0]["measured"][0].is_object())
        });
        w.at(&node).ok(&["telemetry", "--alloc", &id, "--mode=debug"]).unwrap();
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let answered_ms = u64::try_from(since.as_millis()).unwrap();
        let found = || looks(&lines(w, &id, &node)).first().map(|look| look["at_ms"].as_u64().unwrap());
        w.wait("its first look", || found().is_some());
        let first_ms = found().unwrap();
        eprintln!("the first look in debug mode is {} ms after the answer", first_ms as i64 - answered_ms as i64);
        assert!(first_ms <= answered_ms + 1000, "{first_ms} is not within a second of {answered_ms}");
        w.ok(&["cancel", &id]);
        w.ended(&id);
    }
}

fn by_itself(w: &World) {
    let id = runs(w, &["--cores", "1"]);
    let node = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    // The leader's timer ends it.
    w.ok(&["telemetry", "--alloc", &id, "--mode=debug", "--duration=4s"]);
    w.wait("debug mode", || in_debug(w, &id));
    w.wait("its end", || !in_debug(w, &id) && w.status(&id)["telemetry"] == Value::Null);
    w.wait("the record", || w.ok(&["audit", "query", "--alloc", &id]).contains("TelemetryModeEnded"));
    // The agent is killed and started again during debug mode: what it wrote before is not lost.
    w.ok(&["telemetry", "--alloc", &id, "--mode=debug", "--duration=1h"]);
    w.wait("debug mode", || in_debug(w, &id));
    let first = points(w, &id)[0].unwrap();
    w.wait("measurements", || points(w, &id)[0].is_some_and(|points| points >= first + 2.0));
    let before = points(w, &id)[0].unwrap();
    faults::kill_node(&w.dir, &node).unwrap();
    faults::start_node(&w.dir, &node).unwrap();
    w.wait("debug mode after the agent's start", || w.lattice.json(&["top", &id]).is_ok() && in_debug(w, &id));
    w.wait("measurements from before and after the restart", || {
        let paths: BTreeSet<String> = objects(w, &id, &node).iter().map(|path| path.display().to_string()).collect();
        paths.len() >= 2 && looks(&lines(w, &id, &node)).len() as f64 > before
    });
    // Debug mode ends while the quorum is down, after its agent was killed once more.
    w.ok(&["telemetry", "--alloc", &id, "--mode=debug", "--duration=20s"]);
    let asked = Instant::now();
    w.wait("debug mode", || in_debug(w, &id));
    faults::kill_member(&w.dir, 1).unwrap();
    faults::kill_node(&w.dir, &node).unwrap();
    faults::start_node(&w.dir, &node).unwrap();
    let traces = w.cluster().run_dir.join(&node).join("state/traces");
    let has = |extension: &str| {
        let folders = fs::read_dir(&traces).into_iter().flatten().flatten();
        let files = folders.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten().flatten());
        files.into_iter().any(|file| file.path().extension().is_some_and(|it| it == extension))
    };
    w.wait("debug mode to continue without the quorum", || has("open"));
    assert!(asked.elapsed() < Duration::from_secs(20), "the machine is too slow for this test: {:?}", asked.elapsed());
    w.wait("debug mode to end without the quorum", || asked.elapsed() > Duration::from_secs(21) && !has("open") && !has("jsonl"));
    let count = looks(&lines(w, &id, &node)).len();
    faults::start_member(&w.dir, 1).unwrap();
    w.wait("the quorum to end debug mode", || w.lattice.allocation(&id).is_ok_and(|now| now["telemetry"] == Value::Null));
    assert_eq!(looks(&lines(w, &id, &node)).len(), count, "no further measurements are stored");
    w.ok(&["cancel", &id]);
    w.ended(&id);
}

fn refused(w: &World) {
    let nobodys = w.run_as(NOBODY, &["submit", "-o", "name", "--cores", "1", "--", "/bin/sleep", "600"]).out().trim().to_owned();
    w.running(&nobodys);
    let ask = |uid: u32, more: &[&str]| w.run_as(uid, &[&["telemetry", "--alloc", &nobodys], more].concat());
    let other = ask(DAEMON, &["--mode=debug"]);
    assert_eq!((other.code(), other.err().contains("belongs to nobody")), (4, true), "{}", other.err());
    assert_eq!(ask(DAEMON, &["--read"]).code(), 4);
    assert_eq!(ask(NOBODY, &["--read"]).out(), "");
    assert_eq!(ask(DAEMON, &["--mode=audit"]).code(), 4);
    for wrong in [&["--mode=debug", "--duration=0"][..], &["--mode=debug", "--duration=25h"], &["--mode=loud"], &["--duration=5m"]] {
        assert_eq!(ask(NOBODY, wrong).code(), 2, "{wrong:?}");
    }
    let owner = ask(NOBODY, &["--mode=debug", "-o", "json"]);
    let answer: Value = serde_json::from_str(&owner.out()).unwrap_or_else(|e| panic!("{e}: {}", owner.err()));
    assert_eq!((&answer["mode"], &answer["duration_ms"]), (&"debug".into(), &1_800_000.into()));
    w.wait("debug mode", || in_debug(w, &nobodys));
    w.ok(&["cancel", &nobodys]);
    w.ended(&nobodys);
    let ended = ask(NOBODY, &["--mode=debug"]);
    assert_eq!((ended.code(), ended.err().contains("nothing of it runs any more")), (4, true), "{}", ended.err());
    // One of the allocation's nodes has no log store.
    configured(w, "n2", "logs: {store: {url: \"\"}}");
    w.wait("n2 to report that", || !w.ok(&["nodes", "n2", "-o", "json"]).contains("telemetry_debug"));
    w.wait("the nodes to be ready", || lattice_lab::up::wait_ready(&w.cluster(), JOB).is_ok());
    let id = runs(w, &["-N", "2", "--cores", "1"]);
    let lacking = w.run(&["telemetry", "--alloc", &id, "--mode=debug"]);
    assert!(lacking.code() == 4 && lacking.err().contains("n2 cannot keep") && lacking.err().contains("hint: "), "{}", lacking.err());
    let lacking = w.run(&["telemetry", "--alloc", &id, "--mode=audit"]);
    assert!(lacking.code() == 4 && lacking.err().contains("n2 cannot see") && lacking.err().contains("hint: "), "{}", lacking.err());
    let trace = w.at("n2").run(&["admin", "trace", "capture", "--days=1", "--store"], JOB).unwrap();
    assert!(trace.code() == 4 && trace.err().contains("no object store (logs.store)"), "{}{}", trace.out(), trace.err());
    assert_eq!(w.status(&id)["telemetry"], Value::Null);
    w.ok(&["cancel", &id]);
    w.ended(&id);
}

/// Runs the benchmark, only to test that it measures everything.
fn full() {
    close();
    binaries();
    let busy = lattice_lab_bench::bench::busy(&fresh_dir("busy"), 6, 2, Duration::from_secs(3), None).unwrap_or_else(|e| panic!("{e:#}"));
    for (percent, work) in [(busy.asleep, "sleeps"), (busy.awake, "runs every second")] {
        eprintln!("an agent with 2 GPUs and 6 allocations whose work {work} uses {percent:.2} % of a core");
        assert!(percent > 0.0 && percent < 100.0, "{percent}");
    }
}
