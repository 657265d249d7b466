//! Silent nodes: what happens to their work, who decides about it, and that nothing runs twice. Their agents are
//! stopped or killed; shims and work live on.

use crate::harness::{Folder, Group, JOB, World, fresh_dir};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use lattice_lab::process::until;
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long `stop` work continues without an acknowledgement from the leader; a second more, and it may run elsewhere.
const LEASE: Duration = Duration::from_millis(3000);

/// How long a borrowed node is Degraded before it is Down; another node: a second.
const BORROWED: Duration = Duration::from_secs(8);

static FENCING: Group = Group {
    theme: "fencing",
    name: "fencing",
    nodes: 3,
    quorum: 3,
    tweak: |options| {
        // The daemons start after this. The file belongs to the tests: the hook reads its answer there.
        let hook = hook();
        fs::write(&hook, HOOK).unwrap();
        fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
        (options.heartbeat_ms, options.degraded_after_ms, options.down_after_ms) = (200, 1000, 1000);
        options.member_lines = format!(
            "run_lease_ms: {}\nfencing_hook: {:?}\nborrowed_down_after_ms: {}\n",
            LEASE.as_millis(),
            hook.to_string_lossy(),
            BORROWED.as_millis()
        );
    },
};

/// Reports that a node is dead if a file with its name is beside it; records how it was called.
const HOOK: &str = "#!/bin/sh
echo \"$* env $LATTICE_NODE $LATTICE_ALLOCATIONS\" >> \"$0.called\"
[ -e \"$0.$1\" ] && exit 0
echo \"$1 may live\" >&2
exit 3
";

fn hook() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fencing-hook")
}

/// Enough nodes that many of them can be silent.
static CROWD: Group = Group { theme: "fencing", name: "fencing-crowd", nodes: 4, quorum: 1, tweak: |o| o.down_after_ms = 3_000 };

/// How long a node is silent until it is Down where leaders change, and when the leader is killed.
const TO_DOWN: Duration = Duration::from_secs(12);
const LEADER_GOES: Duration = Duration::from_secs(7);

/// No agent is asked whether it sees a silent node alive.
static LEADERS: Group = Group {
    theme: "fencing",
    name: "fencing-leaders",
    nodes: 2,
    quorum: 3,
    tweak: |o| {
        (o.heartbeat_ms, o.degraded_after_ms, o.down_after_ms) = (200, 1_000, 11_000);
        "node_cut_off_ms: 0\n".clone_into(&mut o.member_lines);
    },
};

/// Some nodes are Down already when another leader is elected.
static DEAD: Group = Group {
    theme: "fencing",
    name: "fencing-dead",
    nodes: 5,
    quorum: 3,
    tweak: |o| {
        (o.heartbeat_ms, o.degraded_after_ms, o.down_after_ms) = (200, 1_000, 1_000);
        o.member_lines = format!("run_lease_ms: {}\nnode_cut_off_ms: 0\n", LEASE.as_millis());
    },
};

pub fn trials() -> Vec<Trial> {
    vec![
        DEAD.test("nodes_that_are_down_already_keep_no_other_from_being_down_under_a_new_leader", &[], dead_before),
        LEADERS.test("a_silent_node_has_the_whole_time_again_under_a_new_leader", &[], fresh_clocks),
        CROWD.test("many_nodes_silent_at_once_are_an_operators_to_decide", &[], crowd),
        FENCING.test("what_stops_ends_at_its_lapse_and_runs_elsewhere_only_then", &[], stops),
        FENCING.test("queued_work_that_stops_outlives_a_quorum_that_is_away_for_longer_than_its_lease", &[], quorum_away),
        FENCING.test("what_continues_goes_on_until_an_operator_confirms_the_death", &[], continues),
        FENCING.test("the_sites_hook_confirms_a_death", &[], by_hook),
        FENCING.test("a_borrowed_node_is_down_after_a_time_of_its_own", &[], borrowed),
    ]
}

/// Work that prints at short intervals: a line with its attempt, its process and the time in nanoseconds.
struct Beats(PathBuf);

