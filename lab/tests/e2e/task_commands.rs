//! Task groups as a user sees them: what is typed, what is shown, and the exit codes.

use crate::harness::{Folder, Group, World};
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;
use std::fs;

static TASK_COMMANDS: Group = Group::small("task_commands");

pub fn trials() -> Vec<Trial> {
    vec![
        TASK_COMMANDS.test("each_index_runs_once_and_what_failed_runs_again_on_request", &[], runs),
        TASK_COMMANDS.test("tasks_are_cancelled_one_by_one_or_with_their_group", &[], cancels),
        TASK_COMMANDS.test("an_array_of_slurm_runs_and_a_task_is_followed_to_its_exit_code", &[], follows),
        TASK_COMMANDS.test("tasks_that_wait_are_cancelled_after_too_many_failures", &[], stops_after_failures),
        TASK_COMMANDS.test("what_cannot_have_tasks_is_refused", &[], refuses),
    ]
}

/// The number of a group's tasks in this state.
fn count(w: &World, id: &str, state: &str) -> u64 {
    w.status(id)["task_counts"][state].as_u64().unwrap_or_else(|| panic!("no {state} of {id}"))
}

fn data(w: &World, args: &[&str]) -> Value {
    w.lattice.json(args).unwrap_or_else(|e| panic!("{e:#}"))
}

