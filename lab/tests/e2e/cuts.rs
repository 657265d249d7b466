//! Agents whose network is cut: from the quorum only, from everybody, in one direction. Each agent has its own network.

use crate::harness::{Group, JOB, Need, World, configure, ended};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use lattice_lab::networks::{Direction, From};
use lattice_lab::process::until;
use libtest_mimic::Trial;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Peers carry sessions here. A node is carried well before it would be Degraded, and before its leases would lapse.
static CARRIED: Group = Group {
    theme: "cuts",
    name: "carried",
    nodes: 3,
    quorum: 1,
    tweak: |o| {
        (o.netns, o.heartbeat_ms, o.degraded_after_ms, o.down_after_ms) = (true, 300, 15_000, 2_000);
        o.member_lines = format!("run_lease_ms: {}\n", LEASE.as_millis());
    },
};

/// No peer carries a session here.
static ALONE: Group = Group {
    theme: "cuts",
    name: "alone",
    nodes: 3,
    quorum: 1,
    tweak: |o| {
        (o.netns, o.heartbeat_ms, o.degraded_after_ms, o.down_after_ms) = (true, 300, 2_000, 2_000);
        o.member_lines = format!("node_cut_off_ms: 25000\nrun_lease_ms: {}\n", LEASE_ALONE.as_millis());
        o.agent_lines = "relay_max: 0\n".to_owned();
    },
};

/// The run lease ends well before a cut node is Down, and the leader waits a second more before it reclaims the work.
static LAPSING: Group = Group {
    theme: "cuts",
    name: "lapsing",
    nodes: 3,
    quorum: 1,
    tweak: |o| {
        (o.netns, o.heartbeat_ms, o.degraded_after_ms, o.down_after_ms) = (true, 300, 1_500, 4_000);
        o.member_lines = format!("run_lease_ms: {}\n", LEASE_LAPSING.as_millis());
    },
};

/// Only n1 places work here.
static PLACES: Group = Group {
    theme: "cuts",
    name: "places",
    nodes: 3,
    quorum: 1,
    tweak: |o| (o.netns, o.heartbeat_ms, o.degraded_after_ms, o.down_after_ms) = (true, 300, 15_000, 30_000),
};

/// Large enough that three silent nodes are too many at once.
static MANY: Group = Group {
    theme: "cuts",
    name: "many",
    nodes: 10,
    quorum: 1,
    tweak: |o| {
        (o.netns, o.heartbeat_ms, o.degraded_after_ms, o.down_after_ms) = (true, 300, 2_000, 10_000);
        o.member_lines = "run_lease_ms: 30000\n".to_owned();
    },
};

/// How long `stop` work continues without an acknowledged heartbeat.
const LEASE: Duration = Duration::from_secs(15);
/// The same without carried sessions: longer than the silence after which a node is Degraded, plus the time to heal it
/// then and to get a new session on a busy machine.
const LEASE_ALONE: Duration = Duration::from_secs(15);

const LEASE_LAPSING: Duration = Duration::from_millis(4_500);

/// How long an agent that dies at each start is restarted: longer than the time to Down.
/// `LATTICE_TEST_SECONDS` makes it longer.
const LOOPS: Duration = Duration::from_secs(14);

pub fn trials() -> Vec<Trial> {
    vec![
        CARRIED.test("a_peer_carries_the_session_of_a_node_that_is_cut_from_the_quorum", &[Need::Hosts], carried),
        CARRIED.test("one_that_starts_while_it_is_cut_from_the_quorum_finds_the_peers_that_it_knew", &[Need::Hosts], found_again),
        CARRIED.test("gossip_alone_keeps_new_work_off_a_node_and_ends_none", &[Need::Hosts], gossip_alone),
        PLACES.test("the_only_scheduler_places_again_soon_after_a_cut_of_some_seconds", &[Need::Hosts], places_again),
        ALONE.test("one_that_others_hear_is_not_down_and_its_leases_lapse_all_the_same", &[Need::Hosts], reached_by_others),
        ALONE.test("a_node_that_nobody_hears_gets_no_work_and_keeps_what_it_has", &[Need::Hosts], one_way),
        ALONE.test("cut_from_all_within_its_grace_and_beyond_nothing_runs_twice", &[Need::Hosts], both_ways),
        LAPSING.test("a_launch_with_a_node_that_is_back_just_behind_its_lapse_is_requeued_and_not_aborted", &[Need::Hosts], lapsed),
        MANY.test("an_agent_that_crashes_again_and_again_leaves_its_work_and_few_records", &[Need::Hosts], crashes),
        MANY.test("an_agent_that_dies_at_each_start_is_not_heard_and_its_work_goes_on", &[Need::Hosts], loops),
        MANY.test("where_three_of_ten_fall_silent_at_once_none_is_down", &[Need::Hosts], three_of_ten),
    ]
}

