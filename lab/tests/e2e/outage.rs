//! The quorum is down, in part and completely: running work continues, and nothing acknowledged is lost.

use crate::harness::{Group, JOB, World, lab_program};
use crate::telemetry;
use lattice_lab::cluster::Member;
use lattice_lab::demo::Lines;
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::{Duration, Instant};

static OUTAGE: Group = Group::large("outage");
/// How soon after its leader's death the quorum accepts work again, on a machine at rest.
const ACCEPTED_MAX: Duration = Duration::from_secs(3);
/// On a busy machine, the time of this many ordinary submissions is added: an election and the
/// first commit after it need about as many answers of members.
const SUBMISSIONS_ADDED: u32 = 4;

pub fn trials() -> Vec<Trial> {
    vec![
        OUTAGE.test("the_quorum_accepts_work_again_within_3_s_after_its_leaders_death", &[], leader),
        OUTAGE.test("the_loss_of_a_follower_is_not_noticed", &[], follower),
        OUTAGE.test("sessions_leave_the_member_that_becomes_the_leader", &[], session_moves),
        OUTAGE.test("a_session_leaves_a_member_that_hangs", &[], hangs),
        OUTAGE.test("without_a_majority_work_continues_and_submissions_are_refused", &[], all_members),
        OUTAGE.test("a_job_exits_with_its_code_without_a_quorum_and_a_restarted_agent_reports_it", &[], code_from_head),
        OUTAGE.test("one_member_of_three_says_that_nobody_leads", &[], nobody_leads),
        OUTAGE.test("an_agent_that_starts_without_a_quorum_continues_its_work", &[], agent_alone),
        OUTAGE.test("everything_killed_at_once_recovers", &[], everything),
        OUTAGE.test("acknowledged_submissions_survive_kill_9_of_every_member", &[], durable),
        OUTAGE.test("the_audit_chain_is_valid_after_all_of_it", &[], audit),
    ]
}

fn sleeper(w: &World, lines: u32) -> String {
    let (program, lines) = (lab_program().to_string_lossy().into_owned(), lines.to_string());
    let id = w.submit(&["--nodes", "2", "--tasks-per-node", "2", "--", &program, "pmi-ring", &lines, "50"]);
    w.wait_log(&id, "line 2 ");
    id
}

fn whole(w: &World, id: &str, lines: u32) {
    w.completed(id);
    let mut got = Lines::default();
    w.ok(&["logs", id]).lines().for_each(|l| got.take(l));
    got.complete(4, lines).unwrap_or_else(|e| panic!("{e}"));
}

fn kill_all_members(w: &World) {
    for member in w.cluster().members.iter().filter(|m| m.daemon.alive()) {
        faults::kill_member(&w.dir, member.id).unwrap();
    }
}

fn start_all_members(w: &World) {
    for member in w.cluster().members.iter().filter(|m| !m.daemon.alive()) {
        faults::start_member(&w.dir, member.id).unwrap();
    }
}

/// The member that n1's session uses.
fn member_of_n1(w: &World) -> Option<Member> {
    let at = text(&w.lattice.json(&["node", "status"]).unwrap(), "quorum_detail");
    w.cluster().members.into_iter().find(|m| at.ends_with(&m.service))
}

fn session_moves(w: &World) {
    let at_n1 = w.cluster().node("n1").unwrap().daemon.log.clone();
    let lost = || fs::read_to_string(&at_n1).unwrap().matches("the session with the quorum is lost").count();
    w.wait("n1's session to be with a follower", || member_of_n1(w).is_some_and(|m| m.id != w.leader()));
    let (member, before) = (member_of_n1(w).unwrap(), lost());
    w.ok(&["quorum", "transfer-leader", &member.id.to_string()]);
    w.wait("the session to move to another member", || member_of_n1(w).is_some_and(|m| m.id != member.id));
    assert_eq!(w.leader(), member.id);
    assert_eq!(lost(), before, "it is moved, not lost");
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
}

