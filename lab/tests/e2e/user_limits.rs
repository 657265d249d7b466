//! Limits of one user in the quorum, so that no user takes resources that others need.

use crate::harness::{DAEMON, Group, NOBODY, World};
use lattice_lab::faults;
use lattice_lab::lattice::{Lattice, text};
use libtest_mimic::Trial;
use std::fs;
use std::os::unix::fs::chown;

static USERS: Group = Group::small("user_limits");

pub fn trials() -> Vec<Trial> {
    vec![
        USERS.test("one_users_waiting_work_leaves_others_theirs", &[], pending),
        USERS.test("what_a_user_may_not_have_running_yet_waits_and_begins_by_itself", &[], running),
        USERS.test("schedulers_that_race_exceed_no_users_limit_of_running_work", &[], race),
        USERS.test("who_submits_too_fast_learns_when_to_try_again", &[], rate),
        USERS.test("scripts_are_limited_and_freed_when_nothing_names_them", &[], scripts),
        USERS.test("one_users_flood_pushes_no_history_of_others_out", &[], history),
        USERS.test("ended_work_is_forgotten_when_its_memory_is_full_and_everybody_is_told", &[], memory),
    ]
}

/// Submits held work as this user; returns the id, or the text of the refusal.
fn submit(w: &World, uid: u32, args: &[&str]) -> Result<String, String> {
    let done = w.run_as(uid, &[&["submit", "-o", "name", "--hold"], args].concat());
    if done.code() == 0 {
        return Ok(done.out().trim().to_owned());
    }
    assert_eq!(done.code(), 4, "{}", done.err());
    Err(done.err())
}

/// The text of the refusal if such a submission is only checked; `None`: it would be accepted.
fn dry_run(w: &World, uid: u32, args: &[&str]) -> Option<String> {
    let done = w.run_as(uid, &[&["submit", "--dry-run"], args].concat());
    assert!([0, 4].contains(&done.code()), "{}", done.err());
    (done.code() == 4).then(|| done.err())
}

fn cancel(w: &World, uid: u32, ids: &[String]) {
    for id in ids {
        let done = w.run_as(uid, &["cancel", id]);
        assert_eq!(done.code(), 0, "{}", done.err());
        w.ended(id);
    }
}

/// Restores the initial limits, whatever the result of the test.
struct Restored<'a>(&'a World);

impl Drop for Restored<'_> {
    fn drop(&mut self) {
        let all = ["--user-pending=10000", "--user-submissions-per-second=100", "--user-script-bytes=67108864", "--user-history=none"];
        let ended = ["--ended-kept=7d", "--ended-memory=256M"];
        let _ = self.0.run(&[&["admin", "limits", "--user-running=none", "--tenant-pending=100000"], &all[..], &ended].concat());
    }
}

fn limit<'a>(w: &'a World, args: &[&str]) -> Restored<'a> {
    w.ok(&[&["admin", "limits"], args].concat());
    Restored(w)
}

fn pending(w: &World) {
    let shown = w.lattice.json(&["admin", "limits"]).unwrap();
    assert_eq!((&shown["user_pending"], &shown["user_submissions_per_second"]), (&10_000.into(), &100.into()), "{shown}");
    let _restored = limit(w, &["--user-pending", "3"]);
    let mine: Vec<String> = (0..3).map(|_| submit(w, NOBODY, &["--", "true"]).unwrap()).collect();
    let refusal = submit(w, NOBODY, &["--", "true"]).unwrap_err();
    assert!(
        refusal.contains("user nobody has 3 allocations waiting, and may have 3") && refusal.contains("hint: submit again when"),
        "{refusal}"
    );
    assert_eq!(dry_run(w, NOBODY, &["--", "true"]), Some(refusal), "a dry run answers the same");
    assert_eq!(dry_run(w, DAEMON, &["--", "true"]), None);
    // Other users are not affected.
    let theirs = submit(w, DAEMON, &["--", "true"]).unwrap();
    cancel(w, NOBODY, &mine[..1]);
    assert_eq!(dry_run(w, NOBODY, &["--", "true"]), None);
    let again = submit(w, NOBODY, &["--", "true"]).unwrap();
    submit(w, NOBODY, &["--", "true"]).unwrap_err();
    let nobody = w.run_as(NOBODY, &["admin", "limits", "--user-pending=none"]);
    assert!(nobody.code() == 4 && nobody.err().contains("operator"), "{}", nobody.err());
    assert!(w.ok(&["audit", "query", "--type", "limits-set"]).contains("user_pending 3"));
    cancel(w, NOBODY, &[&mine[1..], &[again]].concat());
    cancel(w, DAEMON, &[theirs]);
}

