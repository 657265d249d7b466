//! Summaries for users: the list of living work, the summary of its end, and waiting for it.

use crate::harness::{Group, World};
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};

static SUMMARIES: Group = Group::small("summaries");

pub fn trials() -> Vec<Trial> {
    vec![
        SUMMARIES.test("the_list_shows_live_work_first_and_why_the_rest_waits", &[], list),
        SUMMARIES.test("the_summary_of_an_end_is_kept", &[], summary),
        SUMMARIES.test("wait_ends_with_the_code_of_the_work", &[], waited_for),
        SUMMARIES.test("work_is_held_before_it_begins_and_released", &[], held),
        SUMMARIES.test("a_command_whose_output_nobody_reads_ends_without_a_message", &[], unread),
        SUMMARIES.test("nothing_is_left_of_ended_jobs", &[], World::assert_nothing_left),
    ]
}

fn listed(w: &World, args: &[&str]) -> Vec<Value> {
    let json = w.ok(&[&["status", "-o", "json"], args].concat());
    serde_json::from_str::<Value>(&json).unwrap().as_array().unwrap().clone()
}

fn list(w: &World) {
    let ended = w.submit(&["--name", "was", "--", "/bin/true"]);
    w.completed(&ended);
    let runs = w.submit(&["--name", "runs", "-N", "3", "--walltime", "10m", "--", "/bin/sleep", "300"]);
    w.running(&runs);
    let next = w.submit(&["--name", "next", "-N", "2", "--", "/bin/true"]);
    let behind = w.submit(&["--name", "behind", "--", "/bin/true"]);
    w.wait("what waits to have its place", || {
        let all = listed(w, &["--state", "pending"]);
        all.len() == 2 && all.iter().all(|a| a["queue_position"].is_u64())
    });
    let names: Vec<String> = listed(w, &[]).iter().map(|a| text(a, "name")).collect();
    assert_eq!(names[..3], ["runs", "next", "behind"], "{names:?}");
    assert!(names.iter().any(|name| name == "was"), "{names:?}");
    let mut narrow = w.lattice.command(&["status"]);
    let shown = String::from_utf8(narrow.env("COLUMNS", "80").output().unwrap().stdout).unwrap();
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    for (id, expected) in [(&next, "Z: next, 0 of 2 free"), (&behind, "Z: 1 ahead")] {
        let is_expected = |line: &str| line.starts_with(&id[..8]) && line.contains("starts ~") && line.ends_with(expected);
        assert!(shown.lines().any(is_expected), "{expected}: {shown}");
    }
    assert!(w.ok(&["explain", &next]).contains("it is next"), "{}", w.ok(&["explain", &next]));
    let left = shown.lines().find(|line| line.starts_with(&runs[..8])).unwrap();
    assert!(left.contains("00:09:"), "how much time is left: {left}");
    let of = |args: &[&str]| listed(w, args).iter().map(|a| text(a, "name")).collect::<Vec<_>>();
    assert_eq!(of(&["--name", "next"]), ["next"]);
    let node = w.status(&runs)["nodes"][1].as_str().unwrap().to_owned();
    assert_eq!(of(&["--node", &node, "--state", "running"]), ["runs"]);
    assert_eq!(of(&["--vcluster", "default", "--state", "pending"]), ["next", "behind"]);
    assert_eq!((of(&["--tenant", "nobody"]), of(&["--user", "nobody-of-this-name"])), (vec![], vec![]));
    let cut = w.run(&["status", "--limit", "2"]);
    assert!(cut.out().contains("runs") && !cut.out().contains("was") && cut.err().contains("2 are shown"), "{}{}", cut.out(), cut.err());
    w.ok(&["cancel", &runs]);
    w.completed(&next);
    w.completed(&behind);
}