fn hangs(w: &World) {
    let at = member_of_n1(w).unwrap();
    let member = Pid::from_raw(at.daemon.process.as_ref().unwrap().pid);
    kill(member, Signal::SIGSTOP).unwrap();
    // Its connections stay open: only its silence shows the fault. Meanwhile calls go to the other members.
    let id = w.submit(&["--", "/bin/true"]);
    w.wait("n1's session to leave it", || member_of_n1(w).is_some_and(|m| m.id != at.id));
    w.completed(&id);
    kill(member, Signal::SIGCONT).unwrap();
    w.wait("all nodes to be Ready", || w.lattice.json(&["nodes"]).unwrap().as_array().unwrap().iter().all(|n| text(n, "state") == "Ready"));
}

/// The longest of three submissions while nothing is wrong.
fn ordinary_submission(w: &World) -> Duration {
    let submission = |_| {
        let began = Instant::now();
        w.submit(&["--hold", "--", "/bin/true"]);
        began.elapsed()
    };
    (0..3).map(submission).max().unwrap()
}

fn leader(w: &World) {
    let running = sleeper(w, 100);
    let most = ACCEPTED_MAX + SUBMISSIONS_ADDED * ordinary_submission(w);
    let gone = w.leader();
    faults::kill_member(&w.dir, gone).unwrap();
    let killed = Instant::now();
    let id = loop {
        let done = w.run(&["submit", "-o", "name", "--", "/bin/true"]);
        if done.code() == 0 {
            break done.out().trim().to_owned();
        }
        assert_eq!(done.code(), 5, "refused, not failed: {}", done.err());
        assert!(killed.elapsed() < most, "{:?} after the leader's end: {}", killed.elapsed(), done.err());
    };
    assert!(killed.elapsed() < most, "it took {:?}, more than {most:?}", killed.elapsed());
    w.completed(&id);
    assert_ne!(w.leader(), gone);
    whole(w, &running, 100);
}

fn follower(w: &World) {
    let leader = w.leader();
    let follower = (1..=3).find(|id| *id != leader).unwrap();
    faults::kill_member(&w.dir, follower).unwrap();
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
    faults::start_member(&w.dir, follower).unwrap();
}

fn nobody_leads(w: &World) {
    let leader = w.leader();
    let follower = (1..=3).find(|id| *id != leader).unwrap();
    faults::kill_member(&w.dir, follower).unwrap();
    faults::kill_member(&w.dir, leader).unwrap();
    // For a moment the last member may still name the dead one as the leader.
    w.wait("the last member to report that nobody leads", || {
        let refused = w.run(&["submit", "--", "/bin/true"]);
        assert_eq!(refused.code(), 5, "{}{}", refused.out(), refused.err());
        refused.err().contains("no member leads at present")
    });
    let last = w.cluster().members.into_iter().find(|m| m.daemon.alive()).unwrap().metrics;
    w.wait("its health page to report the same", || {
        let (head, body) = telemetry::get(&last, "/healthz", "");
        head.contains(" 503 ") && body.contains("\"reason\":\"no contact with a leader")
    });
    faults::start_member(&w.dir, leader).unwrap();
    faults::start_member(&w.dir, follower).unwrap();
    w.wait("it to be healthy", || telemetry::get(&last, "/healthz", "").1 == "{\"status\":\"ok\"}\n");
    w.wait("work to be accepted again", || w.run(&["submit", "-o", "name", "--", "/bin/true"]).code() == 0);
}

