//! Rotation of gossip keys: no node is lost, absent nodes return, and only operators can do it.

use crate::backups::{folder, kill_all, quorum, start_all};
use crate::harness::{Group, JOB, NOBODY, World};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use lattice_lab::up::Options;
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

static KEYS: Group = Group { theme: "keys", name: "keys", nodes: 3, quorum: 3, tweak };

const NODES: [&str; 3] = ["n1", "n2", "n3"];
/// Time between two checks of which nodes are alive.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

fn tweak(options: &mut Options) {
    // A dead agent is soon Down, so that a rotation does not wait for it.
    options.down_after_ms = 2_000;
    "backup: \"file://{dir}/backups\"\n".clone_into(&mut options.member_lines);
}

pub fn trials() -> Vec<Trial> {
    vec![
        KEYS.test("two_rotations_cost_no_datagram_and_nobody_is_suspected", &[], twice),
        KEYS.test("an_agent_that_died_in_a_rotation_holds_it_up_until_it_is_down_and_joins_again", &[], died),
        KEYS.test("an_agent_without_a_quorum_starts_with_its_own_file_and_with_a_damaged_one_by_the_quorum", &[], own_file),
        KEYS.test("a_quorum_restored_from_before_a_rotation_silences_no_agent", &[], went_back),
    ]
}

fn keys(w: &World) -> Value {
    w.lattice.json(&["gossip", "keys"]).unwrap()
}

fn newest(now: &Value) -> u64 {
    now["keys"].as_array().and_then(|keys| keys.last()?["id"].as_u64()).unwrap()
}

/// Whether there is only one key, and all nodes open and seal with it.
fn settled(now: &Value) -> bool {
    let one = now["keys"].as_array().unwrap();
    one.len() == 1 && now["nodes"] == 3 && one[0]["decrypting_nodes"] == 3 && one[0]["encrypting_nodes"] == 3 && one[0]["role"] == "encrypt"
}

/// The nodes that this node's gossip does not show alive.
fn missing(w: &World, at: &str) -> Vec<String> {
    let seen = w.at(at).json(&["gossip", "members"]).unwrap();
    let alive = |n: &&&str| seen.as_array().unwrap().iter().any(|m| text(m, "node") == **n && text(m, "liveness") == "alive");
    NODES.iter().filter(|n| !alive(n)).map(|n| format!("{n} at {at}")).collect()
}

fn all_alive(w: &World) -> bool {
    NODES.iter().all(|at| missing(w, at).is_empty())
}

/// The life of this node in n1's gossip.
fn life(w: &World, node: &str) -> u64 {
    let seen = w.lattice.json(&["gossip", "members"]).unwrap();
    seen.as_array().unwrap().iter().find(|m| text(m, "node") == node).and_then(|m| m["incarnation"].as_u64()).unwrap_or(0)
}

fn file(w: &World, node: &str) -> PathBuf {
    w.cluster().run_dir.join(node).join("state/gossip-keys.json")
}

fn ids_in(path: &Path) -> Vec<String> {
    let json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    json["ring"]["keys"].as_object().unwrap().keys().cloned().collect()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Checks repeatedly, while something is done, which nodes each node's gossip shows alive.
fn nobody_is_lost(w: &World, doing: impl FnOnce()) {
    let over = AtomicBool::new(false);
    let (looks, lost) = std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let (mut looks, mut lost) = (0, Vec::new());
            while !over.load(Ordering::Relaxed) {
                lost.extend(NODES.iter().flat_map(|at| missing(w, at)));
                looks += 1;
                // A suspicion lasts longer, and the checks must not keep an agent from answering.
                std::thread::sleep(CHECK_INTERVAL);
            }
            (looks, lost)
        });
        let done = catch_unwind(AssertUnwindSafe(doing));
        over.store(true, Ordering::Relaxed);
        let watched = watching.join().unwrap();
        done.unwrap_or_else(|panic| resume_unwind(panic));
        watched
    });
    assert!(looks > 10 && lost.is_empty(), "{looks} checks: {lost:?}");
}

fn twice(w: &World) {
    w.wait("all to be alive in all views", || all_alive(w));
    w.wait("all to say what they have", || settled(&keys(w)));
    let first = newest(&keys(w));
    let refused = w.run_as(NOBODY, &["gossip", "keys", "rotate"]);
    assert!(refused.code() == 4 && refused.err().contains("or an operator's credential"), "{}", refused.err());
    assert_eq!(newest(&keys(w)), first);

    nobody_is_lost(w, || {
        for key in [first + 1, first + 2] {
            let done = w.run_for(&["gossip", "keys", "rotate"], JOB);
            assert_eq!(done.code(), 0, "{}", done.err());
            assert!(done.err().contains(&format!("gossip key {key} ")) && done.out().contains("3 of 3"), "{} {}", done.err(), done.out());
            let now = keys(w);
            assert!(newest(&now) == key && settled(&now), "{now}");
            assert_eq!(text(&now["keys"][0], "created_by"), "root@n1");
        }
    });
    for node in NODES {
        let status = w.at(node).json(&["node", "status"]).unwrap();
        assert!(!status["refused"].to_string().contains("under keys"), "{node} could not open what it was sent: {status}");
        assert_eq!((mode(&file(w, node)), ids_in(&file(w, node))), (0o600, vec![(first + 2).to_string()]));
    }
    for (kind, detail) in [
        ("gossip-key-added", format!("key {} opens beside key {first}, which seals", first + 1)),
        ("gossip-key-seals", format!("key {} seals, key {first} opens", first + 1)),
        ("gossip-key-retired", format!("key {first} opens no more, key {} seals", first + 1)),
        ("gossip-key-retired", format!("key {} opens no more, key {} seals", first + 1, first + 2)),
    ] {
        let found = w.ok(&["audit", "query", "--type", kind]);
        assert!(found.contains(&detail), "{kind}: {found}");
    }
    for member in &w.cluster().members {
        assert_eq!(mode(&w.dir.join(format!("member-{}/data", member.id))), 0o700, "the log has the secrets");
    }
}