fn shown(w: &World, node: &str) -> Value {
    let nodes = w.lattice.json(&["nodes"]).unwrap();
    nodes.as_array().unwrap().iter().find(|n| text(n, "id") == node).unwrap().clone()
}

fn state(w: &World, node: &str) -> String {
    text(&shown(w, node), "state")
}

/// The state of a node in n1's gossip.
fn gossiped(w: &World, node: &str) -> String {
    let members = w.lattice.json(&["gossip", "members"]).unwrap();
    let members = members.as_array().cloned().or_else(|| members["members"].as_array().cloned()).unwrap();
    members.iter().find(|m| text(m, "node") == node).map(|m| text(m, "liveness")).unwrap_or_default()
}

/// Submits a job to that node; returns its id, and the file whose existence ends it.
fn begin(w: &World, node: &str, more: &[&str]) -> (String, String) {
    let go = w.dir.join(format!("go-{node}"));
    let _ = fs::remove_file(&go);
    let script = format!("echo up $LATTICE_REQUEUE_COUNT; until [ -e {} ]; do sleep 0.05; done; echo over", go.display());
    let others: Vec<&str> = ["n1", "n2", "n3"].into_iter().filter(|other| *other != node).collect();
    others.iter().for_each(|other| drop(w.ok(&["node", "cordon", other, "--reason", "not for this one"])));
    let job = w.submit(&[more, &["--", "/bin/sh", "-c", &script]].concat());
    w.wait_log(&job, "up");
    others.iter().for_each(|other| drop(w.ok(&["node", "uncordon", other])));
    (job, go.display().to_string())
}

fn carried(w: &World) {
    let (job, go) = begin(w, "n3", &["--on-isolation", "stop", "--requeue=never"]);
    faults::cut_node(&w.dir, "n3", &From::Quorum, Direction::Both).unwrap();
    let cut = Instant::now();
    let mut through = String::new();
    w.wait("its lease to be over, had nobody carried its heartbeats", || {
        let n3 = shown(w, "n3");
        assert_eq!(text(&n3, "state"), "Ready", "{n3}");
        through = text(&n3, "relay_node");
        cut.elapsed() > LEASE + Duration::from_secs(2)
    });
    assert!(["n1", "n2"].contains(&through.as_str()), "{}", shown(w, "n3"));
    let status = w.at("n3").ok(&["node", "status"]).unwrap();
    assert!(status.contains(&format!("carried by {through}")), "{status}");
    assert_eq!(text(&w.status(&job), "state"), "Running");
    // When n3 loses its carrier, another peer carries it; the job's end is reported that way as well.
    faults::cut_node(&w.dir, "n3", &From::Peer(through.clone()), Direction::Both).unwrap();
    let other = if through == "n1" { "n2" } else { "n1" };
    w.wait("the other one to carry it", || text(&shown(w, "n3"), "relay_node") == other);
    fs::write(&go, "").unwrap();
    w.completed(&job);
    assert_eq!(faults::heal_node(&w.dir, "n3").unwrap().len(), 4);
    w.wait("n3 to be heard directly", || shown(w, "n3")["relay_node"].is_null() && state(w, "n3") == "Ready");
}

fn found_again(w: &World) {
    // No peer is configured: the agent remembers those that it knew before.
    let known = w.cluster().run_dir.join("n3/state/peers.json");
    w.wait("n3 to keep where the others are", || {
        let known = fs::read_to_string(&known).unwrap_or_default();
        known.contains("\"n1\"") && known.contains("\"n2\"")
    });
    faults::cut_node(&w.dir, "n3", &From::Quorum, Direction::Both).unwrap();
    faults::kill_node(&w.dir, "n3").unwrap();
    let with_seeds = configure(&w.dir, "n3", "gossip: {seeds: []}");
    faults::start_node(&w.dir, "n3").unwrap();
    w.wait("a peer to carry it", || {
        let n3 = shown(w, "n3");
        ["n1", "n2"].contains(&text(&n3, "relay_node").as_str()) && text(&n3, "state") == "Ready"
    });
    fs::write(w.dir.join("n3/agent.yaml"), with_seeds).unwrap();
    faults::heal_node(&w.dir, "n3").unwrap();
    faults::kill_node(&w.dir, "n3").unwrap();
    faults::start_node(&w.dir, "n3").unwrap();
    w.wait("n3 to be heard directly", || shown(w, "n3")["relay_node"].is_null() && state(w, "n3") == "Ready");
}

