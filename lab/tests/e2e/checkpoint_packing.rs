//! Saved files are compressed within the work's own cgroup: the time counts as the work's, and the compressors end with
//! it.

use crate::harness::{Group, World, fresh_dir};
use lattice_lab::sweep;
use libtest_mimic::Trial;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

static PACKING: Group = Group { theme: "checkpoint_packing", name: "ckptpack", nodes: 1, quorum: 1, tweak: |_| {} };

pub fn trials() -> Vec<Trial> {
    vec![PACKING.test("time_for_compressing_is_the_works_own", &[], time), PACKING.test("who_compresses_ends_with_the_work", &[], ends)]
}

/// Saves a sparse file, which is cheap to make and expensive to read.
const HOLES: &str = r#"#!/bin/sh
ask=
trap 'ask=1' USR1
echo begun
while [ ! -e "$GO" ]; do
  if [ "$ask" ]; then
    ask=
    read -r token < "$LATTICE_CHECKPOINT_DIR/request"; at=$LATTICE_CHECKPOINT_DIR/$token
    truncate -s "$SIZE" "$at/holes"
    echo files=1 > "$at.done"
  fi
  sleep 0.02
done
"#;

/// Work that saves a file of this size, and the file that ends it.
fn begin(w: &World, name: &str, size: &str) -> (String, PathBuf) {
    let (program, go) = (w.script("holes.sh", HOLES), fresh_dir(name));
    let (go_variable, size) = (format!("GO={}", go.display()), format!("SIZE={size}"));
    let id = w.submit(&["--checkpoint=signal", "--env", &go_variable, "--env", &size, "--", "/bin/sh", &program]);
    w.wait_log(&id, "begun");
    (id, go)
}

/// The cgroup of the compressors.
fn group(w: &World, id: &str) -> PathBuf {
    let root = sweep::scopes_root(&w.cluster().cgroup_root).unwrap();
    let scope = sweep::scopes_below(&root).into_iter().find(|path| path.to_string_lossy().contains(id));
    scope.unwrap_or_else(|| panic!("{id} has no scope below {}", root.display())).join("work/save")
}

fn ms_of_group(group: &std::path::Path) -> u64 {
    let stat = fs::read_to_string(group.join("cpu.stat")).unwrap_or_else(|e| panic!("{}: {e}", group.display()));
    stat.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse::<u64>().ok()).unwrap() / 1000
}

/// Time in user mode and in the kernel, from proc_pid_stat(5).
fn ms_of_agent(w: &World) -> u64 {
    let pid = w.cluster().node("n1").unwrap().daemon.process.as_ref().unwrap().pid;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let ticks = stat.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2);
    ticks.map(|ticks| ticks.parse::<u64>().unwrap() * 10).sum()
}

fn time(w: &World) {
    let (id, go) = begin(w, "packing-time", "256M");
    let before = ms_of_agent(w);
    let made = w.run_for(&["checkpoint", "create", &id, "--deadline", "150s"], Duration::from_secs(160));
    assert_eq!(made.code(), 0, "{}", made.err());
    let (works, agents) = (ms_of_group(&group(w, &id)), ms_of_agent(w) - before);
    assert!(works > 100 && works > 2 * agents, "compressing 256 MiB took {works} ms in the work's cgroup and {agents} ms of the agent's");
    fs::write(&go, "").unwrap();
    w.completed(&id);
    let _ = fs::remove_file(&go);
    w.assert_nothing_left();
}

fn ends(w: &World) {
    let (id, _) = begin(w, "packing-ends", "1T");
    let asking = {
        let (lattice, id) = (w.lattice.clone(), id.clone());
        std::thread::spawn(move || lattice.run(&["checkpoint", "create", &id, "--deadline", "300s"], Duration::from_secs(310)).unwrap())
    };
    let group = group(w, &id);
    w.wait("somebody to compress", || fs::read_to_string(group.join("cgroup.procs")).is_ok_and(|pids| !pids.is_empty()));
    // A signal to all work must not end it early, not even SIGTERM to all.
    sweep_signal(&group);
    assert!(fs::read_to_string(group.join("cgroup.procs")).is_ok_and(|pids| !pids.is_empty()), "SIGTERM ended it");
    w.ok(&["cancel", &id]);
    w.ended(&id);
    assert_ne!(asking.join().unwrap().code(), 0, "a checkpoint of a terabyte is made");
    w.assert_nothing_left();
}

fn sweep_signal(group: &std::path::Path) {
    for pid in fs::read_to_string(group.join("cgroup.procs")).unwrap().lines() {
        let pid = nix::unistd::Pid::from_raw(pid.parse().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    }
}
