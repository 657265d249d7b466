//! Operations on work besides submitting and ending it: signals to its processes, requeueing, dry runs.

use crate::harness::{Group, NOBODY, World};
use lattice_lab::lattice::text;
use libtest_mimic::Trial;

static SIGNALS: Group = Group { theme: "signals", name: "signals", nodes: 2, quorum: 1, tweak: |_| {} };

pub fn trials() -> Vec<Trial> {
    vec![
        SIGNALS.test("reach_every_rank_on_every_node_once_and_its_children_on_request", &[], ranks),
        SIGNALS.test("reach_only_the_script_on_request", &[], script),
        SIGNALS.test("are_for_owners_and_operators_and_for_running_work", &[], refused),
        SIGNALS.test("requeue_starts_work_again_and_records_who_requested_it", &[], requeued),
        SIGNALS.test("requeue_respects_the_works_requeue_policy", &[], requeue_refused),
        SIGNALS.test("dry_run_checks_everything_and_submits_nothing", &[], dry_run),
        SIGNALS.test("commands_and_options_that_are_not_built_are_refused_by_name", &[], unbuilt),
    ]
}

/// Each rank and its child print the signals that they get. SIGUSR2 ends both; the rank ends successfully.
const RANK: &str = "
sh -c 'trap \"echo child $LATTICE_RANK\" HUP; echo child-ready $LATTICE_RANK; while :; do sleep 0.1; done' &
child=$!
trap \"echo hup $LATTICE_RANK\" HUP; trap \"echo got $LATTICE_RANK\" USR1; trap 'kill $child; exit 0' USR2
echo ready $LATTICE_RANK; while :; do sleep 0.1; done";

fn count(log: &str, line: &str) -> usize {
    log.lines().filter(|l| *l == line).count()
}

/// Waits until each rank has printed this word exactly this many times.
fn each_has(w: &World, id: &str, word: &str, times: usize) {
    let all = |log: &str| (0..4).all(|rank| count(log, &format!("{word} {rank}")) == times);
    w.wait(&format!("each rank to print {word} {times} times"), || all(&w.log(id)));
}

fn ranks(w: &World) {
    let id = w.submit(&["--nodes", "2", "--tasks-per-node", "2", "--", "/bin/sh", "-c", RANK]);
    each_has(w, &id, "ready", 1);
    each_has(w, &id, "child-ready", 1);
    let sent = format!("to 4 processes of allocation {} on 2 nodes\n", &id[..8]);
    assert_eq!(w.ok(&["signal", &id]), format!("Sent SIGUSR1 {sent}"));
    each_has(w, &id, "got", 1);
    // Through another agent, with the answer in JSON.
    let answer = w.at("n2").json(&["signal", "--signal", "usr1", &id]).unwrap();
    let nodes = answer[0]["nodes"].as_array().unwrap().clone();
    let of = |at: usize| (nodes[at]["processes"].as_u64(), nodes[at]["failed"].is_null());
    assert_eq!((nodes.len(), of(0), of(1)), (2, (Some(2), true), (Some(2), true)), "{answer}");
    each_has(w, &id, "got", 2);
    assert_eq!(w.ok(&["signal", "-s", "HUP", &id]), format!("Sent SIGHUP {sent}"));
    each_has(w, &id, "hup", 1);
    assert!((0..4).all(|rank| count(&w.log(&id), &format!("child {rank}")) == 0), "{}", w.log(&id));
    w.ok(&["signal", "-s", "HUP", "--to", "launches", &id]);
    each_has(w, &id, "hup", 2);
    each_has(w, &id, "child", 1);
    w.ok(&["signal", "-s", "USR2", &id]);
    w.completed(&id);
    let log = w.log(&id);
    assert!((0..4).all(|rank| count(&log, &format!("got {rank}")) == 2), "nothing was sent twice: {log}");
}

