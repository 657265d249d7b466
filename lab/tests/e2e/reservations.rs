//! Nodes that operators set aside for a time, through the CLI and by Slurm's commands.

use crate::harness::{Group, JOB, NOBODY, World};
use lattice_lab::lattice::text;
use lattice_lab::process::{self, Finished};
use libtest_mimic::Trial;
use serde_json::Value;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

static RESERVATIONS: Group = Group::small("reservations");

pub fn trials() -> Vec<Trial> {
    vec![
        RESERVATIONS.test("other_work_stays_off_reserved_nodes_and_work_that_names_them_begins_in_the_window", &[], windows),
        RESERVATIONS.test("nothing_begins_during_maintenance_and_what_runs_stays", &[], maintenance),
        RESERVATIONS.test("who_may_reserve_nodes_and_use_them_is_checked", &[], refusals),
        RESERVATIONS.test("slurms_commands_know_reservations", &[], by_slurm),
    ]
}

/// The name of the account that runs the tests: root.
const OWN: &str = "root";

fn reservation(w: &World, name: &str) -> Value {
    w.lattice.json(&["admin", "reservation", "show", name]).unwrap_or_else(|e| panic!("{e:#}"))
}

/// Deletes the reservation, whatever the result of the test.
struct Deleted<'a>(&'a World, &'static str);

impl Drop for Deleted<'_> {
    fn drop(&mut self) {
        let _ = self.0.run(&["admin", "reservation", "delete", self.1]);
    }
}

fn windows(w: &World) {
    let _deleted = Deleted(w, "course");
    w.ok(&["admin", "reservation", "create", "course", "--nodes=n2", "--start=now+8s", "--duration=1h", "--user", OWN]);
    let known = reservation(w, "course");
    assert_eq!((text(&known, "nodes").as_str(), &known["users"]), ("n2", &serde_json::json!([OWN])), "{known}");
    let start = text(&known, "start");
    // The work waits for the start of its reservation, and its message says so.
    let named = w.submit(&["--reservation=course", "--walltime=1h", "--", "/bin/sleep", "600"]);
    let other = w.submit(&["-w", "n2", "--walltime=2h", "--", "/bin/true"]);
    w.wait("the reason of the other work", || text(&w.status(&other), "status_message").contains("reservation course"));
    w.wait("its expected start", || text(&w.status(&other), "expected_start") >= text(&known, "end"));
    let explained = w.ok(&["explain", &other]);
    assert!(explained.contains("reservation course sets nodes aside from"), "{explained}");
    w.running(&named);
    let running = w.status(&named);
    assert!(text(&running, "claimed_at") >= start, "it got its node before the window: {running}");
    assert_eq!((&running["nodes"], text(&running, "reservation").as_str()), (&serde_json::json!(["n2"]), "course"), "{running}");
    assert_eq!((&reservation(w, "course")["running"], text(&reservation(w, "course"), "state").as_str()), (&1.into(), "Open"));
    // Work that names no node runs on the other nodes.
    let elsewhere = w.submit(&["-N", "2", "--walltime=1h", "--", "/bin/true"]);
    let done = w.completed(&elsewhere);
    assert_eq!(done["nodes"], serde_json::json!(["n1", "n3"]), "{done}");
    w.ok(&["cancel", &named]);
    w.ended(&named);
    // After the deletion all work may use the node. Work that waits for the reservation shows that it was deleted.
    let later = w.submit(&["--hold", "--reservation=course", "--", "/bin/true"]);
    let deleted = w.ok(&["admin", "reservation", "delete", "course"]);
    assert!(deleted.starts_with("Reservation course is deleted"), "{deleted}");
    w.completed(&other);
    w.ok(&["resume", &later]);
    w.wait("the reason of what waits in vain", || text(&w.status(&later), "status_message") == "reservation deleted: course");
    w.ok(&["cancel", &later]);
}

