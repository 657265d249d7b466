//! What one user may have in the quorum, so that no user takes from others what they need there.

use crate::harness::{DAEMON, Group, NOBODY, World};
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use std::fs;
use std::os::unix::fs::chown;

static USERS: Group = Group::small("user_limits");

pub fn trials() -> Vec<Trial> {
    vec![
        USERS.test("one_users_waiting_work_leaves_others_theirs", &[], pending),
        USERS.test("who_submits_too_fast_is_told_when_to_try_again", &[], rate),
        USERS.test("scripts_are_limited_and_freed_when_nothing_names_them", &[], scripts),
        USERS.test("one_users_flood_pushes_no_history_of_others_out", &[], history),
    ]
}

/// Submits as this user what waits until it is released: the id, or what the refusal says.
fn submit(w: &World, uid: u32, args: &[&str]) -> Result<String, String> {
    let done = w.run_as(uid, &[&["submit", "-o", "name", "--hold"], args].concat());
    if done.code() == 0 {
        return Ok(done.out().trim().to_owned());
    }
    assert_eq!(done.code(), 4, "{}", done.err());
    Err(done.err())
}

/// What the refusal says where a submission like this is only checked; `None`: it would be taken.
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

/// Limits as they are at first, whatever comes of the test.
struct Restored<'a>(&'a World);

impl Drop for Restored<'_> {
    fn drop(&mut self) {
        let all = ["--user-pending=10000", "--user-submissions-per-second=100", "--user-script-bytes=67108864", "--user-history=none"];
        let _ = self.0.run(&[&["admin", "limits", "--tenant-pending=100000"], &all[..]].concat());
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
    let told = submit(w, NOBODY, &["--", "true"]).unwrap_err();
    assert!(told.contains("user nobody has 3 allocations waiting, and may have 3") && told.contains("hint: submit again when"), "{told}");
    assert_eq!(dry_run(w, NOBODY, &["--", "true"]), Some(told), "a dry run answers the same");
    assert_eq!(dry_run(w, DAEMON, &["--", "true"]), None);
    // Nobody else is concerned.
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

fn rate(w: &World) {
    let _restored = limit(w, &["--user-submissions-per-second", "1"]);
    // A hundred at once, and one for each second that this takes.
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
    let (mut mine, mut told) = (Vec::new(), String::new());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(until_refused)).collect();
        for thread in threads {
            let (ids, refusal) = thread.join().unwrap();
            mine.extend(ids);
            told = refusal;
        }
    });
    assert!(mine.len() >= 100, "{} only: {told}", mine.len());
    assert!(told.contains("user nobody submits faster than 1 allocation a second: try again in 1 s"), "{told}");
    cancel(w, DAEMON, &[submit(w, DAEMON, &["--", "true"]).unwrap()]);
    w.wait("the next to be taken", || submit(w, NOBODY, &["--", "true"]).map(|id| mine.push(id)).is_ok());
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
    // The same text counts once.
    let first: Vec<String> = (0..3).map(|_| submit(w, NOBODY, &[&one]).unwrap()).collect();
    let told = submit(w, NOBODY, &[&other]).unwrap_err();
    assert_eq!(dry_run(w, NOBODY, &[&other]).as_ref(), Some(&told));
    assert_eq!(dry_run(w, NOBODY, &[&one]), None, "that text is there already");
    assert!(told.contains("scripts of user nobody's work") && told.contains("would exceed 100000"), "{told}");
    cancel(w, NOBODY, &first);
    // Ended work names its script still: it is forgotten for the next one.
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
