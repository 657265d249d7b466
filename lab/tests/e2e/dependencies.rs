//! Work that depends on other work: chains, branches, work that excludes other work.

use crate::harness::{Folder, Group, NOBODY, World};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

static DEPENDENCIES: Group = Group::large("dependencies");

pub fn trials() -> Vec<Trial> {
    vec![
        DEPENDENCIES.test("each_part_of_a_chain_begins_when_the_one_before_has_succeeded", &[], chain),
        DEPENDENCIES.test("a_failure_runs_its_branch_and_cancels_the_other_one", &[], branches),
        DEPENDENCIES.test("what_waits_for_the_end_of_cancelled_work_begins_when_nothing_of_it_runs", &[], cancelled),
        DEPENDENCIES.test("work_that_excludes_other_work_never_runs_beside_it", &[], mutex),
        DEPENDENCIES.test("a_leaders_death_after_an_end_begins_what_depends_on_it_once", &[], leader_killed),
        DEPENDENCIES.test("a_script_of_slurm_waits_for_the_jobs_that_it_names", &[], slurm),
        DEPENDENCIES.test("what_nobody_can_depend_on_is_refused", &[], refused),
    ]
}

/// Files in which work writes what it does, and for which it waits.
struct Files(Folder);

impl Files {
    fn new() -> Self {
        Self(Folder::new("dependencies"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.0.join(name)
    }

    /// A command that adds a line.
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
}

fn submit(w: &World, name: &str, depends_on: &[String], options: &[&str], body: &str) -> String {
    let mut args = vec!["--name", name, "--walltime", "5m"];
    args.extend(depends_on.iter().flat_map(|on| ["--depends-on", on.as_str()]));
    args.extend(options);
    args.extend(["--", "/bin/sh", "-c", body]);
    w.submit(&args)
}

fn chain(w: &World) {
    let files = Files::new();
    let first = submit(w, "prep", &[], &[], &format!("{}; {}", files.waits("go"), files.writes("prep")));
    let second = submit(w, "train", &[first[..8].to_owned()], &[], &files.writes("train"));
    let third = submit(w, "plot", &["@last:success".to_owned()], &[], &files.writes("plot"));
    w.running(&first);
    let now = w.status(&third);
    let waits = format!("waits for {} (train) to succeed", &second[..8]);
    assert_eq!((text(&now, "state").as_str(), text(&now, "status_message")), ("Pending", waits.clone()), "{now}");
    assert!(now["queue_position"].is_null(), "{now}");
    let dependency = |id: &str, name: &str, state: &str, met: bool| json!([{"id": id, "name": name, "condition": "success", "state": state, "met": met}]);
    let (of_second, of_third) = (dependency(&first, "prep", "Running", false), dependency(&second, "train", "Pending", false));
    w.wait("what it depends on to be shown", || w.status(&second)["dependencies"] == of_second);
    w.wait("what it depends on to be shown", || w.status(&third)["dependencies"] == of_third);
    let explained = w.ok(&["explain", &third]);
    assert!(explained.starts_with(&format!("{} plot is Pending\n{waits}\n", &third[..8])), "{explained}");
    let shown = w.ok(&["status", &third]);
    assert!(shown.contains(&format!("success of {} (train): Pending\n", &second[..8])), "{shown}");

    files.open("go");
    w.completed(&third);
    assert_eq!(files.lines(), ["prep", "train", "plot"]);
    assert_eq!(w.status(&third)["dependencies"], dependency(&second, "train", "Completed", true));
    // What is submitted after the end begins at once.
    w.completed(&submit(w, "late", &[format!("{third}:success")], &[], "true"));
}

fn branches(w: &World) {
    let files = Files::new();
    let train = submit(w, "train", &[], &["--requeue=never"], &format!("{}; exit 3", files.waits("go")));
    let on = |id: &str, condition: &str| vec![format!("{id}:{condition}")];
    let evaluate = submit(w, "evaluate", &on(&train, "success"), &[], &files.writes("evaluate"));
    let deploy = submit(w, "deploy", &on(&evaluate, "success"), &[], &files.writes("deploy"));
    let alarm = submit(w, "alarm", &on(&evaluate, "failure"), &[], &files.writes("alarm"));
    let notify = submit(w, "notify", &on(&train, "failure"), &[], &files.writes("notify"));
    let cleanup = submit(w, "cleanup", &on(&train, "any"), &[], &files.writes("cleanup"));
    let report = submit(w, "report", &on(&evaluate, "any"), &[], &files.writes("report"));
    files.open("go");
    for (id, reason) in [
        (&evaluate, format!("dependency_unmet: success of {} (train), which is Failed", &train[..8])),
        (&deploy, format!("dependency_unmet: success of {} (evaluate), which is Cancelled", &evaluate[..8])),
        (&alarm, format!("dependency_unmet: failure of {} (evaluate), which is Cancelled", &evaluate[..8])),
    ] {
        let ended = w.ended(id);
        assert_eq!((text(&ended, "state").as_str(), text(&ended, "reason")), ("Cancelled", reason.clone()), "{ended}");
        let audit = w.ok(&["audit", "query", "--alloc", id]);
        assert!(audit.contains(&format!("Cancelled: {reason}")), "{audit}");
    }
    [notify, cleanup, report].iter().for_each(|id| drop(w.completed(id)));
    let mut lines = files.lines();
    lines.sort();
    assert_eq!(lines, ["cleanup", "notify", "report"]);
    assert_eq!(w.run(&["wait", &deploy]).code(), 125);
    // The same for work that is submitted after the parent's end.
    let late = w.ended(&submit(w, "late", &on(&train, "success"), &[], "true"));
    assert_eq!(text(&late, "state"), "Cancelled", "{late}");
}

fn cancelled(w: &World) {
    let files = Files::new();
    let (began, ended) = (files.writes("began"), files.writes("ended"));
    let ends_slowly = format!("trap 'sleep 0.1; {ended}; exit 1' TERM; {began}; {}", files.waits("never"));
    let parent = submit(w, "parent", &[], &[], &ends_slowly);
    let any = submit(w, "any", &[format!("{parent}:any")], &[], &files.writes("any"));
    let success = submit(w, "success", std::slice::from_ref(&parent), &[], &files.writes("success"));
    let grandchild = submit(w, "grandchild", &[format!("{success}:any")], &[], &files.writes("grandchild"));
    w.wait("it to have begun", || !files.lines().is_empty());
    w.ok(&["cancel", &parent]);
    [&any, &grandchild].iter().for_each(|id| drop(w.completed(id)));
    assert_eq!(text(&w.ended(&success), "state"), "Cancelled");
    let lines = files.lines();
    let place = |line: &str| lines.iter().position(|l| l == line).unwrap_or_else(|| panic!("no {line} in {lines:?}"));
    assert!(place("ended") < place("any") && !lines.contains(&"success".to_owned()), "{lines:?}");
}

/// Checks that each begins and ends without another one in between.
fn assert_one_at_a_time(lines: &[String], count: usize) {
    assert_eq!(lines.len(), 2 * count, "{lines:?}");
    for pair in lines.chunks(2) {
        let name = pair[0].strip_prefix("begin-").unwrap_or_else(|| panic!("{lines:?}"));
        assert_eq!(pair[1], format!("end-{name}"), "{lines:?}");
    }
}

fn mutex(w: &World) {
    let files = Files::new();
    let body = |name: &str, gate: &str| {
        let (begin, end) = (files.writes(&format!("begin-{name}")), files.writes(&format!("end-{name}")));
        format!("{begin}; {}; sleep 0.2; {end}", files.waits(gate))
    };
    let first = submit(w, "first", &[], &[], &body("first", "go"));
    w.running(&first);
    let second = submit(w, "second", &[format!("{first}:mutex")], &[], &body("second", "go"));
    let third = submit(w, "third", &[format!("{first}:mutex,{second}:mutex")], &[], &body("third", "go"));
    let waits = format!("waits for {} (first) to leave its nodes", &first[..8]);
    assert!(w.ok(&["explain", &third]).contains(&waits));
    assert_eq!(text(&w.status(&second), "state"), "Pending", "two nodes are free");
    files.open("go");
    [&first, &second, &third].iter().for_each(|id| drop(w.completed(id)));
    assert_one_at_a_time(&files.lines(), 3);

    // All of them may begin at the same moment, and there is a node for each.
    let held = |name: &str, on: &[String]| submit(w, name, on, &["--hold"], &body(name, "go"));
    let fourth = held("fourth", &[]);
    let fifth = held("fifth", &[format!("{fourth}:mutex")]);
    let sixth = held("sixth", &[format!("{fourth}:mutex"), format!("{fifth}:mutex")]);
    w.ok(&["resume", &sixth, &fifth, &fourth]);
    [&fourth, &fifth, &sixth].iter().for_each(|id| drop(w.completed(id)));
    assert_one_at_a_time(&files.lines(), 6);
}

/// The child ran under its first claim.
fn assert_ran_once(child: &Value, lines: &[String]) {
    assert_eq!((&child["attempt"], &child["requeue_count"]), (&1.into(), &0.into()), "{child}");
    assert_eq!(lines.iter().filter(|line| *line == "child").count(), 1, "{lines:?}");
}

fn leader_killed(w: &World) {
    // At the moment at which the parent ends.
    let files = Files::new();
    let parent = submit(w, "parent", &[], &[], &files.waits("go"));
    let child = submit(w, "child", std::slice::from_ref(&parent), &[], &files.writes("child"));
    w.running(&parent);
    let leader = w.leader();
    files.open("go");
    faults::kill_member(&w.dir, leader).unwrap();
    assert_ran_once(&w.completed(&child), &files.lines());
    faults::start_member(&w.dir, leader).unwrap();

    // After the parent's end, before the child can get its nodes.
    let files = Files::new();
    let blocker = submit(w, "blocker", &[], &[], &files.waits("leave"));
    let parent = submit(w, "parent", &[], &[], &files.waits("go"));
    let child = submit(w, "child", std::slice::from_ref(&parent), &["-N", "3"], &files.writes("child"));
    [&blocker, &parent].iter().for_each(|id| w.running(id));
    files.open("go");
    w.completed(&parent);
    assert_eq!(text(&w.status(&child), "state"), "Pending");
    let leader = w.leader();
    faults::kill_member(&w.dir, leader).unwrap();
    files.open("leave");
    let ended = w.completed(&child);
    assert_eq!(files.lines(), ["child"; 3], "a rank on each node");
    assert_eq!((&ended["attempt"], &ended["requeue_count"]), (&1.into(), &0.into()), "{ended}");
    faults::start_member(&w.dir, leader).unwrap();
}

fn slurm(w: &World) {
    let files = Files::new();
    let script = |name: &str, dependency: &str, command: &str| {
        w.script(name, &format!("#!/bin/sh\n#SBATCH --dependency={dependency}\n#SBATCH --time=5\n{command}\n"))
    };
    let first = submit(w, "first", &[], &[], &format!("{}; exit 1", files.waits("go")));
    let second = submit(w, "second", &[], &[], &files.waits("go"));
    let after = script("after.sh", &format!("afternotok:{first},afterok:{second}"), &files.writes("after"));
    let after = w.submit(&[after.as_str()]);
    let never = script("never.sh", &format!("afterok:{first}:{second}"), &files.writes("never"));
    let never = w.submit(&[never.as_str()]);
    assert_eq!(w.status(&after)["dependencies"][1]["condition"], "success");
    files.open("go");
    w.completed(&after);
    assert_eq!(text(&w.ended(&never), "state"), "Cancelled");
    assert_eq!(files.lines(), ["after"]);
    for (dependency, piece) in [("after:1f0c+x", "a number of minutes"), ("afterok:1f0c?afterok:2f0c", "all jobs of the list count")] {
        let refused = w.run(&["submit", &script("refused.sh", dependency, "true")]);
        assert!(refused.code() == 2 && refused.err().contains("line 2") && refused.err().contains(piece), "{}", refused.err());
    }
}

fn refused(w: &World) {
    let files = Files::new();
    let id = submit(w, "parent", &[], &[], &files.waits("never"));
    let before = w.lattice.allocations().unwrap().len();
    let [corresponding, started, twice] = ["corresponding", "started", "any"].map(|condition| format!("{id}:{condition}"));
    let twice = format!("{twice},{id}:success");
    for (on, code, piece) in [
        ("ffffffff", 3, "it cannot depend on allocation ffffffff: it does not exist"),
        ("abc", 2, "at least 4 hexadecimal digits"),
        (corresponding.as_str(), 4, "corresponding needs two task groups"),
        (started.as_str(), 2, "\"started\" is no condition"),
        (twice.as_str(), 2, "is named twice"),
    ] {
        let refused = w.run(&["submit", "--depends-on", on, "--", "/bin/true"]);
        assert!(refused.code() == code && refused.err().contains(piece), "{on}: {} {}", refused.code(), refused.err());
        let dry = w.run(&["submit", "--dry-run", "--depends-on", on, "--", "/bin/true"]);
        assert!(dry.code() == code && dry.err().contains(piece), "{on}: {} {}", dry.code(), dry.err());
    }
    assert_eq!(w.lattice.allocations().unwrap().len(), before);
    let dry = w.ok(&["submit", "--dry-run", "--depends-on", &format!("{}:any", &id[..8]), "--", "/bin/true"]);
    assert!(dry.contains(&format!("Depends on:  {} (any)\n", &id[..8])), "{dry}");

    // Other users may wait for the work, but may not keep it from running.
    let excludes = w.run_as(NOBODY, &["submit", "--depends-on", &format!("{id}:mutex"), "--", "/bin/true"]);
    assert!(excludes.code() == 4 && excludes.err().contains("it belongs to another user"), "{}", excludes.err());
    let waits = w.run_as(NOBODY, &["submit", "-o", "name", "--depends-on", &format!("{id}:any"), "--", "/bin/true"]);
    assert_eq!(waits.code(), 0, "{}", waits.err());
    w.ok(&["cancel", &id]);
    w.completed(waits.out().trim());
}