fn maintenance(w: &World) {
    let _deleted = Deleted(w, "fans");
    let runs = w.submit(&["-w", "n3", "--walltime=1h", "--", "/bin/sleep", "600"]);
    w.running(&runs);
    w.ok(&["admin", "reservation", "create", "fans", "--nodes=n3", "--start=now", "--duration=1h", "--maintenance", "--comment=new fans"]);
    assert_eq!(text(&w.status(&runs), "state"), "Running");
    w.ok(&["cancel", &runs]);
    w.ended(&runs);
    let waits = w.submit(&["-w", "n3", "--", "/bin/true"]);
    w.wait("its reason", || text(&w.status(&waits), "status_message").contains("reservation fans"));
    let refused = w.run(&["submit", "--reservation=fans", "--", "/bin/true"]);
    assert!(refused.code() != 0 && refused.err().contains("for maintenance: nobody's work uses it"), "{}", refused.err());
    // An operator sets an earlier end.
    w.ok(&["admin", "reservation", "update", "fans", "--end=now+2s"]);
    w.completed(&waits);
    assert_eq!(text(&reservation(w, "fans"), "state"), "Over");
}

fn refusals(w: &World) {
    let _deleted = Deleted(w, "mine");
    let create = ["admin", "reservation", "create", "mine", "--nodes=n1", "--start=now+1h", "--duration=1h"];
    let refused = w.run_as(NOBODY, &[&create[..], &["--user=nobody"]].concat());
    assert!(refused.code() == 4 && refused.err().contains("operator"), "{} {}", refused.code(), refused.err());
    let refused = w.run(&create);
    assert!(refused.code() != 0 && refused.err().contains("a reservation is for tenants, users or maintenance"), "{}", refused.err());
    let refused = w.run(&[&create[..], &["--user=no-such-account"]].concat());
    assert!(refused.code() == 3 && refused.err().contains("no account no-such-account is known"), "{}", refused.err());
    w.ok(&[&create[..], &["--user=nobody"]].concat());
    let second = ["--nodes=n[1-2]", "--start=now+90m", "--duration=1h", "--maintenance"];
    let refused = w.run(&[&["admin", "reservation", "create", "second"], &second[..]].concat());
    assert!(refused.err().contains("node n1 is set aside by reservation mine from"), "{}", refused.err());
    let refused = w.run(&["submit", "--reservation=mine", "--", "/bin/true"]);
    assert!(refused.err().contains("reservation mine is not for user root"), "{}", refused.err());
    let refused = w.run(&["submit", "--reservation=mnie", "--", "/bin/true"]);
    assert!(refused.code() == 3 && refused.err().contains("did you mean \"mine\"?"), "{} {}", refused.code(), refused.err());
    let listed = w.run_as(NOBODY, &["admin", "reservation", "list"]);
    assert!(listed.out().contains("mine") && listed.out().contains("user nobody"), "{}{}", listed.out(), listed.err());
    let refused = w.run_as(NOBODY, &["admin", "reservation", "delete", "mine"]);
    assert_eq!(refused.code(), 4, "{}", refused.err());
    let refused = w.run(&["admin", "reservation", "update", "mine"]);
    assert!(refused.code() == 2 && refused.err().contains("nothing to change"), "{}", refused.err());
    let audited = w.ok(&["audit", "query", "--type", "reservation-set"]);
    assert!(audited.contains("mine: n1 from") && audited.contains("for user nobody"), "{audited}");
}

/// Runs a command of Slurm through a link to `lattice` with its name.
fn slurm(w: &World, name: &str, args: &[&str]) -> Finished {
    let folder: PathBuf = w.dir.join("slurm-names");
    std::fs::create_dir_all(&folder).unwrap();
    let link = folder.join(name);
    if !link.exists() {
        symlink(w.lattice.command::<&str>(&[]).get_program(), &link).unwrap();
    }
    let mut command = Command::new(&link);
    command.args(args).env("LATTICE_ENDPOINT", format!("unix:{}", w.lattice.socket().display()));
    command.env_remove("SLURM_TIME_FORMAT").env_remove("LATTICE_COMPAT");
    let finished = process::run(&mut command, JOB).unwrap();
    assert!(!finished.timed_out, "`{name} {}` hangs", args.join(" "));
    finished
}

