//! Preemption: work saves itself, gives its nodes back, and continues elsewhere at the next step. Also: work that
//! ignores the request, a walltime that ends meanwhile, agents killed in each state, an unavailable quorum, and urgent
//! drains.

use crate::checkpoint::{CHAIN, Chain, behaviour, last, objects};
use crate::harness::{Group, JOB, NOBODY, World, in_lanes};
use crate::telemetry::get;
use crate::tty::Tty;
use lattice_lab::faults;
use lattice_lab::lattice::{Lattice, text};
use libtest_mimic::Trial;
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

/// Seconds between SIGTERM and SIGKILL.
const GRACE: u64 = 5;

static PREEMPTION: Group = Group { theme: "preemption", name: "preemption", nodes: 3, quorum: 1, tweak: |o| o.grace_seconds = GRACE };

/// A site with short timeouts.
static HASTY: Group = Group {
    theme: "preemption",
    name: "preemption-hasty",
    nodes: 1,
    quorum: 1,
    tweak: |o| o.agent_lines += "checkpoint: {timeout_seconds: 1, max_deferral_seconds: 0}\n",
};

/// A quorum that survives the loss of its leader.
static LED: Group = Group { theme: "preemption", name: "preemption-led", nodes: 2, quorum: 3, tweak: |o| o.grace_seconds = GRACE };

pub fn trials() -> Vec<Trial> {
    vec![
        PREEMPTION.test("saves_the_work_holds_it_and_resumes_it_elsewhere", &[], held_and_resumed),
        PREEMPTION.test("of_two_nodes_waits_for_nodes_again_by_itself", &[], two_nodes),
        PREEMPTION.test("ends_work_that_does_not_save_itself_by_its_policy", &[], ignores),
        PREEMPTION.test("is_for_owners_and_operators_and_of_work_that_has_nodes", &[], refused),
        PREEMPTION.test("is_done_when_its_heads_agent_was_killed_in_any_state", &[], every_point),
        PREEMPTION.test("goes_on_when_the_quorum_was_away_meanwhile", &[], quorum_away),
        PREEMPTION.test("and_a_request_are_done_when_the_quorum_and_the_heads_agent_were_killed_in_any_state", &[], all_away),
        PREEMPTION.test("at_walltime_work_that_is_saved_within_the_grace_is_suspended", &[], walltime_saved),
        PREEMPTION.test(
            "is_not_needed_at_walltime_because_work_is_asked_before_it_and_again_if_it_failed_to_save_itself",
            &[],
            asked_before_walltime,
        ),
        PREEMPTION.test("at_walltime_a_half_checkpoint_is_discarded", &[], walltime_lost),
        PREEMPTION.test("at_walltime_saved_work_is_suspended_when_its_heads_agent_was_killed", &[], walltime_killed),
        PREEMPTION.test("that_failed_is_reported_when_its_heads_agent_was_killed", &[], failed_and_killed),
        PREEMPTION.test("by_an_urgent_drain_saves_what_can_be_saved_and_waits_for_the_rest", &[], urgent_drain),
        // Tests with clusters of their own come last, so that the others share one.
        LED.test("goes_on_under_the_next_leader_when_one_is_killed_meanwhile", &[], leader_killed),
        HASTY.test("gives_the_sites_time_and_limits_deferrals_to_the_sites_maximum", &[], hasty),
    ]
}

fn state(w: &World, id: &str) -> String {
    text(&w.status(id), "state")
}

fn wait_for(w: &World, id: &str, wanted: &str) -> Value {
    w.wait(&format!("{id} to be {wanted}"), || state(w, id) == wanted);
    w.status(id)
}

/// The sum of a metric over all agents.
fn counted(w: &World, metric: &str) -> f64 {
    let cluster = w.cluster();
    let pages = cluster.nodes.iter().map(|node| get(&node.metrics, "/metrics", "").1);
    let of = |line: &str| line.starts_with(metric).then(|| line.rsplit(' ').next()?.parse::<f64>().ok()).flatten();
    pages.map(|page| page.lines().filter_map(of).sum::<f64>()).sum()
}

/// Whether no node has a part of any allocation.
fn nodes_are_free(w: &World) -> bool {
    let nodes = w.lattice.json(&["nodes"]).unwrap();
    nodes.as_array().unwrap().iter().all(is_free)
}

/// Whether a node of `lattice nodes` has no part of any allocation.
fn is_free(node: &Value) -> bool {
    node["allocations"].as_array().is_some_and(Vec::is_empty) && node["committed"]["cores"] == 0
}

/// The steps from which attempts continued.
fn restored(w: &World, id: &str) -> Vec<u64> {
    w.log(id).lines().filter_map(|l| l.strip_prefix("restored ")?.parse().ok()).collect()
}

