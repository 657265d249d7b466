//! Operations on nodes: drains, holds with an end, nodes that are disabled and booted.

use crate::harness::{Group, JOB, NOBODY, Need, World};
use crate::hung::HungMount;
use crate::recovery::rebooted_agent;
use lattice_lab::lattice::text;
use lattice_lab::{faults, process};
use lattice_model::Timestamp;
use libtest_mimic::Trial;
use serde_json::Value;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, SystemTime};

static LIFECYCLE: Group =
    Group { theme: "lifecycle", name: "lifecycle", nodes: 3, quorum: 1, tweak: |o| "node_boot_ms: 3000\n".clone_into(&mut o.member_lines) };

pub fn trials() -> Vec<Trial> {
    vec![
        LIFECYCLE.test("a_drain_waits_for_the_job_and_outlives_its_agent_until_it_is_lifted", &[], drain),
        LIFECYCLE.test("a_drain_that_cannot_end_names_process_state_and_mount", &[Need::Fuse], stuck),
        LIFECYCLE.test("failed_work_is_requeued_as_often_as_requested_and_at_most_a_hundred_times", &[], requeues),
        LIFECYCLE.test("a_cordon_ends_by_itself_and_what_was_refused_is_named", &[], cordon),
        LIFECYCLE.test("a_disabled_nodes_job_goes_elsewhere_and_past_a_deadline_it_does_again", &[], disable),
        LIFECYCLE.test("a_booted_node_is_back_under_another_boot_id_or_failed", &[], boot),
        LIFECYCLE.test("a_removed_node_is_refused_until_it_is_admitted_and_what_it_ran_stays_readable", &[], removed),
    ]
}

fn node(w: &World, name: &str) -> Value {
    w.lattice.json(&["nodes", name]).unwrap()
}

fn wait_for(w: &World, name: &str, state: &str) {
    w.wait(&format!("{name} to be {state}"), || text(&node(w, name), "state") == state);
}

fn listed(w: &World, more: &[&str]) -> Vec<String> {
    w.ok(&[&["node", "list", "-o", "name"], more].concat()).lines().map(str::to_owned).collect()
}

fn refused(w: &World, args: &[&str], code: i32, pieces: &[&str]) {
    let done = w.run(args);
    assert_eq!(done.code(), code, "`lattice {}`: {}{}", args.join(" "), done.out(), done.err());
    for piece in pieces {
        assert!(done.err().contains(piece), "`lattice {}` should say {piece:?}: {}", args.join(" "), done.err());
    }
}

/// A job that records its process and runs until a file exists.
struct Job {
    id: String,
    pids: PathBuf,
    end: PathBuf,
}

impl Job {
    /// On n3: the other nodes are cordoned until it runs.
    fn on_n3(w: &World, name: &str, more: &[&str]) -> Self {
        let (pids, end) = (w.dir.join(format!("{name}.pids")), w.dir.join(format!("{name}.end")));
        let text = format!("echo $$ >> {}; while [ ! -e {} ]; do sleep 0.1; done", pids.display(), end.display());
        w.ok(&["node", "cordon", "n[1-2]", "--reason", "a job for n3"]);
        let id = w.submit(&[more, &["--", "/bin/sh", "-c", &text]].concat());
        let job = Self { id, pids, end };
        w.running(&job.id);
        w.ok(&["node", "uncordon", "n[1-2]"]);
        assert_eq!(job.nodes(w), ["n3"]);
        job.wait_for_starts(w, 1);
        job
    }

    fn nodes(&self, w: &World) -> Vec<String> {
        let now = w.status(&self.id);
        now["nodes"].as_array().unwrap().iter().map(|n| n.as_str().unwrap().to_owned()).collect()
    }

    fn started(&self) -> Vec<i32> {
        fs::read_to_string(&self.pids).unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect()
    }

    fn wait_for_starts(&self, w: &World, many: usize) {
        w.wait(&format!("start {many} of the job"), || self.started().len() == many);
    }

    fn end(&self, w: &World) {
        File::create(&self.end).unwrap();
        w.completed(&self.id);
    }
}

/// `lattice` in the background, with its stderr in a file.
fn begin(w: &World, args: &[&str]) -> (Child, PathBuf) {
    let stderr_file = w.dir.join("said");
    let mut command = w.lattice.command(args);
    (command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&stderr_file).unwrap()).spawn().unwrap(), stderr_file)
}

