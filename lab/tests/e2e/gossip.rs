//! Who gossip takes for dead: one that stands still for a moment is suspected and refutes, one that is killed is not heard
//! of again until it is started; and `lattice gossip watch` tells both as they happen.

use crate::harness::{Group, World};
use crate::watches::Watching;
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::process::Stdio;

static GOSSIP: Group = Group::small("gossip");

pub fn trials() -> Vec<Trial> {
    vec![
        GOSSIP.test("what_nodes_say_follows_them_and_is_asked_of_them_without_a_quorum", &[], facts),
        GOSSIP.test("one_that_stands_still_refutes_and_one_that_is_killed_is_down", &[], told),
    ]
}

/// What of n3 was told so far.
fn of_n3(watching: &Watching) -> Vec<String> {
    let lines = watching.lines();
    assert!(lines.iter().all(|l| l["at"].is_string()), "each line has its time: {lines:?}");
    lines.iter().filter(|l| text(l, "node") == "n3").map(|l| text(l, "what")).collect()
}

fn suspects(w: &World) -> Vec<Value> {
    w.lattice.json(&["gossip", "members", "--suspected"]).unwrap().as_array().unwrap().clone()
}

fn counter(w: &World, name: &str) -> u64 {
    w.lattice.json(&["gossip", "members", "--counters"]).unwrap()[name].as_u64().unwrap()
}

/// What an agent's gossip shows of a node: state, and whether it is held.
fn gossiped(w: &World, at: &str, node: &str) -> (String, bool) {
    let members = w.at(at).json(&["gossip", "members"]).unwrap();
    let member = members.as_array().unwrap().iter().find(|m| text(m, "node") == node).cloned().unwrap_or_default();
    (text(&member, "state"), member["held"] == true)
}

fn facts(w: &World) {
    let ready = |held| ("Ready".to_owned(), held);
    w.wait("n2 to say that it is Ready", || gossiped(w, "n3", "n2") == ready(false));
    let watching = Watching::begin(w, "facts", &["gossip", "watch", "-o", "json"], None);
    w.wait("it to follow", || watching.err().contains("following gossip"));
    w.ok(&["node", "cordon", "n2", "--reason", "fan"]);
    w.wait("n2 to say that it is held", || gossiped(w, "n3", "n2") == ready(true));
    w.wait("n1 to tell it", || watching.lines().iter().any(|l| text(l, "node") == "n2" && text(l, "detail") == "Ready, held"));
    let job = w.submit(&["--", "/bin/sleep", "600"]);
    w.running(&job);
    let there = w.status(&job)["nodes"][0].as_str().unwrap().to_owned();
    let asked = |at: &str, node: &str| w.at(at).json(&["node", "status", node]).unwrap();
    let n2 = asked("n1", "n2");
    assert!(
        n2["fact"]["said"]["holds"][0].as_str().unwrap().starts_with("cordon by root") && n2["fact"]["said"]["cores"] == n2["cores"],
        "{n2}"
    );
    assert_eq!(n2["by_gossip"], false, "{n2}");

    faults::kill_member(&w.dir, 1).unwrap();
    let listed = w.run(&["node", "list", "-o", "json"]);
    assert!(listed.code() == 0 && listed.err().contains("gossip"), "{}{}", listed.out(), listed.err());
    let listed: Vec<Value> = serde_json::from_str(&listed.out()).unwrap();
    let shown: Vec<_> = listed.iter().map(|n| (text(n, "id"), text(n, "state"), n["by_gossip"] == true)).collect();
    assert_eq!(shown, ["n1", "n2", "n3"].map(|node| (node.to_owned(), "Ready".to_owned(), true)));
    for at in ["n1", "n2", "n3"] {
        let told = asked(at, &there);
        let runs = told["allocations"].to_string() + &told["fact"]["now"]["running"].to_string();
        assert!(runs.contains(&job), "asked at {at}: {told}");
    }
    // What would change something is refused, whatever it is, and says of which node.
    let verbs: [&[&str]; 16] = [
        &["cordon", "n2", "--reason", "x"],
        &["uncordon", "n2"],
        &["drain", "n2", "--reason", "x"],
        &["undrain", "n2"],
        &["quarantine", "n2", "--reason", "x"],
        &["release", "n2"],
        &["disable", "n2", "--reason", "x", "--yes"],
        &["enable", "n2"],
        &["fail", "n2", "--reason", "x"],
        &["repaired", "n2"],
        &["boot", "n2"],
        &["confirm-dead", "n2", "--reason", "x", "--yes"],
        &["history", "n2"],
        &["wipe", "n2", "--reason", "x", "--yes"],
        &["unwipe", "n2"],
        &["accept-drift", "n2", "--reason", "x"],
    ];
    let begun = verbs.map(|verb| {
        let mut command = w.lattice.command(&[&["node"], verb].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    });
    for (verb, child) in verbs.into_iter().zip(begun) {
        let done = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(5), "{verb:?}: {said}");
        assert!(said.contains("n2"), "{verb:?} says of whom: {said}");
    }
    // One that is not reached is told as what is known of it.
    faults::kill_node(&w.dir, "n2").unwrap();
    let gone = w.run(&["node", "status", "n2"]);
    assert!(gone.code() == 0 && gone.out().contains("Not reached"), "{}{}", gone.out(), gone.err());
    faults::start_node(&w.dir, "n2").unwrap();
    faults::start_member(&w.dir, 1).unwrap();
    w.wait("the quorum to answer", || w.run(&["node", "uncordon", "n2"]).code() == 0);
    w.wait("n2 to say that it is not held", || gossiped(w, "n3", "n2") == ready(false));
    w.ok(&["cancel", &job]);
    w.ended(&job);
}