/// A restarted attempt continued at the step after the saved one: no step from there on is repeated.
pub fn goes_on_from(w: &World, id: &str, step: u64) {
    w.wait_log(id, &format!("restored {step}\nbegun 0\nstep 0 {}\n", step + 1));
    let log = w.log(id);
    let (_, after) = log.rsplit_once("restored ").unwrap();
    let counted: Vec<u64> = after.lines().filter_map(|l| l.strip_prefix("step 0 ")?.parse().ok()).collect();
    assert!(counted.iter().zip(step + 1..).all(|(counted, wanted)| *counted == wanted), "{after}");
}

/// A terminal in the work, in which a shell answers.
fn attached(lattice: &Lattice, args: &[&str]) -> Tty {
    let mut terminal = Tty::start(lattice.command(&[&["attach"], args].concat()));
    terminal.asks("echo $((40 + 2))", "42");
    terminal
}

/// The step of the allocation's last checkpoint.
pub fn step_of_last(w: &World, id: &str) -> u64 {
    w.status(id)["checkpoint"]["step"].as_u64().unwrap()
}

fn held_and_resumed(w: &World) {
    let chain = Chain::submit(w, &[], &["--nodes", "1", "--requeue=never"]);
    let id = &chain.id;
    let before = w.status(id);
    let metrics = || {
        ["lattice_preemptions_total{", "lattice_preemption_checkpoint_duration_seconds_count", "lattice_preemption_victim_requeue_total"]
            .map(|metric| counted(w, metric))
    };
    let [ended, saved, requeued] = metrics();
    let by_the_other_name = || counted(w, "lattice_scheduling_preemptions_total{");
    let node = before["nodes"][0].as_str().unwrap().to_owned();
    let mut terminal = attached(&w.lattice, &[id]);
    let output = w.ok(&["preempt", id, "--hold", "--reason", "the nodes are needed"]);
    assert!(output.contains("Preempting"), "{output}");
    let now = wait_for(w, id, "Suspended");
    let shown = terminal.ended_with(129);
    assert!(shown.contains("Allocation preempted. Session suspended. Use 'lattice resume"), "{shown}");
    assert_eq!((now["held"].as_bool(), now["preempted_count"].as_u64(), now["requeue_count"].as_u64()), (Some(true), Some(1), Some(0)));
    assert_eq!((&now["submitted_at"], now["nodes"].as_array().unwrap().len()), (&before["submitted_at"], 0));
    let reason = text(&now, "reason");
    assert!(reason.contains("the nodes are needed") && reason.contains(&last(w, id)[..8]), "{reason}");
    w.wait("the nodes to be free", || nodes_are_free(w));
    // A page of metrics may be a second old.
    w.wait("it to be counted", || metrics()[..2] == [ended + 1.0, saved + 1.0]);
    w.wait("it to be counted by the documents' other name", || by_the_other_name() == ended + 1.0);
    assert_eq!(metrics()[2], requeued, "it waits for no nodes");
    w.ok(&["checkpoint", "verify", id]);
    let explained = w.ok(&["explain", id]);
    assert!(explained.contains("lattice resume"), "{explained}");
    // Its nodes upload its output once none of its processes run.
    let of_last = format!("is Suspended, and nothing of it runs. This is the output of its last attempt (epoch {})", before["epoch"]);
    w.wait("what it wrote to be read", || {
        let former = w.run(&["logs", id]);
        former.code() == 0 && former.out().contains("step 0 3\n") && former.err().contains(&of_last)
    });
    let following = {
        let (lattice, id) = (w.at("n2"), id.clone());
        std::thread::spawn(move || lattice.run(&["logs", "-f", &id], Duration::from_secs(120)).unwrap())
    };
    let listed = w.ok(&["status", "--state=suspended"]);
    assert!(listed.contains(&id[..8]), "{listed}");
    let step = step_of_last(w, id);
    // The work will continue from this checkpoint, so the checkpoint stays.
    let kept = w.run(&["checkpoint", "rm", id, &last(w, id)]);
    assert_eq!(kept.code(), 4, "{}", kept.err());
    w.ok(&["node", "cordon", "n1,n2,n3", "--reason", "the test's"]);
    w.ok(&["resume", id]);
    // A repeated request, as after a lost answer: the work waits for nodes already.
    w.ok(&["resume", id]);
    w.wait("it to be counted once among what waits", || metrics()[2] == requeued + 1.0);
    let others: Vec<&str> = ["n1", "n2", "n3"].into_iter().filter(|other| *other != node).collect();
    w.ok(&["node", "uncordon", &others.join(",")]);
    w.running(id);
    goes_on_from(w, id, step);
    // A repeated request while the work runs: it was resumed already.
    w.ok(&["resume", id]);
    let now = w.status(id);
    assert!(now["nodes"][0] != *node && now["held"] == false && now["preempted_count"] == 1, "{now}");
    let audit = w.ok(&["audit", "query", "--alloc", id]);
    for expected in ["PreemptRequested", "AllocationSuspended", "AllocationResumed"] {
        assert!(audit.contains(expected), "{audit}");
    }
    // The work is preempted again, and cancelled while it is suspended.
    w.ok(&["preempt", id, "--hold"]);
    assert_eq!(wait_for(w, id, "Suspended")["preempted_count"], 2);
    w.ok(&["cancel", id]);
    assert_eq!(text(&w.ended(id), "state"), "Cancelled");
    let followed = following.join().unwrap();
    let (of_first, of_second) =
        followed.out().split_once(&format!("restored {step}\n")).map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    assert!(of_first.contains("step 0 3\n") && of_second.contains(&format!("step 0 {}\n", step + 1)), "{}", followed.out());
    assert!(followed.err().contains("it began again"), "{}", followed.err());
    w.wait("what its last attempt wrote to be read", || w.run(&["logs", id]).out().contains(&format!("restored {step}\n")));
    w.ok(&["node", "uncordon", &node]);
    w.assert_nothing_left();
}

