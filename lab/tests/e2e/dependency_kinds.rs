//! Work that waits for the beginning of other work, for tasks of another group, or for earlier work of its name.

use crate::harness::{Folder, Group, World, ms};
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::json;
use std::fs;
use std::path::PathBuf;

static DEPENDENCY_KINDS: Group = Group::large("dependency_kinds");

pub fn trials() -> Vec<Trial> {
    vec![
        DEPENDENCY_KINDS.test("what_waits_for_a_beginning_runs_beside_it", &[], after),
        DEPENDENCY_KINDS.test("what_waits_for_a_time_after_a_beginning_begins_then", &[], delayed),
        DEPENDENCY_KINDS.test("a_singleton_runs_when_all_earlier_work_of_its_name_is_gone", &[], singleton),
        DEPENDENCY_KINDS.test("tasks_begin_one_by_one_when_their_counterparts_have_succeeded", &[], corresponding),
        DEPENDENCY_KINDS.test("scripts_of_slurm_and_files_of_steps_have_the_same_kinds", &[], files_and_scripts),
        DEPENDENCY_KINDS.test("groups_that_do_not_correspond_and_bad_delays_are_refused", &[], refused),
    ]
}

/// Files in which work writes what it does, and for which it waits.
struct Files(Folder);

impl Files {
    fn new() -> Self {
        Self(Folder::new("kinds"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.0.join(name)
    }

    fn writes(&self, line: &str) -> String {
        format!("echo {line} >> {}", self.path("lines").display())
    }

    fn lines(&self) -> Vec<String> {
        fs::read_to_string(self.path("lines")).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// A command that waits for [`Self::open`].
    fn waits(&self, gate: &str) -> String {
        format!("while ! test -e {}; do sleep 0.05; done", self.path(gate).display())
    }

    fn open(&self, gate: &str) {
        fs::write(self.path(gate), "").unwrap();
    }

    fn script(&self, name: &str, directives: &str, body: &str) -> String {
        let path = self.path(name);
        fs::write(&path, format!("#!/bin/sh\n{directives}\n{body}\n")).unwrap();
        path.to_string_lossy().into_owned()
    }
}

fn submit(w: &World, name: &str, options: &[&str], body: &str) -> String {
    w.submit(&[&["--name", name, "--walltime=5m"], options, &["--", "/bin/sh", "-c", body]].concat())
}

fn message(w: &World, id: &str) -> String {
    text(&w.status(id), "status_message")
}

fn after(w: &World) {
    let files = Files::new();
    let first = submit(w, "first", &["--hold"], &files.waits("go"));
    let later = submit(w, "later", &["--depends-on", &format!("{first}:after")], &files.writes("later"));
    assert_eq!(message(w, &later), format!("waits for {} (first) to begin", &first[..8]));
    w.ok(&["resume", &first]);
    w.completed(&later);
    assert_eq!(text(&w.status(&first), "state"), "Running");
    // The first one has begun already.
    w.completed(&submit(w, "latest", &["--depends-on", &format!("{first}:after")], "true"));
    files.open("go");
    w.completed(&first);

    let never = submit(w, "never", &["--hold"], "true");
    let waits = submit(w, "waits", &["--depends-on", &format!("{never}:after")], "true");
    w.ok(&["cancel", &never]);
    w.completed(&waits);
}

fn delayed(w: &World) {
    const DELAY_MS: u64 = 5000;
    let files = Files::new();
    let first = submit(w, "first", &["--hold"], &files.waits("go"));
    let later = submit(w, "later", &["--depends-on", &format!("{first}:after+5s")], &files.writes("later"));
    assert_eq!(message(w, &later), format!("waits for {} (first) to begin (and 5 seconds more)", &first[..8]));
    w.ok(&["resume", &first]);
    w.running(&first);
    let sentence = format!(": 5 seconds after {} (first) began", &first[..8]);
    // On a busy machine, the work may have begun before the first look.
    w.wait("the time until which it waits", || {
        let now = w.status(&later);
        text(&now, "state") != "Pending" || text(&now, "status_message").ends_with(&sentence)
    });
    let later = w.completed(&later);
    assert!(ms(&later, "started_at") >= ms(&w.status(&first), "started_at") + DELAY_MS, "{later}");
    assert_eq!(later["dependencies"][0]["condition"], "after+5s");
    files.open("go");
    w.completed(&first);
    // The delay is over already.
    w.completed(&submit(w, "latest", &["--depends-on", &format!("{first}:after+5s")], "true"));
}

fn singleton(w: &World) {
    let files = Files::new();
    let first = submit(w, "nightly", &[], &files.waits("go"));
    let second = submit(w, "nightly", &["--depends-on=singleton"], &files.writes("second"));
    let third = submit(w, "nightly", &["--depends-on=singleton"], &files.writes("third"));
    w.running(&first);
    w.completed(&submit(w, "daily", &["--depends-on=singleton"], "true"));
    assert_eq!(message(w, &second), format!("waits for {}, an earlier one of this name, to end", &first[..8]));
    let explained = w.ok(&["explain", &third]);
    assert!(explained.contains(&format!("waits for {}, an earlier one of this name, to end", &second[..8])), "{explained}");
    let dependency = json!({"id": first, "name": "nightly", "condition": "singleton", "state": "Running", "met": false});
    w.wait("the state of what it waits for", || w.status(&second)["dependencies"][0] == dependency);
    w.ok(&["update", &third, "--name", "weekly"]);
    w.completed(&third);
    files.open("go");
    w.completed(&first);
    w.completed(&second);
    assert_eq!(files.lines(), ["third", "second"]);
}

fn corresponding(w: &World) {
    let files = Files::new();
    let gate = format!("while ! test -e {}.$LATTICE_TASK_INDEX; do sleep 0.05; done", files.path("gate").display());
    let prepares = files.script("prep.sh", "", &format!("{gate}; test $LATTICE_TASK_INDEX != 1"));
    let trains = files.script("train.sh", "", &files.writes("$LATTICE_TASK_INDEX"));
    let group = |name: &str, tasks: &str, options: &[&str], script: &str| {
        w.submit(&[&["--name", name, "--walltime=5m", "--task-group", tasks], options, &[script]].concat())
    };
    let parent = group("prep", "0-2%1", &[], &prepares);
    let child = group("train", "0-3%1", &["--depends-on", &format!("{parent}:corresponding")], &trains);
    w.wait("the task without a counterpart to run", || files.lines() == ["3"]);
    let waits = format!("3 wait for the same tasks of {} (prep)", &parent[..8]);
    w.wait("the others to be shown as waiting", || message(w, &child) == format!("1 of 4 done; {waits}"));
    let explained = w.ok(&["explain", &child]);
    assert!(explained.contains(&waits), "{explained}");
    files.open("gate.0");
    w.wait("the next task to run", || files.lines() == ["3", "0"]);
    files.open("gate.1");
    let all = || w.lattice.json(&["status", &child, "--tasks"]).unwrap().to_string();
    w.wait("the task whose counterpart failed to be given up", || all().contains("dependency_unmet"));
    files.open("gate.2");
    w.completed(&child);
    assert_eq!(files.lines(), ["3", "0", "2"]);
    assert_eq!(text(&w.ended(&parent), "state"), "Failed");

    // The parent has ended before the submission.
    let late = group("late", "1", &["--depends-on", &format!("{parent}:corresponding")], &trains);
    let reason = format!("dependency_unmet: corresponding of {} (prep), which is Failed", &parent[..8]);
    assert_eq!(text(&w.ended(&late), "reason"), reason);
}

fn files_and_scripts(w: &World) {
    let files = Files::new();
    let first = submit(w, "job", &[], &files.waits("go"));
    let slurm = |name: &str, dependency: &str| {
        let directives = format!("#SBATCH --job-name=job --time=5 --dependency={dependency}");
        let script = files.script(&format!("{name}.sh"), &directives, &files.writes(name));
        w.submit(&[script.as_str()])
    };
    let alone = slurm("alone", "singleton");
    let beside = slurm("beside", &format!("after:{first}"));
    w.completed(&beside);
    let much_later = slurm("much_later", &format!("after:{first}+10"));
    assert_eq!(w.status(&much_later)["dependencies"][0]["condition"], "after+10m");
    w.ok(&["cancel", &much_later]);
    files.open("go");
    w.completed(&alone);
    assert_eq!(files.lines(), ["beside", "alone"]);

    let step = |name: &str, more: &str| format!("  - name: {name}\n    entrypoint: \"true\"\n    walltime: 5m\n{more}");
    let groups = ["    task-group: 0-2\n", "    task-group: 0-2\n    depends_on:\n      - a: corresponding\n"];
    let steps = [step("a", groups[0]), step("b", groups[1]), step("c", "    depends_on:\n      - a: after\n      - singleton\n")];
    let path = files.path("kinds.yaml");
    fs::write(&path, format!("name: kinds\nallocations:\n{}", steps.concat())).unwrap();
    let dag = w.ok(&["dag", "submit", "-o", "name", &path.to_string_lossy()]);
    w.wait("all steps to have succeeded", || w.lattice.json(&["dag", "status", dag.trim()]).unwrap()["state"] == "Completed");
}

fn refused(w: &World) {
    let files = Files::new();
    let script = files.script("task.sh", "", "true");
    let single = submit(w, "single", &["--hold"], "true");
    for (on, code, piece) in [
        (format!("{single}:corresponding"), 4, "corresponding needs two task groups"),
        (format!("{single}:after+soon"), 2, "has no valid delay"),
        (format!("{single}:after+366d"), 2, "365 days at most"),
        (format!("{single}?{single}"), 2, "submit the work with --hold"),
        (format!("{single}:singleton"), 2, "write singleton alone"),
    ] {
        let refused = w.run(&["submit", "--task-group=0-1", "--depends-on", &on, &script]);
        assert!(refused.code() == code && refused.err().contains(piece), "{on}: {} {}", refused.code(), refused.err());
    }
    w.ok(&["cancel", &single]);
}