/// Submits work without a hold as this user; returns the id.
fn submit_to_run(w: &World, uid: u32, args: &[&str]) -> String {
    let done = w.run_as(uid, &[&["submit", "-o", "name"], args].concat());
    assert_eq!(done.code(), 0, "{}", done.err());
    done.out().trim().to_owned()
}

fn running(w: &World) {
    assert!(w.lattice.json(&["admin", "limits"]).unwrap()["user_running"].is_null(), "there is none at first");
    let _restored = limit(w, &["--user-running", "1"]);
    assert_eq!(w.lattice.json(&["admin", "limits"]).unwrap()["user_running"], 1);
    let share = ["--cores", "1", "--walltime", "10m", "--requeue"];
    let first = submit_to_run(w, NOBODY, &[&share[..], &["--", "/bin/sleep", "600"]].concat());
    w.running(&first);
    let second = submit_to_run(w, NOBODY, &[&share[..], &["--", "/bin/sleep", "600"]].concat());
    let why = "user nobody's running allocation is as many as one user may have (limit user_running: 1)";
    w.wait("its reason", || text(&w.status(&second), "reason").contains(why));
    let explained = w.run_as(NOBODY, &["explain", &second]).out();
    assert!(explained.contains(why) && explained.contains("begins by itself"), "{explained}");
    let listed = w.run_as(NOBODY, &["status"]).out();
    assert!(listed.contains("user limit: 1 of 1 running"), "{listed}");
    // Other users do not wait for it in the same queue.
    w.completed(&submit_to_run(w, DAEMON, &["--", "true"]));
    assert_eq!(text(&w.status(&second), "state"), "Pending");
    // A restarted member counts the running work again.
    let leader = w.leader();
    faults::kill_member(&w.dir, leader).unwrap();
    faults::start_member(&w.dir, leader).unwrap();
    w.leader();
    w.completed(&submit_to_run(w, DAEMON, &["--", "true"]));
    assert_eq!((text(&w.status(&first), "state"), text(&w.status(&second), "state")), ("Running".to_owned(), "Pending".to_owned()));
    // Requeued work is ahead of the other in the queue, and counts again once it runs.
    w.ok(&["requeue", "--reason", "again", &first]);
    w.wait("it to run again", || text(&w.status(&first), "requeue_count") == "1" && text(&w.status(&first), "state") == "Running");
    assert_eq!(text(&w.status(&second), "state"), "Pending");
    // It begins by itself when the first one has ended.
    w.ok(&["cancel", &first]);
    w.running(&second);
    w.ok(&["cancel", &second]);
    w.ended(&second);
    // An operator lifts the limit, and waiting work begins.
    let first = submit_to_run(w, NOBODY, &[&share[..], &["--", "/bin/sleep", "600"]].concat());
    w.running(&first);
    let second = submit_to_run(w, NOBODY, &[&share[..], &["--", "true"]].concat());
    w.wait("its reason", || text(&w.status(&second), "reason").contains(why));
    assert_eq!(w.run_as(NOBODY, &["admin", "limits", "--user-running=none"]).code(), 4);
    w.ok(&["admin", "limits", "--user-running=none"]);
    w.completed(&second);
    assert_eq!(text(&w.status(&first), "state"), "Running");
    w.ok(&["cancel", &first]);
    assert!(w.ok(&["audit", "query", "--type", "limits-set"]).contains("user_running 1"));
}

