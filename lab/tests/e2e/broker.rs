//! Checkpoints without a request: work is asked in the order of its value, the broker stops when the store is down and
//! is replaced when its agent is killed, and old checkpoints and those of ended work are removed.

use crate::checkpoint::{Chain, last};
use crate::harness::{Group, JOB, World};
use crate::telemetry::get;
use lattice_lab::faults;
use lattice_lab::lattice::{Lattice, text};
use libtest_mimic::Trial;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

/// Nodes fail so often that every checkpoint is worth it, and only one runs at a time.
const LINES: &str = "checkpoint:
  store: {url: \"file://{dir}/saved\"}
  evaluate_seconds: 1
  storage_bytes_per_second: 1000000000000
  at_once_max: 1
  least_interval_seconds: 1
  node_failures_per_1000_days: 1000000000
  storage_cost_node_seconds_per_gb: 0
  retention_seconds: 20
  keep: 2
  retention_sweep_seconds: 1
";

static BROKER: Group = Group { theme: "broker", name: "broker", nodes: 3, quorum: 1, tweak: |o| o.agent_lines += LINES };

/// The clocks of its agents can be set wrong.
static CLOCKS: Group = Group {
    theme: "broker_clocks",
    name: "broker-clocks",
    nodes: 2,
    quorum: 1,
    tweak: |o| {
        o.clocks = true;
        o.agent_lines += LINES;
    },
};

/// Many checkpoints may run at once, within the store's write rate. Those that would exceed it run one at a time.
static BYTES: Group = Group {
    theme: "broker_bytes",
    name: "broker-bytes",
    nodes: 2,
    quorum: 1,
    tweak: |o| {
        let few = LINES.replace("storage_bytes_per_second: 1000000000000", "storage_bytes_per_second: 100000");
        o.agent_lines += &few.replace("at_once_max: 1", "at_once_max: 4");
    },
};

/// On a healthy node a checkpoint is worth it after a hundred seconds, on an unhealthy one after ten; the site's
/// program decides which is which.
static WEIGHS: Group = Group {
    theme: "broker_weighs",
    name: "broker-weighs",
    nodes: 2,
    quorum: 1,
    tweak: |o| {
        let _ = fs::remove_dir_all(folder());
        fs::create_dir_all(folder()).unwrap();
        let program = folder().join("check");
        fs::write(&program, format!("#!/bin/sh\n[ ! -e {}/$LATTICE_NODE ] || exit 2\n", folder().display())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        o.agent_lines = format!(
            "checkpoint:\n  store: {{url: \"file://{{dir}}/saved\"}}\n  evaluate_seconds: 1\n  storage_bytes_per_second: 1000000000000000\n  \
             least_interval_seconds: 1\n  node_failures_per_1000_days: 17\n  storage_cost_node_seconds_per_gb: 0\nhealth:\n  period_seconds: 1\n  \
             checks:\n  - {{name: fabric, program: {program:?}, timeout_seconds: 1}}\n"
        );
    },
};

fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("lattice-broker-{}", std::process::id()))
}

pub fn trials() -> Vec<Trial> {
    vec![
        BROKER.test("asks_work_in_turn_and_explains_it_by_its_terms", &[], in_turn),
        BROKER.test("waits_with_others_while_a_user_has_work_save_itself", &[], beside_a_user),
        BROKER.test("asks_at_the_requested_interval_and_keeps_the_configured_number", &[], every_so_often),
        BROKER.test("pauses_while_the_store_is_unreachable_and_reports_it", &[], store_unreachable),
        BROKER.test("without_a_store_ends_preempted_work_before_its_deadline", &[], preempted_without_store),
        BROKER.test("is_another_agent_when_its_own_is_killed", &[], killed),
        BROKER.test("removes_what_ended_work_has_saved_and_no_half_one_looks_whole", &[], retention),
        CLOCKS.test("asks_neither_early_nor_late_if_the_clock_of_its_machine_jumps", &[], jumps),
        BYTES.test("asks_one_after_the_other_what_together_is_more_than_the_store_may_be_written_with", &[], by_bytes),
        WEIGHS.test("has_work_on_a_node_that_is_not_well_save_itself_earlier", &[], unwell),
    ]
}

/// The node of the agent that schedules the default queue, and is the broker.
pub fn holder(lattice: &Lattice) -> Option<String> {
    let leases = lattice.json(&["lease", "list"]).ok()?;
    let of = leases.as_array()?.iter().find(|lease| lease["name"] == "scheduler/default")?;
    Some(text(of, "holder"))
}

fn broker(w: &World) -> String {
    w.wait("an agent to be the broker", || holder(&w.lattice).is_some());
    holder(&w.lattice).unwrap()
}