fn two_nodes(w: &World) {
    let chain = Chain::submit(w, &["STEPLESS=1"], &["--nodes", "2", "--requeue=never"]);
    let id = &chain.id;
    chain.behaves("wait");
    let other = w.status(id)["nodes"][1].as_str().unwrap().to_owned();
    w.ok(&["preempt", id, "--deadline", "60s"]);
    w.wait("both ranks to be asked", || w.log(id).matches("asked ").count() == 2);
    // Not the head's node: its agent continues with its part of the checkpoint.
    faults::kill_node(&w.dir, &other).unwrap();
    faults::start_node(&w.dir, &other).unwrap();
    let mut terminal = attached(&w.at(&other), &[id, "--node", &other]);
    chain.release();
    let shown = terminal.ended_with(129);
    let documented = format!("Allocation preempted. Session suspended. Use 'lattice attach {}' to reconnect after rescheduling.", &id[..8]);
    assert!(shown.contains(&documented), "{shown}");
    w.wait("it to run again", || {
        let now = w.status(id);
        text(&now, "state") == "Running" && now["preempted_count"] == 1
    });
    w.wait("both ranks to go on", || restored(w, id).len() == 2);
    chain.end(w);
    w.assert_nothing_left();
}

fn hasty(w: &World) {
    let chain = Chain::submit(w, &[], &["--requeue=never"]);
    chain.behaves("defer");
    let put_off = w.run(&["checkpoint", "create", &chain.id]);
    assert!(put_off.code() != 0 && put_off.err().contains("timed out"), "{} {}", put_off.code(), put_off.err());
    chain.behaves("ignore");
    w.ok(&["preempt", &chain.id, "--reason", "x"]);
    let over = w.ended(&chain.id);
    // The reason comes from the checkpoint or from its waiter: if nothing may be deferred, both have the same deadline.
    let reason = text(&over, "reason");
    assert!(reason.contains("did not answer within 1 s") || reason.contains("had not saved itself after 1 s"), "{over}");
    w.assert_nothing_left();
}

fn ignores(w: &World) {
    let chain = Chain::submit(w, &[], &["--nodes", "1", "--requeue=never"]);
    chain.create(w);
    chain.behaves("ignore");
    let begun = Instant::now();
    let unsaved = counted(w, "lattice_preemption_failed_checkpoint_total");
    w.ok(&["preempt", &chain.id, "--deadline", "1s", "--reason", "x"]);
    let over = w.ended(&chain.id);
    assert_eq!(counted(w, "lattice_preemption_failed_checkpoint_total"), unsaved + 1.0);
    assert!(begun.elapsed() >= Duration::from_millis(1500), "its time is extended by half: {:?}", begun.elapsed());
    let reason = text(&over, "reason");
    assert!(text(&over, "state") == "Failed" && reason.contains("preempted by") && reason.contains("did not answer within 1 s"), "{over}");
    // A later request with a shorter deadline does not wait for the first deadline.
    let hurried = Chain::submit(w, &[], &["--nodes", "1", "--requeue=never"]);
    hurried.behaves("wait");
    w.ok(&["preempt", &hurried.id, "--deadline", "10m", "--reason", "x"]);
    w.wait_log(&hurried.id, "asked ");
    w.ok(&["preempt", &hurried.id, "--deadline", "1s", "--reason", "fire"]);
    let over = w.ended(&hurried.id);
    assert!(text(&over, "reason").contains("had not saved itself after"), "{over}");
    let bare = w.submit(&["--", "/bin/sleep", "600"]);
    w.running(&bare);
    for how in [&["preempt", &bare[..]][..], &["preempt", "--hold", &bare]] {
        let unsure = w.run(how);
        assert!(unsure.code() == 4 && unsure.err().contains("would be lost") && unsure.err().contains("--kill"), "{}", unsure.err());
    }
    assert_eq!(state(w, &bare), "Running");
    w.ok(&["preempt", "--kill", &bare]);
    let over = w.ended(&bare);
    assert!(text(&over, "reason").contains("without --checkpoint"), "{over}");
    assert!(w.ok(&["explain", &bare]).contains("--checkpoint=signal"));
    // The requeue policy restarts the work from its beginning.
    let again = w.submit(&["--requeue=always", "--", "/bin/sleep", "600"]);
    w.running(&again);
    let waits = || counted(w, "lattice_preemption_victim_requeue_total");
    let before = waits();
    w.ok(&["preempt", "--kill", &again]);
    w.wait("it to be counted among what waits", || waits() == before + 1.0);
    w.wait("it to run again", || {
        let now = w.status(&again);
        text(&now, "state") == "Running" && now["requeue_count"] == 1
    });
    w.ok(&["cancel", &again]);
    w.ended(&again);
    w.assert_nothing_left();
}