fn race(w: &World) {
    let _restored = limit(w, &["--user-running", "1"]);
    // Submitted through three agents at once, each of which may place it, the work runs one after the other.
    let through = ["n1", "n2", "n3"].map(|agent| w.at(agent));
    let submit = |lattice: &Lattice| {
        let done = lattice.run(&["submit", "-o", "name", "--", "/bin/sleep", "0.3"], crate::harness::JOB).unwrap();
        assert_eq!(done.code(), 0, "{}", done.err());
        done.out().trim().to_owned()
    };
    let submitted: Vec<String> = std::thread::scope(|scope| {
        let tries: Vec<_> = through.iter().map(|lattice| scope.spawn(move || submit(lattice))).collect();
        tries.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let ended: Vec<_> = submitted.iter().map(|id| w.completed(id)).collect();
    let mut times: Vec<(String, String)> = ended.iter().map(|a| (text(a, "started_at"), text(a, "ended_at"))).collect();
    times.sort_unstable();
    assert!(times.iter().all(|(started, ended)| !started.is_empty() && !ended.is_empty()), "{times:?}");
    assert!(times.windows(2).all(|pair| pair[0].1 <= pair[1].0), "two ran at once: {times:?}");
}

fn rate(w: &World) {
    let _restored = limit(w, &["--user-submissions-per-second", "1"]);
    // A hundred at once, plus one for each second that this takes.
    let until_refused = || {
        let mut mine = Vec::new();
        while mine.len() < 400 {
            match submit(w, NOBODY, &["--", "true"]) {
                Ok(id) => mine.push(id),
                Err(refusal) => return (mine, refusal),
            }
        }
        panic!("nobody may submit so much at once")
    };
    let (mut mine, mut last_refusal) = (Vec::new(), String::new());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(until_refused)).collect();
        for thread in threads {
            let (ids, refusal) = thread.join().unwrap();
            mine.extend(ids);
            last_refusal = refusal;
        }
    });
    assert!(mine.len() >= 100, "{} only: {last_refusal}", mine.len());
    assert!(last_refusal.contains("user nobody submits faster than 1 allocation a second: try again in 1 s"), "{last_refusal}");
    cancel(w, DAEMON, &[submit(w, DAEMON, &["--", "true"]).unwrap()]);
    w.wait("the next submission to be accepted", || submit(w, NOBODY, &["--", "true"]).map(|id| mine.push(id)).is_ok());
    for some in mine.chunks(50) {
        let args: Vec<&str> = ["cancel"].into_iter().chain(some.iter().map(String::as_str)).collect();
        let done = w.run_as(NOBODY, &args);
        assert_eq!(done.code(), 0, "{}", done.err());
    }
}

fn scripts(w: &World) {
    let _restored = limit(w, &["--user-script-bytes", "100000"]);
    let script = |name: &str, fill: &str| {
        let path = w.dir.join(format!("home-{NOBODY}")).join(name);
        fs::write(&path, format!("#!/bin/sh\n# {}\n", fill.repeat(60_000))).unwrap();
        chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
        path.to_string_lossy().into_owned()
    };
    let (one, other) = (script("one.sh", "a"), script("other.sh", "b"));
    // The same script counts once.
    let first: Vec<String> = (0..3).map(|_| submit(w, NOBODY, &[&one]).unwrap()).collect();
    let refusal = submit(w, NOBODY, &[&other]).unwrap_err();
    assert_eq!(dry_run(w, NOBODY, &[&other]).as_ref(), Some(&refusal));
    assert_eq!(dry_run(w, NOBODY, &[&one]), None, "that text is there already");
    assert!(refusal.contains("scripts of user nobody's work") && refusal.contains("would exceed 100000"), "{refusal}");
    cancel(w, NOBODY, &first);
    // The script of ended work still counts, so that work is forgotten when the next script needs the space.
    assert_eq!(text(&w.status(&first[0]), "state"), "Cancelled");
    let second = submit(w, NOBODY, &[&other]).unwrap();
    assert_eq!(w.run(&["status", &first[0]]).code(), 3, "its script is in nobody's way any more");
    cancel(w, NOBODY, &[second]);
}

fn history(w: &World) {
    let theirs = submit(w, DAEMON, &["--", "true"]).unwrap();
    cancel(w, DAEMON, std::slice::from_ref(&theirs));
    let _restored = limit(w, &["--user-history", "10"]);
    let mine: Vec<String> = (0..15).map(|_| submit(w, NOBODY, &["--", "true"]).unwrap()).collect();
    cancel(w, NOBODY, &mine);
    assert_eq!(text(&w.status(&theirs), "state"), "Cancelled");
    assert_eq!(w.run(&["status", &mine[4]]).code(), 3, "the oldest of the one who has most is forgotten");
    assert_eq!(text(&w.status(&mine[5]), "state"), "Cancelled");
}