impl Beats {
    fn submit(w: &World, more: &[&str]) -> (String, Self) {
        let file = fresh_dir("beats");
        let script = format!("while :; do echo $LATTICE_REQUEUE_COUNT $$ $(date +%s%N) >> {}; sleep 0.05; done", file.display());
        // The tests use n1's agent, which stays busy and alive. Remains of the last test are removed first.
        w.wait("n1 to be free", || state(w, "n1") == "Ready" && shown(w, "n1")["committed"]["cores"] == 0);
        let busy = w.submit(&["--name", "busy", "--", "/bin/sleep", "600"]);
        w.running(&busy);
        assert_eq!(node_of(w, &busy), "n1");
        let id = w.submit(&[more, &["--requeue", "--", "/bin/sh", "-c", &script]].concat());
        let beats = Self(file);
        w.wait("it to run", || !beats.of(0).is_empty());
        (id, beats)
    }

    /// Process and time of an attempt's lines.
    fn of(&self, attempt: u64) -> Vec<(i32, u128)> {
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        let line = |line: &str| {
            let mut words = line.split(' ');
            let (count, pid, at) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            Some((count, pid, at)).filter(|(count, _, _): &(u64, i32, u128)| *count == attempt)
        };
        text.lines().filter_map(line).map(|(_, pid, at)| (pid, at)).collect()
    }

    /// Checks that the first attempt wrote nothing after the second one began.
    fn never_twice(&self) {
        let (last, first) = (self.of(0).last().copied().unwrap(), self.of(1).first().copied().unwrap());
        assert!(last.1 < first.1, "the first attempt still ran at {}, the second began at {}", last.1, first.1);
    }
}

impl Drop for Beats {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn node_of(w: &World, id: &str) -> String {
    w.status(id)["nodes"][0].as_str().unwrap().to_owned()
}

fn agent(w: &World, node: &str) -> Pid {
    Pid::from_raw(w.cluster().node(node).unwrap().daemon.process.as_ref().unwrap().pid)
}

fn shown(w: &World, node: &str) -> Value {
    let nodes = w.lattice.json(&["nodes"]).unwrap();
    nodes.as_array().unwrap().iter().find(|n| text(n, "id") == node).unwrap().clone()
}

fn state(w: &World, node: &str) -> String {
    text(&shown(w, node), "state")
}

fn lives(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None).is_ok()
}

fn requeued(w: &World, id: &str) -> bool {
    text(&w.status(id), "requeue_count") == "1"
}

fn stops(w: &World) {
    let (id, beats) = Beats::submit(w, &["--on-isolation", "stop"]);
    let (node, before) = (node_of(w, &id), w.status(&id));
    assert_ne!(node, "n1");
    assert_eq!(text(&before, "on_isolation"), "stop");
    // Heartbeats alone renew the lease: the work outlives one lease.
    let begun = beats.of(0)[0].1;
    w.wait("it to outlive a lease", || beats.of(0).last().unwrap().1 - begun > LEASE.as_nanos() * 5 / 4);
    let cut = agent(w, &node);
    kill(cut, Signal::SIGSTOP).unwrap();
    w.wait("its node to be Down", || state(w, &node) == "Down");
    let explanation = w.ok(&["explain", &id]);
    assert!(explanation.contains("run lease expires") || requeued(w, &id), "{explanation}");
    w.wait("it to run elsewhere", || !beats.of(1).is_empty());
    beats.never_twice();
    let now = w.status(&id);
    assert_eq!((text(&now, "requeue_count").as_str(), &now["submitted_at"]), ("1", &before["submitted_at"]), "{now}");
    let elsewhere = node_of(w, &id);
    assert!(elsewhere != node && elsewhere != "n1", "{now}");
    let audit = w.ok(&["audit", "query", "--alloc", &id, "--type", "allocation-requeued"]);
    assert!(audit.contains("run lease lapsed"), "{audit}");
    kill(cut, Signal::SIGCONT).unwrap();
    w.wait("its node to be free again", || state(w, &node) == "Ready" && shown(w, &node)["committed"]["cores"] == 0);
    assert!(!lives(beats.of(0)[0].0));
    beats.never_twice();
    w.ok(&["cancel", &id]);
}