fn refused(w: &World) {
    let chain = Chain::submit(w, &[], &["--nodes", "1"]);
    let id = &chain.id;
    let other = w.run_as(NOBODY, &["preempt", id]);
    assert!(other.code() == 4 && other.err().contains("belongs to"), "{}", other.err());
    let other = w.run_as(NOBODY, &["resume", id]);
    assert_eq!(other.code(), 4, "{}", other.err());
    let running = w.run(&["resume", id]);
    assert!(running.code() == 4 && running.err().contains("Running, and not held"), "{}", running.err());
    let waits = w.submit(&["--nodes", "9", "--wait-for-nodes", "--", "/bin/true"]);
    let pending = w.run(&["preempt", &waits]);
    assert!(pending.code() == 4 && pending.err().contains("no nodes to give back"), "{}", pending.err());
    w.ok(&["cancel", &waits]);
    let none = w.run(&["preempt", "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88"]);
    assert_eq!(none.code(), 3, "{}", none.err());
    assert_eq!(state(w, id), "Running");
    let never = w.run_as(NOBODY, &["submit", "-o", "name", "--no-preempt", "--", "/bin/sleep", "600"]).out();
    w.running(never.trim());
    let exempt = w.run(&["preempt", never.trim()]);
    assert!(exempt.code() == 4 && exempt.err().contains("its preemption class is 10, which nothing preempts"), "{}", exempt.err());
    w.ok(&["cancel", never.trim()]);
    chain.end(w);
    let over = w.run(&["preempt", id]);
    assert!(over.code() == 4 && over.err().contains("Completed"), "{}", over.err());
}

/// The head's failpoints from the request to the release of the nodes.
const POINTS: &[&str] = &[
    "preempt-begun",
    "save-begun",
    "save-saving-written",
    "save-deferred-written",
    "save-asked",
    "save-put",
    "save-committing-written",
    "save-end-unwritten",
    "preempt-saved",
    "stopping-unwritten",
    "stopping-written",
    "stop-sent",
    "ended-report-unsent",
    "ended-report-sent",
    "undoing-written",
    "gone-unwritten",
    "released-report-sent",
];

/// On two nodes at once; the caller uses the agent of n3, which is not killed.
fn every_point(w: &World) {
    let caller = w.at("n3");
    let program = w.script("chain.sh", CHAIN);
    in_lanes(&["n1", "n2"], POINTS.to_vec(), |node, point| killed_at(w, &caller, &program, node, point));
    w.assert_nothing_left();
}