fn died(w: &World) {
    let before = newest(&keys(w));
    let pid = w.cluster().node("n3").unwrap().daemon.process.as_ref().unwrap().pid;
    // n3's agent is stopped, so that the rotation cannot end before the agent dies.
    kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
    w.ok(&["gossip", "keys", "rotate", "--no-wait"]);
    w.wait("n3 alone to be waited for", || keys(w)["awaited"] == serde_json::json!(["n3"]));
    faults::kill_node(&w.dir, "n3").unwrap();
    let done = w.run_for(&["gossip", "keys", "rotate"], JOB);
    assert_eq!(done.code(), 0, "{}", done.err());
    assert!(done.err().contains("waits for n3"), "{}", done.err());
    let now = keys(w);
    assert_eq!((newest(&now), &now["nodes"]), (before + 1, &2.into()), "the same rotation went on, without n3: {now}");
    assert!(missing(w, "n1") == ["n3 at n1"] && missing(w, "n2") == ["n3 at n2"]);

    assert!(ids_in(&file(w, "n3")).iter().all(|id| *id == before.to_string()), "it has the key that is forgotten by now");
    faults::start_node(&w.dir, "n3").unwrap();
    w.wait("n3 to be alive in all views", || all_alive(w));
    w.wait("n3 to have the key", || settled(&keys(w)));
}

fn own_file(w: &World) {
    if newest(&keys(w)) == 0 {
        w.ok(&["gossip", "keys", "rotate"]);
    }
    let was = life(w, "n2");
    for member in &w.cluster().members {
        faults::kill_member(&w.dir, member.id).unwrap();
    }
    faults::kill_node(&w.dir, "n2").unwrap();
    faults::start_node(&w.dir, "n2").unwrap();
    w.wait("n2's next life in all views", || life(w, "n2") > was && all_alive(w));
    let status = w.at("n2").json(&["node", "status"]).unwrap();
    assert_eq!(status["quorum_connected"], false, "{status}");
    faults::heal(&w.dir, JOB).unwrap();

    let was = life(w, "n2");
    faults::kill_node(&w.dir, "n2").unwrap();
    let file = file(w, "n2");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    faults::start_node(&w.dir, "n2").unwrap();
    w.wait("n2's next life in all views", || life(w, "n2") > was && all_alive(w));
    w.wait("n2 to have the key", || settled(&keys(w)));
    let status = w.at("n2").json(&["node", "status"]).unwrap();
    assert!(status["degraded"].to_string().contains("gossip-keys.json is not usable"), "{status}");
    let is_kept = |name: &str| name.starts_with("gossip-keys.json.kept-");
    let listed = std::fs::read_dir(file.parent().unwrap()).unwrap();
    assert_eq!(listed.filter(|f| is_kept(&f.as_ref().unwrap().file_name().to_string_lossy())).count(), 1);
    assert_eq!(ids_in(&file), [newest(&keys(w)).to_string()], "the session delivered it again");
}

fn went_back(w: &World) {
    let (code, output) = quorum(w, 1, &["backup"]);
    assert_eq!(code, 0, "{output}");
    let backup = output.lines().next().unwrap().to_owned();
    let before = newest(&keys(w));
    w.ok(&["gossip", "keys", "rotate"]);
    w.wait("all to be alive in all views", || all_alive(w));
    nobody_is_lost(w, || {
        kill_all(w);
        let (code, output) = quorum(w, 1, &["restore", "--backup", &backup, "--yes"]);
        assert_eq!(code, 0, "{output}");
        for id in [2, 3] {
            std::fs::remove_dir_all(folder(w, id).join("data")).unwrap();
        }
        start_all(w);
        assert_eq!(newest(&keys(w)), before, "the quorum knows nothing of the key that all seal with");
        w.wait("all nodes to be Ready", || w.lattice.nodes().unwrap().iter().all(|(_, state)| state == "Ready"));
        w.ok(&["gossip", "keys", "rotate"]);
    });
    let now = keys(w);
    assert!(settled(&now) && newest(&now) > before + 1, "no number is given twice: {now}");
}