fn history(w: &World, name: &str) -> Vec<(String, String)> {
    let records = w.lattice.json(&["node", "history", name]).unwrap();
    records.as_array().unwrap().iter().map(|r| (text(r, "action"), text(r, "detail"))).collect()
}

/// Checks that the node's history has these in this order; others may be in between.
fn in_order(w: &World, name: &str, wanted: &[(&str, &str)]) {
    let all = history(w, name);
    let mut left = all.iter();
    for (action, detail) in wanted {
        assert!(left.any(|(a, d)| a == action && d.starts_with(detail)), "{action} {detail:?} is not there, or not in order: {all:#?}");
    }
}

fn drain(w: &World) {
    let job = Job::on_n3(w, "drained", &[]);
    // The documented form of the command.
    assert!(w.ok(&["admin", "drain", "n3", "--reason", "disk"]).contains("lattice node undrain n3"));
    assert_eq!(text(&node(w, "n3"), "state"), "Draining");
    for place in ["n1", "n3"] {
        let waits = w.at(place).ok(&["node", "status", "n3"]).unwrap();
        assert!(waits.contains(&job.id[..8]) && waits.contains("root") && waits.contains("runs"), "{waits}");
    }
    // A cancelled drain, repeated, has only its new reason.
    assert_eq!(w.ok(&["node", "undrain", "n3"]), "The drain of node n3 is lifted\n");
    assert_eq!((text(&node(w, "n3"), "state"), text(&w.status(&job.id), "state")), ("Ready".into(), "Running".into()));
    w.ok(&["node", "drain", "n3", "--reason", "disc"]);
    w.ok(&["node", "drain", "n3", "--reason", "disk"]);
    assert_eq!(text(&node(w, "n3"), "state"), "Draining");
    for verb in ["drain", "quarantine", "cordon"] {
        let done = w.run_as(NOBODY, &["node", verb, "n3", "--reason", "x"]);
        assert!(done.code() == 4 && done.err().contains("operator"), "{}", done.err());
    }
    // New work avoids it.
    let around = w.completed(&w.submit(&["--nodes", "2", "--", "/bin/true"]));
    assert!(!around["nodes"].to_string().contains("n3"), "{around}");
    let (mut waiting, stderr_file) = begin(w, &["node", "drain", "n3", "--reason", "fan", "--wait"]);
    w.wait("it to say what for", || fs::read_to_string(&stderr_file).unwrap().contains(&job.id[..8]));
    assert!(waiting.try_wait().unwrap().is_none(), "it waits");
    job.end(w);
    w.wait("the drain to be over", || waiting.try_wait().unwrap().is_some());
    let over = waiting.wait_with_output().unwrap();
    assert!(over.status.success() && String::from_utf8_lossy(&over.stdout).contains("Node n3 is Drained"), "{over:?}");
    assert_eq!(listed(w, &["--state", "drained"]), ["n3"]);
    assert_eq!(listed(w, &["n[2-3]", "--hold", "drain"]), ["n3"]);
    // A registration does not lift it.
    let registrations = |w: &World| history(w, "n3").iter().filter(|(action, _)| action == "NodeRegistered").count();
    let before = registrations(w);
    faults::kill_node(&w.dir, "n3").unwrap();
    faults::start_node(&w.dir, "n3").unwrap();
    w.wait("its registration", || registrations(w) > before);
    assert_eq!(text(&node(w, "n3"), "state"), "Drained");
    // The same person's newer reason replaces the older; a repetition without a reason changes nothing.
    let holds = || node(w, "n3")["holds"][0].as_str().unwrap_or_default().to_owned();
    assert!(holds().starts_with("drain by root@n1 since ") && holds().ends_with(": fan"), "{}", holds());
    assert!(w.ok(&["node", "status", "n3"]).contains(": fan"));
    w.ok(&["node", "drain", "n3"]);
    assert!(holds().ends_with(": fan"), "{}", holds());
    w.ok(&["admin", "undrain", "n3"]);
    assert_eq!(text(&node(w, "n3"), "state"), "Ready");
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
    let wanted = [
        ("HoldSet", "drain: disk"),
        ("NodeStateChanged", "Ready -> Draining"),
        ("HoldSet", "drain: fan"),
        ("NodeStateChanged", "Draining -> Drained"),
        ("NodeRegistered", ""),
        ("HoldLifted", "drain"),
        ("NodeStateChanged", "Drained -> Ready"),
    ];
    in_order(w, "n3", &wanted);
    let of_user = w.run_as(NOBODY, &["node", "history", "n3"]);
    assert!(of_user.code() == 3 && of_user.err().contains("that you may see"), "{}", of_user.err());
    refused(w, &["node", "history", "n9"], 3, &["n9"]);
}

