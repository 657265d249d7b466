//! Changes of submitted work, of its walltime above all: who may do it, how far, and that its nodes follow, also when
//! daemons are killed meanwhile.

use crate::checkpoint::Chain;
use crate::harness::{DAEMON, Group, NOBODY, World, ms};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;
use std::time::SystemTime;

/// SIGTERM is given 2 s here; see `World::start`.
static WALLTIMES: Group = Group { theme: "walltimes", name: "walltimes", nodes: 3, quorum: 1, tweak: |_| {} };

pub fn trials() -> Vec<Trial> {
    vec![
        WALLTIMES.test("waiting_work_gets_any_that_a_submission_may_have", &[], waiting),
        WALLTIMES.test("a_walltime_is_changed_by_a_difference", &[], by_a_difference),
        WALLTIMES.test("name_and_class_of_a_running_job_are_changed_and_all_of_a_change_or_nothing", &[], name_and_class),
        WALLTIMES.test(
            "running_jobs_that_are_lengthened_or_shortened_end_then_though_agents_are_killed_or_away_and_are_asked_before",
            &[],
            at_their_new_ends,
        ),
    ]
}

const POLITE: &str = "trap 'echo got TERM; exit 3' TERM; echo ready; while :; do sleep 0.1; done";

/// Submits as this user; returns the id.
fn submit(w: &World, uid: u32, args: &[&str]) -> String {
    let done = w.run_as(uid, &[&["submit", "-o", "name"], args].concat());
    assert_eq!(done.code(), 0, "{}", done.err());
    done.out().trim().to_owned()
}

fn update(w: &World, uid: u32, id: &str, walltime: &str) {
    let done = w.run_as(uid, &["update", id, "--walltime", walltime]);
    assert_eq!(done.code(), 0, "{}", done.err());
}

fn refused(w: &World, uid: u32, id: &str, walltime: &str, code: i32, expected: &str) {
    let before = w.status(id)["walltime_seconds"].clone();
    let done = w.run_as(uid, &["update", id, "--walltime", walltime]);
    assert!(done.code() == code && done.err().contains(expected), "{walltime}, {expected}: {} {}", done.code(), done.err());
    assert_eq!(w.status(id)["walltime_seconds"], before);
}

fn walltime_s(w: &World, id: &str) -> Option<u64> {
    w.status(id)["walltime_seconds"].as_u64()
}

/// The audit log's records of changed walltimes: actor and detail.
fn changes(w: &World, id: &str) -> Vec<(String, String)> {
    records(w, id, "WalltimeChanged")
}

fn records(w: &World, id: &str, action: &str) -> Vec<(String, String)> {
    let records = w.lattice.json(&["audit", "query", "--alloc", id]).unwrap();
    let changes = records.as_array().unwrap().iter().filter(|r| text(r, "action") == action);
    changes.map(|r| (text(r, "actor"), text(r, "detail"))).collect()
}

fn by(who: &str, detail: &str) -> (String, String) {
    (who.to_owned(), detail.to_owned())
}

fn ran_ms(ended: &Value) -> u64 {
    assert_eq!((text(ended, "state").as_str(), text(ended, "reason").as_str()), ("Failed", "walltime_exceeded"), "{ended}");
    ms(ended, "ended_at") - ms(ended, "started_at")
}

fn waiting(w: &World) {
    let id = submit(w, NOBODY, &["--hold", "--walltime", "1h", "--", "/bin/sh", "-c", POLITE]);
    let done = w.run_as(NOBODY, &["update", &id, "-t", "90"]);
    assert_eq!(done.out(), format!("Allocation {} has a walltime of 01:30:00\n", &id[..8]), "{}", done.err());
    assert_eq!(walltime_s(w, &id), Some(5400));
    assert!(w.ok(&["status", &id]).contains("01:30:00"));
    refused(w, NOBODY, &id, "366-00", 2, "365 days");
    refused(w, DAEMON, &id, "10m", 4, "belongs to nobody");
    // An operator may change it as well; a repeated request is not another change.
    w.ok(&["update", "--walltime", "3s", &id]);
    w.ok(&["update", "--walltime", "3s", &id]);
    assert_eq!(w.run_as(NOBODY, &["resume", &id]).code(), 0);
    let ran = ran_ms(&w.ended(&id));
    assert!((2_900..4_900).contains(&ran), "3 s, not {ran} ms");
    refused(w, NOBODY, &id, "10m", 4, "it is Failed");
    let want = [by("nobody", "01:30:00 instead of 01:00:00 while Pending"), by("root@n1", "00:00:03 instead of 01:30:00 while Pending")];
    assert_eq!(changes(w, &id), want);
    let unknown = w.run(&["update", "ffffffff", "-t", "5"]);
    assert_eq!(unknown.code(), 3, "{}", unknown.err());
}