fn ok(w: &World, name: &str, args: &[&str]) -> String {
    let finished = slurm(w, name, args);
    assert_eq!(finished.code(), 0, "{name} {args:?}: {}{}", finished.out(), finished.err());
    finished.out()
}

fn by_slurm(w: &World) {
    let _deleted = Deleted(w, "class");
    let users = format!("Users={OWN}");
    let created = ok(
        w,
        "scontrol",
        &["create", "reservation", "ReservationName=class", "StartTime=now", "Duration=60", "Nodes=n1", &users, "Flags=SPEC_NODES"],
    );
    assert_eq!(created, "Reservation created: class\n");
    let shown = ok(w, "scontrol", &["show", "reservation", "class"]);
    let users = format!("Users={OWN} ");
    for piece in ["ReservationName=class StartTime=", "Duration=01:00:00", "Nodes=n1 NodeCnt=1 ", &users, "State=ACTIVE"] {
        assert!(shown.contains(piece), "{piece}: {shown}");
    }
    let lines = "#!/bin/bash\n#SBATCH --reservation=class\n#SBATCH -t 5\necho in $SLURM_JOB_RESERVATION\nsleep 600\n";
    let script = w.script("reserved.sh", lines);
    let id = w.submit(&[&script]);
    w.wait_log(&id, "in class");
    assert_eq!(ok(w, "squeue", &["-h", "-R", "class", "-o", "%v"]), "class\n");
    assert!(ok(w, "sinfo", &["-T"]).lines().any(|line| line.starts_with("class ") && line.ends_with(" n1")));
    w.ok(&["cancel", &id]);
    w.ended(&id);
    let waiting = w.submit(&["--hold", "--cores=1", "--walltime=5m", "--", "/bin/true"]);
    let job = format!("JobId={}", w.status(&waiting)["job"]);
    ok(w, "scontrol", &["update", &job, "ReservationName=class"]);
    assert_eq!(text(&w.status(&waiting), "reservation"), "class");
    let unknown = slurm(w, "scontrol", &["update", &job, "ReservationName=clas"]);
    assert!(unknown.code() == 1 && unknown.err().contains("clas"), "{}", unknown.err());
    let changed = w.ok(&["update", &waiting, "--no-reservation"]);
    assert!(changed.contains("no reservation"), "{changed}");
    assert!(w.status(&waiting)["reservation"].is_null());
    w.ok(&["update", &waiting, "--reservation=class"]);
    w.ok(&["resume", &waiting]);
    assert_eq!(w.completed(&waiting)["nodes"][0], "n1", "the only node of the reservation");
    let step = "  - name: first\n    entrypoint: /bin/sleep 600\n    walltime: 5m\n    reservation: class\n";
    let dag = w.ok(&["dag", "submit", "-o", "name", &w.script("reserved.yaml", &format!("allocations:\n{step}"))]);
    let listed = || ok(w, "squeue", &["-h", "-R", "class", "-o", "%v %t %N"]);
    w.wait("the step to run on the reserved node", || listed() == "class R n1\n");
    w.ok(&["dag", "cancel", dag.trim()]);
    w.wait("the step to be gone", || listed().is_empty());
    ok(w, "scontrol", &["update", "ReservationName=class", "Nodes=n[1-2]"]);
    assert!(ok(w, "scontrol", &["show", "res", "class"]).contains("Nodes=n[1-2] NodeCnt=2 "));
    let refused = slurm(w, "scontrol", &["create", "reservation", "ReservationName=x", "Nodes=n3", "Flags=DAILY"]);
    assert!(refused.code() == 1 && refused.err().contains("Invalid Flags: daily"), "{}", refused.err());
    ok(w, "scontrol", &["delete", "ReservationName=class"]);
    assert_eq!(ok(w, "scontrol", &["show", "reservations"]), "No reservations in the system\n");
}