fn gossip_alone(w: &World) {
    let (job, go) = begin(w, "n3", &["--cores", "1", "--requeue=never"]);
    let placer = || {
        let leases = w.lattice.json(&["lease", "list"]).unwrap();
        leases.as_array().unwrap().iter().find(|l| text(l, "name") == "scheduler/default").map(|l| text(l, "holder")).unwrap_or_default()
    };
    // A cut-off agent places work for as long as it may.
    w.ok(&["node", "cordon", "n[1-2]", "--reason", "n3 is to place"]);
    w.wait("n3 to place", || placer() == "n3");
    w.ok(&["node", "uncordon", "n[1-2]"]);
    for other in ["n1", "n2"] {
        faults::cut_node(&w.dir, "n3", &From::Peer(other.to_owned()), Direction::Both).unwrap();
    }
    let stands = || {
        let n3 = shown(w, "n3");
        assert!(text(&n3, "state") == "Ready" && n3["relay_node"].is_null(), "{n3}");
        assert_eq!(text(&w.status(&job), "state"), "Running");
    };
    w.wait("gossip to have n3 for dead", || {
        stands();
        gossiped(w, "n3") == "down"
    });
    w.wait("somebody to place who sees the others", || ["n1", "n2"].contains(&placer().as_str()));
    // n3 has free capacity.
    let waits = w.submit(&["--nodes", "3", "--cores", "1", "--", "/bin/true"]);
    let mut why = String::new();
    let is_why = until(JOB, || {
        why = w.ok(&["explain", &waits]);
        why.contains("is not seen alive by gossip")
    });
    assert!(is_why, "{why}");
    w.ok(&["cancel", &waits]);
    let elsewhere = w.completed(&w.submit(&["--nodes", "2", "--", "/bin/true"]));
    assert_eq!(elsewhere["nodes"], serde_json::json!(["n1", "n2"]));
    stands();
    faults::heal_node(&w.dir, "n3").unwrap();
    w.wait("gossip to have n3 back", || gossiped(w, "n3") == "alive");
    stands();
    fs::write(&go, "").unwrap();
    w.completed(&job);
    assert!(w.log(&job).ends_with("over\n") && text(&w.status(&job), "requeue_count") == "0");
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
}

/// n1 is cut off for longer than the others take to consider it dead, and for less than n1 takes to consider them dead:
/// when it returns, it suspects them.
fn places_again(w: &World) {
    for node in ["n2", "n3"] {
        configure(&w.dir, node, "roles: [api]");
        faults::kill_node(&w.dir, node).unwrap();
        faults::start_node(&w.dir, node).unwrap();
    }
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
    let suspected = || w.lattice.json(&["gossip", "members", "--suspected"]).unwrap().as_array().map_or(0, Vec::len);
    faults::cut_node(&w.dir, "n1", &From::All, Direction::Both).unwrap();
    let cut = Instant::now();
    w.wait("n1 to suspect both others after 8 s", || cut.elapsed() >= Duration::from_secs(8) && suspected() == 2);
    faults::heal_node(&w.dir, "n1").unwrap();
    let healed = Instant::now();
    let job = w.at("n2").ok(&["submit", "--nodes", "3", "-o", "name", "--", "/bin/true"]);
    assert!(until(Duration::from_secs(30), || suspected() == 0), "{}", w.ok(&["gossip", "members"]));
    w.completed(job.unwrap().trim());
    assert!(healed.elapsed() < Duration::from_secs(40), "it was placed after {:?}", healed.elapsed());
}