/// Every node is busy with `stop` work, and more of it waits, while all members are down for longer than a run lease.
fn quorum_away(w: &World) {
    let dir = Folder::new("away");
    let (go, begun) = (dir.0.join("go"), dir.0.join("begun"));
    let record = format!("echo $LATTICE_ALLOC_ID $LATTICE_REQUEUE_COUNT >> {}", begun.display());
    let submit = |then: &str| w.submit(&["--on-isolation", "stop", "--requeue", "--", "/bin/sh", "-c", &format!("{record}; {then}")]);
    let times = |id: &str| {
        let text = fs::read_to_string(&begun).unwrap_or_default();
        text.lines().filter_map(|line| line.split_once(' ').filter(|(of, _)| *of == id).map(|(_, n)| n.to_owned())).collect::<Vec<_>>()
    };
    let lasts = dir.0.join("lasts");
    let busy: Vec<String> =
        (0..3).map(|_| submit(&format!("until [ -e {} ]; do date +%s%N > {}; sleep 0.05; done", go.display(), lasts.display()))).collect();
    busy.iter().for_each(|id| w.wait("it to run", || times(id).len() == 1));
    let queued: Vec<String> = (0..12).map(|_| submit("sleep 0.2")).collect();
    let members: Vec<u64> = w.cluster().members.iter().map(|member| member.id).collect();
    for id in &members {
        faults::kill_member(&w.dir, *id).unwrap();
    }
    let last = || fs::read_to_string(&lasts).unwrap_or_default();
    let mut seen = (last(), Instant::now());
    w.wait("the leases to lapse, and their shims to end it all", || {
        if seen.0 != last() {
            seen = (last(), Instant::now());
        }
        seen.1.elapsed() > Duration::from_secs(1)
    });
    fs::write(&go, "").unwrap();
    for id in &members {
        faults::start_member(&w.dir, *id).unwrap();
    }
    w.wait("the quorum to answer", || w.lattice.leader().is_ok_and(|leader| leader.is_some()) && w.lattice.nodes().is_ok());
    for (ids, requeued) in [(&busy, 1), (&queued, 0)] {
        for id in ids {
            assert_eq!(text(&w.completed(id), "requeue_count"), requeued.to_string());
            let attempts: Vec<String> = (0..=requeued).map(|n| n.to_string()).collect();
            assert_eq!(times(id), attempts, "each attempt began once");
            let of_it = |kind: &str| w.ok(&["audit", "query", "--alloc", id, "--type", kind, "-o", "json"]).matches("\"seq\"").count();
            assert_eq!(of_it("allocation-requeued"), requeued, "{}", w.ok(&["audit", "query", "--alloc", id]));
            assert_eq!(of_it("allocation-claimed"), requeued + 1, "{}", w.ok(&["audit", "query", "--alloc", id]));
        }
    }
    w.assert_nothing_left();
}

/// Milliseconds between the last two records that the node was Degraded and Down.
fn degraded_for(w: &World, node: &str) -> u64 {
    let records = w.lattice.json(&["node", "history", node]).unwrap();
    let last = |state: &str| {
        let is_it = |r: &&Value| text(r, "action") == "NodeStateChanged" && text(r, "detail").contains(&format!("-> {state}"));
        records.as_array().unwrap().iter().rfind(is_it).unwrap_or_else(|| panic!("never {state}: {records:#}"))["at"].as_u64().unwrap()
    };
    last("Down").checked_sub(last("Degraded")).unwrap_or_else(|| panic!("Down before it was Degraded: {records:#}"))
}

/// Its work began before the node was given to another vCluster. (A witness that saw the node recently delays its end
/// by some seconds.)
fn borrowed(w: &World) {
    let (id, _beats) = Beats::submit(w, &[]);
    let node = node_of(w, &id);
    w.ok(&["admin", "vcluster", "create", "--name=lent", "--scheduler=fifo", &format!("--nodes={node}")]);
    let stopped = agent(w, &node);
    kill(stopped, Signal::SIGSTOP).unwrap();
    w.wait("it to be Down", || state(w, &node) == "Down");
    kill(stopped, Signal::SIGCONT).unwrap();
    let took = Duration::from_millis(degraded_for(w, &node));
    let wanted = BORROWED - Duration::from_millis(500)..BORROWED + Duration::from_secs(8);
    assert!(wanted.contains(&took), "{node} was Degraded for {took:?} and not {BORROWED:?}");
    w.wait("it to be Ready", || state(w, &node) == "Ready");
    w.ok(&["cancel", &id]);
    w.ended(&id);
    w.ok(&["admin", "vcluster", "delete", "lent"]);
}