fn killed_at(w: &World, caller: &Lattice, program: &str, node: &str, point: &str) {
    let go = crate::harness::fresh_dir("chain-go");
    if point == "save-deferred-written" {
        std::fs::write(behaviour(&go), "defer\n").unwrap();
    }
    let variable = format!("GO={}", go.display());
    let args = ["-w", node, "--requeue=never", "--checkpoint=signal", "--env", &variable, "--", "/bin/sh", program];
    let id = caller.ok(&[&["submit", "-o", "name"][..], &args].concat()).unwrap();
    let id = id.trim();
    let log = || caller.run(&["logs", id], JOB).unwrap().out();
    w.wait(&format!("{point}: it to count"), || log().contains("step 0 3\n"));
    faults::kill_node(&w.dir, node).unwrap();
    faults::begin_node(&w.dir, node, &[], &[("LATTICE_FAILPOINT", point)]).unwrap();
    caller.ok(&["preempt", id, "--hold", "--deadline", "20s"]).unwrap_or_else(|e| panic!("{point}: {e:#}"));
    w.wait(&format!("the agent to come to {point}"), || !w.cluster().node(node).unwrap().daemon.alive());
    faults::start_node(&w.dir, node).unwrap();
    let mut now = Value::Null;
    w.wait(&format!("{point}: it to be suspended"), || {
        now = caller.json(&["status", id]).unwrap_or_default();
        text(&now, "state") == "Suspended"
    });
    let step = now["checkpoint"]["step"].as_u64().unwrap_or_else(|| panic!("{point}: {now}"));
    assert_eq!((now["preempted_count"].as_u64(), now["held"].as_bool()), (Some(1), Some(true)), "{point}");
    w.wait(&format!("{point}: its node to be free"), || {
        let nodes = caller.json(&["nodes"]).unwrap_or_default();
        nodes.as_array().is_some_and(|nodes| nodes.iter().any(|n| text(n, "id") == node && is_free(n)))
    });
    caller.ok(&["resume", id]).unwrap_or_else(|e| panic!("{point}: {e:#}"));
    w.wait(&format!("{point}: it to go on"), || log().contains(&format!("restored {step}\nbegun 0\nstep 0 {}\n", step + 1)));
    std::fs::write(&go, "").unwrap();
    let over = caller.ended_within(id, JOB).unwrap();
    assert_eq!(text(&over, "state"), "Completed", "{point}: {over}");
    let _ = std::fs::remove_file(&go);
    let _ = std::fs::remove_file(behaviour(&go));
}

fn quorum_away(w: &World) {
    let chain = Chain::submit(w, &[], &["--nodes", "1"]);
    let id = &chain.id;
    chain.behaves("wait");
    let node = w.status(id)["nodes"][0].as_str().unwrap().to_owned();
    w.ok(&["preempt", id, "--hold", "--deadline", "60s"]);
    w.wait_log(id, "asked ");
    faults::kill_member(&w.dir, 1).unwrap();
    // The head's agent is killed as well: then only its own records contain the request.
    faults::kill_node(&w.dir, &node).unwrap();
    faults::begin_node(&w.dir, &node, &[], &[]).unwrap();
    let local = || w.at(&node).json(&["node", "status"]);
    w.wait("the agent to answer", || local().is_ok_and(|s| s["allocations"][0]["shim_pid"].is_i64()));
    chain.release();
    w.wait("the checkpoint to be whole in the store", || manifests(w, id) == 1);
    assert_eq!(text(&local().unwrap()["allocations"][0], "phase"), "Running", "nobody knows of it yet: it goes on");
    faults::start_member(&w.dir, 1).unwrap();
    wait_for(w, id, "Suspended");
    w.wait("the nodes to be free", || nodes_are_free(w));
    let step = step_of_last(w, id);
    w.ok(&["resume", id]);
    w.running(id);
    goes_on_from(w, id, step);
    chain.end(w);
    w.assert_nothing_left();
}

/// One failpoint for each state of the head: deferred, asked, completely in the store, and complete.
const STATES: &[&str] = &["save-deferred-written", "save-begun", "save-verifying-written", "save-committing-written"];

/// One allocation is preempted and one only gets a checkpoint request; their heads' agents are killed in the same
/// state. The quorum is killed there as well, and stays down until both checkpoints are complete in the store.
fn all_away(w: &World) {
    w.ok(&["node", "cordon", "n3", "--reason", "the caller's"]);
    let caller = w.at("n3");
    let [preempted, asked] = [(); 2].map(|()| Chain::submit(w, &[], &["--nodes", "1", "--requeue=never"]));
    let both = [&preempted, &asked];
    for (made, point) in STATES.iter().enumerate() {
        // A program defers once in its life.
        let how = if *point == "save-deferred-written" { "defer" } else { "save" };
        for chain in both {
            chain.behaves(how);
            let node = caller.json(&["status", &chain.id]).unwrap()["nodes"][0].as_str().unwrap().to_owned();
            faults::kill_node(&w.dir, &node).unwrap();
            faults::begin_node(&w.dir, &node, &[], &[("LATTICE_FAILPOINT", point)]).unwrap();
        }
        caller.ok(&["preempt", &preempted.id, "--hold", "--deadline", "60s"]).unwrap_or_else(|e| panic!("{point}: {e:#}"));
        let asking = {
            let (caller, id) = (caller.clone(), asked.id.clone());
            std::thread::spawn(move || caller.run(&["checkpoint", "create", &id, "--deadline", "60s"], Duration::from_secs(90)).unwrap())
        };
        let dead = || w.cluster().nodes.iter().filter(|node| !node.daemon.alive()).map(|node| node.id.clone()).collect::<Vec<_>>();
        w.wait(&format!("both agents to come to {point}"), || dead().len() == 2);
        faults::kill_member(&w.dir, 1).unwrap();
        for node in dead() {
            faults::start_node(&w.dir, &node).unwrap();
        }
        for chain in both {
            w.wait(&format!("{point}: it to be whole in the store"), || manifests(w, &chain.id) == made + 1);
        }
        assert!(!asking.is_finished(), "{point}: the quorum does not have it");
        faults::start_member(&w.dir, 1).unwrap();
        let done = asking.join().unwrap();
        assert_eq!(done.code(), 0, "{point}: {}", done.err());
        let suspended = |now: Value| text(&now, "state") == "Suspended";
        w.wait(&format!("{point}: it to be suspended"), || caller.json(&["status", &preempted.id]).is_ok_and(suspended));
        assert_eq!(state(w, &asked.id), "Running", "{point}");
        both.iter().for_each(|chain| drop(w.ok(&["checkpoint", "verify", &chain.id])));
        let step = step_of_last(w, &preempted.id);
        w.ok(&["resume", &preempted.id]);
        w.running(&preempted.id);
        goes_on_from(w, &preempted.id, step);
    }
    assert_eq!(w.status(&preempted.id)["preempted_count"], STATES.len());
    both.iter().for_each(|chain| chain.end(w));
    w.ok(&["node", "uncordon", "n3"]);
    w.assert_nothing_left();
}