fn summary(w: &World) {
    let script = w.script(
        "fails.sh",
        "#!/bin/sh\n#LATTICE name=fails\ni=0; while [ $i -lt 300000 ]; do i=$((i+1)); done\necho first >&2\necho 'it is the last' >&2\nexit 3\n",
    );
    let id = w.submit(&[&script, "an argument"]);
    assert_eq!(w.run(&["wait", &id]).code(), 3);
    w.wait("its node to say what it used", || w.status(&id)["cpu_seconds"].as_f64().is_some_and(|seconds| seconds > 0.0));
    let ended = w.status(&id);
    assert_eq!((&ended["command"], &ended["last_stderr"][0]["line"]), (&serde_json::json!(["an argument"]), &"it is the last".into()));
    assert!(ended["script"].as_str().unwrap().contains("echo first"), "{ended}");
    // If the kernel counts memory for the lab's scopes, the peak is known as well.
    let nodes: Value = serde_json::from_str(&w.ok(&["nodes", "-o", "json"])).unwrap();
    let counts = !nodes[0]["unenforced_limits"].as_array().unwrap().iter().any(|what| what == "memory");
    assert!(!counts || ended["memory_peak_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{ended}");
    let shown = w.ok(&["status", &id]);
    for want in ["it is the last", "Processor time:", "'an argument'", "fails (6 lines", "Directory:"] {
        assert!(shown.contains(want), "{want}: {shown}");
    }
}

fn waited_for(w: &World) {
    let done = w.run(&["submit", "--wait", "-o", "name", "--", "/bin/sh", "-c", "exit 5"]);
    assert_eq!(done.code(), 5, "{}", done.err());
    let (well, badly) = (w.submit(&["--", "/bin/true"]), w.submit(&["--", "/bin/sh", "-c", "kill -TERM $$"]));
    let both = w.run(&["wait", &well, &badly]);
    assert!(both.code() == 128 + 15 && both.err().contains("is Failed"), "{} {}", both.code(), both.err());
    assert_eq!(w.run(&["wait", &well]).code(), 0);
    let long = w.submit(&["--", "/bin/sleep", "300"]);
    let late = w.run(&["wait", "--timeout", "1s", &long]);
    assert!(late.code() == 124 && late.err().contains("has not ended within 1 s"), "{} {}", late.code(), late.err());
    w.ok(&["cancel", &long]);
    let cancelled = w.run(&["wait", &long]);
    assert!(cancelled.code() == 125 && cancelled.err().contains("is Cancelled"), "{} {}", cancelled.code(), cancelled.err());
    assert_eq!(w.run(&["wait", "00000000"]).code(), 125, "there is none");
    // A script from standard input, with and without the name `-`.
    for args in [&["submit", "--wait", "-"][..], &["submit", "--wait"]] {
        let mut command = w.lattice.command(args);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"#!/bin/sh\n#LATTICE name=piped\nexit 6\n").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(6), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

fn held(w: &World) {
    let id = w.submit(&["--hold", "--", "/bin/echo", "released"]);
    assert!(w.ok(&["status"]).contains(&format!("held: `lattice resume {}`", &id[..8])), "{}", w.ok(&["status"]));
    assert!(w.ok(&["explain", &id]).contains("is held; `lattice resume"), "{}", w.ok(&["explain", &id]));
    // Later submissions pass it in the queue.
    w.completed(&w.submit(&["--", "/bin/true"]));
    assert_eq!(text(&w.status(&id), "state"), "Pending");
    w.ok(&["release", &id]);
    w.completed(&id);
    let runs = w.submit(&["-N", "3", "--", "/bin/sleep", "300"]);
    w.running(&runs);
    let refused = w.run(&["hold", &runs]);
    assert!(refused.code() == 4 && refused.err().contains("preempt --hold"), "{} {}", refused.code(), refused.err());
    let waits = w.submit(&["--", "/bin/true"]);
    w.ok(&["hold", &waits]);
    w.ok(&["cancel", &runs]);
    w.ended(&runs);
    w.completed(&w.submit(&["--", "/bin/true"]));
    assert_eq!(text(&w.status(&waits), "state"), "Pending", "it is held");
    w.ok(&["resume", &waits]);
    w.completed(&waits);
}

/// Waits until it ends by itself; returns its exit code and what it wrote to stderr.
fn end_of(w: &World, what: &str, mut child: Child) -> (Option<i32>, String) {
    let mut stderr = child.stderr.take().unwrap();
    let mut status = None;
    w.wait(&format!("`lattice {what}` to end"), || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    let mut messages = String::new();
    stderr.read_to_string(&mut messages).unwrap();
    (status.and_then(|status| status.code()), messages)
}

/// Runs the CLI with a closed pipe as stdout.
fn without_reader(w: &World, args: &[&str]) -> (Option<i32>, String) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let child = w.lattice.command(args).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    end_of(w, &args.join(" "), child)
}

fn unread(w: &World) {
    let id = w.submit(&["--", "/bin/sh", "-c", "seq 200000; exec sleep 600"]);
    w.wait("its output", || w.run(&["logs", &id, "--tail", "1"]).out() == "200000\n");
    // As `lattice logs ID | head -n 1`: the pipe is closed after the first line.
    let mut command = w.lattice.command(&["logs", &id]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!((line.as_str(), end_of(w, "logs", child)), ("1\n", (Some(0), String::new())));
    for args in [
        &["status"][..],
        &["status", &id],
        &["status", "--all", "-o", "json"],
        &["status", &id, "--watch"],
        &["explain", &id],
        &["nodes"],
        &["nodes", "--watch"],
        &["logs", &id],
        &["logs", "--follow", &id],
        &["--help"],
        &["--version"],
    ] {
        assert_eq!(without_reader(w, args), (Some(0), String::new()), "{args:?}");
    }
    assert_eq!(text(&w.status(&id), "state"), "Running");
    // The command has its effect nevertheless.
    assert_eq!(without_reader(w, &["cancel", &id]), (Some(0), String::new()));
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    // A launch with its own allocation is cancelled.
    let endless = "while :; do echo x; sleep 0.01; done";
    let (code, messages) = without_reader(w, &["launch", "--name", "unread", "--", "/bin/sh", "-c", endless]);
    assert!(code == Some(141) && messages.contains("the reader of the output is gone: cancelling allocation"), "{code:?} {messages}");
    let launched = text(&listed(w, &["--name", "unread"])[0], "id");
    assert_eq!(text(&w.ended(&launched), "state"), "Cancelled");
    w.assert_nothing_left();
}