fn stuck(w: &World) {
    let hung = HungMount::new(&w.dir.join("hung"));
    w.ok(&["node", "cordon", "n[1-2]", "--reason", "a job for n3"]);
    let script = format!("cd {} && exec cat data", hung.dir.display());
    let job = w.submit(&["--requeue=never", "--", "/bin/sh", "-c", &script]);
    w.wait("it to read", || hung.is_read());
    w.ok(&["node", "uncordon", "n[1-2]"]);
    let (mut waiting, stderr_file) = begin(w, &["node", "drain", "n3", "--reason", "disk", "--deadline", "1s", "--wait"]);
    let mount = format!("with files on {} (fuse)", hung.dir.display());
    let names = |output: &str| ["pid ", ", state D", &mount, &job[..8]].iter().all(|piece| output.contains(piece));
    w.wait("it to say what it waits for", || names(&fs::read_to_string(&stderr_file).unwrap()));
    for place in ["n1", "n3"] {
        let output = w.at(place).ok(&["node", "status", "n3"]).unwrap();
        assert!(names(&output) && output.contains("ended, not released"), "{place}: {output}");
    }
    assert!(text(&node(w, "n3"), "state") == "Draining" && waiting.try_wait().unwrap().is_none(), "it waits");
    assert_eq!(text(&w.status(&job), "state"), "Failed", "whoever waits for the job does not wait for its process");
    drop(hung);
    w.wait("the drain to be over", || waiting.try_wait().unwrap().is_some());
    assert_eq!(listed(w, &["--state", "drained"]), ["n3"]);
    w.ok(&["node", "undrain", "n3"]);
    w.assert_nothing_left();
}

fn requeues(w: &World) {
    refused(w, &["submit", "--max-requeues", "101", "--", "/bin/true"], 2, &["101", "1..=100"]);
    let script = w.script("requeues.sh", "#!/bin/sh\n#LATTICE max_requeues=101\ntrue\n");
    refused(w, &["submit", &script], 2, &["line 2", "101"]);
    let fails = |more: &[&str]| {
        let id = w.submit(&[&["--cores", "1"], more, &["--", "/bin/sh", "-c", "echo attempt $LATTICE_REQUEUE_COUNT; exit 3"]].concat());
        let ended = w.ended(&id);
        assert_eq!((text(&ended, "state").as_str(), text(&ended, "exit_code").as_str()), ("Failed", "3"), "{ended}");
        let count = text(&ended, "requeue_count");
        assert!(w.log(&id).contains(&format!("attempt {count}\n")), "{}", w.log(&id));
        count
    };
    assert_eq!([fails(&["--requeue=always", "--max-requeues", "1"]), fails(&["--max-requeues", "1"])], ["1", "0"]);
    w.completed(&w.submit(&["--cores", "1", "--max-requeues", "100", "--", "/bin/true"]));
}

