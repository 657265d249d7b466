//! Task groups as a user sees them: one task that is followed, the lanes, and the exit codes.

use crate::harness::{Group, World};
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;

static TASK_COMMANDS: Group = Group::small("task_commands");

pub fn trials() -> Vec<Trial> {
    vec![
        TASK_COMMANDS.test("a_task_is_followed_to_its_exit_code_and_shown_with_its_lane", &[], follows),
        TASK_COMMANDS.test("what_has_no_tasks_is_refused", &[], refuses),
    ]
}

fn data(w: &World, args: &[&str]) -> Value {
    w.lattice.json(args).unwrap_or_else(|e| panic!("{e:#}"))
}

fn follows(w: &World) {
    let work = "echo begins\nsleep 0.3\necho $LATTICE_TASK_INDEX\nexit $((LATTICE_TASK_INDEX - 1))\n";
    let id = w.submit(&[&w.script("array.sh", &format!("#!/bin/sh\n#SBATCH --array=1-3\n#SBATCH --time=5\n{work}"))]);
    for (index, code) in [(3, 2), (1, 0), (2, 1)] {
        let followed = w.run(&["logs", "-q", "-f", &format!("{id}[{index}]")]);
        assert_eq!((followed.code(), followed.out()), (code, format!("begins\n{index}\n")), "{}", followed.err());
    }
    assert_eq!(text(&w.ended(&id), "reason"), "tasks_failed: 2 of 3");
    assert_eq!(w.run(&["wait", &id]).code(), 1);
    assert_eq!(w.ok(&["logs", &id, "--task", "3"]), "begins\n3\n");
    let shown = w.ok(&["status", &id]);
    let numbers = format!("\n3 tasks; `lattice status {} --tasks` and `--lanes` show more:\n", &id[..8]);
    assert!(shown.contains(&numbers) && !shown.contains("on each node"), "{shown}");

    let second = format!("{id}[2]");
    let failed = data(w, &["status", &second]);
    assert_eq!((text(&failed, "state").as_str(), &failed["exit_code"], &failed["restarts"]), ("Failed", &1.into(), &0.into()), "{failed}");
    let explained = w.ok(&["explain", &second]);
    assert!(explained.starts_with(&format!("{}[2] is Failed: exit_code 1; it ran in lane ", &id[..8])), "{explained}");
    let lanes = data(w, &["status", &id, "--lanes"]);
    let lanes = lanes.as_array().unwrap();
    assert!(!lanes.is_empty() && lanes.iter().all(|lane| text(lane, "lane_of") == id), "{lanes:?}");
    assert!(lanes.iter().any(|lane| lane["id"] == failed["lanes"][0]["id"]), "{lanes:?} {failed}");
    let listed = w.ok(&["status", "-o", "name"]);
    assert!(listed.contains(&id) && lanes.iter().all(|lane| !listed.contains(&text(lane, "id"))), "{listed}");

    let held = w.submit(&["--hold", "--walltime=5m", "--task-group=0-3", "--", "/bin/true"]);
    w.ok(&["cancel", &held]);
    assert_eq!(w.run(&["wait", &held]).code(), 1, "none of its tasks completed");
}

fn refuses(w: &World) {
    let before = w.lattice.allocations().unwrap().len();
    for (args, piece) in [
        (&["submit", "--max-failures=1", "--", "/bin/true"][..], "--max-failures is for task groups"),
        (&["submit", "--task-group=0-9", "--walltime=5m", "--expose=api:8080/http", "--", "/bin/true"], "leave --expose out"),
        (&["session", "--array=0-9", "--walltime=5m"], "--array: `lattice session` has no tasks"),
    ] {
        let refused = w.run(args);
        assert!(refused.code() == 2 && refused.err().contains(piece), "{args:?}: {} {}", refused.code(), refused.err());
    }
    assert_eq!(w.lattice.allocations().unwrap().len(), before);
    let id = w.submit(&["--", "/bin/true"]);
    w.completed(&id);
    let (id, none) = (id.as_str(), format!("allocation {} is no task group", &id[..8]));
    for args in [&["retry", id][..], &["status", id, "--tasks"], &["status", id, "--lanes"], &["logs", id, "--task=7"]] {
        let refused = w.run(args);
        assert!(refused.code() == 4 && refused.err().contains(&none), "{args:?}: {} {}", refused.code(), refused.err());
    }
}
