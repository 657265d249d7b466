//! The disk of a quorum member is full: nothing acknowledged is lost, running work ends normally, and everything
//! continues once there is free space.

use crate::backups::{backups, quorum};
use crate::harness::{Group, JOB, World};
use crate::levels::agree;
use lattice_lab::lattice::text;
use lattice_lab::quorum::members::certificate;
use lattice_lab::{faults, process};
use lattice_pki::identity::Role;
use libtest_mimic::Trial;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// More entries than a member keeps in its log.
const MANY: u32 = 120;

static MEMBERS: Group = Group {
    theme: "member_disk",
    name: "member-disk",
    nodes: 2,
    quorum: 3,
    tweak: |o| "disk_reserve_bytes: 4194304\nsnapshot_entries: 50\nbackup: \"file://{dir}/backups\"\n".clone_into(&mut o.member_lines),
};

pub fn trials() -> Vec<Trial> {
    vec![
        MEMBERS.test("a_follower_with_a_full_disk_disturbs_nobody_and_catches_up_later", &[], follower),
        MEMBERS.test("a_leader_with_a_full_disk_accepts_only_ends_of_work_until_there_is_space", &[], leading),
        MEMBERS.test("a_member_whose_last_record_is_damaged_does_not_start_and_no_acknowledged_submission_is_lost", &[], rotten),
        MEMBERS.test("with_full_disks_at_a_majority_nothing_new_is_accepted", &[], majority),
    ]
}

/// A small file system with a member's files, removed on drop.
struct SmallDisk<'a> {
    w: &'a World,
    id: u64,
    at: PathBuf,
}

fn copy(from: &Path, to: &Path) {
    let done = process::run(Command::new("cp").arg("-a").arg(from).arg(to), JOB).unwrap();
    assert_eq!(done.code(), 0, "{}", done.err());
}

impl<'a> SmallDisk<'a> {
    fn under(w: &'a World, id: u64) -> Self {
        let at = w.dir.join(&w.cluster().member(id).unwrap().daemon.name).join("data");
        faults::kill_member(&w.dir, id).unwrap();
        let aside = at.with_extension("aside");
        copy(&at, &aside);
        mount(None::<&str>, &at, Some("tmpfs"), MsFlags::empty(), Some("size=64m")).unwrap();
        let disk = Self { w, id, at };
        for file in fs::read_dir(&aside).unwrap() {
            copy(&file.unwrap().path(), &disk.at);
        }
        fs::remove_dir_all(&aside).unwrap();
        faults::start_member(&w.dir, id).unwrap();
        w.wait("the member to catch up", || no_lag(w, id));
        disk
    }

    /// Fills it to the last byte.
    fn fill(&self) {
        let mut file = File::options().create(true).append(true).open(self.at.join("fill")).unwrap();
        for piece in [1 << 20, 4096, 1] {
            while file.write_all(&vec![1; piece]).is_ok() {}
        }
    }

    /// Also fills the member's reserve.
    fn fill_all(&self) {
        File::options().write(true).open(self.at.join("reserve")).unwrap().set_len(0).unwrap();
        self.fill();
    }

    fn make_space(&self) {
        fs::remove_file(self.at.join("fill")).unwrap();
    }

    fn shortage_text(&self) -> String {
        format!("member {}: the disk of {} is full", self.id, self.at.display())
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.w.cluster().member(self.id).unwrap().daemon.log).unwrap()
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = faults::kill_member(&self.w.dir, self.id);
        // What the member wrote to this disk must not be lost.
        let kept = self.at.with_extension("kept");
        let _ = fs::remove_file(self.at.join("fill"));
        let _ = process::run(Command::new("cp").arg("-a").arg(&self.at).arg(&kept), JOB);
        process::until(JOB, || umount2(&self.at, MntFlags::MNT_DETACH).is_ok());
        let _ = fs::remove_dir_all(&self.at);
        let _ = fs::rename(&kept, &self.at);
        let _ = faults::start_member(&self.w.dir, self.id);
    }
}