fn saved(w: &World, id: &str) -> bool {
    !w.status(id)["checkpoint"].is_null()
}

fn list(w: &World, id: &str) -> Vec<Value> {
    w.lattice.json(&["checkpoint", "list", id]).unwrap().as_array().unwrap().clone()
}

/// The broker's judgement, as an agent shows it.
fn verdict(w: &World, node: &str, id: &str) -> String {
    w.at(node).json(&["explain", id]).map(|explained| text(&explained["checkpoint"], "verdict")).unwrap_or_default()
}

fn asked(w: &World, chain: &Chain) -> usize {
    w.log(&chain.id).matches("asked ").count()
}

/// Waits until two allocations are asked without a request. Returns first the one that is asked while the other one
/// waits for its turn.
fn one_by_one<'a>(w: &World, chains: &'a [Chain; 2]) -> (&'a Chain, &'a Chain) {
    w.wait("both to be asked without a request", || chains.iter().all(|chain| saved(w, &chain.id)));
    chains.iter().for_each(|chain| chain.behaves("wait"));
    w.wait("one of them to be asked, and to take its time", || chains.iter().any(|chain| asked(w, chain) == 1));
    let (first, other) = if asked(w, &chains[0]) == 1 { (&chains[0], &chains[1]) } else { (&chains[1], &chains[0]) };
    let node = broker(w);
    w.wait("the other one to wait for its turn", || verdict(w, &node, &other.id).contains("waits for its turn"));
    assert_eq!(asked(w, other), 0, "both are under way at once");
    assert!(verdict(w, &node, &first.id).contains("is under way"), "{}", verdict(w, &node, &first.id));
    (first, other)
}

/// A megabyte each, written within the ten seconds that the store has for it. Their first checkpoints show size and
/// speed.
fn by_bytes(w: &World) {
    let chains = [(); 2].map(|()| Chain::submit(w, &["BULK=1000000"], &["--nodes", "1", "--checkpoint=auto"]));
    chains.iter().for_each(|chain| assert_eq!(chain.create(w).code(), 0));
    let (first, other) = one_by_one(w, &chains);
    first.release();
    w.wait("the other one to be asked after it", || asked(w, other) == 1);
    other.release();
    chains.iter().for_each(|chain| chain.end(w));
    w.assert_nothing_left();
}

fn in_turn(w: &World) {
    let chains = [(); 2].map(|()| Chain::submit(w, &[], &["--nodes", "1", "--checkpoint=auto"]));
    let plain = Chain::submit(w, &[], &["--nodes", "1"]);
    let (first, other) = one_by_one(w, &chains);
    let node = broker(w);
    // Any agent explains every term with its unit.
    let explained = w.ok(&["explain", &other.id]);
    for term in
        ["recompute_saved", "preemptability", "backlog_relief", "write_time", "compute_waste", "storage_cost", "failure_probability"]
    {
        assert!(explained.contains(term), "{explained}");
    }
    assert!(explained.contains("node-s"), "{explained}");
    first.release();
    w.wait("the other one to be asked after it", || asked(w, other) == 1);
    other.release();
    let page = get(&w.cluster().node(&node).unwrap().metrics, "/metrics", "").1;
    assert!(page.contains("lattice_checkpoint_broker_leads{") && page.contains("lattice_checkpoint_broker_requests_total{"), "{page}");
    // Work without the option is never asked.
    assert!(!saved(w, &plain.id) && list(w, &plain.id).is_empty());
    assert!(w.lattice.json(&["explain", &plain.id]).unwrap()["checkpoint"].is_null());
    plain.end(w);
    chains.iter().for_each(|chain| chain.end(w));
    w.assert_nothing_left();
    let refused = w.run(&["submit", "--checkpoint=none", "--checkpoint-every=auto", "--", "/bin/true"]);
    assert!(refused.code() == 2 || refused.code() == 4, "{} {}", refused.code(), refused.err());
    assert!(refused.err().contains("--checkpoint=signal"), "{}", refused.err());
}

/// One checkpoint runs at a time, whoever requested it.
fn beside_a_user(w: &World) {
    let plain = Chain::submit(w, &[], &["--nodes", "1"]);
    plain.behaves("wait");
    let (id, lattice) = (plain.id.clone(), w.lattice.clone());
    let asked = std::thread::spawn(move || lattice.run(&["checkpoint", "create", &id, "--deadline", "60s"], JOB * 2).unwrap());
    w.wait_log(&plain.id, "asked ");
    // Two: the head of either of them may be on the broker's node.
    let others = [(); 2].map(|()| Chain::submit(w, &[], &["--nodes", "1", "--checkpoint=auto"]));
    let node = broker(w);
    for other in &others {
        w.wait("it to wait for its turn", || verdict(w, &node, &other.id).contains("waits for its turn: 1 checkpoint"));
        assert!(!saved(w, &other.id));
    }
    plain.release();
    assert_eq!(asked.join().unwrap().code(), 0);
    w.wait("the others to be asked then", || others.iter().all(|other| saved(w, &other.id)));
    plain.end(w);
    others.iter().for_each(|other| other.end(w));
    w.assert_nothing_left();
}