fn told(w: &World) {
    let alive =
        || w.lattice.json(&["gossip", "members"]).unwrap().as_array().unwrap().iter().filter(|m| text(m, "liveness") == "alive").count();
    w.wait("all three to be alive", || alive() == 3);
    assert_eq!(suspects(w), Vec::<Value>::new());
    let watching = Watching::begin(w, "gossip", &["gossip", "watch", "-o", "json"], None);
    w.wait("it to follow", || watching.err().contains("following gossip"));

    let n3 = w.cluster().node("n3").unwrap().daemon.process.clone().unwrap();
    assert!(n3.signal(Signal::SIGSTOP).unwrap());
    let mut shown = Vec::new();
    w.wait("n3 to be suspected", || {
        shown = suspects(w);
        !shown.is_empty()
    });
    assert!(n3.signal(Signal::SIGCONT).unwrap());
    assert_eq!((shown.len(), text(&shown[0], "node").as_str()), (1, "n3"), "{shown:?}");
    assert!(shown[0]["suspected_by"].as_u64().unwrap() <= 2 && shown[0]["for_ms"].as_u64().unwrap() < 10_000, "{shown:?}");
    w.wait("it to refute", || of_n3(&watching).contains(&"refuted".to_owned()));
    let so_far = of_n3(&watching);
    assert!(so_far[0] == "suspected" && !so_far.contains(&"down".to_owned()), "{so_far:?}");
    assert!(suspects(w).is_empty());

    faults::kill_node(&w.dir, "n3").unwrap();
    w.wait("n3 to be taken for dead", || of_n3(&watching).contains(&"down".to_owned()));
    assert!(of_n3(&watching).iter().filter(|what| *what == "suspected").count() == 2, "{:?}", of_n3(&watching));
    faults::start_node(&w.dir, "n3").unwrap();
    let next_life = ["restarted", "back", "state"];
    w.wait("its next life to be seen", || of_n3(&watching).windows(3).any(|told| told == next_life));
    assert!(counter(w, "bytes_out") > 1_000 && counter(w, "datagrams_in") > 10);
    assert_eq!(counter(w, "refused_not_sealed"), 0);
}