fn reached_by_others(w: &World) {
    let (job, go) = begin(w, "n3", &["--on-isolation", "stop", "--requeue"]);
    faults::cut_node(&w.dir, "n3", &From::Quorum, Direction::In).unwrap();
    faults::cut_node(&w.dir, "n2", &From::All, Direction::Both).unwrap();
    w.wait("n3 to be known as cut off", || {
        let n3 = shown(w, "n3");
        assert_ne!(text(&n3, "state"), "Down", "{n3}");
        text(&n3, "reason") == "its way to the quorum is lost: n1 hears it"
    });
    w.wait("n2 to be Down, whom nobody hears", || state(w, "n2") == "Down");
    w.wait("what stops to be begun elsewhere", || text(&w.status(&job), "requeue_count") == "1");
    assert_eq!((state(w, "n3").as_str(), gossiped(w, "n3").as_str()), ("Degraded", "alive"));
    w.wait_log(&job, "up 1");
    w.wait("n3 to be Down after all", || state(w, "n3") == "Down");
    for node in ["n2", "n3"] {
        faults::heal_node(&w.dir, node).unwrap();
        w.wait("it to be Ready", || state(w, node) == "Ready");
    }
    fs::write(&go, "").unwrap();
    w.completed(&job);
}

fn one_way(w: &World) {
    let (job, go) = begin(w, "n3", &[]);
    faults::cut_node(&w.dir, "n3", &From::All, Direction::Out).unwrap();
    w.wait("n3 to be silent for the quorum", || state(w, "n3") == "Degraded");
    // n3 returns within its grace, or shortly after.
    faults::heal_node(&w.dir, "n3").unwrap();
    w.wait("n3 to be Ready", || state(w, "n3") == "Ready");
    // The other direction: its messages arrive, until it gives up the session without answers.
    faults::cut_node(&w.dir, "n3", &From::All, Direction::In).unwrap();
    w.wait("n3 to be Down", || state(w, "n3") == "Down");
    w.wait("gossip to miss n3", || gossiped(w, "n3") != "alive");
    let elsewhere = w.submit(&["--nodes", "2", "--", "/bin/true"]);
    w.completed(&elsewhere);
    assert_eq!(text(&w.status(&job), "state"), "Running");
    faults::heal_node(&w.dir, "n3").unwrap();
    w.wait("n3 to be Ready", || state(w, "n3") == "Ready");
    w.wait("gossip to have n3 back", || gossiped(w, "n3") == "alive");
    assert_eq!(text(&w.status(&job), "requeue_count"), "0");
    fs::write(&go, "").unwrap();
    w.completed(&job);
}

/// Work that prints at short intervals: a line with its attempt and the time in nanoseconds.
struct Beats {
    id: String,
    output: PathBuf,
    go: PathBuf,
}

impl Beats {
    fn submit(w: &World, on_isolation: &str) -> Self {
        let (output, go) = (w.dir.join(format!("said-{on_isolation}")), w.dir.join(format!("go-{on_isolation}")));
        [&output, &go].into_iter().for_each(|file| drop(fs::remove_file(file)));
        let line = format!("echo $LATTICE_REQUEUE_COUNT $(date +%s%N) >> {}", output.display());
        let script = format!("until [ -e {} ]; do {line}; sleep 0.05; done", go.display());
        let id = w.submit(&["--cores", "1", "--requeue", "--on-isolation", on_isolation, "--", "/bin/sh", "-c", &script]);
        Self { id, output, go }
    }

    /// Each line's attempt and time.
    fn lines(&self) -> Vec<(u64, u128)> {
        let text = fs::read_to_string(&self.output).unwrap_or_default();
        // The last line may be incomplete.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| line.split_once(' ').map(|(n, at)| (n.parse().unwrap(), at.parse().unwrap())).unwrap()).collect()
    }

    fn goes_on(&self, w: &World) {
        let before = self.lines().len();
        w.wait("it to go on", || self.lines().len() > before + 1);
    }

    /// It runs under this attempt, and all lines come after those of the previous one.
    fn is_at(&self, w: &World, attempt: u64) {
        let now = w.status(&self.id);
        assert_eq!((text(&now, "state").as_str(), text(&now, "requeue_count")), ("Running", attempt.to_string()), "{now}");
        let lines = self.lines();
        assert!(lines.iter().all(|(n, _)| *n <= attempt), "{lines:?}");
        let (last, first) = (lines.iter().filter(|(n, _)| *n < attempt), lines.iter().filter(|(n, _)| *n == attempt));
        let (last, first) = (last.map(|(_, at)| at).max(), first.map(|(_, at)| at).min());
        assert!(first.is_some() && last < first, "an attempt still ran at {last:?}, and the next began at {first:?}");
    }
}