fn cordon(w: &World) {
    let set = w.ok(&["node", "cordon", "n[2-3]", "--reason", "fan", "--for", "3s"]);
    assert_eq!(set.lines().count(), 2, "a line for each: {set}");
    assert_eq!(listed(w, &["--hold", "cordon"]), ["n2", "n3"]);
    let waits = w.submit(&["--nodes", "3", "--", "/bin/true"]);
    w.wait("the reason", || w.ok(&["explain", &waits]).contains("under cordon by root"));
    w.completed(&waits);
    assert_eq!(listed(w, &["--hold", "cordon"]), Vec::<String>::new());
    in_order(w, "n2", &[("HoldSet", "cordon: fan, until "), ("HoldLifted", "cordon: it was until ")]);
    // The same with an absolute end time.
    let end = Timestamp(now_ms() + 6_000).to_string();
    w.ok(&["node", "cordon", "n2", "--reason", "fan", "--until", &end]);
    let holds = node(w, "n2")["holds"].to_string();
    assert!(holds.contains("cordon by root") && holds.contains(&end), "{end}: {holds}");
    w.wait("it to be over", || listed(w, &["--hold", "cordon"]).is_empty());
    assert!(Timestamp(now_ms()).to_string() >= end, "it ended early");
    refused(
        w,
        &["node", "cordon", "n[3-5]", "--reason", "x", "--maintenance"],
        3,
        &["node n4", "node n5", "2 of 3 nodes are unchanged: n[4-5]"],
    );
    assert_eq!(listed(w, &["--hold", "maintenance"]), ["n3"]);
    w.ok(&["node", "uncordon", "n3", "--maintenance"]);
    refused(w, &["node", "cordon", "n3", "--reason", "x", "--until", "2020-01-01"], 2, &["is past"]);
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(now.as_millis()).unwrap()
}

fn disable(w: &World) {
    let job = Job::on_n3(w, "disabled", &["--requeue"]);
    let first = job.started()[0];
    refused(w, &["node", "disable", "n3", "--reason", "smoke"], 2, &["n3 will be Down", "--yes"]);
    assert_eq!(text(&node(w, "n3"), "state"), "Ready");
    w.ok(&["node", "disable", "n3", "--reason", "smoke", "--yes"]);
    let down = node(w, "n3");
    assert!(text(&down, "state") == "Down" && text(&down, "reason").contains("disabled by root@n1: smoke"), "{down}");
    job.wait_for_starts(w, 2);
    w.running(&job.id);
    let (now, nodes) = (w.status(&job.id), job.nodes(w));
    assert!(text(&now, "requeue_count") == "1" && nodes != ["n3"], "{now}");
    w.wait("its processes to be gone there", || process::stat(first).is_none_or(|(state, _)| state == 'Z'));
    // Its agent lives all the time, which changes nothing; once enabled, it is connected at once.
    w.at("n3").ok(&["node", "status"]).unwrap();
    assert_eq!(text(&node(w, "n3"), "state"), "Down");
    w.ok(&["node", "enable", "n3"]);
    wait_for(w, "n3", "Ready");
    in_order(
        w,
        "n3",
        &[
            ("HoldSet", "disable: smoke"),
            ("NodeStateChanged", "Ready -> Down: disabled by root"),
            ("HoldLifted", "disable"),
            ("NodeStateChanged", "Down -> Ready"),
        ],
    );
    // Its present node is drained, for a short time.
    let there = &nodes[0];
    let drained = w.run_for(&["node", "drain", there, "--reason", "disk", "--deadline", "1s", "--wait"], JOB);
    assert_eq!(drained.code(), 0, "{}", drained.err());
    job.wait_for_starts(w, 3);
    w.running(&job.id);
    assert!(job.nodes(w) != [there.clone()] && text(&w.status(&job.id), "requeue_count") == "2");
    assert!(w.ok(&["audit", "query", "--alloc", &job.id]).contains("drain_deadline"));
    w.ok(&["node", "undrain", there]);
    job.end(w);
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
}

fn boot(w: &World) {
    refused(w, &["node", "boot", "n3"], 4, &["Ready", "drain it first"]);
    w.ok(&["node", "drain", "n3", "--reason", "kernel", "--wait"]);
    w.ok(&["node", "boot", "n3", "--reason", "kernel"]);
    assert_eq!(text(&node(w, "n3"), "state"), "Booting");
    wait_for(w, "n3", "Failed");
    // It returns late, and is accepted all the same.
    let agent = w.cluster().node("n3").unwrap().daemon.program.clone();
    faults::kill_node(&w.dir, "n3").unwrap();
    faults::agent_program(&w.dir, "n3", &rebooted_agent(w)).unwrap();
    faults::start_node(&w.dir, "n3").unwrap();
    wait_for(w, "n3", "Drained");
    w.ok(&["node", "boot", "n3"]);
    faults::kill_node(&w.dir, "n3").unwrap();
    faults::agent_program(&w.dir, "n3", &agent).unwrap();
    faults::start_node(&w.dir, "n3").unwrap();
    wait_for(w, "n3", "Drained");
    w.ok(&["node", "undrain", "n3"]);
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
    let wanted = [
        ("NodeStateChanged", "Drained -> Booting: booted by root@n1: kernel"),
        ("NodeStateChanged", "Booting -> Failed: "),
        ("NodeStateChanged", "Failed -> Drained: it registered"),
        ("NodeStateChanged", "Drained -> Booting"),
        ("NodeStateChanged", "Drained -> Ready"),
    ];
    in_order(w, "n3", &wanted);
}

