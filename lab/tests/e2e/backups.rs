//! Backups: made while members serve, checked, restored, and used to recover from the loss of the whole quorum.

use crate::harness::{Group, World, lab_program};
use lattice_lab::demo::Lines;
use lattice_lab::lattice::text;
use lattice_lab::up::Options;
use lattice_lab::{faults, process};
use libtest_mimic::Trial;
use std::fs;
use std::path::{Path, PathBuf};

static BACKUP: Group = Group { theme: "backup", name: "backups", nodes: 3, quorum: 3, tweak: with_backups };

pub fn trials() -> Vec<Trial> {
    vec![
        BACKUP.test("backups_are_made_on_demand_and_periodically_and_verified", &[], made),
        BACKUP.test("a_damaged_backup_is_refused_and_the_damaged_object_named", &[], damaged),
        BACKUP.test("the_recovery_plan_names_the_problem_and_the_command_that_repairs_it", &[], plan),
        BACKUP.test("a_backup_restores_the_cluster", &[], restored),
        BACKUP.test("after_the_loss_of_all_members_work_runs_on_and_placement_resumes", &[], recovered),
        BACKUP.test("a_damaged_member_is_replaced_as_the_plan_says", &[], replaced),
    ]
}

fn with_backups(options: &mut Options) {
    "backup: \"file://{dir}/backups\"\nbackup_seconds: 10\n".clone_into(&mut options.member_lines);
}

pub fn folder(w: &World, id: u64) -> PathBuf {
    w.dir.join(&w.cluster().member(id).unwrap().daemon.name)
}

/// Runs `lattice quorum VERB --config …` on the machine of member `id`: its exit code and output.
pub fn quorum(w: &World, id: u64, command: &[&str]) -> (i32, String) {
    let config = folder(w, id).join("quorum.yaml").display().to_string();
    let (verb, more) = command.split_first().unwrap();
    let done = w.run(&[&["quorum", verb, "--config", &config], more].concat());
    (done.code(), done.out() + &done.err())
}

/// The names of the complete backups.
pub fn backups(w: &World) -> Vec<String> {
    let Ok(there) = fs::read_dir(w.dir.join("backups/backups")) else { return Vec::new() };
    let mut names: Vec<String> = there.map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

pub fn kill_all(w: &World) {
    for member in w.cluster().members.iter().filter(|m| m.daemon.alive()) {
        faults::kill_member(&w.dir, member.id).unwrap();
    }
}

pub fn start_all(w: &World) {
    for member in w.cluster().members.iter().filter(|m| !m.daemon.alive()) {
        faults::start_member(&w.dir, member.id).unwrap();
    }
    w.wait("the quorum to answer", || w.lattice.leader().is_ok_and(|l| l.is_some()) && w.lattice.nodes().is_ok());
}

fn generation(w: &World) -> u64 {
    w.lattice.json(&["quorum", "status"]).unwrap()["generation"].as_u64().unwrap()
}

/// Flips the last bit of the byte at this place; a second call repairs it.
pub fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// Flips a bit near the beginning of a member's log: records follow, so it is damage and not a torn tail. A second call
/// repairs it.
fn damage_log(w: &World, id: u64) {
    let mut segments: Vec<PathBuf> = fs::read_dir(folder(w, id).join("data/log")).unwrap().map(|f| f.unwrap().path()).collect();
    segments.sort();
    flip(&segments[0], 60);
}

/// Starts a member that must end with this text in its log. It may accept connections before it ends.
fn ends_with_log(w: &World, id: u64, what: &str) {
    let _may_be_refused = faults::start_member(&w.dir, id);
    let member = w.cluster().member(id).unwrap().daemon.clone();
    w.wait("the member to end with its reason", || !member.alive() && fs::read_to_string(&member.log).is_ok_and(|log| log.contains(what)));
}

fn made(w: &World) {
    w.wait("a backup that the leader made by itself", || !backups(w).is_empty());
    let before = backups(w);
    w.completed(&w.submit(&["--nodes", "1", "--", "/bin/true"]));
    let (code, output) = quorum(w, 2, &["backup"]);
    assert!(code == 0 && output.contains("audit records"), "{output}");
    let name = output.lines().next().unwrap().to_owned();
    assert!(backups(w).contains(&name) && !before.contains(&name), "{output}");
    let (code, output) = quorum(w, 3, &["verify"]);
    assert!(code == 0 && output.contains(&name) && output.contains("every link holds") && output.contains("1 Completed"), "{output}");
    let (code, output) = quorum(w, 3, &["verify", "--backup", &before[0]]);
    assert!(code == 0 && output.contains(&before[0]), "{output}");
    let there = backups(w).len();
    w.wait("the next backup, 10 s later", || backups(w).len() > there);
    // `verify` has removed its downloads.
    let left: Vec<String> = fs::read_dir(folder(w, 3)).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!left.iter().any(|name| name.contains("verifying")), "{left:?}");
}