/// The number of its complete checkpoints in the store.
fn manifests(w: &World, id: &str) -> usize {
    let all = std::fs::read_dir(objects(w, id, "")).into_iter().flatten().flatten();
    all.filter(|entry| entry.path().join("manifest.json").exists()).count()
}

fn leader_killed(w: &World) {
    let chain = Chain::submit(w, &["STEPLESS=1"], &["--nodes", "1", "--requeue=never"]);
    let id = &chain.id;
    chain.behaves("wait");
    w.ok(&["preempt", id, "--deadline", "60s"]);
    w.wait_log(id, "asked ");
    let leader = w.leader();
    faults::kill_member(&w.dir, leader).unwrap();
    chain.release();
    w.wait("it to run again", || {
        let now = w.run(&["status", id, "-o", "json"]);
        let now: Value = serde_json::from_str(&now.out()).unwrap_or_default();
        now["state"] == "Running" && now["preempted_count"] == 1
    });
    w.wait("it to go on", || restored(w, id).len() == 1);
    assert_ne!(w.leader(), leader);
    faults::start_member(&w.dir, leader).unwrap();
    chain.end(w);
    w.assert_nothing_left();
}

/// Requests a checkpoint and ignores the result.
fn asks(lattice: Lattice, id: &str) -> std::thread::JoinHandle<()> {
    let id = id.to_owned();
    std::thread::spawn(move || drop(lattice.run(&["checkpoint", "create", &id, "--deadline", "60s"], JOB)))
}

/// Requests a checkpoint of work that then waits until it is notified of the end of its walltime.
fn asked_at_walltime(w: &World, nodes: &str) -> (Chain, std::thread::JoinHandle<()>) {
    let chain = Chain::submit(w, &["STEPLESS=1"], &["--nodes", nodes, "--walltime=6s", "--requeue=always"]);
    chain.behaves("wait");
    let asking = asks(w.lattice.clone(), &chain.id);
    w.wait("its walltime to be over", || w.log(&chain.id).matches("told to end").count().to_string() == nodes);
    (chain, asking)
}

fn walltime_saved(w: &World) {
    let conflicts = counted(w, "lattice_checkpoint_walltime_conflict_total");
    let (chain, asking) = asked_at_walltime(w, "2");
    let id = &chain.id;
    assert_eq!(state(w, id), "Running", "it has its grace");
    w.wait("it to be counted", || counted(w, "lattice_checkpoint_walltime_conflict_total") == conflicts + 1.0);
    chain.release();
    let now = wait_for(w, id, "Suspended");
    asking.join().unwrap();
    assert!(text(&now, "reason").starts_with("walltime_exceeded; saved as checkpoint"), "{now}");
    assert_eq!((now["held"].as_bool(), now["preempted_count"].as_u64()), (Some(true), Some(0)));
    w.wait("the nodes to be free", || nodes_are_free(w));
    w.ok(&["checkpoint", "verify", id]);
    w.ok(&["resume", id]);
    w.wait("both ranks to go on", || restored(w, id).len() == 2);
    chain.end(w);
    w.assert_nothing_left();
}

/// The number of files below a directory.
fn files(below: &Path) -> usize {
    let all = std::fs::read_dir(below).into_iter().flatten().flatten().map(|e| e.path());
    all.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
}