fn by_a_difference(w: &World) {
    let id = submit(w, NOBODY, &["--hold", "--walltime", "1h", "--", "/bin/true"]);
    for (typed, shown, seconds) in [("+30m", "01:30:00", 5400), ("-75m", "00:15:00", 900)] {
        let done = w.run_as(NOBODY, &["update", &id, "--walltime", typed]);
        assert_eq!(done.out(), format!("Allocation {} has a walltime of {shown}\n", &id[..8]), "{}", done.err());
        assert_eq!(walltime_s(w, &id), Some(seconds));
    }
    refused(w, NOBODY, &id, "-15m", 2, "cannot be 00:15:00 shorter");
    refused(w, NOBODY, &id, "+366-00", 2, "365 days");
    refused(w, DAEMON, &id, "+1h", 4, "belongs to nobody");
    let want = [by("nobody", "01:30:00 instead of 01:00:00 while Pending"), by("nobody", "00:15:00 instead of 01:30:00 while Pending")];
    assert_eq!(changes(w, &id), want);
    let service = submit(w, NOBODY, &["--hold", "--service", "--", "/bin/true"]);
    refused(w, NOBODY, &service, "+1h", 4, "it is a service");
    for id in [&id, &service] {
        w.ok(&["cancel", id]);
        w.ended(id);
    }
}

fn name_and_class(w: &World) {
    let id = submit(w, NOBODY, &["--name", "before", "--walltime", "1h", "--", "/bin/sh", "-c", POLITE]);
    w.running(&id);
    let update = |uid, change: &[&str]| w.run_as(uid, &[&["update", id.as_str()], change].concat());
    let done = update(NOBODY, &["--name", "after", "--priority", "3"]);
    assert_eq!(done.out(), format!("Allocation {} has preemption class 3, the name after\n", &id[..8]), "{}", done.err());
    for (uid, change, expected) in [
        (NOBODY, &["--preemption-class", "4"][..], "only operators raise"),
        (NOBODY, &["--name", "both", "--walltime", "2h"][..], "only operators lengthen"),
        (DAEMON, &["--name", "mine"][..], "belongs to nobody"),
        (DAEMON, &["--preemption-class", "0"][..], "belongs to nobody"),
    ] {
        let refused = update(uid, change);
        assert!(refused.code() == 4 && refused.err().contains(expected), "{change:?}: {} {}", refused.code(), refused.err());
        let now = w.status(&id);
        assert_eq!((text(&now, "name").as_str(), &now["preemption_class"]), ("after", &3.into()), "{change:?}: {now}");
    }
    let nameless = update(NOBODY, &["--name", ""]);
    assert!(nameless.code() == 2 && nameless.err().contains("1 to 128 bytes"), "{}", nameless.err());
    w.ok(&["update", &id, "--preemption-class", "6"]);
    let shown = w.ok(&["status", &id]);
    assert!(shown.lines().any(|line| line.starts_with("Class:") && line.ends_with(" 6")), "{shown}");
    assert_eq!(w.ok(&["status", "--all", "--name", "after", "-o", "name"]).trim(), id);
    let want = [
        by("nobody", "name after instead of before, preemption class 3 instead of 5 while Running"),
        by("root@n1", "preemption class 6 instead of 3 while Running"),
    ];
    assert_eq!(records(w, &id, "AllocationChanged"), want);
    w.ok(&["cancel", &id]);
    w.ended(&id);
    let ended = update(NOBODY, &["--name", "late"]);
    assert!(ended.code() == 4 && ended.err().contains("it is Cancelled"), "{}", ended.err());
    w.assert_nothing_left();
}

