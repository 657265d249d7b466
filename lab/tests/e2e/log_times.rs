//! Times of output: selection by time, display of times, and order.

use crate::harness::{JOB, World};
use crate::logs::{LOGS, all_flushed, logs, node_of, remove};
use lattice_lab::lattice::Lattice;
use lattice_lab::process;
use libtest_mimic::Trial;
use std::process::Command;
use std::time::Duration;

pub fn trials() -> Vec<Trial> {
    vec![
        LOGS.test("tail_since_and_until", &[], ranges),
        LOGS.test("stdout_and_stderr_come_in_the_order_of_the_times_that_timestamps_shows", &[], dated),
    ]
}

fn ranges(w: &World) {
    let program = "echo early; sleep 4; echo late; echo later; sleep 2";
    let id = w.submit(&["--", "/bin/sh", "-c", program]);
    w.wait_log(&id, "early");
    std::thread::sleep(Duration::from_secs(2));
    let between = process::run(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%S.%3NZ"]), JOB).unwrap().out();
    let between = between.trim();
    w.wait_log(&id, "later");
    assert_eq!(logs(w, &["--since", between, &id]).out(), "late\nlater\n", "while it runs");
    assert_eq!(logs(w, &["--until", between, &id]).out(), "early\n");
    assert_eq!(logs(w, &["--tail", "1", &id]).out(), "later\n");
    assert_eq!(logs(w, &["--since", "1h", &id]).out(), "early\nlate\nlater\n");
    w.completed(&id);
    let dir = all_flushed(w, &node_of(w, &id), &id);
    remove(&dir);
    assert_eq!(logs(w, &["--since", between, &id]).out(), "late\nlater\n", "from the store");
    assert_eq!(logs(w, &["--until", between, &id]).out(), "early\n");
    assert_eq!(logs(w, &["--tail", "2", &id]).out(), "late\nlater\n");
    let wrong = w.run(&["logs", "--since", "yesterday", &id]);
    assert!(wrong.code() == 2 && wrong.err().contains("--since"), "{}", wrong.err());
}

/// A terminal's view: stdout and stderr in the order in which they arrive.
fn on_terminal(lattice: &Lattice, args: &[&str]) -> String {
    let command = lattice.command(args);
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "exec \"$0\" \"$@\" 2>&1"]).arg(command.get_program()).args(command.get_args());
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let finished = process::run(&mut shell, JOB).unwrap();
    assert_eq!(finished.code(), 0, "{}", finished.out());
    finished.out()
}

fn dated(w: &World) {
    // Each line is read before the next one is written, more than a second later.
    let steps = format!("step() {{ sleep 1.5; while [ ! -e {}/step-$1 ]; do sleep 0.1; done; }}", w.dir.display());
    let program = format!("{steps}; echo one; step 1; echo two >&2; step 2; echo three; step 3; echo four >&2");
    let id = w.submit(&["--", "/bin/sh", "-c", &program]);
    for (number, line) in [(1, "one"), (2, "two"), (3, "three")] {
        w.wait(line, || on_terminal(&w.lattice, &["logs", &id]).contains(line));
        std::fs::write(w.dir.join(format!("step-{number}")), "").unwrap();
    }
    w.completed(&id);
    let node = node_of(w, &id);
    let dir = all_flushed(w, &node, &id);
    let other = w.cluster().nodes.iter().map(|n| n.id.clone()).find(|n| *n != node).unwrap();
    for (lattice, what) in [(w.at(&node), "on its node"), (w.at(&other), "from another node"), (w.at(&other), "from the store")] {
        if what == "from the store" {
            remove(&dir);
        }
        assert_eq!(on_terminal(&lattice, &["logs", &id]), "one\ntwo\nthree\nfour\n", "{what}");
        for follow in [&[][..], &["--follow"]] {
            let shown = on_terminal(&lattice, &[&["logs", "--timestamps", &id], follow].concat());
            let lines: Vec<(&str, &str)> = shown.lines().filter_map(|line| line.split_once(' ')).collect();
            let texts: Vec<&str> = lines.iter().map(|(_, text)| *text).collect();
            assert_eq!(texts, ["one", "two", "three", "four"], "{what}: {shown}");
            assert!(lines.is_sorted_by(|(one, _), (next, _)| one < next), "{what}: {shown}");
            let is_time = |text: &str| text.len() == 20 && text.starts_with("20") && text.ends_with('Z');
            assert!(lines.iter().all(|(time, _)| is_time(time)), "{what}: {shown}");
        }
    }
    let labelled = on_terminal(&w.lattice, &["logs", "--timestamps", "--label", &id]);
    assert!(labelled.lines().all(|line| line[20..].starts_with(" 0: ")), "{labelled}");
}