fn jumps(w: &World) {
    let hourly = Chain::submit(w, &[], &["--nodes", "1", "--checkpoint-every", "50m"]);
    let node = broker(w);
    w.wait("the broker to judge it", || verdict(w, &node, &hourly.id).contains("it is asked every 3000 s, next in 2"));
    for seconds in [3600, -3600] {
        faults::shift_clock(&w.dir, &node, seconds).unwrap();
        // Several rounds pass with this clock.
        let often = Chain::submit(w, &[], &["--nodes", "1", "--checkpoint-every", "1s"]);
        for _ in 0..3 {
            let before = w.status(&often.id)["checkpoint"]["id"].clone();
            w.wait("frequent work to be asked", || saved(w, &often.id) && w.status(&often.id)["checkpoint"]["id"] != before);
        }
        often.end(w);
        assert!(!saved(w, &hourly.id), "a clock that is wrong by {seconds} s");
        let judged = verdict(w, &node, &hourly.id);
        assert!(judged.contains("it is asked every 3000 s, next in 2"), "a clock that is wrong by {seconds} s: {judged}");
    }
    faults::shift_clock(&w.dir, &node, 0).unwrap();
    hourly.end(w);
    w.assert_nothing_left();
}

fn unwell(w: &World) {
    let chains = [(); 2].map(|()| Chain::submit(w, &[], &["--nodes", "1", "--checkpoint=auto"]));
    let node_of = |chain: &Chain| w.status(&chain.id)["nodes"][0].as_str().unwrap().to_owned();
    let (sick, well) = (&chains[0], &chains[1]);
    assert_ne!(node_of(sick), node_of(well), "each has a node of its own");
    fs::write(folder().join(node_of(sick)), "").unwrap();
    let broker = broker(w);
    let term = |chain: &Chain, name: &str| {
        let explained = w.at(&broker).json(&["explain", &chain.id]).unwrap();
        let terms = explained["checkpoint"]["terms"].as_array().unwrap().clone();
        terms.iter().find(|term| text(term, "name") == name).map(|term| text(term, "value"))
    };
    w.wait("its node to count as not well", || term(sick, "unwell_nodes").as_deref() == Some("1"));
    w.wait("it to be asked", || saved(w, &sick.id));
    assert!(!saved(w, &well.id), "what is on a well node is not worth it yet");
    assert!(verdict(w, &broker, &well.id).contains("worth less than it costs"), "{}", verdict(w, &broker, &well.id));
    assert_eq!(term(well, "unwell_nodes"), None);
    let failure = |chain: &Chain| term(chain, "failure_probability").unwrap().parse::<f64>().unwrap();
    w.wait("it to be likelier to fail again", || failure(sick) > failure(well));
    fs::remove_file(folder().join(node_of(sick))).unwrap();
    w.wait("its node to be well", || term(sick, "unwell_nodes").is_none());
    chains.iter().for_each(|chain| chain.end(w));
    w.assert_nothing_left();
}

fn every_so_often(w: &World) {
    let chain = Chain::submit(w, &[], &["--nodes", "1", "--checkpoint-every", "1s"]);
    w.wait("it to have saved itself", || saved(w, &chain.id));
    let first = last(w, &chain.id);
    w.wait("the first one to be gone, and two to be kept", || {
        let all: Vec<String> = list(w, &chain.id).iter().map(|c| text(c, "id")).collect();
        !all.contains(&first) && all.len() >= 2 && all.len() <= 4
    });
    let now = last(w, &chain.id);
    w.ok(&["checkpoint", "verify", &chain.id]);
    assert_ne!(now, first);
    chain.end(w);
    w.assert_nothing_left();
}

/// Puts a file in place of the store's directory, and restores the directory.
struct Away {
    store: PathBuf,
}

impl Away {
    fn take(w: &World) -> Self {
        let store = w.dir.join("saved");
        fs::rename(&store, store.with_extension("away")).unwrap();
        fs::write(&store, "").unwrap();
        Self { store }
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.store);
        let _ = fs::rename(self.store.with_extension("away"), &self.store);
    }
}