fn script(w: &World) {
    let text_of = "#!/bin/sh\ntrap 'echo script got it; exit 0' TERM\necho begun\nwhile :; do sleep 0.1; done\n";
    let id = w.submit(&[&w.script("signalled.sh", text_of)]);
    w.wait_log(&id, "begun\n");
    let none = w.run(&["signal", "-s", "TERM", &id]);
    assert!(none.code() == 4 && none.err().contains("no rank") && none.err().contains("--to script"), "{}", none.err());
    assert!(w.ok(&["signal", "-s", "TERM", "--to", "script", &id]).starts_with("Sent SIGTERM to 1 process of "));
    w.completed(&id);
    assert_eq!(w.ok(&["logs", &id]), "begun\nscript got it\n");
}

fn refused(w: &World) {
    let submitted = w.run_as(NOBODY, &["submit", "-o", "name", "--", "/bin/sh", "-c", RANK]);
    let id = submitted.out().trim().to_owned();
    w.wait_log(&id, "ready 0\n");
    let script = w.run(&["signal", "--to", "script", &id]);
    assert!(script.code() == 4 && script.err().contains("no script of allocation"), "{}", script.err());
    // An operator's signal is recorded before it is sent; a signal of the owner is not recorded.
    assert_eq!(w.run_as(NOBODY, &["signal", &id]).code(), 0);
    // The kernel merges two identical pending signals: wait for the first one.
    w.wait_log(&id, "got 0\n");
    w.ok(&["signal", &id]);
    w.wait("both signals", || count(&w.log(&id), "got 0") == 2);
    let records = w.lattice.json(&["audit", "query", "--alloc", &id]).unwrap();
    // The refused signal is recorded as well.
    let signalled: Vec<(String, String)> = records
        .as_array()
        .unwrap()
        .iter()
        .filter(|r| text(r, "action") == "WorkSignalled")
        .map(|r| (text(r, "actor"), text(r, "detail").split_once(": ").unwrap().1.to_owned()))
        .collect();
    let want = ["SIGUSR1 to its script", "SIGUSR1 to its ranks"].map(|detail| ("root".to_owned(), detail.to_owned()));
    assert_eq!(signalled, want, "{records}");
    w.ok(&["signal", "-s", "USR2", &id]);
    w.completed(&id);
    let ended = w.run(&["signal", &id]);
    assert!(ended.code() == 4 && ended.err().contains("is Completed"), "{}", ended.err());
    let others = w.submit(&["--", "/bin/sleep", "600"]);
    w.running(&others);
    for command in ["signal", "requeue"] {
        let foreign = w.run_as(NOBODY, &[command, &others]);
        assert!(foreign.code() == 4 && foreign.err().contains("belongs to root"), "{command}: {}", foreign.err());
    }
    let waits = w.submit(&["--hold", "--", "/bin/true"]);
    let pending = w.run(&["signal", &waits]);
    assert!(pending.code() == 4 && pending.err().contains("is Pending"), "{}", pending.err());
    let unknown = w.run(&["signal", "--signal", "FOO", &others]);
    assert!(unknown.code() == 2 && unknown.err().contains("USR1"), "{}", unknown.err());
}

fn requeued(w: &World) {
    let again = w.dir.join("requeued");
    let again = again.display();
    let job = format!("if [ ! -e {again} ]; then touch {again}; echo first; sleep 600; fi; echo second");
    let id = w.submit(&["--", "/bin/sh", "-c", &job]);
    w.wait_log(&id, "first\n");
    let output = w.ok(&["requeue", "--reason", "wrong library", &id]);
    assert_eq!(output, format!("Allocation {} is back in the queue\n", &id[..8]));
    w.completed(&id);
    assert_eq!(w.ok(&["logs", &id]), "second\n");
    let before = w.run(&["logs", "--previous", &id]);
    assert_eq!(before.out(), "first\n", "{}", before.err());
    let status = w.status(&id);
    let first = &status["attempts"][0];
    assert_eq!((text(first, "reason"), text(first, "by")), ("requeued by root: wrong library".to_owned(), "root".to_owned()), "{status}");
    assert_eq!((status["requeue_count"].as_u64(), status["attempt"].as_u64()), (Some(1), Some(2)), "{status}");
    assert!(w.ok(&["status", &id]).contains("requeued by root: wrong library"));
    let records = w.lattice.json(&["audit", "query", "--alloc", &id]).unwrap();
    let asked = records.as_array().unwrap().iter().find(|r| text(r, "action") == "AllocationRequeued").cloned().unwrap();
    assert!(text(&asked, "actor") == "root" && text(&asked, "detail").contains("wrong library"), "{asked}");
}

