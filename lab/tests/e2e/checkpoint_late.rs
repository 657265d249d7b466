//! A cut-off node saves its work late. The work already runs elsewhere, from the previous checkpoint, and has saved
//! itself again. The isolated run's checkpoint is refused once its node is connected again, and removed; nothing
//! continues from it.

use crate::checkpoint::{Chain, last, objects};
use crate::harness::{Group, Need, World};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use lattice_lab::networks::{Direction, From};
use libtest_mimic::Trial;
use serde_json::Value;
use std::time::Duration;

static LATE: Group = Group {
    theme: "checkpoint_late",
    name: "ckptlate",
    nodes: 3,
    quorum: 1,
    tweak: |o| {
        (o.netns, o.heartbeat_ms, o.degraded_after_ms, o.down_after_ms) = (true, 300, 2_000, 2_000);
        o.agent_lines = "relay_max: 0\n".to_owned();
    },
};

pub fn trials() -> Vec<Trial> {
    vec![LATE.test("of_a_run_that_was_cut_off_is_refused_and_discarded", &[Need::Hosts], cut_off)]
}

fn state(w: &World, node: &str) -> String {
    let nodes = w.lattice.json(&["nodes"]).unwrap();
    text(nodes.as_array().unwrap().iter().find(|n| text(n, "id") == node).unwrap(), "state")
}

fn cut_off(w: &World) {
    w.ok(&["node", "cordon", "n1,n2", "--reason", "not for this one"]);
    let chain = Chain::submit(w, &[], &["--nodes", "1", "--requeue", "--on-isolation=continue"]);
    // n1, whose agent the tests use, stays cordoned.
    w.ok(&["node", "uncordon", "n2"]);
    let id = &chain.id;
    let done = chain.create(w);
    assert_eq!(done.code(), 0, "{}", done.err());
    let (first, epoch) = (last(w, id), w.status(id)["epoch"].clone());
    // The request is in progress when its node is cut off; it came from that node.
    chain.behaves("wait");
    let asking = {
        let (lattice, id) = (w.at("n3"), id.clone());
        let args = ["checkpoint", "create", &id, "--deadline", "10m", "-o", "json"].map(str::to_owned);
        std::thread::spawn(move || {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            lattice.run(&args, Duration::from_secs(120)).unwrap()
        })
    };
    w.wait_log(id, "asked ");
    faults::cut_node(&w.dir, "n3", &From::All, Direction::Both).unwrap();
    w.wait("n3 to be Down", || state(w, "n3") == "Down");
    w.ok(&["node", "confirm-dead", "n3", "--yes", "--reason", "its rack has no power"]);
    w.wait_log(id, "begun 1\n");
    chain.behaves("save");
    let done = chain.create(w);
    assert_eq!(done.code(), 0, "{}", done.err());
    let second = last(w, id);
    let now = w.status(id);
    assert!(second != first && now["epoch"] != epoch && text(&now["checkpoint"], "id") == second, "{now}");
    // The cut-off node still reaches the store, and completes its checkpoint there; the quorum has no report of it.
    chain.release();
    let allocation = objects(w, id, "");
    let whole = || {
        let all = std::fs::read_dir(&allocation).unwrap().flatten().filter(|e| e.path().join("manifest.json").exists());
        all.map(|e| e.file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    w.wait("the late one to be in the store", || whole().len() == 3);
    let late = whole().into_iter().find(|made| *made != first && *made != second).unwrap();
    assert_eq!(text(&w.status(id)["checkpoint"], "id"), second);
    faults::heal_node(&w.dir, "n3").unwrap();
    let answer = asking.join().unwrap();
    assert!(
        answer.code() == 1 && answer.err().contains("the quorum refuses it") && answer.err().contains("claimed anew"),
        "{}",
        answer.err()
    );
    w.wait("what it saved to be gone", || !allocation.join(&late).exists() || whole().len() == 2);
    let listed = w.lattice.json(&["checkpoint", "list", id]).unwrap();
    let ids: Vec<String> = listed.as_array().unwrap().iter().map(|c| text(c, "id")).collect();
    assert_eq!((ids, last(w, id)), (vec![first.clone(), second.clone()], second.clone()), "{listed}");
    let shown = w.lattice.json(&["checkpoint", "show", id]).unwrap();
    assert_eq!((text(&shown, "id"), text(&shown, "parent")), (second.clone(), first), "{shown}");
    w.wait("n3 to be back", || state(w, "n3") == "Ready");
    // It continues from the second checkpoint.
    let step: Value = w.status(id)["checkpoint"]["step"].clone();
    assert_eq!(w.status(id)["nodes"][0], "n2");
    w.ok(&["node", "disable", "n2", "--yes", "--reason", "it burns"]);
    w.wait_log(id, &format!("restored {step}\nbegun 2\n"));
    w.ok(&["node", "enable", "n2"]);
    chain.end(w);
    w.ok(&["node", "uncordon", "n1"]);
    w.assert_nothing_left();
}
