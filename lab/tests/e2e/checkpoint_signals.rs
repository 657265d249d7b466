//! Any signal that a program can catch can request a checkpoint. It goes to the processes that the submission names:
//! all, the ranks' process groups, or only the ranks. Processes that do not catch it survive.

use crate::harness::{Group, World, fresh_dir};
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

static SIGNALS: Group = Group { theme: "checkpoint_signals", name: "checkpoint", nodes: 3, quorum: 1, tweak: |_| {} };

pub fn trials() -> Vec<Trial> {
    vec![
        SIGNALS.test("a_real_time_signal_goes_to_all_that_catch_it", &[], to_all),
        SIGNALS.test("that_goes_to_groups_does_not_reach_processes_that_left_them", &[], to_groups),
        SIGNALS.test("that_goes_to_ranks_goes_to_all_of_them_or_none", &[], to_ranks),
        SIGNALS.test("in_a_script_ranks_are_those_of_its_launches", &[], of_a_script),
        SIGNALS.test("that_nothing_can_catch_is_refused", &[], uncatchable),
    ]
}

/// A rank with processes that inherit its handler: one in its process group, one in another group,
/// one in another session; and one that catches nothing. Each prints that it was asked, and at the
/// end how often. Python drops a signal that reaches a forked process before its first line, so all
/// of them run before the rank reports that it has begun.
const FAMILY: &str = r#"
import os, signal, subprocess, sys, time

go, rank, number = os.environ["GO"], os.environ.get("ROLE") or os.environ["LATTICE_RANK"], int(os.environ["NUMBER"])
got, me = 0, "rank" + rank
def tell(*words):
    # In one write: with PYTHONUNBUFFERED each word that is printed is one, and others write to the same file.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())
def notice(*_):
    global got
    got += 1
    tell(me, "asked")
def until_over():
    while not os.path.exists(go):
        time.sleep(0.01)
def child(name, leave):
    global me
    begun, begins = os.pipe()
    pid = os.fork()
    if pid == 0:
        me = name + rank
        leave()
        os.write(begins, b".")
        until_over()
        tell(me, "got", got)
        os._exit(0)
    os.read(begun, 1)
    return pid

# So that none of them is between fork and exec when it is looked at first.
deaf = subprocess.Popen(["sleep", "600"])
if os.environ.get("DEAF") != rank:
    signal.signal(number, notice)
family = [child("same", lambda: None), child("group", lambda: os.setpgid(0, 0)), child("session", os.setsid)]
tell("begun", rank)
answered = 0
while not os.path.exists(go):
    if got > answered and rank in ("0", "script"):
        answered = got
        at = os.environ["LATTICE_CHECKPOINT_DIR"]
        token = open(os.path.join(at, "request")).readline().strip()
        open(os.path.join(at, token, "state"), "w").write("saved")
        open(os.path.join(at, token + ".new"), "w").write("step=1\n")
        os.rename(os.path.join(at, token + ".new"), os.path.join(at, token + ".done"))
    time.sleep(0.01)
for pid in family:
    os.waitpid(pid, 0)
tell(me, "got", got)
tell("deaf" + rank, "lives" if deaf.poll() is None else "ended")
deaf.kill()
"#;

struct Family {
    id: String,
    go: PathBuf,
}

impl Family {
    /// Submits with the signal of this number and this name; two ranks on one node.
    fn submit(w: &World, signal: &str, number: u8, env: &[&str]) -> Self {
        let program = w.script("family.py", FAMILY);
        Self::of(w, signal, number, env, &["--nodes", "1", "--tasks-per-node", "2", "--", "python3", &program], &["begun 0\n", "begun 1\n"])
    }

    fn of(w: &World, signal: &str, number: u8, env: &[&str], what: &[&str], begun: &[&str]) -> Self {
        let go = fresh_dir("signals-go");
        let (asks, number) = (format!("--checkpoint-signal={signal}"), format!("NUMBER={number}"));
        let go_variable = format!("GO={}", go.display());
        let mut args = vec!["--checkpoint=signal", &asks, "--env", &go_variable, "--env", &number];
        env.iter().for_each(|variable| args.extend(["--env", variable]));
        args.extend(what);
        let id = w.submit(&args);
        w.running(&id);
        begun.iter().for_each(|line| w.wait_log(&id, line));
        Self { id, go }
    }

    fn created(&self, w: &World) {
        let done = w.run(&["checkpoint", "create", &self.id, "--deadline", "20s"]);
        assert_eq!(done.code(), 0, "{}\n{}", done.err(), w.log(&self.id));
        assert_eq!(w.status(&self.id)["checkpoint"]["step"], 1);
    }