fn requeue_refused(w: &World) {
    let refused_with = |id: &str, expected: &str| {
        let done = w.run(&["requeue", id]);
        assert!(done.code() == 4 && done.err().contains(expected) && done.err().contains("hint: "), "{expected}: {}", done.err());
    };
    let never = w.submit(&["--requeue=never", "--", "/bin/sleep", "600"]);
    w.running(&never);
    refused_with(&never, "--requeue=never");
    assert_eq!(text(&w.status(&never), "state"), "Running", "the refused requeue changes nothing");
    let once = w.submit(&["--max-requeues=1", "--", "/bin/sh", "-c", "echo begun $LATTICE_REQUEUE_COUNT; sleep 600"]);
    w.wait_log(&once, "begun 0\n");
    w.ok(&["requeue", &once]);
    w.wait_log(&once, "begun 1\n");
    refused_with(&once, "--max-requeues");
    w.ok(&["cancel", &once]);
    refused_with(&once, "is Cancelled");
    let held = w.submit(&["--hold", "--", "/bin/true"]);
    refused_with(&held, "is in the queue already");
}

fn dry_run(w: &World) {
    let before = w.lattice.allocations().unwrap().len();
    let output = w.ok(&["submit", "--dry-run", "--nodes", "2", "--tasks-per-node", "3", "--walltime=90m", "--", "/bin/echo", "a b"]);
    for line in
        ["Nothing was submitted", "/bin/echo 'a b'\n", "Nodes:      2\n", "3 on each node, 6 in all\n", "01:30:00\n", "whole nodes\n"]
    {
        assert!(output.contains(line), "{line}: {output}");
    }
    let script = w.script("dry.sh", "#!/bin/sh\n#LATTICE --nodes=2 --name=dry\ntrue\n");
    let data = w.lattice.json(&["submit", "--dry-run", &script]).unwrap();
    assert_eq!((text(&data, "name"), data["nodes"].as_u64(), data["walltime_seconds"].as_u64()), ("dry".into(), Some(2), Some(3600)));
    for (args, code, expected) in [
        (&["-N", "100", "--", "/bin/true"][..], 4, "no nodes of this cluster could ever serve it"),
        (&["--vcluster=nowhere", "--", "/bin/true"], 3, "nowhere"),
        (&["--sensitive", "--", "/bin/true"], 4, "--sensitive"),
    ] {
        let refused = w.run(&[&["submit", "--dry-run"], args].concat());
        assert!(refused.code() == code && refused.err().contains(expected), "{expected}: {} {}", refused.code(), refused.err());
    }
    let waits = w.run(&["submit", "--dry-run", "--wait-for-nodes", "-N", "100", "--", "/bin/true"]);
    assert!(waits.code() == 0 && waits.err().contains("waits until there are other nodes"), "{}", waits.err());
    assert_eq!(w.lattice.allocations().unwrap().len(), before, "nothing was submitted");
}

fn unbuilt(w: &World) {
    for (line, expected) in [
        ("cache list", "`lattice cache` is not built yet"),
        ("submit --site=b x.sh", "--site is not built yet"),
        ("submit --uenv prgenv-gnu/24.11:v1 -- true", "names in a registry are not built yet"),
    ] {
        let refused = w.run(&line.split(' ').collect::<Vec<_>>());
        assert!(refused.code() == 2 && refused.err().contains(expected) && refused.err().contains("hint: "), "{line}: {}", refused.err());
    }
}