fn damaged(w: &World) {
    let (code, output) = quorum(w, 1, &["backup"]);
    assert_eq!(code, 0, "{output}");
    let name = output.lines().next().unwrap().to_owned();
    for object in ["snapshot", "audit"] {
        let path = w.dir.join("backups/backups").join(&name).join(object);
        let middle = fs::metadata(&path).unwrap().len() as usize / 2;
        flip(&path, middle);
        let (code, output) = quorum(w, 1, &["verify", "--backup", &name]);
        assert!(code == 1 && output.contains("is damaged") && output.contains(&format!("{name}/{object}")), "{output}");
        assert!(output.contains("--backup NAME"), "it names what to use instead: {output}");
        flip(&path, middle);
    }
    assert_eq!(quorum(w, 1, &["verify", "--backup", &name]).0, 0);
    let (code, output) = quorum(w, 1, &["verify", "--backup", "yesterday"]);
    assert!(code == 1 && output.contains(&name), "it names the existing backups: {output}");
    let nowhere = format!("file://{}", w.dir.join("nowhere").display());
    let (code, output) = quorum(w, 1, &["verify", "--from", &nowhere]);
    assert!(code == 1 && output.contains("holds no backup"), "{output}");
}

fn plan(w: &World) {
    let plan = |id: u64| {
        let (code, output) = quorum(w, id, &["recover", "--plan"]);
        assert_eq!(code, 0, "{output}");
        output
    };
    let output = plan(1);
    assert!(output.contains("This member runs. Nothing needs to be done here"), "{output}");
    // One member damaged.
    faults::kill_member(&w.dir, 2).unwrap();
    damage_log(w, 2);
    let output = plan(2);
    assert!(
        output.contains("is damaged at byte") && output.contains("lattice quorum replace 2 4") && !output.contains("recover --config"),
        "{output}"
    );
    ends_with_log(w, 2, "lattice quorum replace");
    // No majority.
    faults::kill_member(&w.dir, 3).unwrap();
    let output = plan(1);
    assert!(output.contains("waits for a majority") && output.contains("these do not answer: 2, 3"), "{output}");
    let output = plan(3);
    assert!(output.contains("Its files are whole") && output.contains("Do: lattice-quorum --config"), "{output}");
    // All damaged.
    faults::kill_member(&w.dir, 1).unwrap();
    damage_log(w, 1);
    damage_log(w, 3);
    for id in [1, 2, 3] {
        let output = plan(id);
        assert!(
            output.contains("If fewer than 2 members have their files") && output.contains("lattice quorum recover --config"),
            "{output}"
        );
        assert!(output.contains(&format!("the newest {}", backups(w).last().unwrap())), "{output}");
    }
    // From a newer version.
    let member_file = folder(w, 3).join("data/member.json");
    let text = fs::read_to_string(&member_file).unwrap();
    fs::write(&member_file, text.replace("\"format\":2", "\"format\":99")).unwrap();
    let output = plan(3);
    assert!(output.contains("written by a newer version") && output.contains("install that version"), "{output}");
    ends_with_log(w, 3, "written by a newer version");
    fs::write(&member_file, text).unwrap();
    for id in [1, 2, 3] {
        damage_log(w, id);
    }
    start_all(w);
}