/// Three jobs at once, because each only waits for most of its walltime. The lengthened one is the first: its agents are
/// killed before the others are changed, so n2 has one restart in which it can learn the shortened walltime.
fn at_their_new_ends(w: &World) {
    let lengthened = lengthen(w);
    let (shortened, walltime_s) = shorten(w);
    let chain = Chain::submit(w, &[], &["-w", "n3", "--walltime=25s", "--requeue=never"]);
    w.ok(&["update", &chain.id, "--walltime", "40s"]);

    let ran = ran_ms(&w.ended(&lengthened));
    assert!((39_500..44_000).contains(&ran), "40 s, not {ran} ms");
    assert_both_got_signal(w, &lengthened);
    assert_eq!(changes(w, &lengthened), [("root@n1".to_owned(), "00:00:40 instead of 00:00:20 while Running".to_owned())]);

    assert_asked_before_its_end(w, &chain);

    let ran = ran_ms(&w.ended(&shortened));
    assert!((walltime_s * 1000 - 500..walltime_s * 1000 + 4_000).contains(&ran), "{walltime_s} s, not {ran} ms");
    assert_both_got_signal(w, &shortened);
    w.assert_nothing_left();
}

/// A job with a core of n1 and of n2, both of whose ranks run.
fn submit_on_both(w: &World, walltime: &str) -> String {
    let share = ["-w", "n1,n2", "--cores", "1", "--walltime", walltime, "--", "/bin/sh", "-c", POLITE];
    let id = submit(w, NOBODY, &share);
    w.wait("both ranks", || w.log(&id).matches("ready").count() == 2);
    id
}

fn assert_both_got_signal(w: &World, id: &str) {
    w.wait("the signal at both", || w.log(id).matches("got TERM").count() == 2);
}

/// A job that gets 40 s in place of 20 s, and whose agents are killed then.
fn lengthen(w: &World) -> String {
    let id = submit_on_both(w, "20s");
    refused(w, NOBODY, &id, "+1s", 4, "only operators lengthen");
    w.ok(&["update", &id, "--walltime", "+20s"]);
    // Twice: after the second restart the agent knows the walltime only from its journal or its list.
    for node in ["n1", "n2", "n1", "n2"] {
        faults::kill_node(&w.dir, node).unwrap();
        faults::start_node(&w.dir, node).unwrap();
    }
    id
}

/// A job of an hour that gets about the shortest walltime that the quorum accepts; returns it too, in seconds.
fn shorten(w: &World) -> (String, u64) {
    let id = submit_on_both(w, "1h");
    refused(w, NOBODY, &id, "2h", 4, "only operators lengthen");
    refused(w, NOBODY, &id, "30s", 4, "so its walltime must be at least");
    refused(w, DAEMON, &id, "10m", 4, "belongs to nobody");
    let started_ms = ms(&w.status(&id), "started_at");
    // One of the job's agents learns the new walltime when it restarts.
    faults::kill_node(&w.dir, "n2").unwrap();
    // A minute must be left when the quorum gets the request.
    let walltime_s = (now_ms() - started_ms) / 1000 + 67;
    update(w, NOBODY, &id, &format!("{walltime_s}s"));
    faults::start_node(&w.dir, "n2").unwrap();
    (id, walltime_s)
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

/// The work is asked a tenth of the walltime before the new end, not before the old one.
fn assert_asked_before_its_end(w: &World, chain: &Chain) {
    let id = &chain.id;
    let mut over = Value::Null;
    w.wait("it to be asked and suspended", || {
        over = w.status(id);
        text(&over, "state") == "Suspended"
    });
    assert!(text(&over, "reason").starts_with("walltime_exceeded; saved as checkpoint"), "{over}");
    let first = &over["attempts"][0];
    let made = w.lattice.json(&["checkpoint", "show", id]).unwrap();
    let saved_s = (ms(&made, "created_at") - ms(first, "started_at")) / 1000;
    assert!((33..41).contains(&saved_s), "it saved itself after {saved_s} s: {made}");
    w.ok(&["cancel", id]);
    w.ended(id);
}