fn both_ways(w: &World) {
    w.ok(&["node", "cordon", "n[1-2]", "--reason", "not for these"]);
    let works = [Beats::submit(w, "stop"), Beats::submit(w, "continue")];
    works.iter().for_each(|work| work.goes_on(w));
    w.ok(&["node", "uncordon", "n[1-2]"]);
    let [stops, continues] = &works;
    let cut = || faults::cut_node(&w.dir, "n3", &From::All, Direction::Both).unwrap();
    let heal = || {
        faults::heal_node(&w.dir, "n3").unwrap();
        w.wait("n3 to be Ready", || state(w, "n3") == "Ready");
    };
    // Healed within the grace of n3: neither work has noticed.
    cut();
    w.wait("n3 to be silent", || state(w, "n3") == "Degraded");
    heal();
    works.iter().for_each(|work| work.goes_on(w));
    works.iter().for_each(|work| work.is_at(w, 0));
    // Beyond the grace, `stop` work is restarted elsewhere after it was stopped; `continue` work goes on at n3.
    cut();
    w.wait("n3 to be Down", || state(w, "n3") == "Down");
    w.wait("what stops to run elsewhere", || stops.lines().last().is_some_and(|(attempt, _)| *attempt == 1));
    assert!(!w.status(&stops.id)["nodes"].to_string().contains("n3"), "{}", w.status(&stops.id));
    continues.goes_on(w);
    heal();
    w.wait("n3 to have removed what stopped", || shown(w, "n3")["allocations"] == serde_json::json!([continues.id]));
    works.iter().for_each(|work| work.goes_on(w));
    stops.is_at(w, 1);
    continues.is_at(w, 0);
    for (work, requeued) in works.iter().zip(["1", "0"]) {
        fs::write(&work.go, "").unwrap();
        assert_eq!(text(&w.completed(&work.id), "requeue_count"), requeued);
    }
}

/// The second node of a launch is cut for about as long as a run lease. Healed before the lapse, the launch continues;
/// between the lapse and the leader's fence, the node's report ends it.
fn lapsed(w: &World) {
    let go = w.dir.join("go-lapsed");
    let script = format!("echo up $LATTICE_REQUEUE_COUNT; until [ -e {} ]; do sleep 0.05; done", go.display());
    for (cut_ms, lapses) in [(4_300, false), (4_700, true), (4_800, true)] {
        let _ = fs::remove_file(&go);
        w.wait("every node to be Ready", || ["n1", "n2", "n3"].iter().all(|node| state(w, node) == "Ready"));
        w.ok(&["node", "cordon", "n3", "--reason", "not for this one"]);
        let job = w.submit(&["--nodes", "2", "--on-isolation", "stop", "--requeue", "--", "/bin/sh", "-c", &script]);
        w.wait("both of its ranks to run", || w.log(&job).matches("up 0").count() == 2);
        w.ok(&["node", "uncordon", "n3"]);
        assert_eq!(w.status(&job)["nodes"], serde_json::json!(["n1", "n2"]));
        faults::cut_node(&w.dir, "n2", &From::All, Direction::Both).unwrap();
        // Not a wait for an effect: this is how long the fault lasts.
        std::thread::sleep(Duration::from_millis(cut_ms));
        faults::heal_node(&w.dir, "n2").unwrap();
        if lapses {
            w.wait("it to be requeued, and not to be ended", || {
                let now = w.status(&job);
                assert!(!ended(&now), "{now}\n{}", w.log(&job));
                text(&now, "requeue_count") == "1" && text(&now, "state") == "Running"
            });
        }
        fs::write(&go, "").unwrap();
        let requeued = text(&w.completed(&job), "requeue_count");
        assert!(requeued == "1" || (!lapses && requeued == "0"), "{requeued}");
    }
}