fn all_members(w: &World) {
    let id = sleeper(w, 100);
    // A single member cannot commit anything. With --stale it shows its state, and how old that is.
    let leader = w.leader();
    for member in w.cluster().members.iter().filter(|m| m.id == leader || m.id == leader % 3 + 1) {
        faults::kill_member(&w.dir, member.id).unwrap();
    }
    assert_eq!(w.run(&["status", &id]).code(), 5);
    for args in [&["status", "--stale", "-o", "name"][..], &["status", &id, "--stale", "-o", "name"], &["nodes", "--stale", "-o", "name"]] {
        let stale = w.run(args);
        let shown = if args[0] == "nodes" { "n1" } else { &id };
        assert!(stale.code() == 0 && stale.out().contains(shown), "{args:?}: {} {}", stale.out(), stale.err());
        assert!(stale.err().contains("the state of one member of the quorum, which reached the others"), "{}", stale.err());
    }
    kill_all_members(w);
    let refused = w.run(&["submit", "--", "/bin/true"]);
    assert_eq!(refused.code(), 5, "{}{}", refused.out(), refused.err());
    assert!(refused.err().contains("quorum") || refused.err().contains("leader"), "{}", refused.err());
    let local = w.run(&["node", "status"]);
    let output = local.out() + &local.err();
    assert_eq!(local.code(), 0, "{output}");
    assert!(output.contains("n1") && output.to_lowercase().contains("quorum"), "the missing quorum is reported: {output}");
    let of_n1 = w.cluster().node("n1").unwrap().metrics.clone();
    let health = || telemetry::get(&of_n1, "/healthz", "");
    w.wait("n1's health page to report it too", || health().0.contains(" 503 ") && health().1.contains("\"reason\":\"no session for "));
    // Another node's agent shows the same for its own node.
    let there = w.at("n2").run(&["node", "status"], JOB).unwrap();
    assert!(there.code() == 0 && there.out().contains("n2"), "{}", there.err());
    // The program ends while nobody can receive the report.
    let root = lattice_lab::sweep::scopes_root(&w.cluster().cgroup_root).unwrap();
    w.wait("the job to end without a quorum", || lattice_lab::sweep::processes_in(&root).len() <= 2);
    start_all_members(w);
    whole(w, &id, 100);
    w.assert_nothing_left();
    w.wait("n1's session", || health().0.contains(" 200 ") && health().1 == "{\"status\":\"ok\"}\n");
}

fn code_from_head(w: &World) {
    let go = w.dir.join("go");
    let waits = format!("echo begun; while [ ! -e {} ]; do sleep 0.05; done; echo over; exit 7", go.display());
    let mut command = w.at("n1").command(&["launch", "--name", "waits", "--", "/bin/sh", "-c", &waits]);
    let mut job = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(job.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "begun\n");
    let id = text(&w.status("@last"), "id");
    let head = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    kill_all_members(w);
    std::fs::write(&go, "").unwrap();
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    let ended = job.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), rest.as_str()), (Some(7), "over\n"), "{}", String::from_utf8_lossy(&ended.stderr));
    // Only the head's journal has the exit code now.
    faults::kill_node(&w.dir, &head).unwrap();
    start_all_members(w);
    faults::start_node(&w.dir, &head).unwrap();
    let status = w.ended(&id);
    let values = ["state", "exit_code", "requeue_count"].map(|key| text(&status, key));
    assert_eq!(values, ["Failed", "7", "0"].map(str::to_owned), "{status}");
}

fn agent_alone(w: &World) {
    let id = sleeper(w, 100);
    let node = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    kill_all_members(w);
    faults::kill_node(&w.dir, &node).unwrap();
    faults::start_node(&w.dir, &node).unwrap();
    let local = w.at(&node).run(&["node", "status"], JOB).unwrap();
    assert!(local.code() == 0 && local.out().contains(&id[..8]), "it knows its work from its own disk: {}{}", local.out(), local.err());
    start_all_members(w);
    whole(w, &id, 100);
}

fn everything(w: &World) {
    let id = sleeper(w, 100);
    for node in ["n1", "n2", "n3"] {
        faults::kill_node(&w.dir, node).unwrap();
    }
    kill_all_members(w);
    faults::heal(&w.dir, JOB).unwrap();
    whole(w, &id, 100);
    assert_eq!(text(&w.status(&id), "requeue_count"), "0");
}

fn durable(w: &World) {
    let ids: Vec<String> =
        (0..10).map(|i| w.submit(&["--name", &format!("durable-{i}"), "--nodes", "9", "--wait-for-nodes", "--", "/bin/true"])).collect();
    kill_all_members(w);
    start_all_members(w);
    w.wait("the quorum to answer", || w.lattice.leader().is_ok_and(|l| l.is_some()) && w.lattice.nodes().is_ok());
    for id in &ids {
        assert_eq!(text(&w.status(id), "state"), "Pending");
        w.ok(&["cancel", id]);
    }
}

fn audit(w: &World) {
    let verified = w.run(&["audit", "verify"]);
    assert_eq!(verified.code(), 0, "{}", verified.err());
    for node in ["n2", "n3"] {
        assert_eq!(w.at(node).run(&["audit", "verify"], JOB).unwrap().code(), 0);
    }
}