fn continues(w: &World) {
    let (id, beats) = Beats::submit(w, &[]);
    let node = node_of(w, &id);
    let refused = w.run(&["node", "confirm-dead", &node, "--yes", "--reason", "x"]);
    assert!(
        refused.code() == 4 && refused.err().contains("still sends heartbeats") && refused.err().contains("node disable"),
        "{}",
        refused.err()
    );
    faults::kill_node(&w.dir, &node).unwrap();
    w.wait("its node to be Down", || state(w, &node) == "Down");
    // For longer than any lease lasts, the work continues and is not begun elsewhere.
    let down = beats.of(0).last().unwrap().1;
    w.wait("it to go on", || beats.of(0).last().unwrap().1 - down > LEASE.as_nanos() * 3 / 2);
    assert_eq!(text(&w.status(&id), "state"), "Running");
    for shown in [w.ok(&["explain", &id]), w.ok(&["status", &id])] {
        assert!(shown.contains(&format!("lattice node confirm-dead {node} --yes")), "{shown}");
    }
    let listed = w.ok(&["status"]);
    assert!(listed.contains(&format!("node {node} is Down: confirm-dead")), "the list says it too: {listed}");
    let unsure = w.run(&["node", "confirm-dead", &node, "--reason", "x"]);
    assert!(unsure.code() == 2 && unsure.err().contains("--yes"), "{}", unsure.err());
    let user = w.run_as(crate::harness::NOBODY, &["node", "confirm-dead", &node, "--yes", "--reason", "x"]);
    assert_eq!(user.code(), 4, "{}", user.err());
    w.ok(&["node", "confirm-dead", &node, "--yes", "--reason", "its rack has no power"]);
    w.wait("it to run elsewhere", || !beats.of(1).is_empty());
    assert!(requeued(w, &id));
    let audit = w.ok(&["audit", "query", "--node", &node, "--type", "node-confirmed-dead"]);
    assert!(audit.contains("its rack has no power"), "{audit}");
    // Here the confirmation was wrong: the work still runs, and is ended before the node takes anything else.
    let old = beats.of(0)[0].0;
    assert!(lives(old));
    w.ok(&["cancel", &id]);
    let busy: Vec<Value> = w.lattice.allocations().unwrap();
    for allocation in busy.iter().filter(|a| text(a, "name") == "busy") {
        w.ok(&["cancel", &text(allocation, "id")]);
    }
    faults::start_node(&w.dir, &node).unwrap();
    let everywhere = format!("kill -0 {old} 2>/dev/null && exit 9; exit 0");
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/sh", "-c", &everywhere]));
    assert!(!lives(old));
    w.assert_nothing_left();
}

fn crowd(w: &World) {
    let held_back = || w.lattice.json(&["quorum", "status"]).unwrap()["held_back"].clone();
    assert_eq!(held_back(), 0);
    let silent = ["n2", "n3", "n4"];
    let stopped = silent.map(|node| agent(w, node));
    stopped.iter().for_each(|pid| kill(*pid, Signal::SIGSTOP).unwrap());
    w.wait("all three to be held back", || held_back() == 3);
    let status = w.ok(&["quorum", "status"]);
    assert!(status.contains("3 nodes fell silent at once") && status.contains("confirm-dead"), "{status}");
    w.ok(&["node", "confirm-dead", "n4", "--yes", "--reason", "its rack has no power"]);
    assert_eq!(state(w, "n4"), "Down");
    // Longer than it takes for a single node.
    let begun = Instant::now();
    w.wait("their time to be over", || begun.elapsed() > Duration::from_secs(10));
    assert_eq!(["n2", "n3"].map(|node| state(w, node)), ["Degraded", "Degraded"]);
    stopped.iter().for_each(|pid| kill(*pid, Signal::SIGCONT).unwrap());
    w.wait("all to be back", || silent.iter().all(|node| state(w, node) == "Ready"));
    w.wait("nobody to be held back", || held_back() == 0);
}