fn crashes(w: &World) {
    let begun = w.dir.join("go-crash");
    let script = format!("echo up; until [ -e {} ]; do sleep 0.05; done", begun.display());
    // The tests use n1's agent.
    w.ok(&["node", "cordon", "n1", "--reason", "not for this one"]);
    let job = w.submit(&["--on-isolation", "stop", "--", "/bin/sh", "-c", &script]);
    w.wait_log(&job, "up");
    w.ok(&["node", "uncordon", "n1"]);
    let node = w.status(&job)["nodes"][0].as_str().unwrap().to_owned();
    let records = || w.ok(&["audit", "query", "--node", &node, "-o", "json"]).matches("\"seq\"").count();
    let before = records();
    for _ in 0..5 {
        faults::kill_node(&w.dir, &node).unwrap();
        faults::start_node(&w.dir, &node).unwrap();
    }
    // The node was Ready throughout: only the registration shows that the last agent is connected.
    w.wait("it to be registered, and Ready", || records() > before && state(w, &node) == "Ready");
    assert_eq!((text(&w.status(&job), "state").as_str(), text(&w.status(&job), "requeue_count").as_str()), ("Running", "0"));
    // One registration each, and at most one change of state in each direction.
    let made = records() - before;
    assert!((1..=15).contains(&made), "{made} records of five crashes");
    fs::write(&begun, "").unwrap();
    w.completed(&job);
}

/// An agent dies at each start before it has registered, and is restarted as by a supervisor.
fn loops(w: &World) {
    let (go, beats) = (w.dir.join("go-loop"), w.dir.join("beats-loop"));
    let script = format!("echo up; until [ -e {} ]; do echo . >> {}; sleep 0.05; done; echo over", go.display(), beats.display());
    w.ok(&["node", "cordon", "n1", "--reason", "not for this one"]);
    let job = w.submit(&["--", "/bin/sh", "-c", &script]);
    w.wait_log(&job, "up");
    w.ok(&["node", "uncordon", "n1"]);
    let node = w.status(&job)["nodes"][0].as_str().unwrap().to_owned();
    let beats = || fs::metadata(&beats).unwrap().len();
    faults::kill_node(&w.dir, &node).unwrap();
    let lasts = std::env::var("LATTICE_TEST_SECONDS").map_or(LOOPS, |seconds| LOOPS.max(Duration::from_secs(seconds.parse().unwrap())));
    let (since, mut seen) = (Instant::now(), Vec::new());
    while since.elapsed() < lasts {
        let before = beats();
        faults::begin_node(&w.dir, &node, &[], &[("LATTICE_FAILPOINT", "strays-swept")]).unwrap();
        assert!(until(Duration::from_secs(20), || !w.cluster().node(&node).unwrap().daemon.alive()), "it lives");
        assert!(until(Duration::from_secs(20), || beats() > before), "its work makes no progress");
        seen.push(state(w, &node));
        let now = w.status(&job);
        assert_eq!((text(&now, "state").as_str(), text(&now, "requeue_count").as_str()), ("Running", "0"), "{now}");
    }
    // Down, or Degraded for longer if others receive its gossip from time to time.
    seen.dedup();
    assert!(seen.len() <= 3 && ["Degraded", "Down"].contains(&seen.last().unwrap().as_str()), "{seen:?}");
    assert!(!seen[1..].contains(&"Ready".to_owned()), "{seen:?}");
    faults::start_node(&w.dir, &node).unwrap();
    w.wait("it to be Ready", || state(w, &node) == "Ready");
    let before = beats();
    w.wait("its work to go on", || beats() > before);
    fs::write(&go, "").unwrap();
    assert_eq!(text(&w.completed(&job), "requeue_count"), "0");
    assert_eq!(w.log(&job), "up\nover\n");
}

fn three_of_ten(w: &World) {
    let silent = ["n8", "n9", "n10"];
    silent.iter().for_each(|node| drop(faults::cut_node(&w.dir, node, &From::All, Direction::Both).unwrap()));
    w.wait("them to be Degraded", || silent.iter().all(|node| state(w, node) == "Degraded"));
    let held_back = || w.lattice.json(&["quorum", "status"]).unwrap()["held_back"].clone();
    w.wait("them to be held back", || held_back() == 3);
    let status = w.ok(&["quorum", "status"]);
    assert!(status.contains("3 nodes fell silent at once") && status.contains("confirm-dead"), "{status}");
    // Well after the time at which a single node would be Down.
    let since = Instant::now();
    w.wait("that time to be over", || {
        assert!(w.lattice.nodes().unwrap().iter().all(|(_, state)| state != "Down"));
        since.elapsed() > Duration::from_secs(12)
    });
    silent.iter().for_each(|node| drop(faults::heal_node(&w.dir, node).unwrap()));
    w.wait("them to be Ready", || silent.iter().all(|node| state(w, node) == "Ready"));
    w.wait("none to be held back", || held_back() == 0);
}