/// The agent is killed between the end of the checkpoint and the end of the work, or while the walltime waits for the
/// checkpoint. Two jobs wait for their walltimes at once.
fn walltime_killed(w: &World) {
    let caller = w.at("n3");
    let submit = |node: &str, walltime: &str| Chain::submit(w, &[], &["-w", node, walltime, "--requeue=never"]);
    // Eight seconds apart, so that the first agent has been started again when the second one is killed.
    let jobs = [("n1", "save-end-written", submit("n1", "--walltime=14s")), ("n2", "walltime-awaits-save", submit("n2", "--walltime=22s"))];
    let mut asking = Vec::new();
    for (node, point, chain) in &jobs {
        chain.behaves("wait");
        faults::kill_node(&w.dir, node).unwrap();
        faults::begin_node(&w.dir, node, &[], &[("LATTICE_FAILPOINT", *point)]).unwrap();
        asking.push(asks(caller.clone(), &chain.id));
    }
    for (node, point, chain) in &jobs {
        if *point == "save-end-written" {
            let log = || caller.run(&["logs", &chain.id], JOB).unwrap().out();
            w.wait("its walltime to be over", || log().contains("told to end"));
            chain.release();
        }
        w.wait(&format!("the agent to come to {point}"), || !w.cluster().node(node).unwrap().daemon.alive());
        chain.release();
        faults::start_node(&w.dir, node).unwrap();
    }
    for (_, point, chain) in &jobs {
        let now = wait_for(w, &chain.id, "Suspended");
        assert!(text(&now, "reason").starts_with("walltime_exceeded; saved as checkpoint"), "{point}: {now}");
    }
    asking.into_iter().for_each(|asked| asked.join().unwrap());
    w.wait("the nodes to be free", || nodes_are_free(w));
    for (_, _, chain) in &jobs {
        let step = step_of_last(w, &chain.id);
        w.ok(&["resume", &chain.id]);
        w.running(&chain.id);
        goes_on_from(w, &chain.id, step);
        chain.end(w);
    }
    w.assert_nothing_left();
}

/// Without a request, the head asks the work a tenth of the walltime before its end, even if its agent is killed then.
/// Work that failed to save itself is asked again. Three jobs wait for their ends at once.
fn asked_before_walltime(w: &World) {
    let submit = |node: &str| Chain::submit(w, &[], &["-w", node, "--walltime=30s", "--requeue=never"]);
    let (asked, killed) = (submit("n1"), submit("n2"));
    faults::kill_node(&w.dir, "n2").unwrap();
    faults::begin_node(&w.dir, "n2", &[], &[("LATTICE_FAILPOINT", "walltime-warned")]).unwrap();
    let failing = submit("n3");
    // From now on the duration of a checkpoint is known: the work is asked early enough for two requests.
    w.ok(&["checkpoint", "create", &failing.id]);
    let first = last(w, &failing.id);
    failing.behaves("lie-once");
    w.wait("the agent to come to it", || !w.cluster().node("n2").unwrap().daemon.alive());
    faults::start_node(&w.dir, "n2").unwrap();
    for (name, chain) in [("asked", &asked), ("killed", &killed), ("failing", &failing)] {
        let over = wait_for(w, &chain.id, "Suspended");
        assert!(text(&over, "reason").starts_with("walltime_exceeded; saved as checkpoint"), "{name}: {over}");
        assert_eq!((over["held"].as_bool(), over["preempted_count"].as_u64()), (Some(true), Some(0)), "{name}: {over}");
    }
    w.wait("the nodes to be free", || nodes_are_free(w));
    assert!(failing.behaved() && last(w, &failing.id) != first, "{}", w.status(&failing.id));
    w.ok(&["checkpoint", "verify", &failing.id]);
    w.ok(&["cancel", &failing.id]);
    w.ended(&failing.id);
    for chain in [&asked, &killed] {
        let id = &chain.id;
        assert_eq!(w.lattice.json(&["checkpoint", "list", id]).unwrap().as_array().unwrap().len(), 1, "it is asked once");
        let step = step_of_last(w, id);
        w.ok(&["resume", id]);
        w.running(id);
        goes_on_from(w, id, step);
        chain.end(w);
    }
    w.assert_nothing_left();
}

fn walltime_lost(w: &World) {
    let chain = Chain::submit(w, &["STEPLESS=1"], &["--nodes", "2", "--walltime=8s", "--requeue=always"]);
    let id = &chain.id;
    // One node saves itself, the other never answers the request.
    chain.behaves("half");
    let asking = asks(w.lattice.clone(), id);
    w.wait("one node's part to be in the store", || files(&objects(w, id, "")) > 0);
    let kept = w.dir.join("objects/.kept").join(format!("{id}.json"));
    assert!(kept.exists(), "files that no manifest will name are kept too");
    let over = w.ended(id);
    asking.join().unwrap();
    assert_eq!((text(&over, "state"), text(&over, "reason")), ("Failed".to_owned(), "walltime_exceeded".to_owned()), "{over}");
    assert!(over["checkpoint"].is_null(), "{over}");
    w.wait("the half checkpoint to be removed", || files(&objects(w, id, "")) == 0);
    w.assert_nothing_left();
}

