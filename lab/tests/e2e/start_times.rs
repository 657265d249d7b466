//! When work begins and by when it must have ended, its place in the queue, and the mail about it.

use crate::harness::{Group, World};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

static START_TIMES: Group = Group::small("start_times");

static MAIL: Group = Group {
    theme: "start_times",
    name: "mail",
    nodes: 1,
    quorum: 3,
    tweak: |options| {
        let (hook, sent) = (mail_file("hook"), mail_file("sent"));
        // The hook runs as an ordinary user, and finds the file there.
        fs::write(&sent, "").unwrap();
        fs::set_permissions(&sent, fs::Permissions::from_mode(0o666)).unwrap();
        let script =
            format!("#!/bin/sh\nmail=$(cat)\n[ \"$1\" != dead ] || exit 75\necho \"$1 $2 $LATTICE_MAIL_ID $mail\" >> {}\n", sent.display());
        fs::write(&hook, script).unwrap();
        fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
        options.member_lines = format!("mail_hook: {:?}\nmail_hook_seconds: 5\n", hook.to_string_lossy());
    },
};

pub fn trials() -> Vec<Trial> {
    vec![
        START_TIMES.test("work_with_a_begin_does_not_begin_before_it", &[], begins_later),
        START_TIMES.test("work_that_cannot_end_by_its_deadline_is_refused_or_cancelled", &[], misses_its_deadline),
        START_TIMES.test("nice_changes_the_order_of_two_that_wait", &[], is_nice),
        START_TIMES.test("where_no_mail_is_sent_who_wants_some_is_told", &[], warns),
        MAIL.test("each_mail_is_sent_in_order_also_across_a_dead_leader", &[], sends_mail),
    ]
}

/// In a place that every user may read.
fn mail_file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("lattice-mail-{}-{name}", std::process::id()))
}

fn begins_later(w: &World) {
    let id = w.submit(&["--begin", "now+4s", "--comment", "for later", "--", "/bin/true"]);
    let now = w.status(&id);
    let begin = text(&now, "begin");
    assert_eq!((text(&now, "state").as_str(), text(&now, "status_message")), ("Pending", format!("begins at {begin}")), "{now}");
    assert_eq!((text(&now, "expected_start"), text(&now, "comment").as_str()), (begin.clone(), "for later"), "{now}");
    assert!(now["queue_position"].is_null(), "{now}");
    let explained = w.ok(&["explain", &id]);
    assert!(explained.contains(&format!("begins at {begin}\n")), "{explained}");
    let done = w.completed(&id);
    assert!(text(&done, "claimed_at") >= begin, "it got nodes before its time: {done}");
    // A change of mind.
    let moved = w.submit(&["--begin", "tomorrow", "--", "/bin/true"]);
    w.ok(&["update", &moved, "--begin", "now"]);
    w.completed(&moved);
}

fn misses_its_deadline(w: &World) {
    let refused = w.run(&["submit", "--deadline", "now+30s", "--walltime", "1h", "--", "/bin/true"]);
    assert!(refused.err().contains("deadline: it could not end by"), "{}", refused.err());
    let id = w.submit(&["--hold", "--deadline", "now+8s", "--walltime", "5s", "--", "/bin/true"]);
    let ended = w.ended(&id);
    assert_eq!(text(&ended, "state"), "Cancelled", "{ended}");
    let reason = format!("deadline_missed: it could not end by {} any more", text(&ended, "deadline"));
    assert_eq!(text(&ended, "reason"), reason, "{ended}");
    // With a least walltime it begins, and has what is left until its deadline.
    let short = w.submit(&["--deadline", "now+5m", "--walltime", "1h", "--walltime-min", "1m", "--", "/bin/sleep", "60"]);
    w.running(&short);
    let running = w.status(&short);
    assert!((60..=300).contains(&running["walltime_seconds"].as_u64().unwrap()), "{running}");
    w.ok(&["cancel", &short]);
    lanes_have_a_deadline(w);
}

/// Lanes of a task group end by its deadline, and their tasks have less than their walltime.
fn lanes_have_a_deadline(w: &World) {
    let near = ["submit", "--task-group=0-1", "--deadline=now+50s", "--walltime=10s", "--", "/bin/true"];
    let refused = w.run(&near);
    assert!(refused.err().contains("a lane, which has two walltimes of a task and a minute, takes 00:01:20"), "{}", refused.err());
    let id = w.submit(&["--task-group=0-1%1", "--deadline=now+3m", "--walltime=1h", "--walltime-min=10s", "--", "/bin/sleep", "60"]);
    w.running(&id);
    let lane = w.ok(&["status", &id, "--lanes", "-o", "name"]).lines().next().unwrap_or_default().to_owned();
    let (group, lane) = (w.status(&id), w.status(&lane));
    w.ok(&["cancel", &id]);
    assert_eq!((group["walltime_seconds"].as_u64(), text(&lane, "deadline")), (Some(3600), text(&group, "deadline")), "{lane}");
    assert!((80..=180).contains(&lane["walltime_seconds"].as_u64().unwrap()), "{lane}");
    let missed = w.submit(&["--hold", "--task-group=0-1", "--deadline=now+66s", "--walltime=1s", "--", "/bin/true"]);
    let missed = w.ended(&missed);
    assert!(text(&missed, "reason").starts_with("deadline_missed: it could not end by"), "{missed}");
}