/// The member as the leader sees it.
fn seen(w: &World, id: u64) -> Value {
    let members = w.lattice.json(&["quorum", "members"]).unwrap_or_default();
    members.as_array().into_iter().flatten().find(|m| m["id"].as_u64() == Some(id)).cloned().unwrap_or_default()
}

fn matched(w: &World, id: u64) -> u64 {
    seen(w, id)["match_index"].as_u64().unwrap_or(0)
}

fn no_lag(w: &World, id: u64) -> bool {
    let members = w.lattice.json(&["quorum", "members"]).unwrap_or_default();
    let matched = |id: &u64| members.as_array().into_iter().flatten().find(|m| m["id"].as_u64() == Some(*id))?["match_index"].as_u64();
    let leads = members.as_array().into_iter().flatten().find(|m| m["role"] == "leader").and_then(|m| m["id"].as_u64());
    leads.and_then(|leads| matched(&leads)).is_some_and(|all| matched(&id) == Some(all))
}

fn term(w: &World) -> (u64, Value) {
    (w.leader(), w.lattice.json(&["quorum", "status"]).unwrap()["term"].clone())
}

fn is_short(w: &World) -> bool {
    w.ok(&["quorum", "status"]).contains("Disk:")
}

/// Submissions that stay Pending: they need more nodes than there are.
fn submissions(w: &World, many: u32) {
    for _ in 0..many {
        w.submit(&["--nodes", "9", "--wait-for-nodes", "--", "/bin/true"]);
    }
}

fn is_refused(w: &World, args: &[&str], expected: &[&str]) {
    let refused = w.run(args);
    assert_eq!(refused.code(), 5, "{args:?}: {}{}", refused.out(), refused.err());
    for piece in expected {
        assert!(refused.err().contains(piece), "{args:?}, {piece:?}: {}", refused.err());
    }
}

/// Waits until submissions are accepted again, without any restart.
fn accepted_again(w: &World) {
    w.wait("submissions to be accepted again", || w.run(&["submit", "--", "/bin/true"]).code() == 0);
    w.completed(&w.submit(&["--nodes", "2", "--", "/bin/true"]));
}

/// Waits until no member is short of space and all have the same state. `who` is the name in the client's certificate.
fn wait_recovered(w: &World, who: &str) {
    w.wait("all members to have free space", || !is_short(w));
    let tls = certificate(&w.cluster(), who, Role::Api).unwrap();
    w.wait("all members to agree", || agree(w, &tls));
    assert_eq!(w.run(&["audit", "verify"]).code(), 0);
}

fn follower(w: &World) {
    let id = (1..=3).find(|id| *id != w.leader()).unwrap();
    let disk = SmallDisk::under(w, id);
    let before = term(w);
    disk.fill();
    w.wait("the shortage to be reported", || w.ok(&["quorum", "status"]).contains(&disk.shortage_text()));
    // At first its reserve has space for what the others commit.
    submissions(w, 5);
    w.wait("the follower to write it down", || no_lag(w, id));
    let nothing = || text(&seen(w, id), "disk").contains("nothing is accepted");
    let mut number = 0;
    w.wait("half of its reserve to be gone", || {
        number += 1;
        let script = w.script("large", &format!("#!/bin/sh\n# {number} {}\n", "x".repeat(200_000)));
        w.submit(&["--nodes", "9", "--wait-for-nodes", &script]);
        nothing()
    });
    let taken = matched(w, id);
    submissions(w, MANY);
    w.completed(&w.submit(&["--nodes", "2", "--", "/bin/true"]));
    assert_eq!(matched(w, id), taken, "the follower reports entries that it does not have");
    assert!(text(&seen(w, id), "role") == "follower" && nothing(), "{}", seen(w, id));
    assert_eq!(term(w), before, "the follower disturbs nobody");

    // It stops on SIGTERM, and starts although the disk is full.
    let process = w.cluster().member(id).unwrap().daemon.process.clone().unwrap();
    process.signal(Signal::SIGTERM).unwrap();
    assert!(process.gone_within(Duration::from_secs(10)), "it does not stop; its log:\n{}", disk.log());
    faults::start_member(&w.dir, id).unwrap();
    w.wait("the follower to be back", || text(&seen(w, id), "role") == "follower");
    submissions(w, 1);
    assert_eq!(term(w), before, "the follower disturbs nobody");

    disk.make_space();
    w.wait("the follower to catch up", || no_lag(w, id));
    assert!(disk.log().contains("the leader's snapshot is installed"), "the leader must not keep its whole log for a follower");
    wait_recovered(w, "follower");
}