fn failed_and_killed(w: &World) {
    w.ok(&["node", "cordon", "n3", "--reason", "the caller's"]);
    let caller = w.at("n3");
    for point in ["preempt-failed-unsent", "preempt-failed-sent"] {
        let deaf = w.submit(&["--checkpoint=signal", "--requeue=never", "--", "/bin/sleep", "600"]);
        w.running(&deaf);
        let node = w.status(&deaf)["nodes"][0].as_str().unwrap().to_owned();
        faults::kill_node(&w.dir, &node).unwrap();
        faults::begin_node(&w.dir, &node, &[], &[("LATTICE_FAILPOINT", point)]).unwrap();
        caller.ok(&["node", "drain", &node, "--urgent", "--yes", "--reason", "fire"]).unwrap();
        w.wait(&format!("the agent to come to {point}"), || !w.cluster().node(&node).unwrap().daemon.alive());
        faults::start_node(&w.dir, &node).unwrap();
        let now = || caller.json(&["status", &deaf]).unwrap();
        w.wait(&format!("{point}: the reason to be shown"), || now()["preemption"].is_string_and_has("does not catch SIGUSR1"));
        assert_eq!(text(&now(), "state"), "Running", "{point}");
        w.ok(&["cancel", &deaf]);
        w.ended(&deaf);
        // The drain ends a moment after the work.
        w.wait("the node to be drained", || w.ok(&["node", "list", "--state=drained", "-o", "name"]).trim() == node);
        w.ok(&["node", "undrain", &node]);
    }
    w.ok(&["node", "uncordon", "n3"]);
    w.assert_nothing_left();
}

fn urgent_drain(w: &World) {
    let chain = Chain::submit(w, &[], &["--nodes", "1", "--requeue=never"]);
    let deaf = w.submit(&["--checkpoint=signal", "--requeue=never", "--", "/bin/sleep", "600"]);
    w.running(&deaf);
    let on = |id: &str| w.status(id)["nodes"][0].as_str().unwrap_or_default().to_owned();
    let (first, second) = (on(&chain.id), on(&deaf));
    assert_ne!(first, second);
    let both = format!("{first},{second}");
    let unsure = w.run(&["node", "drain", &both, "--urgent", "--reason", "fire"]);
    assert!(unsure.code() == 2 && unsure.err().contains("--yes"), "{}", unsure.err());
    w.ok(&["node", "drain", &both, "--urgent", "--yes", "--reason", "fire"]);
    w.wait("it to run elsewhere", || state(w, &chain.id) == "Running" && ![first.clone(), second.clone()].contains(&on(&chain.id)));
    let step = step_of_last(w, &chain.id);
    goes_on_from(w, &chain.id, step);
    assert_eq!(w.status(&chain.id)["preempted_count"], 1);
    // Work that cannot save itself continues, and the reason is shown; the drain waits for it.
    w.wait("the reason to be shown", || w.status(&deaf)["preemption"].is_string_and_has("does not catch SIGUSR1"));
    assert_eq!(state(w, &deaf), "Running");
    let waits = w.ok(&["node", "status", &second]);
    assert!(waits.contains("could not save itself"), "{waits}");
    // With a deadline it is ended at the deadline.
    let done = w.run(&["node", "drain", &both, "--urgent", "--yes", "--reason", "fire", "--deadline", "2s", "--wait"]);
    assert!(done.code() == 0 && done.out().contains(&format!("Node {second} is Drained")), "{} {}", done.out(), done.err());
    assert!(text(&w.ended(&deaf), "reason").contains("drain_deadline"));
    chain.end(w);
    w.ok(&["node", "undrain", &both]);
    // The drain is cancelled meanwhile: its requests to work are not undone, and a message says so.
    let slow = Chain::submit(w, &[], &["--nodes", "1", "--requeue=never"]);
    slow.behaves("wait");
    let node = on(&slow.id);
    w.ok(&["node", "drain", &node, "--urgent", "--yes", "--reason", "wrong node"]);
    w.wait_log(&slow.id, "asked ");
    let lifted = w.run(&["node", "undrain", &node]);
    assert!(lifted.code() == 0 && lifted.err().contains("has already asked"), "{} {}", lifted.out(), lifted.err());
    assert!(lifted.err().contains(&slow.id[..8]), "{}", lifted.err());
    assert_eq!(w.ok(&["node", "list", "--state=ready", &node, "-o", "name"]).trim(), node);
    assert!(w.status(&slow.id)["preemption"].is_string_and_has("being preempted by root"));
    w.ok(&["cancel", &slow.id]);
    w.ended(&slow.id);
    w.assert_nothing_left();
}

/// For a field that may be null.
trait Has {
    fn is_string_and_has(&self, piece: &str) -> bool;
}

impl Has for Value {
    fn is_string_and_has(&self, piece: &str) -> bool {
        self.as_str().is_some_and(|text| text.contains(piece))
    }
}