fn restored(w: &World) {
    let kept = w.submit(&["--nodes", "9", "--wait-for-nodes", "--", "/bin/true"]);
    let (code, output) = quorum(w, 1, &["backup"]);
    assert_eq!(code, 0, "{output}");
    let name = output.lines().next().unwrap().to_owned();
    let lost = w.submit(&["--nodes", "9", "--wait-for-nodes", "--", "/bin/true"]);
    let before = generation(w);
    let (code, output) = quorum(w, 1, &["restore", "--backup", &name, "--yes"]);
    assert!(code == 1 && output.contains("in use"), "{output}");
    faults::kill_member(&w.dir, 1).unwrap();
    let (code, output) = quorum(w, 1, &["restore", "--backup", &name, "--yes"]);
    assert!(code == 1 && output.contains("Stop every member first"), "{output}");
    kill_all(w);
    let (code, output) = quorum(w, 1, &["restore", "--backup", &name]);
    assert!(code == 1 && output.contains("What will be lost") && output.contains("nothing was changed"), "{output}");
    let (code, output) = quorum(w, 1, &["restore", "--backup", &name, "--yes"]);
    assert!(code == 0 && output.contains("is kept in"), "{output}");
    let aside = fs::read_dir(folder(w, 1)).unwrap().map(|f| f.unwrap().path()).find(|p| p.display().to_string().contains("data.before-"));
    assert!(aside.is_some_and(|aside| aside.join("member.json").exists()), "what was there is kept");
    for id in [2, 3] {
        fs::rename(folder(w, id).join("data"), folder(w, id).join("data.before")).unwrap();
    }
    start_all(w);
    // A member that does not have the leader's snapshot yet reports no generation.
    w.wait("the new generation", || generation(w) > before);
    assert_eq!(text(&w.status(&kept), "state"), "Pending");
    let gone = w.run(&["status", &lost]);
    assert_eq!(gone.code(), 3, "{}{}", gone.out(), gone.err());
    w.ok(&["cancel", &kept]);
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
    assert_eq!(w.run(&["audit", "verify"]).code(), 0);
}