fn runs(w: &World) {
    let files = Folder::new("task-commands");
    let ran = files.0.join("ran");
    let body = format!("echo task $LATTICE_TASK_INDEX\necho $LATTICE_TASK_INDEX >> {}\ntest $LATTICE_TASK_INDEX != 4", ran.display());
    let script = w.script("sweep.sh", &format!("#!/bin/sh\n#LATTICE walltime=5m\n{body}\n"));
    let lines = || {
        let mut lines: Vec<String> = fs::read_to_string(&ran).unwrap_or_default().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let submitted = w.run(&["submit", "--wait", "-q", "-o", "name", "--task-group=0-8:2%2", &script]);
    assert_eq!(submitted.code(), 1, "{}", submitted.err());
    let id = submitted.out().trim().to_owned();
    assert_eq!(lines(), ["0", "2", "4", "6", "8"]);

    let ended = w.status(&id);
    assert_eq!((text(&ended, "state").as_str(), text(&ended, "reason").as_str()), ("Failed", "tasks_failed: 1 of 5"), "{ended}");
    assert_eq!(text(&ended, "task_group"), "0-8:2%2", "{ended}");
    assert_eq!(["total", "completed", "failed", "waiting", "running"].map(|state| count(w, &id, state)), [5, 4, 1, 0, 0], "{ended}");
    let shown = w.ok(&["status", &id]);
    let numbers = format!("\n5 tasks; `lattice status {} --tasks` and `--lanes` show more:\n", &id[..8]);
    assert!(shown.lines().any(|line| line.starts_with("Task group:") && line.ends_with("  0-8:2%2")), "{shown}");
    assert!(shown.contains(&numbers), "{shown}");
    let want = "STATE       TASKS  INDICES\nCompleted   4      0, 2, 6, 8\nFailed (1)  1      4\n";
    assert_eq!(w.ok(&["status", &id, "--tasks"]), want);

    let [second, third, last] = [4, 6, 8].map(|index| format!("{id}[{index}]"));
    assert_eq!((w.ok(&["logs", &third]), w.ok(&["logs", &id, "--task", "8"])), ("task 6\n".to_owned(), "task 8\n".to_owned()));
    assert_eq!(w.run(&["logs", "-f", &second]).code(), 1, "the code of its program");
    assert_eq!(w.run(&["logs", "-f", &last]).code(), 0);
    let failed = data(w, &["status", &second]);
    assert_eq!((text(&failed, "state").as_str(), &failed["exit_code"], &failed["restarts"]), ("Failed", &1.into(), &0.into()), "{failed}");
    let explained = w.ok(&["explain", &second]);
    assert!(explained.starts_with(&format!("{}[4] is Failed: exit_code 1; it ran in lane ", &id[..8])), "{explained}");

    let lanes = data(w, &["status", &id, "--lanes"]);
    let lanes = lanes.as_array().unwrap();
    assert!(!lanes.is_empty() && lanes.iter().all(|lane| text(lane, "lane_of") == id), "{lanes:?}");
    assert!(lanes.iter().any(|lane| lane["id"] == failed["lanes"][0]["id"]), "{lanes:?} {failed}");
    let listed = w.ok(&["status", "-o", "name"]);
    assert!(listed.contains(&id) && lanes.iter().all(|lane| !listed.contains(&text(lane, "id"))), "{listed}");

    let again = w.ok(&["retry", &id, "-o", "name"]).trim().to_owned();
    let ended = w.ended(&again);
    assert_eq!((text(&ended, "state").as_str(), text(&ended, "reason").as_str()), ("Failed", "tasks_failed: 1 of 1"), "{ended}");
    assert_eq!(lines(), ["0", "2", "4", "4", "6", "8"]);
    let some = w.ok(&["retry", &id, "--tasks=0,8", "-o", "name"]);
    w.completed(some.trim());
    assert_eq!(lines(), ["0", "0", "2", "4", "4", "6", "8", "8"]);
}

fn cancels(w: &World) {
    let files = Folder::new("task-commands");
    let gate = files.0.join("go");
    let waits = format!("while ! test -e {}; do sleep 0.05; done", gate.display());
    let submit = || w.submit(&["--walltime", "5m", "--array=0-9%1", "--", "/bin/sh", "-c", &waits]);
    let id = submit();
    let short = &id[..8];
    w.running(&id);
    w.wait("its first task to run", || count(w, &id, "running") == 1);
    assert_eq!(w.ok(&["cancel", &format!("{id}[5-7,9]")]), format!("Cancelled 4 tasks of task group {short}\n"));
    assert_eq!(w.ok(&["cancel", &format!("{id}[9]")]), format!("Cancelled 0 tasks of task group {short}; 1 had ended before\n"));
    let want = "STATE      TASKS  INDICES\nRunning    1      0\nPending    5      1-4, 8\nCancelled  4      5-7, 9\n";
    assert_eq!(w.ok(&["status", &id, "--tasks"]), want);
    let explained = w.ok(&["explain", &format!("{id}[8]")]);
    assert!(explained.starts_with(&format!("{short}[8] is Pending: it waits for a lane of its task group\n")), "{explained}");

    // Nothing opens the gate for the task that runs: the next one takes its place.
    assert_eq!(w.ok(&["cancel", &format!("{id}[0]")]), format!("Cancelled 1 task of task group {short}\n"));
    w.wait("the next task to run", || data(w, &["status", &format!("{id}[1]")])["state"] == "Running");
    fs::write(&gate, "").unwrap();
    w.ended(&id);
    assert_eq!(["completed", "cancelled"].map(|state| count(w, &id, state)), [5, 5]);

    fs::remove_file(&gate).unwrap();
    let whole = submit();
    w.wait("its first task to run", || count(w, &whole, "running") == 1);
    w.ok(&["cancel", &whole]);
    assert_eq!(text(&w.ended(&whole), "state"), "Cancelled");
    assert_eq!(count(w, &whole, "cancelled"), 10);
    assert_eq!(w.run(&["wait", &whole]).code(), 1);
}

fn follows(w: &World) {
    let lines = "#SBATCH --array=1-3\n#SBATCH --time=5\n";
    let work = "echo begins\nsleep 0.3\necho $SLURM_ARRAY_TASK_ID is $LATTICE_TASK_INDEX\nexit $((LATTICE_TASK_INDEX - 1))\n";
    let id = w.submit(&[&w.script("array.sh", &format!("#!/bin/sh\n{lines}{work}"))]);
    for (index, code) in [(3, 2), (1, 0), (2, 1)] {
        let followed = w.run(&["logs", "-q", "-f", &format!("{id}[{index}]")]);
        assert_eq!((followed.code(), followed.out()), (code, format!("begins\n{index} is {index}\n")), "{}", followed.err());
    }
    assert_eq!(text(&w.ended(&id), "reason"), "tasks_failed: 2 of 3");
}

fn stops_after_failures(w: &World) {
    let id = w.submit(&["--walltime", "5m", "--task-group=0-999%1", "--max-failures=0", "--", "/bin/false"]);
    let ended = w.ended(&id);
    assert_eq!(text(&ended, "state"), "Failed", "{ended}");
    let [failed, cancelled] = ["failed", "cancelled"].map(|state| count(w, &id, state));
    assert!(failed > 0 && cancelled > 0 && failed + cancelled == 1000, "{ended}");
}

fn refuses(w: &World) {
    let before = w.lattice.allocations().unwrap().len();
    for (args, piece) in [
        (&["submit", "--array=9-0", "--", "/bin/true"][..], "'--array <LIST[%N]>': \"9-0\" ends before it begins"),
        (&["submit", "--task-group=0-1000000", "--", "/bin/true"], "more than 1000000 tasks"),
        (&["submit", "--max-failures=1", "--", "/bin/true"], "--max-failures is for task groups"),
        (&["launch", "--task-group=0-9", "/bin/true"], "--task-group: `lattice launch` has no tasks"),
        (&["session", "--array=0-9", "--walltime=5m"], "--array: `lattice session` has no tasks"),
        (&["status", "1f0c9a4e[1-2]"], "write one index"),
    ] {
        let refused = w.run(args);
        assert!(refused.code() == 2 && refused.err().contains(piece), "{args:?}: {} {}", refused.code(), refused.err());
    }
    for option in ["--service", "--tasks-per-node=2", "--nodes=2", "--expose=8080", "--checkpoint=signal"] {
        let refused = w.run(&["submit", "--task-group=0-9", option, "--", "/bin/true"]);
        assert!([2, 4].contains(&refused.code()) && refused.err().contains("task"), "{option}: {} {}", refused.code(), refused.err());
    }
    assert_eq!(w.lattice.allocations().unwrap().len(), before);
    let id = w.submit(&["--", "/bin/true"]);
    w.completed(&id);
    let id = id.as_str();
    for args in [&["retry", id][..], &["status", id, "--tasks"], &["status", id, "--lanes"], &["logs", id, "--task=7"]] {
        let refused = w.run(args);
        assert!([2, 3, 4].contains(&refused.code()) && refused.err().contains("task"), "{args:?}: {} {}", refused.code(), refused.err());
    }
}
