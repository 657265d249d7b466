//! Task groups: many tasks of one submission, each of which runs once, whatever happens meanwhile.

use crate::harness::{DAEMON, Folder, Group, NOBODY, World, ended};
use crate::watches::Watching;
use lattice_lab::lattice::text;
use lattice_lab::{faults, machine};
use libtest_mimic::Trial;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

static TASK_GROUPS: Group = Group::large("task_groups");

/// How long it may take to submit a million tasks, and to cancel them.
const MILLION_MAX: Duration = Duration::from_secs(5);
/// How much memory of a member a million tasks may need. A set of a million numbers would need more.
const MILLION_BYTES_MAX: u64 = 24_000_000;

pub fn trials() -> Vec<Trial> {
    vec![
        TASK_GROUPS.test("each_task_runs_once_and_no_more_at_a_time_than_allowed", &[], each_once),
        TASK_GROUPS.test("a_command_runs_once_for_each_index", &[], command),
        TASK_GROUPS.test("a_script_of_slurm_with_an_array_runs_as_a_group", &[], slurm),
        TASK_GROUPS.test("failed_tasks_are_shown_and_run_again_alone", &[], failures),
        TASK_GROUPS.test("a_group_gives_up_after_too_many_failures", &[], gives_up),
        TASK_GROUPS.test("some_tasks_are_cancelled_and_the_others_run", &[], cancel_some),
        TASK_GROUPS.test("nothing_of_a_cancelled_group_runs_afterwards", &[], cancel_all),
        TASK_GROUPS.test("a_task_ends_at_its_walltime_and_leaves_nothing_behind", &[], walltime),
        TASK_GROUPS.test("a_group_waits_for_other_work_and_other_work_for_it", &[], dependencies),
        TASK_GROUPS.test("an_agent_killed_under_its_tasks_repeats_none_of_them", &[], agent_killed),
        TASK_GROUPS.test("tasks_behind_a_long_one_run_in_another_lane", &[], long_task),
        TASK_GROUPS.test("a_group_is_watched_to_its_end_in_lines_of_its_own", &[], watched),
        TASK_GROUPS.test("only_the_tasks_of_a_lost_node_run_again", &[], node_lost),
        TASK_GROUPS.test("a_leaders_death_repeats_and_loses_no_task", &[], leader_killed),
        TASK_GROUPS.test("a_million_tasks_cost_little_to_submit_and_to_cancel", &[], million),
        TASK_GROUPS.test("a_changed_group_keeps_the_lanes_that_have_nodes_and_others_wait", &[], changed),
        TASK_GROUPS.test("what_is_no_task_and_another_users_tasks_are_refused", &[], refused),
    ]
}

/// A folder with the records of a group's tasks, and the files that they wait for.
struct Sweep(Folder);

/// A line of a task in the record.
#[derive(Debug)]
struct Note {
    what: String,
    index: u32,
    lane: String,
    node: String,
}