fn is_nice(w: &World) {
    let all = w.submit(&["-N", "3", "--walltime", "5m", "--", "/bin/sleep", "300"]);
    w.running(&all);
    let polite = w.submit(&["-N", "3", "--nice=60", "--", "/bin/true"]);
    let other = w.submit(&["-N", "3", "--", "/bin/true"]);
    let place = |id: &str| w.status(id)["queue_position"].as_u64();
    w.wait("the second one to be first", || (place(&other), place(&polite)) == (Some(1), Some(2)));
    w.ok(&["update", &other, "--nice=120"]);
    w.wait("the first one to be first again", || (place(&polite), place(&other)) == (Some(1), Some(2)));
    let shown = w.ok(&["status", &other]);
    assert!(shown.lines().any(|line| line.split_whitespace().eq(["Nice:", "120"])), "{shown}");
    let explained: Value = w.lattice.json(&["explain", &other]).unwrap();
    assert!(explained.to_string().contains("\"nice\""), "{explained}");
    w.ok(&["cancel", &all]);
    let [polite, other] = [polite, other].map(|id| w.completed(&id));
    assert!(text(&polite, "claimed_at") <= text(&other, "claimed_at"), "{polite} {other}");
}

fn warns(w: &World) {
    let submitted = w.run(&["submit", "--mail-type=end", "--", "/bin/true"]);
    assert!(submitted.err().contains("this site sends no mail"), "{}", submitted.err());
    let refused = w.run(&["submit", "--mail-user=ada", "--", "/bin/true"]);
    assert!(refused.err().contains("mail-type: which events?"), "{}", refused.err());
}

/// What the hook got for this allocation, without repetitions: recipient, event and mail.
fn mails(id: &str) -> Vec<(String, String, Value)> {
    let mut known = Vec::new();
    let mut mails = Vec::new();
    for line in fs::read_to_string(mail_file("sent")).unwrap_or_default().lines() {
        let mut words = line.splitn(4, ' ').map(str::to_owned);
        let (Some(to), Some(event), Some(mail_id), Some(mail)) = (words.next(), words.next(), words.next(), words.next()) else { continue };
        let Ok(mail) = serde_json::from_str::<Value>(&mail) else { continue };
        if mail["id"] == id && !known.contains(&mail_id) {
            known.push(mail_id);
            mails.push((to, event, mail));
        }
    }
    mails
}

fn sends_mail(w: &World) {
    let begun = || {
        let status = w.lattice.json(&["quorum", "status"]).unwrap_or_default();
        status["notified"].as_array().is_some_and(|all| all.iter().any(|one| one["delivered_seq"].as_u64().unwrap_or_default() > 0))
    };
    w.wait("mail to begin", begun);
    // Mails that cannot be sent now delay no other one, however long.
    let tasks = w.submit(&["--mail-type=end,array_tasks", "--mail-user=dead", "--task-group=0-19", "--walltime=5m", "--", "/bin/true"]);
    w.completed(&tasks);
    let submitted =
        w.run(&["submit", "-o", "name", "--mail-type=begin,end", "--mail-user=ada", "--walltime=5m", "--", "/bin/sleep", "300"]);
    assert_eq!(submitted.err(), "", "no warning");
    let id = submitted.out().trim().to_owned();
    let events = || mails(&id).into_iter().map(|(to, event, _)| format!("{to} {event}")).collect::<Vec<_>>();
    w.wait("the mail of its beginning", || events() == ["ada begin"]);
    assert!(mails(&tasks).is_empty());
    // The leader knows why, and an agent that knows the leader asks it.
    w.wait("the leader's status to say whose mail fails", || {
        let status = w.lattice.json(&["quorum", "status"]).unwrap_or_default();
        let mut errors = status["notified"].as_array().into_iter().flatten().map(|one| text(one, "last_error"));
        errors.any(|error| error.contains("to dead cannot be sent now: exit status: 75"))
    });
    let gone = w.leader();
    faults::kill_member(&w.dir, gone).unwrap();
    w.wait("another leader", || w.lattice.leader().ok().flatten().is_some_and(|leader| leader != gone));
    w.ok(&["cancel", &id]);
    w.wait("the mail of its end", || events() == ["ada begin", "ada end"]);
    let (_, _, mail) = mails(&id).remove(1);
    assert_eq!((&mail["state"], &mail["owner"], &mail["event"]), (&"Cancelled".into(), &"root".into(), &"end".into()), "{mail}");
    faults::start_member(&w.dir, gone).unwrap();
    assert_eq!(events(), ["ada begin", "ada end"], "each is sent once");
    let options = ["--mail-type=end,fail,array_tasks", "--mail-user=bob", "--cores=1", "--task-group=5-7%1"];
    let refused = w.run(&[&["submit", "--mail-type=begin"], &options[..], &["--", "/bin/true"]].concat());
    assert!(refused.err().contains("of single tasks, begin is not known"), "{}", refused.err());
    let group = w.submit(&[&options[..], &["--", "/bin/sh", "-c", "test $LATTICE_TASK_INDEX != 6"]].concat());
    let of_tasks =
        || mails(&group).into_iter().map(|(_, event, mail)| format!("{event} {} {}", mail["task"], mail["state"])).collect::<Vec<_>>();
    w.wait("the mail of each task, and of the group", || of_tasks().len() >= 4);
    let mut sent = of_tasks();
    assert_eq!(sent.pop().as_deref(), Some("fail null \"Failed\""), "the last one is about the group");
    sent.sort();
    assert_eq!(sent, ["end 5 \"Completed\"", "end 7 \"Completed\"", "fail 6 \"Failed\""]);
    for name in ["hook", "sent"] {
        let _ = fs::remove_file(mail_file(name));
    }
}