/// Scripts of one user's ended work fill the memory for records of ended work, which is a megabyte.
fn memory(w: &World) {
    let theirs = submit(w, DAEMON, &["--", "true"]).unwrap();
    cancel(w, DAEMON, std::slice::from_ref(&theirs));
    for (wrong, says) in [("--ended-memory=1023K", "1 MiB to 64 GiB"), ("--ended-kept=59m", "1 hour to 366 days")] {
        let refused = w.run(&["admin", "limits", wrong]);
        assert!(refused.code() == 2 && refused.err().contains(says), "{wrong}: {} {}", refused.code(), refused.err());
    }
    let nobody = w.run_as(NOBODY, &["admin", "limits", "--ended-memory=64G"]);
    assert_eq!(nobody.code(), 4, "operators set it: {}", nobody.err());
    let ended = || w.lattice.json(&["quorum", "status"]).unwrap()["ended"].clone();
    let before = w.lattice.json(&["admin", "limits"]).unwrap();
    assert_eq!((&before["ended_kept_seconds"], &before["ended_memory_bytes"]), (&604_800.into(), &(256 << 20).into()));
    assert_eq!(ended()["cut_short"], false);
    let script = |name: &str| {
        let path = w.dir.join(format!("home-{NOBODY}")).join(name);
        fs::write(&path, format!("#!/bin/sh\n# {}\n", name.repeat(80_000))).unwrap();
        chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
        path.to_string_lossy().into_owned()
    };
    let _restored = limit(w, &["--ended-memory", "1M", "--ended-kept", "30d"]);
    // Each script has 400,000 bytes. Other tests may have left more than a megabyte, which is dropped in steps.
    let first = submit(w, NOBODY, &[&script("00.sh")]).unwrap();
    cancel(w, NOBODY, std::slice::from_ref(&first));
    assert_eq!(text(&w.status(&first), "state"), "Cancelled");
    let fits = || ended()["bytes"].as_u64().is_some_and(|bytes| bytes <= 1 << 20);
    let mut number = 0;
    while w.run(&["status", &first]).code() != 3 || !fits() {
        number += 1;
        assert!(number < 40, "the memory of ended work does not become less: {}", ended());
        let next = submit(w, NOBODY, &[&script(&format!("{number:02}.sh"))]).unwrap();
        cancel(w, NOBODY, std::slice::from_ref(&next));
        assert_eq!(text(&w.status(&next), "state"), "Cancelled", "it is the newest");
    }
    assert_eq!(text(&w.status(&theirs), "state"), "Cancelled", "it is of another user");
    let forgotten = w.run_as(NOBODY, &["status", &first]);
    assert_eq!(forgotten.code(), 3, "{}", forgotten.err());
    for says in [
        format!("there is no allocation {first}"),
        "keeps ended work for 30 days, or less where the memory for it is full".to_owned(),
        format!("`lattice audit query --alloc {first}`"),
    ] {
        assert!(forgotten.err().contains(&says), "it should say {says:?}: {}", forgotten.err());
    }
    assert!(w.ok(&["audit", "query", "--alloc", &first]).contains("AllocationEnded"), "the audit log has it");
    let now = ended();
    assert_eq!(now["cut_short"], true, "{now}");
    assert_eq!((&now["kept_seconds"], &now["memory_bytes"]), (&2_592_000.into(), &(1 << 20).into()), "{now}");
    assert!(now["bytes"].as_u64().is_some_and(|bytes| (400_000..=1 << 20).contains(&bytes)), "{now}");
    assert!(now["oldest_ended_at"].is_string() && now["forgotten_until"].is_string(), "{now}");
    let shown = w.ok(&["quorum", "status"]);
    assert!(shown.contains(" of 1 MiB; the oldest ended 0") && shown.contains("before the limit of 30 days"), "{shown}");
    let shown = w.ok(&["admin", "limits"]);
    assert!(shown.lines().any(|line| line.starts_with("Ended work is kept for:") && line.ends_with("30 days")), "{shown}");
}