impl Sweep {
    fn new() -> Self {
        Self(Folder::new("tasks"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.0.join(name)
    }

    /// A script that records its begin, runs `body`, which may set `code`, and records its end.
    fn script(&self, directives: &str, body: &str) -> String {
        let (path, notes) = (self.path("sweep.sh"), self.path("notes").display().to_string());
        // Each line is one write at the end of the file, so no two are mixed.
        let note = format!("note() {{ echo $1 $LATTICE_TASK_INDEX $LATTICE_ALLOC_ID $LATTICE_NODELIST >> {notes}; }}");
        fs::write(&path, format!("#!/bin/sh\n{directives}{note}\ncode=0\nnote begin\n{body}\nnote end\nexit $code\n")).unwrap();
        path.to_string_lossy().into_owned()
    }

    fn notes(&self) -> Vec<Note> {
        let text = fs::read_to_string(self.path("notes")).unwrap_or_default();
        // The last line may be incomplete.
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let note = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [what, index, lane, node] = words[..] else { panic!("{line:?} in {text}") };
            Note { what: what.to_owned(), index: index.parse().unwrap(), lane: lane.to_owned(), node: node.to_owned() }
        };
        whole.map(note).collect()
    }

    /// The indices of tasks that began or ended, ascending; one that did so twice is there twice.
    fn indices(&self, what: &str) -> Vec<u32> {
        let mut indices: Vec<u32> = self.notes().iter().filter(|note| note.what == what).map(|note| note.index).collect();
        indices.sort_unstable();
        indices
    }

    fn begun(&self) -> Vec<u32> {
        self.indices("begin")
    }

    fn ended(&self) -> Vec<u32> {
        self.indices("end")
    }

    /// The largest number of tasks that ran at the same time, if none of them was killed.
    fn most_at_once(&self) -> usize {
        let (mut now, mut most) = (0_usize, 0_usize);
        for note in self.notes() {
            now = if note.what == "begin" { now + 1 } else { now - 1 };
            most = now.max(most);
        }
        most
    }

    /// A command that waits for [`Self::open`].
    fn waits(&self, gate: &str) -> String {
        format!("while ! test -e {}; do sleep 0.05; done", self.path(gate).display())
    }

    fn open(&self, gate: &str) {
        fs::write(self.path(gate), "").unwrap();
    }
}

/// Half the cores of a node: two tasks fit on each.
fn half_a_node(w: &World) -> String {
    let nodes = w.lattice.json(&["nodes"]).unwrap();
    let cores = nodes[0]["cores"].as_u64().unwrap_or_else(|| panic!("{nodes}"));
    (cores / 2).max(1).to_string()
}

/// Submits this script as a group, each of whose tasks has half a node.
fn submit(w: &World, tasks: &str, more: &[&str], script: &str) -> String {
    let (tasks, cores) = (format!("--task-group={tasks}"), half_a_node(w));
    w.submit(&[&["--name=sweep", &tasks, "--cores", &cores], more, &[script]].concat())
}

/// The single task as the CLI takes it: `ID[INDEX]`.
fn task(id: &str, index: u32) -> String {
    format!("{id}[{index}]")
}

/// One of the numbers of a group, such as `running` or `restarts`.
fn count(w: &World, id: &str, key: &str) -> u64 {
    let now = w.status(id);
    now["task_counts"][key].as_u64().unwrap_or_else(|| panic!("no count of {key} in {now}"))
}

/// The rows of `status ID --tasks`, with single spaces: a state, how many tasks have it, and their indices.
fn tasks(w: &World, id: &str) -> Vec<String> {
    let shown = w.ok(&["status", id, "--tasks"]);
    shown.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn lanes(w: &World, id: &str) -> BTreeSet<String> {
    w.ok(&["status", id, "--lanes", "-o", "name"]).lines().map(str::to_owned).collect()
}

/// Waits until this many tasks have begun.
fn wait_begun(w: &World, sweep: &Sweep, tasks: usize) {
    w.wait(&format!("{tasks} tasks to have begun"), || sweep.begun().len() >= tasks);
}

fn failed_with(w: &World, id: &str, reason: &str) {
    let now = w.ended(id);
    assert_eq!((text(&now, "state").as_str(), text(&now, "reason").as_str()), ("Failed", reason), "{now}");
}

fn each_once(w: &World) {
    let sweep = Sweep::new();
    let says = "echo task $LATTICE_TASK_INDEX of $LATTICE_TASK_COUNT, $LATTICE_TASK_MIN to $LATTICE_TASK_MAX by $LATTICE_TASK_STEP, \
                of $LATTICE_TASK_GROUP_ID";
    let script = sweep.script("", &format!("{says}\n{}", sweep.waits("go")));
    let id = submit(w, "0-198:2%4", &[], &script);
    w.running(&id);
    wait_begun(w, &sweep, 4);
    w.wait("its lanes to run", || count(w, &id, "lanes_running") == 4);
    assert_eq!(sweep.begun(), [0, 2, 4, 6]);
    assert_eq!(tasks(w, &id), ["Running 4 0-6:2", "Pending 96 8-198:2"]);
    assert_eq!(["total", "running", "waiting", "lanes_waiting"].map(|key| count(w, &id, key)), [100, 4, 96, 0]);
    let explained = w.ok(&["explain", &task(&id, 50)]);
    assert!(explained.starts_with(&format!("{}[50] is Pending: it waits for a lane", &id[..8])), "{explained}");
    sweep.open("go");
    let now = w.completed(&id);
    assert_eq!((text(&now, "name").as_str(), text(&now, "task_group").as_str()), ("sweep", "0-198:2%4"), "{now}");

    let all: Vec<u32> = (0..=198).step_by(2).collect();
    assert_eq!((sweep.begun(), sweep.ended()), (all.clone(), all));
    assert_eq!(sweep.most_at_once(), 4);
    let notes = sweep.notes();
    let nodes: BTreeSet<&str> = notes.iter().map(|note| note.node.as_str()).collect();
    assert!(nodes.len() >= 2, "two tasks fit on a node, and four ran at once: {nodes:?}");
    assert_eq!(tasks(w, &id), ["Completed 100 0-198:2"]);
    assert_eq!(["completed", "running", "waiting", "failed", "restarts"].map(|key| count(w, &id, key)), [100, 0, 0, 0, 0]);

    // The lanes are allocations, and are listed only on request.
    let lanes = lanes(w, &id);
    let used: BTreeSet<String> = notes.iter().map(|note| note.lane.clone()).collect();
    assert!(used.is_subset(&lanes) && !lanes.contains(&id), "{used:?} {lanes:?}");
    let listed: BTreeSet<String> = w.lattice.allocations().unwrap().iter().map(|a| text(a, "id")).collect();
    assert!(listed.contains(&id) && listed.is_disjoint(&lanes), "{listed:?} {lanes:?}");
    let lane = w.status(&notes[0].lane);
    assert_eq!((text(&lane, "lane_of"), text(&lane, "state").as_str()), (id.clone(), "Completed"), "{lane}");

    let said = format!("task 42 of 100, 0 to 198 by 2, of {id}\n");
    w.wait("the output of the task", || w.log(&task(&id, 42)) == said);
    assert_eq!(w.ok(&["logs", &id, "--task", "42"]), said);
    w.assert_nothing_left();
}

fn command(w: &World) {
    let body = "echo $LATTICE_TASK_INDEX $SLURM_ARRAY_TASK_ID; echo error >&2";
    let done = w.run(&["submit", "--wait", "-q", "-o", "name", "--array=3,5-6", "--", "/bin/sh", "-c", body]);
    assert_eq!(done.code(), 0, "{}", done.err());
    let id = done.out().trim().to_owned();
    assert_eq!(tasks(w, &id), ["Completed 3 3, 5-6"]);
    for index in [3, 5, 6] {
        w.wait("its output", || w.log(&task(&id, index)) == format!("{index} {index}\nerror\n"));
    }
    let dry = w.ok(&["submit", "--dry-run", "--array=0-99%20", "--max-failures=3", "--walltime=90m", "--", "/bin/true"]);
    for line in ["100, with indices 0-99\n", "at most 20 tasks\n", "more than 3 tasks have failed", "01:30:00 for each task\n"] {
        assert!(dry.contains(line), "{line}: {dry}");
    }
    let fails = w.run(&["submit", "--wait", "-q", "--array=1-3", "--", "/bin/false"]);
    assert_eq!(fails.code(), 1, "{}", fails.err());
}

fn slurm(w: &World) {
    let sweep = Sweep::new();
    let body = format!("test \"$SLURM_ARRAY_TASK_ID\" = $LATTICE_TASK_INDEX || code=3\n{}", sweep.waits("go"));
    let id = w.submit(&[&sweep.script("#SBATCH --array=1-5%2\n#SBATCH --time=5\n", &body)]);
    wait_begun(w, &sweep, 2);
    assert_eq!(tasks(w, &id), ["Running 2 1-2", "Pending 3 3-5"]);
    sweep.open("go");
    w.completed(&id);
    assert_eq!((sweep.ended(), sweep.most_at_once()), (vec![1, 2, 3, 4, 5], 2));
}

fn failures(w: &World) {
    let sweep = Sweep::new();
    let fixed = sweep.path("fixed");
    let fails = "case $LATTICE_TASK_INDEX in 4) code=1;; 9|10) code=7; echo no luck >&2;; esac";
    let script = sweep.script("", &format!("{fails}\ntest -e {} && code=0", fixed.display()));
    let id = submit(w, "1-20", &[], &script);
    failed_with(w, &id, "tasks_failed: 3 of 20");
    let shown = "\
STATE       TASKS  INDICES
Completed   17     1-3, 5-8, 11-20
Failed (1)  1      4
Failed (7)  2      9-10
";
    assert_eq!(w.ok(&["status", &id, "--tasks"]), shown);
    assert_eq!(["completed", "failed", "cancelled"].map(|key| count(w, &id, key)), [17, 3, 0]);
    let all: Vec<u32> = (1..=20).collect();
    assert_eq!(sweep.begun(), all);
    w.wait("what the failed task wrote", || w.log(&task(&id, 9)) == "no luck\n");

    fs::write(&fixed, "").unwrap();
    fs::remove_file(sweep.path("notes")).unwrap();
    let again = w.ok(&["retry", &id, "--failed", "-o", "name"]).trim().to_owned();
    assert_ne!(again, id);
    let now = w.completed(&again);
    assert_eq!((text(&now, "name").as_str(), text(&now, "task_group").as_str()), ("sweep", "4,9-10"), "{now}");
    assert_eq!((sweep.begun(), sweep.ended()), (vec![4, 9, 10], vec![4, 9, 10]));
    assert_eq!(w.ok(&["status", &id, "--tasks"]), shown, "the first group stays as it was");

    let none = w.run(&["retry", &again, "--failed"]);
    let refusal = format!("no task of group {} has failed", &again[..8]);
    assert!(none.code() == 4 && none.err().contains(&refusal), "{} {}", none.code(), none.err());
    let two = w.ok(&["retry", &id, "--tasks", "1-2", "-o", "name"]).trim().to_owned();
    w.completed(&two);
    assert_eq!(sweep.ended(), [1, 2, 4, 9, 10]);
}

fn gives_up(w: &World) {
    let sweep = Sweep::new();
    let id = submit(w, "0-999%1", &["--max-failures=2"], &sweep.script("", "code=3"));
    let now = w.ended(&id);
    let [failed, cancelled] = ["failed", "cancelled"].map(|key| count(w, &id, key));
    assert_eq!(text(&now, "reason"), format!("tasks_failed: {failed} of 1000"), "{now}");
    // Tasks that the lane had leased already may run.
    assert!(failed > 2 && cancelled > 0 && failed + cancelled == 1000, "{failed} failed, {cancelled} were cancelled");
    assert_eq!(sweep.ended().len() as u64, failed);
}

fn cancel_some(w: &World) {
    let sweep = Sweep::new();
    let id = submit(w, "8-30%4", &[], &sweep.script("", &sweep.waits("go")));
    wait_begun(w, &sweep, 4);
    // Two of them run, and the others wait.
    let short = &id[..8];
    let done = w.ok(&["cancel", &format!("{id}[10-20]")]);
    assert_eq!(done, format!("Cancelled 11 tasks of task group {short}\n"));
    w.wait("two others to begin in their place", || sweep.begun() == [8, 9, 10, 11, 21, 22]);
    assert_eq!(tasks(w, &id), ["Running 4 8-9, 21-22", "Cancelled 11 10-20", "Pending 8 23-30"]);
    sweep.open("go");
    w.completed(&id);
    let rest: Vec<u32> = (8..10).chain(21..=30).collect();
    assert_eq!(sweep.ended(), rest);
    assert_eq!(sweep.begun(), [&[8, 9, 10, 11][..], &rest[2..]].concat(), "those that waited never began");
    assert_eq!(tasks(w, &id), ["Completed 12 8-9, 21-30", "Cancelled 11 10-20"]);
    let again = w.ok(&["cancel", &format!("{id}[8-12]")]);
    assert_eq!(again, format!("Cancelled 0 tasks of task group {short}; 5 had ended before\n"));
    w.assert_nothing_left();

    let id = submit(w, "0-3", &["--hold"], &sweep.script("", ""));
    w.ok(&["cancel", &format!("{id}[0-1]")]);
    w.ok(&["cancel", &task(&id, 2), &task(&id, 3)]);
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled", "all of its tasks were cancelled");
}

fn cancel_all(w: &World) {
    let sweep = Sweep::new();
    let id = submit(w, "0-99", &[], &sweep.script("", &sweep.waits("go")));
    wait_begun(w, &sweep, 6);
    w.ok(&["cancel", &id]);
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    assert_eq!(tasks(w, &id), ["Cancelled 100 0-99"]);
    w.assert_nothing_left();
    let begun = sweep.begun();
    sweep.open("go");
    let all_have_ended = || lanes(w, &id).iter().all(|lane| ended(&w.status(lane)));
    w.wait("its lanes to have ended", all_have_ended);
    // Other work runs on all nodes, and nothing of the group begins before or after it.
    w.completed(&w.submit(&["-N", "3", "--walltime=5m", "--", "/bin/true"]));
    assert_eq!((sweep.begun(), sweep.ended()), (begun, vec![]));
    w.assert_nothing_left();
}

fn walltime(w: &World) {
    let sweep = Sweep::new();
    let id = submit(w, "0-2%1", &["--walltime=2s"], &sweep.script("", "test $LATTICE_TASK_INDEX != 1 || sleep 600"));
    failed_with(w, &id, "tasks_failed: 1 of 3");
    assert_eq!(tasks(w, &id), ["Completed 2 0, 2", "Failed (walltime_exceeded) 1 1"]);
    assert_eq!((sweep.begun(), sweep.ended(), count(w, &id, "restarts")), (vec![0, 1, 2], vec![0, 2], 0));

    let pid = sweep.path("pid").display().to_string();
    let body = format!("test $LATTICE_TASK_INDEX = 1 && kill -0 $(cat {pid}) && code=9\nsetsid sleep 600 &\necho $! > {pid}");
    let id = submit(w, "0-1%1", &[], &sweep.script("", &body));
    w.completed(&id);
    w.assert_nothing_left();
}

fn dependencies(w: &World) {
    let sweep = Sweep::new();
    let job = |name: &str, depends_on: &str, body: &str| {
        w.submit(&["--name", name, "--walltime=5m", "--depends-on", depends_on, "--", "/bin/sh", "-c", body])
    };
    let parent = w.submit(&["--name=parent", "--walltime=5m", "--", "/bin/sh", "-c", &sweep.waits("parent")]);
    let group = submit(w, "0-3", &["--hold", "--depends-on", &parent], &sweep.script("", ""));
    let after = job("after", &group, &format!("cat {} > {}", sweep.path("notes").display(), sweep.path("seen").display()));
    assert_eq!((w.status(&group)["held"].clone(), lanes(w, &group)), (Value::Bool(true), BTreeSet::new()));
    w.ok(&["resume", &group]);
    assert_eq!((text(&w.status(&group), "state").as_str(), lanes(w, &group)), ("Pending", BTreeSet::new()));
    sweep.open("parent");
    [&parent, &group, &after].iter().for_each(|id| drop(w.completed(id)));
    let seen = fs::read_to_string(sweep.path("seen")).unwrap();
    assert_eq!(seen.matches("end ").count(), 4, "{seen}");

    let fails = submit(w, "0-3", &["--hold"], &sweep.script("", "test $LATTICE_TASK_INDEX != 2 || code=1"));
    let (success, failure) = (job("success", &format!("{fails}:success"), "true"), job("failure", &format!("{fails}:failure"), "true"));
    w.ok(&["resume", &fails]);
    failed_with(w, &fails, "tasks_failed: 1 of 4");
    w.completed(&failure);
    assert_eq!(text(&w.ended(&success), "state"), "Cancelled");
}

fn agent_killed(w: &World) {
    let sweep = Sweep::new();
    let id = submit(w, "0-23", &[], &sweep.script("", &sweep.waits("go")));
    wait_begun(w, &sweep, 6);
    let of_n2: BTreeSet<u32> = sweep.notes().iter().filter(|note| note.node == "n2").map(|note| note.index).collect();
    assert!(!of_n2.is_empty(), "{:?}", sweep.notes());
    faults::kill_node(&w.dir, "n2").unwrap();
    sweep.open("go");
    w.wait("the tasks of n2 to end without its agent", || of_n2.is_subset(&sweep.ended().into_iter().collect()));
    faults::start_node(&w.dir, "n2").unwrap();
    w.completed(&id);
    let all: Vec<u32> = (0..24).collect();
    assert_eq!((sweep.begun(), sweep.ended(), count(w, &id, "restarts")), (all.clone(), all, 0));
    assert_eq!(tasks(w, &id), ["Completed 24 0-23"]);
    w.assert_nothing_left();
}

/// A lane that has leased many short tasks meets one that takes long.
fn long_task(w: &World) {
    let sweep = Sweep::new();
    let waits = format!("test $LATTICE_TASK_INDEX != 50 || {{ {}; }}", sweep.waits("go"));
    let id = submit(w, "0-399%2", &[], &sweep.script("", &waits));
    w.wait("all others to end", || sweep.ended().len() >= 399);
    let others: Vec<u32> = (0..400).filter(|index| *index != 50).collect();
    assert_eq!(sweep.ended(), others);
    sweep.open("go");
    w.completed(&id);
    let all: Vec<u32> = (0..400).collect();
    assert_eq!((sweep.begun(), sweep.ended(), count(w, &id, "restarts")), (all.clone(), all, 0));
    assert_eq!(tasks(w, &id), ["Completed 400 0-399"]);
    w.assert_nothing_left();
}

fn watched(w: &World) {
    let sweep = Sweep::new();
    let id = submit(w, "0-11", &["--hold"], &sweep.script("", &sweep.waits("go")));
    let mut watching = Watching::begin(w, "group", &["status", &id, "--watch", "-o", "json"], None);
    w.wait("the group to be shown", || !watching.lines().is_empty());
    w.ok(&["resume", &id]);
    w.wait("it to run", || watching.lines().iter().any(|line| text(line, "state") == "Running"));
    sweep.open("go");
    assert_eq!(watching.ended(), Some(0), "{}", watching.err());
    let lines = watching.lines();
    assert!(lines.iter().all(|line| text(line, "id") == id), "its lanes have no lines: {lines:?}");
    let mut states: Vec<String> = lines.iter().map(|line| text(line, "state")).collect();
    states.dedup();
    assert_eq!(states, ["Pending", "Running", "Completed"], "{lines:?}");
}

fn node_lost(w: &World) {
    let sweep = Sweep::new();
    let id = submit(w, "0-23", &[], &sweep.script("", &sweep.waits("go")));
    wait_begun(w, &sweep, 6);
    let lost: Vec<u32> = sweep.notes().iter().filter(|note| note.node == "n3").map(|note| note.index).collect();
    assert!(!lost.is_empty(), "{:?}", sweep.notes());
    faults::lose_node(&w.dir, "n3").unwrap();
    let confirm = ["node", "confirm-dead", "n3", "--yes", "--reason", "its rack has no power"];
    // The confirmation is refused while heartbeats of the node are recent.
    w.wait("the death of n3 to be confirmed", || w.run(&confirm).code() == 0);
    sweep.open("go");
    w.completed(&id);
    let all: Vec<u32> = (0..24).collect();
    assert_eq!((sweep.ended(), tasks(w, &id)), (all.clone(), vec!["Completed 24 0-23".to_owned()]));
    let mut begun = [all, lost.clone()].concat();
    begun.sort_unstable();
    assert_eq!((sweep.begun(), count(w, &id, "restarts")), (begun, lost.len() as u64), "those of n3 began twice, and no other");
    let one = w.lattice.json(&["status", &task(&id, lost[0])]).unwrap();
    let nodes: Vec<String> = one["lanes"].as_array().unwrap().iter().map(|lane| text(lane, "node")).collect();
    assert!(one["restarts"] == 1 && nodes.len() == 2 && ["n1", "n2"].contains(&nodes[1].as_str()), "{one}");
    faults::start_node(&w.dir, "n3").unwrap();
    w.wait("n3 to be Ready", || w.lattice.nodes().is_ok_and(|nodes| nodes.iter().all(|(_, state)| state == "Ready")));
    w.assert_nothing_left();
}

fn leader_killed(w: &World) {
    let sweep = Sweep::new();
    // The second half cannot end before the leader is dead.
    let id = submit(w, "0-199", &[], &sweep.script("", &format!("test $LATTICE_TASK_INDEX -lt 100 || {{ {}; }}", sweep.waits("go"))));
    w.wait("some to have ended", || sweep.ended().len() >= 20);
    let leader = w.leader();
    faults::kill_member(&w.dir, leader).unwrap();
    sweep.open("go");
    w.completed(&id);
    faults::start_member(&w.dir, leader).unwrap();
    let all: Vec<u32> = (0..200).collect();
    assert_eq!((sweep.begun(), sweep.ended(), count(w, &id, "restarts")), (all.clone(), all, 0));
    assert_eq!(tasks(w, &id), ["Completed 200 0-199"]);
}

fn million(w: &World) {
    let members: Vec<i32> = w.cluster().members.iter().filter_map(|member| member.daemon.process.as_ref().map(|p| p.pid)).collect();
    let memory = || -> Vec<u64> { members.iter().filter_map(|pid| machine::anonymous_memory_of(*pid)).collect() };
    let before = memory();
    let began = Instant::now();
    let id = w.submit(&["--task-group=0-999999", "--walltime=5m", "--", "/bin/true"]);
    let submitted = began.elapsed();
    w.ok(&["cancel", &id]);
    let cancelled = began.elapsed() - submitted;
    assert!(submitted < MILLION_MAX && cancelled < MILLION_MAX, "submitted in {submitted:?}, cancelled in {cancelled:?}");
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    let [total, waiting, running, completed, cancelled] =
        ["total", "waiting", "running", "completed", "cancelled"].map(|key| count(w, &id, key));
    assert_eq!((total, waiting, running, completed + cancelled), (1_000_000, 0, 0, 1_000_000));
    assert!(completed < 100_000 && tasks(w, &id).iter().any(|line| line.starts_with("Cancelled ")), "{completed} completed");
    let grown: Vec<u64> = memory().iter().zip(&before).map(|(now, before)| now.saturating_sub(*before)).collect();
    assert!(grown.len() == 3 && grown.iter().all(|bytes| *bytes < MILLION_BYTES_MAX), "members grew by {grown:?} bytes");
    w.assert_nothing_left();
}

fn changed(w: &World) {
    let sweep = Sweep::new();
    // More tasks than run at once.
    let id = submit(w, "0-39", &["--walltime=5m"], &sweep.script("", &sweep.waits("go")));
    w.wait("lanes to run", || count(w, &id, "lanes_running") > 0);
    let lanes = || {
        let all = w.lattice.json(&["status", &id, "--lanes"]).unwrap();
        let lane = |lane: &Value| (text(lane, "id"), text(lane, "state"), lane["walltime_seconds"].as_u64());
        all.as_array().unwrap().iter().map(lane).collect::<Vec<_>>()
    };
    let in_state = |lanes: &[(String, String, Option<u64>)], wanted: &str| {
        let all = lanes.iter().filter(|(_, state, _)| state == wanted);
        all.map(|(id, _, walltime)| (id.clone(), *walltime)).collect::<Vec<_>>()
    };
    let ran = in_state(&lanes(), "Running");
    let said = w.ok(&["update", &id, "--walltime", "10m"]);
    let short = &id[..8];
    assert_eq!(said, format!("Allocation {short} has a walltime of 00:10:00; lanes of it that have nodes keep what they had\n"));
    let after = lanes();
    // A lane has twice the walltime of a task, and a minute.
    assert!(!ran.is_empty() && ran.iter().all(|lane| lane.1 == Some(660)), "{ran:?}");
    let (runs, waits) = (in_state(&after, "Running"), in_state(&after, "Pending"));
    assert!(ran.iter().all(|lane| runs.contains(lane)), "{ran:?} {after:?}");
    assert!(!waits.is_empty() && waits.iter().all(|lane| lane.1 == Some(1260)), "{after:?}");
    let refused = w.run(&["update", &id, "--walltime", "7200h"]);
    assert!(refused.code() != 0 && refused.err().contains("a task may have at most 182 days"), "{}", refused.err());
    w.ok(&["cancel", &id]);
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
}

fn refused(w: &World) {
    let before = w.lattice.allocations().unwrap().len();
    for (indices, piece) in [
        ("0-4294967295", "larger than the largest index"),
        ("9999999999999999999999", "larger than the largest index"),
        ("0-1000000", "more than 1000000 tasks"),
        ("9-1", "ends before it begins"),
        ("1--2", "no index"),
        ("0-9%0", "write at least 1"),
    ] {
        let done = w.run(&["submit", &format!("--array={indices}"), "--", "/bin/true"]);
        assert!(done.code() == 2 && done.err().contains(piece) && done.err().contains("--array"), "{indices}: {}", done.err());
    }
    for (more, piece) in [
        (&["-N", "2"][..], "write a script that uses `lattice launch`"),
        (&["--tasks-per-node", "2"], "write a script that uses `lattice launch`"),
        (&["--service"], "leave --service out"),
        (&["--checkpoint=signal"], "leave --checkpoint out"),
    ] {
        let done = w.run(&[&["submit", "--task-group=0-1"], more, &["--", "/bin/true"]].concat());
        assert!(done.code() == 2 && done.err().contains(piece), "{more:?}: {} {}", done.code(), done.err());
    }
    let launched = w.run(&["launch", "--task-group=0-1", "--", "/bin/true"]);
    assert!(launched.code() != 0 && launched.err().contains("lattice submit --task-group"), "{}", launched.err());
    assert_eq!(w.lattice.allocations().unwrap().len(), before);

    let done = w.run_as(NOBODY, &["submit", "-o", "name", "--task-group=0-9", "--walltime=5m", "--", "/bin/sleep", "600"]);
    assert_eq!(done.code(), 0, "{}", done.err());
    let id = done.out().trim().to_owned();
    w.running(&id);
    for command in ["status", "logs", "explain", "cancel"] {
        let none = w.run(&[command, &task(&id, 10)]);
        assert!(none.code() == 3 && none.err().contains("has no task 10"), "{command}: {} {}", none.code(), none.err());
        let malformed = w.run(&[command, &format!("{id}[7")]);
        assert!(malformed.code() == 2 && malformed.err().contains("in quotes"), "{command}: {}", malformed.err());
    }
    let of_root = w.run(&["retry", &id, "--tasks", "0"]);
    assert!(of_root.code() == 4 && of_root.err().contains("may have its tasks run once more"), "{}", of_root.err());
    let runs = w.run_as(NOBODY, &["retry", &id, "--tasks", "0"]);
    assert!(runs.code() == 4 && runs.err().contains("task 0 of group") && runs.err().contains("has not ended"), "{}", runs.err());
    for args in [&["cancel", &task(&id, 9)][..], &["cancel", &id], &["retry", &id], &["logs", &task(&id, 0)]] {
        let done = w.run_as(DAEMON, args);
        assert!(done.code() == 4 && done.err().contains("belongs to"), "{args:?}: {} {}", done.code(), done.err());
    }
    assert_eq!(count(w, &id, "cancelled"), 0);
    assert_eq!(w.run_as(NOBODY, &["cancel", &task(&id, 9)]).code(), 0);
    assert_eq!(count(w, &id, "cancelled"), 1);
    assert_eq!(w.run_as(NOBODY, &["cancel", &id]).code(), 0);
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
}