fn leading(w: &World) {
    let leads = w.leader();
    let disk = SmallDisk::under(w, leads);
    w.wait("it to lead again", || {
        let _ = w.run(&["quorum", "transfer-leader", &leads.to_string()]);
        w.lattice.leader().ok().flatten() == Some(leads)
    });
    let go = |name: &str| w.dir.join(format!("go-{name}"));
    let until = |name: &str| format!("echo up; until [ -e {} ]; do sleep 0.02; done; echo over", go(name).display());
    let begin = |script: &str| {
        let id = w.submit(&["--nodes", "1", "--", "/bin/sh", "-c", script]);
        w.wait_log(&id, "up");
        id
    };
    let (first, cancelled) = (begin(&until("first")), begin("echo up; sleep 300"));
    let waits = w.submit(&["--nodes", "2", "--", "/bin/true"]);
    let token = w.ok(&["lease", "grant", "a", "--ttl", "60s", "-o", "name"]);
    let before = term(w);
    disk.fill();
    let shortage = disk.shortage_text();
    is_refused(w, &["submit", "--", "/bin/true"], &[&shortage, "nothing new is accepted", "free disk space", "transfer-leader"]);
    is_refused(w, &["lease", "grant", "b"], &[&shortage]);
    let there = backups(w);
    let (code, backup) = quorum(w, leads, &["backup"]);
    let full = format!("the disk of {} is full", disk.at.display());
    assert!(code == 1 && backup.contains("too little disk space for a snapshot") && backup.contains(&full), "{backup}");
    assert_eq!(backups(w), there);
    w.wait("the shortage to be reported", || w.ok(&["quorum", "status"]).contains(&shortage));
    let why = w.ok(&["explain", &waits]);
    assert!(why.contains("nothing new is placed now") && why.contains(&shortage), "{why}");
    // The state can be read, and ends of work are accepted.
    assert_eq!(text(&w.status(&first), "state"), "Running");
    assert_eq!(w.lattice.nodes().unwrap().len(), 2);
    w.ok(&["lease", "release", "a", "--token", token.trim()]);
    w.ok(&["cancel", &cancelled]);
    assert_eq!(text(&w.ended(&cancelled), "state"), "Cancelled");
    fs::write(go("first"), "").unwrap();
    w.completed(&first);
    is_refused(w, &["submit", "--", "/bin/true"], &[&shortage]);
    assert_eq!(term(w), before);
    assert_eq!(text(&w.status(&waits), "state"), "Pending");
    disk.make_space();
    w.completed(&waits);
    assert_eq!(quorum(w, leads, &["backup"]).0, 0);
    accepted_again(w);
    assert_eq!(term(w), before, "nothing was restarted, and nobody else leads");

    // Other files fill the reserve as well: now even an end of work must wait.
    let second = begin(&until("second"));
    disk.fill();
    is_refused(w, &["submit", "--", "/bin/true"], &[&shortage]);
    disk.fill_all();
    is_refused(w, &["submit", "--", "/bin/true"], &[&shortage, "nothing is accepted"]);
    is_refused(w, &["cancel", &second], &[&shortage]);
    fs::write(go("second"), "").unwrap();
    w.wait_log(&second, "over");
    assert_eq!(text(&w.status(&second), "state"), "Running");
    let node = w.run(&["node", "status"]);
    assert!(node.code() == 0 && !node.out().contains("lost"), "{}", node.out());
    disk.make_space();
    w.completed(&second);
    accepted_again(w);
    assert_eq!(term(w), before);

    // The remedy if no space can be freed at once.
    disk.fill();
    is_refused(w, &["submit", "--", "/bin/true"], &[&shortage]);
    w.ok(&["quorum", "transfer-leader"]);
    w.wait("another leader", || w.lattice.leader().ok().flatten().is_some_and(|id| id != leads));
    w.completed(&w.submit(&["--nodes", "2", "--", "/bin/true"]));
    disk.make_space();
    wait_recovered(w, "leading");
}