    /// Waits until every expected process was asked, lets all processes end, and checks how often
    /// each was asked.
    fn assert_asked(&self, w: &World, expected: &BTreeMap<String, u64>) {
        let asked = expected.iter().filter(|(_, count)| **count > 0).map(|(who, _)| format!("{who} asked"));
        let asked: Vec<String> = asked.collect();
        w.wait(&format!("the signals of {expected:?}"), || {
            let log = w.log(&self.id);
            asked.iter().all(|line| log.lines().any(|of_log| of_log == line))
        });
        fs::write(&self.go, "").unwrap();
        w.completed(&self.id);
        let log = w.log(&self.id);
        let deaf: Vec<&str> = log.lines().filter(|line| line.starts_with("deaf")).collect();
        assert!(!deaf.is_empty() && deaf.iter().all(|line| line.ends_with(" lives")), "{log}");
        let counts = log.lines().filter_map(|line| line.split_once(" got "));
        let counts: BTreeMap<String, u64> = counts.map(|(who, count)| (who.to_owned(), count.parse().unwrap())).collect();
        assert_eq!(counts, *expected, "{log}");
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.go);
    }
}

fn of(counts: &[(&str, u64)]) -> BTreeMap<String, u64> {
    counts.iter().map(|(who, count)| ((*who).to_owned(), *count)).collect()
}

/// The same for both ranks.
fn both(counts: &[(&str, u64)]) -> BTreeMap<String, u64> {
    ["0", "1"].iter().flat_map(|rank| counts.iter().map(move |(who, count)| (format!("{who}{rank}"), *count))).collect()
}

fn to_all(w: &World) {
    let family = Family::submit(w, "RTMIN+5", 39, &[]);
    family.created(w);
    family.assert_asked(w, &both(&[("rank", 1), ("same", 1), ("group", 1), ("session", 1)]));
    w.assert_nothing_left();
}

fn to_groups(w: &World) {
    let family = Family::submit(w, "group:64", 64, &[]);
    family.created(w);
    family.assert_asked(w, &both(&[("rank", 1), ("same", 1), ("group", 0), ("session", 0)]));
    w.assert_nothing_left();
}

fn to_ranks(w: &World) {
    let family = Family::submit(w, "ranks:sigwinch", 28, &[]);
    family.created(w);
    family.assert_asked(w, &both(&[("rank", 1), ("same", 0), ("group", 0), ("session", 0)]));
    // One of the ranks does not catch the signal.
    let family = Family::submit(w, "ranks:QUIT", 3, &["DEAF=1"]);
    let done = w.run(&["checkpoint", "create", &family.id]);
    let expected = "1 of its 2 ranks does not catch SIGQUIT";
    assert!(done.code() == 1 && done.err().contains(expected) && done.err().contains("nothing was sent"), "{}", done.err());
    assert_eq!(text(&w.status(&family.id), "state"), "Running");
    family.assert_asked(w, &both(&[("rank", 0), ("same", 0), ("group", 0), ("session", 0)]));
    // If the signal goes to all processes, the rank that catches it saves both.
    let family = Family::submit(w, "QUIT", 3, &["DEAF=1"]);
    family.created(w);
    let reached = [("rank0", 1), ("same0", 1), ("group0", 1), ("session0", 1)];
    family.assert_asked(w, &of(&[&reached[..], &[("rank1", 0), ("same1", 0), ("group1", 0), ("session1", 0)]].concat()));
    w.assert_nothing_left();
}

fn of_a_script(w: &World) {
    let program = w.script("family.py", FAMILY);
    let lattice = w.dir.join("bin/lattice").display().to_string();
    // The script itself catches nothing: it does not count as a rank while it has a launch.
    let script = w.script("family.sh", &format!("#!/bin/sh\n{lattice} launch -n 2 python3 {program}\n"));
    let family = Family::of(w, "ranks:USR2", 12, &[], &["--nodes", "1", &script], &["begun 0\n", "begun 1\n"]);
    family.created(w);
    family.assert_asked(w, &both(&[("rank", 1), ("same", 0), ("group", 0), ("session", 0)]));
    // Without a launch the script is the rank.
    let script = w.script("alone.py", &format!("#!/usr/bin/python3\n{FAMILY}"));
    let family = Family::of(w, "ranks:USR2", 12, &["ROLE=script"], &["--nodes", "1", &script], &["begun script\n"]);
    family.created(w);
    family.assert_asked(w, &of(&[("rankscript", 1), ("samescript", 0), ("groupscript", 0), ("sessionscript", 0)]));
    w.assert_nothing_left();
}

fn uncatchable(w: &World) {
    for signal in ["KILL", "19", "33", "SIGRTMAX+1", "all:USR1"] {
        let refused = w.run(&["submit", "--checkpoint-signal", signal, "--", "/bin/true"]);
        let expected = format!("{signal:?} is not a signal that can request a checkpoint");
        assert!([2, 4].contains(&refused.code()) && refused.err().contains(&expected), "{signal}: {}", refused.err());
    }
}