fn store_unreachable(w: &World) {
    let chain = Chain::submit(w, &[], &["--nodes", "1", "--checkpoint-every", "auto"]);
    w.wait("it to have saved itself", || saved(w, &chain.id));
    let node = broker(w);
    let gauge = || {
        let page = get(&w.cluster().node(&node).unwrap().metrics, "/metrics", "").1;
        page.lines()
            .find(|l| l.starts_with("lattice_checkpoint_storage_unavailable{"))
            .and_then(|l| l.split(' ').nth(1)?.parse::<f64>().ok())
    };
    let away = Away::take(w);
    w.wait("the broker to pause", || verdict(w, &node, &chain.id).starts_with("paused: the store of checkpoints is unreachable"));
    assert_eq!(gauge(), Some(1.0));
    let status = w.at(&node).run(&["node", "status"], JOB).unwrap().out();
    assert!(status.contains("checkpoint broker: paused"), "{status}");
    let before = last(w, &chain.id);
    drop(away);
    w.wait("it to be asked again", || last(w, &chain.id) != before);
    assert_eq!(gauge(), Some(0.0));
    let status = w.at(&node).run(&["node", "status"], JOB).unwrap().out();
    assert!(!status.contains("checkpoint broker"), "{status}");
    chain.end(w);
    w.assert_nothing_left();
}

/// The deadline is ten minutes, but without a store the work is ended earlier.
fn preempted_without_store(w: &World) {
    let chain = Chain::submit(w, &[], &["--nodes", "1", "--requeue=never"]);
    let away = Away::take(w);
    w.ok(&["preempt", &chain.id, "--deadline", "10m", "--reason", "fire"]);
    let ended = w.lattice.ended_within(&chain.id, Duration::from_secs(120)).unwrap();
    assert_eq!(text(&ended, "state"), "Failed");
    assert!(text(&ended, "reason").contains("the store of checkpoints has taken nothing"), "{ended}");
    drop(away);
    w.assert_nothing_left();
}

fn killed(w: &World) {
    let chains = [(); 2].map(|()| Chain::submit(w, &[], &["--nodes", "1", "--checkpoint=auto"]));
    let gone = broker(w);
    let elsewhere = |chain: &&Chain| w.status(&chain.id)["nodes"][0] != *gone;
    let chain = chains.iter().find(elsewhere).unwrap();
    let asked = ["n1", "n2", "n3"].into_iter().find(|node| *node != gone).unwrap();
    let caller = w.at(asked);
    let last = || caller.json(&["status", &chain.id]).map(|status| text(&status["checkpoint"], "id")).unwrap_or_default();
    w.wait("it to have saved itself", || !last().is_empty());
    faults::kill_node(&w.dir, &gone).unwrap();
    w.wait("another agent to be the broker", || holder(&caller).is_some_and(|node| node != gone));
    let then = last();
    w.wait("work to be asked by it", || last() != then);
    faults::start_node(&w.dir, &gone).unwrap();
    chains.iter().for_each(|chain| chain.end(w));
    w.assert_nothing_left();
}

fn retention(w: &World) {
    let chain = Chain::submit(w, &[], &["--nodes", "1", "--checkpoint-every", "1s"]);
    let id = &chain.id;
    w.wait("it to have two checkpoints", || list(w, id).len() >= 2);
    assert!(list(w, id).iter().all(|c| c["expires_at"].is_null()), "while it lives nothing goes by a time");
    chain.end(w);
    let all = list(w, id);
    assert!(all.iter().all(|c| c["expires_at"].is_string()), "{all:?}");
    let shown = w.ok(&["checkpoint", "list", id]);
    assert!(shown.contains("KEPT UNTIL"), "{shown}");
    // Every agent is killed once the first one is down: the broker is among them.
    for node in ["n1", "n2", "n3"] {
        faults::kill_node(&w.dir, node).unwrap();
        faults::begin_node(&w.dir, node, &[], &[("LATTICE_FAILPOINT", "checkpoint-gone")]).unwrap();
    }
    let dead = || ["n1", "n2", "n3"].into_iter().find(|node| !w.cluster().node(node).unwrap().daemon.alive());
    w.wait("the broker to be killed while it removes", || dead().is_some());
    for node in ["n1", "n2", "n3"] {
        let _ = faults::kill_node(&w.dir, node);
        faults::start_node(&w.dir, node).unwrap();
    }
    let kept = w.dir.join("saved/.kept").join(format!("{id}.json"));
    w.wait("all of it to be gone", || {
        let left = list(w, id);
        assert!(left.iter().all(|c| c["damaged"].is_null()), "{left:?}");
        left.is_empty() && !kept.exists()
    });
    w.assert_nothing_left();
}