/// The cluster admits all nodes, but none that was removed.
fn removed(w: &World) {
    let remove = ["node", "remove", "n3", "--reason", "rack 4 is sold", "--yes"];
    let gone = |w: &World| !listed(w, &[]).contains(&"n3".to_owned());
    let log = || fs::read_to_string(&w.cluster().node("n3").unwrap().daemon.log).unwrap();
    let said = |piece: &str| log().matches(piece).count();
    let agent = w.cluster().node("n3").unwrap().daemon.clone();

    // A node is not removed while it may get work, nor while it has some.
    refused(w, &remove, 4, &["node n3 cannot be removed: it is Ready", "lattice node drain n3"]);
    refused(w, &remove[..5], 2, &["--yes"]);
    let done = w.run_as(NOBODY, &remove);
    assert!(done.code() == 4 && done.err().contains("operator"), "{}{}", done.out(), done.err());
    let job = Job::on_n3(w, "removed", &[]);
    w.ok(&["node", "drain", "n3", "--reason", "rack 4 is sold"]);
    refused(w, &remove, 4, &["it is Draining"]);
    job.end(w);
    wait_for(w, "n3", "Drained");

    let registrations = said("registered");
    assert!(w.ok(&remove).contains("lattice node admit n3"));
    assert!(gone(w), "{:?}", listed(w, &[]));
    refused(w, &["nodes", "n3"], 3, &["n3"]);
    w.ok(&remove);
    refused(w, &["node", "drain", "n3", "--reason", "x"], 3, &["there is no node n3"]);
    // Its agent says so once, leaves gossip, and waits to be admitted.
    let why = "node n3 was removed from this cluster by root@n1";
    w.wait("its agent to say why", || said(why) > 0);
    let waits = || {
        let listed = w.lattice.json(&["node", "admit", "--list"]).unwrap();
        listed["waiting"].as_array().unwrap().iter().any(|node| text(node, "node") == "n3")
    };
    w.wait("it to ask whether it is admitted", waits);
    let in_gossip = || {
        let members = w.lattice.json(&["gossip", "members"]).unwrap();
        members.as_array().unwrap().iter().find(|member| text(member, "node") == "n3").map(|member| text(member, "liveness"))
    };
    w.wait("it to have left gossip", || in_gossip().is_none_or(|liveness| liveness.eq_ignore_ascii_case("down")));
    assert!(gone(w), "it asks, and is refused");
    assert_eq!(said("this node was removed from the cluster"), 1, "{}", log());
    // The removed node's jobs stay readable.
    assert_eq!((job.nodes(w), text(&w.status(&job.id), "state")), (vec!["n3".to_owned()], "Completed".to_owned()));
    let there = w.completed(&w.submit(&["--nodes", "2", "--", "/bin/true"]));
    assert!(!there["nodes"].to_string().contains("n3"), "{there}");

    // Admitted again, it comes back by itself, as a new node without the drain.
    w.ok(&["node", "admit", "n3", "--reason", "bought back"]);
    w.wait("n3 to be back", || !gone(w));
    wait_for(w, "n3", "Ready");
    assert!(agent.alive(), "the same process");
    assert!(said("registered") > registrations, "{}", log());
    w.wait("it to be back in gossip", || in_gossip().is_some_and(|liveness| liveness.eq_ignore_ascii_case("alive")));
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
    let wanted = [
        ("HoldSet", "drain: rack 4 is sold"),
        ("NodeRemoved", "rack 4 is sold; it was Drained, under drain"),
        ("NodeAdmitted", "bought back"),
        ("NodeRegistered", "incarnation "),
    ];
    in_order(w, "n3", &wanted);
    assert_eq!(history(w, "n3").iter().filter(|(action, _)| action == "NodeRemoved").count(), 1);
}