/// Flips one bit of the last record in a member's log; returns the file and its previous contents.
fn flip_bit_of_last_record(w: &World, id: u64) -> (PathBuf, Vec<u8>) {
    let log = w.dir.join(&w.cluster().member(id).unwrap().daemon.name).join("data/log");
    let segments = fs::read_dir(&log).unwrap().map(|file| file.unwrap().path());
    let last = segments.filter(|path| path.extension().is_some_and(|e| e == "log")).max().unwrap();
    let whole = fs::read(&last).unwrap();
    let end = whole.iter().rposition(|byte| *byte != 0).unwrap();
    let mut flipped = whole.clone();
    flipped[end] ^= 0x10;
    fs::write(&last, flipped).unwrap();
    (last, whole)
}

fn rotten(w: &World) {
    let leads = w.leader();
    let others: Vec<u64> = (1..=3).filter(|id| *id != leads).collect();
    let (away, follower) = (others[0], others[1]);
    faults::kill_member(&w.dir, away).unwrap();
    // An acknowledged submission is on the disks of the leader and of the follower.
    let id = w.submit(&["--nodes", "9", "--wait-for-nodes", "--", "/bin/true"]);
    faults::kill_member(&w.dir, follower).unwrap();
    faults::kill_member(&w.dir, leads).unwrap();
    let (file, whole) = flip_bit_of_last_record(w, follower);
    faults::start_member(&w.dir, away).unwrap();
    // It may accept connections before it refuses to start.
    let _refused = faults::start_member(&w.dir, follower);
    let member = || w.cluster().member(follower).unwrap().daemon.clone();
    w.wait("the follower to refuse", || !member().alive());
    let refused = fs::read_to_string(member().log).unwrap();
    for expected in ["data/log/", "is damaged at byte", "acknowledged", "lattice quorum replace"] {
        assert!(refused.contains(expected), "{expected:?}: {refused}");
    }
    let unknown = w.run(&["status", &id]);
    assert_eq!(unknown.code(), 5, "a single member must not answer: {}{}", unknown.out(), unknown.err());
    faults::start_member(&w.dir, leads).unwrap();
    w.wait("the submission to be known again", || w.run(&["status", &id]).code() == 0);
    assert_eq!(text(&w.status(&id), "state"), "Pending");
    w.ok(&["cancel", &id]);
    // The test repairs the file instead of replacing the member.
    fs::write(&file, whole).unwrap();
    faults::start_member(&w.dir, follower).unwrap();
    w.wait("all members to catch up", || no_lag(w, follower) && no_lag(w, away));
    wait_recovered(w, "rotten");
}

fn majority(w: &World) {
    let leads = w.leader();
    let disks: Vec<SmallDisk<'_>> = (1..=3).filter(|id| *id != leads).map(|id| SmallDisk::under(w, id)).collect();
    let before = term(w);
    disks[0].fill();
    w.wait("the shortage to be reported", || w.ok(&["quorum", "status"]).contains(&disks[0].shortage_text()));
    w.completed(&w.submit(&["--nodes", "2", "--", "/bin/true"]));
    disks[1].fill();
    w.wait("both shortages to be reported", || w.ok(&["quorum", "status"]).contains(&disks[1].shortage_text()));
    let short = disks.iter().filter(|disk| disk.id != w.leader()).map(SmallDisk::shortage_text).collect::<Vec<_>>();
    is_refused(w, &["submit", "--", "/bin/true"], &short.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(term(w), before);
    disks[0].make_space();
    accepted_again(w);
    disks[1].make_space();
    wait_recovered(w, "majority");
    assert_eq!(term(w), before);
}
