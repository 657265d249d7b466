//! `lattice-lab` as its users run it: faults of a cluster with its own networks and clocks.

use crate::harness::{JOB, Need, alone, binaries, close, fresh_dir, lab};
use lattice_lab::cluster::Cluster;
use lattice_lab::down::Guard;
use lattice_lab::lattice::{Lattice, text};
use lattice_lab::process::{ours_under, until};
use libtest_mimic::Trial;
use serde_json::Value;
use std::time::Duration;

/// Timeout of a command that makes or removes a cluster.
const COMMAND_MAX: Duration = Duration::from_secs(90);

pub fn trials() -> Vec<Trial> {
    vec![alone("commands::faults_of_a_cluster_with_networks_of_its_own", &[Need::Hosts], faults)]
}

fn faults() {
    close();
    binaries();
    let dir = fresh_dir("commands");
    let _guard = Guard::new(&dir);
    let at = dir.to_string_lossy();
    let did = |args: &[&str]| {
        let done = lab(&[args, &["--dir", &at]].concat(), COMMAND_MAX);
        assert_eq!(done.code(), 0, "`lattice-lab {}`: {}{}", args.join(" "), done.out(), done.err());
        done.out()
    };
    let timers = ["--heartbeat-ms", "300", "--degraded-after-ms", "6000"];
    let made = did(&[&["up", "--nodes", "3", "--quorum", "1", "--netns", "--clocks", "--no-build"], &timers[..]].concat());
    assert!(made.starts_with("3 node(s) Ready, 1 member(s)"), "{made}");
    let cluster = Cluster::load(&dir).unwrap();
    let lattice = Lattice::to(&cluster, "n1").unwrap();
    let n3 = || -> Value {
        let nodes = lattice.json(&["nodes"]).unwrap();
        nodes.as_array().unwrap().iter().find(|n| text(n, "id") == "n3").unwrap().clone()
    };
    let wait = |what: &str, seen: &dyn Fn(&Value) -> bool| assert!(until(JOB, || seen(&n3())), "waited in vain for {what}: {}", n3());
    let wait_state = |state: &'static str| wait(state, &move |n3| text(n3, "state") == state);

    assert_eq!(did(&["node", "cut", "n3", "--from", "n2", "--direction", "in"]), "n2 -> n3 is cut\n");
    assert_eq!(did(&["node", "cut", "n3", "--from", "n1", "--direction", "out"]), "n3 -> n1 is cut\n");
    let cut = did(&["status"]);
    assert!(cut.contains("cut: n2 -> n3") && cut.contains("cut: n3 -> n1") && !cut.contains("n3 -> n2"), "{cut}");
    assert_eq!(did(&["node", "heal", "n3"]).matches("is no longer cut").count(), 2);

    assert_eq!(did(&["node", "cut", "n3", "--from", "quorum"]), "member-1 -> n3 is cut\nn3 -> member-1 is cut\n");
    assert!(did(&["status"]).contains("cut: n3 -> member-1"), "{}", did(&["status"]));
    wait("a peer to forward its heartbeats", &|n3| !n3["relay_node"].is_null() && text(n3, "state") == "Ready");
    let more = did(&["node", "cut", "n3"]);
    assert!(more.lines().count() == 4 && more.contains("n3 -> n1 is cut") && !more.contains("member"), "{more}");
    wait_state("Degraded");
    assert_eq!(did(&["node", "heal", "n3"]).matches("is no longer cut").count(), 6);
    wait_state("Ready");
    assert_eq!(did(&["node", "heal", "n3"]), "nothing to do\n");

    assert!(did(&["node", "stop", "n3"]).starts_with("n3 stopped (process "));
    wait_state("Degraded");
    assert!(did(&["node", "cont", "n3"]).starts_with("n3 continues (process "));
    wait_state("Ready");

    let started = || {
        let status = Lattice::to(&cluster, "n3").unwrap().json(&["node", "status"]).unwrap();
        crate::harness::ms(&status, "started_at")
    };
    let before = started();
    assert_eq!(did(&["node", "clock", "n3", "3600"]), "the clock of n3 is wrong by 3600 s\n");
    did(&["node", "restart", "n3"]);
    let ahead = started() - before;
    assert!((3_600_000..3_900_000).contains(&ahead), "{ahead} ms");
    did(&["node", "clock", "n3", "0"]);

    let nowhere = lab(&["node", "cut", "n3", "--from", "n9", "--dir", &at], JOB);
    assert!(nowhere.code() == 1 && nowhere.err().contains("n9"), "{}{}", nowhere.out(), nowhere.err());
    for (wrong, expected) in [(["node", "cut", "n9"], "n9"), (["node", "stop", "n9"], "n9"), (["node", "kill", "x"], "x")] {
        let done = lab(&[&wrong[..], &["--dir", &at]].concat(), JOB);
        assert!(done.code() == 1 && done.err().contains(expected), "{wrong:?}: {}{}", done.out(), done.err());
    }
    let keeper = cluster.networks.as_ref().unwrap().keeper.clone();
    assert_eq!(did(&["down"]), format!("removed {at}\n"));
    assert!(!dir.exists() && ours_under(&[&dir]).is_empty() && !keeper.alive());
}