fn fresh_clocks(w: &World) {
    let (leader, stopped) = (w.leader(), agent(w, "n2"));
    kill(stopped, Signal::SIGSTOP).unwrap();
    let silent = Instant::now();
    w.wait("n2 to be Degraded", || state(w, "n2") == "Degraded");
    w.wait("most of its time to be over", || silent.elapsed() > LEADER_GOES);
    let killed = Instant::now();
    faults::kill_member(&w.dir, leader).unwrap();
    // While nobody leads, the list comes from gossip.
    let down = || w.lattice.nodes().is_ok_and(|nodes| nodes.contains(&("n2".to_owned(), "Down".to_owned())));
    w.wait("n2 to be Down", down);
    let took = killed.elapsed();
    assert!(took >= TO_DOWN, "it was Down {took:?} after the leader before was killed");
    assert_ne!(w.leader(), leader);
    kill(stopped, Signal::SIGCONT).unwrap();
    w.wait("n2 to be Ready", || state(w, "n2") == "Ready");
    faults::start_member(&w.dir, leader).unwrap();
}

fn dead_before(w: &World) {
    let (id, beats) = Beats::submit(w, &["--on-isolation", "stop"]);
    let node = node_of(w, &id);
    let mut others = vec!["n2", "n3", "n4", "n5"];
    others.retain(|other| *other != node);
    let dead = &others[..2];
    for node in dead {
        faults::kill_node(&w.dir, node).unwrap();
    }
    w.wait("both to be Down", || dead.iter().all(|node| state(w, node) == "Down"));
    let leader = w.leader();
    faults::kill_member(&w.dir, leader).unwrap();
    w.wait("another leader", || {
        w.lattice.json(&["quorum", "status"]).is_ok_and(|status| status["leader"].as_u64().is_some_and(|l| l != leader))
    });
    faults::start_member(&w.dir, leader).unwrap();
    w.wait("the nodes to be heard by it", || ["n1", &node, others[2]].iter().all(|node| state(w, node) == "Ready"));
    faults::kill_node(&w.dir, &node).unwrap();
    w.wait("it to run elsewhere", || !beats.of(1).is_empty());
    assert_eq!((state(w, &node).as_str(), node_of(w, &id).as_str()), ("Down", others[2]));
    assert_eq!(w.lattice.json(&["quorum", "status"]).unwrap()["held_back"], 0);
    beats.never_twice();
    w.ok(&["cancel", &id]);
    for node in [&node, dead[0], dead[1]] {
        faults::start_node(&w.dir, node).unwrap();
    }
    w.wait("all to be Ready", || others.iter().copied().chain([node.as_str()]).all(|node| state(w, node) == "Ready"));
}

fn by_hook(w: &World) {
    let (id, beats) = Beats::submit(w, &["--on-isolation=continue"]);
    let node = node_of(w, &id);
    let hook_file = |ending: &str| PathBuf::from(format!("{}.{ending}", hook().display()));
    let called = || fs::read_to_string(hook_file("called")).unwrap_or_default();
    fs::write(hook_file(&node), "").unwrap();
    let earlier = called().len();
    faults::kill_node(&w.dir, &node).unwrap();
    // The hook's answer is true here: the work is dead.
    kill(Pid::from_raw(beats.of(0)[0].0), Signal::SIGKILL).unwrap();
    w.wait("it to run elsewhere", || !beats.of(1).is_empty());
    fs::remove_file(hook_file(&node)).unwrap();
    let line = format!("{node} {id} env {node} {id}\n");
    assert_eq!(called()[earlier..].matches(&line).count(), 1, "once for a node that went Down: {}", called());
    let audit = w.ok(&["audit", "query", "--node", &node, "--type", "node-confirmed-dead"]);
    assert!(audit.contains("fencing_hook"), "{audit}");
    beats.never_twice();
    w.ok(&["cancel", &id]);
    faults::start_node(&w.dir, &node).unwrap();
    assert!(until(JOB, || state(w, &node) == "Ready" && shown(w, &node)["committed"]["cores"] == 0), "{}", shown(w, &node));
}