fn recovered(w: &World) {
    let (program, lines) = (lab_program().to_string_lossy().into_owned(), "600");
    let ring = ["--nodes", "2", "--tasks-per-node", "2", "--cores", "1", "--", &program, "pmi-ring", lines, "50"];
    let known = w.submit(&ring);
    w.wait_log(&known, "line 2 ");
    let go = w.dir.join("go");
    let until_then = format!("echo up; until [ -e {} ]; do sleep 0.1; done; exit 5", go.display());
    let ends = w.submit(&["--nodes", "1", "--cores", "1", "--", "/bin/sh", "-c", &until_then]);
    w.wait_log(&ends, "up");
    let waits = w.submit(&["--nodes", "3", "--", "/bin/true"]);
    let (code, made) = quorum(w, 1, &["backup"]);
    assert_eq!(code, 0, "{made}");
    let name = made.lines().next().unwrap().to_owned();
    let (code, verified) = quorum(w, 2, &["verify", "--backup", &name]);
    assert!(code == 0 && verified.contains("2 Running") && verified.contains("1 Pending"), "{verified}");
    // The backup does not contain this job.
    let unknown = w.submit(&["--nodes", "1", "--cores", "1", "--", "/bin/sh", "-c", "echo up; sleep 30; exit 7"]);
    let before = generation(w);
    w.ok(&["cancel", &waits]);
    w.wait_log(&unknown, "up");
    w.submit(&["--nodes", "9", "--wait-for-nodes", "--", "/bin/true"]);
    let (code, output) = quorum(w, 1, &["recover", "--yes"]);
    assert!(code == 1 && output.contains("is not empty"), "{output}");

    kill_all(w);
    fs::write(&go, "").unwrap();
    let old = folder(w, 2).join("data.old");
    fs::rename(folder(w, 2).join("data"), &old).unwrap();
    for id in [1, 3] {
        fs::remove_dir_all(folder(w, id).join("data")).unwrap();
    }
    // One node is silent for a while.
    let silent = "n3";
    faults::kill_node(&w.dir, silent).unwrap();
    let (_, plan) = quorum(w, 1, &["recover", "--plan"]);
    assert!(plan.contains("It has no files.") && plan.contains("lattice quorum recover --config"), "{plan}");
    let (code, asked) = quorum(w, 1, &["recover", "--backup", &name]);
    assert!(
        code == 1 && asked.contains("What will be lost") && asked.contains("Waiting then: 1 allocation.") && asked.contains("--yes"),
        "{asked}"
    );
    assert!(!folder(w, 1).join("data").exists(), "nothing was changed");
    let (code, done) = quorum(w, 1, &["recover", "--backup", &name, "--yes"]);
    assert_eq!(code, 0, "{done}");
    // A member with its old files is refused, whoever leads.
    fs::rename(&old, folder(w, 2).join("data")).unwrap();
    start_all(w);
    let refused = "the quorum was recovered, and member 2 still has the state from before";
    w.wait("member 2 to be refused", || w.cluster().members.iter().any(|m| process::tail(&m.daemon.log, 2000).contains(refused)));
    faults::kill_member(&w.dir, 2).unwrap();
    fs::remove_dir_all(folder(w, 2).join("data")).unwrap();
    start_all(w);

    // A member that was emptied may be the one to answer, and has no state yet.
    w.wait("the recovered quorum to answer", || generation(w) > before);
    w.wait("the work to be adopted", || w.lattice.ok(&["status", &unknown]).is_ok());
    assert_eq!(text(&w.status(&known), "state"), "Running");
    // It was pending in the backup, so the silent node may run it by now.
    w.wait("the other nodes to register", || w.lattice.json(&["quorum", "status"]).unwrap()["awaited"] == serde_json::json!([silent]));
    let status = w.ok(&["quorum", "status"]);
    assert!(status.contains("Recovery:") && status.contains(silent), "{status}");
    let again = w.status(&waits);
    assert_eq!(text(&again, "state"), "Pending", "{again}");
    faults::start_node(&w.dir, silent).unwrap();
    w.wait("no node to be awaited", || w.lattice.json(&["quorum", "status"]).unwrap()["awaited"] == serde_json::json!([]));
    // Work that ended while there was no quorum has its result.
    let over = w.ended(&ends);
    assert_eq!((text(&over, "state").as_str(), over["exit_code"].as_i64()), ("Failed", Some(5)), "{over}");
    let over = w.ended(&unknown);
    assert_eq!((text(&over, "state").as_str(), over["exit_code"].as_i64()), ("Failed", Some(7)), "{over}");
    w.completed(&known);
    let mut got = Lines::default();
    w.ok(&["logs", &known]).lines().for_each(|l| got.take(l));
    got.complete(4, 600).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(text(&w.status(&known), "requeue_count"), "0");
    w.completed(&waits);
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
    w.assert_nothing_left();
    let adopted = w.ok(&["audit", "query", "--type", "quorum-recovered,allocation-adopted"]);
    assert!(adopted.contains("from a backup of revision"), "{adopted}");
    assert_eq!(w.run(&["audit", "verify"]).code(), 0);
}

fn replaced(w: &World) {
    faults::kill_member(&w.dir, 2).unwrap();
    damage_log(w, 2);
    let (_, plan) = quorum(w, 2, &["recover", "--plan"]);
    assert!(plan.contains("lattice quorum replace 2 4"), "{plan}");
    let new = faults::begin_member(&w.dir).unwrap();
    let cluster = w.cluster();
    let member = cluster.member(new).unwrap();
    w.ok(&["quorum", "replace", "2", &new.to_string(), "--service", &member.service, "--raft", &member.raft]);
    faults::forget_member(&w.dir, 2).unwrap();
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
    let (_, plan) = quorum(w, 1, &["recover", "--plan"]);
    assert!(plan.contains("Nothing needs to be done here"), "{plan}");
}
