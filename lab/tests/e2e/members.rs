//! The quorum's members change under load: nothing acknowledged is lost, and a client that retries sees no error.

use crate::harness::{Group, JOB, World};
use lattice_lab::faults;
use lattice_lab::lattice::{Lattice, text};
use libtest_mimic::Trial;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

static MEMBERS: Group = Group { theme: "members", name: "members", nodes: 2, quorum: 1, tweak: |_| {} };

/// How long a client retries one submission.
const RETRY_TIME_MAX: Duration = Duration::from_secs(10);

pub fn trials() -> Vec<Trial> {
    vec![
        MEMBERS.test("one_becomes_three_then_five_then_three_under_load", &[], grow_and_shrink),
        MEMBERS.test("the_leadership_is_transferred_without_an_error", &[], transfer),
        MEMBERS.test("a_dead_member_is_replaced", &[], replace),
        MEMBERS.test("unauthorized_and_impossible_changes_are_refused", &[], refusals),
        MEMBERS.test("an_agent_that_was_offline_finds_a_quorum_whose_members_were_replaced", &[], moved),
    ]
}

/// A client that submits one allocation after the other. [`Load::end`] waits for one more acknowledgement, and returns
/// the ids of all acknowledged ones.
struct Load {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<String>>,
}

impl Load {
    fn begin(lattice: &Lattice) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (lattice, ended) = (lattice.clone(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut ids = Vec::new();
            loop {
                let last = ended.load(Ordering::Relaxed);
                let began = Instant::now();
                // More nodes than there are: a committed submission stays Pending.
                let args = ["submit", "-o", "name", "--nodes", "9", "--wait-for-nodes", "--", "/bin/true"];
                loop {
                    let done = lattice.run(&args, RETRY_TIME_MAX).unwrap();
                    if done.code() == 0 {
                        ids.push(done.out().trim().to_owned());
                        break;
                    }
                    assert_eq!(done.code(), 5, "the only permitted error is a missing quorum: {}", done.err());
                    assert!(began.elapsed() < RETRY_TIME_MAX, "a client that retries sees an error: {}", done.err());
                }
                if last {
                    return ids;
                }
            }
        });
        Self { stop, thread }
    }

    fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Checks that all acknowledged submissions exist, and cancels them.
fn all_there(w: &World, ids: &[String]) {
    for id in ids {
        assert_eq!(text(&w.status(id), "state"), "Pending");
    }
    for some in ids.chunks(50) {
        let args: Vec<&str> = ["cancel"].into_iter().chain(some.iter().map(String::as_str)).collect();
        w.ok(&args);
    }
    assert_eq!(w.run(&["audit", "verify"]).code(), 0);
}

fn votes(w: &World) -> BTreeSet<u64> {
    let rows = w.lattice.json(&["quorum", "members"]).unwrap();
    let voting = rows.as_array().unwrap().iter().filter(|m| m["votes"] == true);
    voting.map(|m| m["id"].as_u64().unwrap()).collect()
}

fn grow_and_shrink(w: &World) {
    let load = Load::begin(&w.lattice);
    let mut joined = Vec::new();
    for _ in 0..4 {
        joined.push(faults::join_member(&w.dir).unwrap());
    }
    assert_eq!(votes(w).len(), 5);
    // The leader first: it transfers the leadership, then leaves.
    let first = w.leader();
    faults::leave_member(&w.dir, first).unwrap();
    let second = votes(w).into_iter().find(|id| *id != w.leader()).unwrap();
    faults::leave_member(&w.dir, second).unwrap();
    assert_eq!(votes(w).len(), 3);
    let log = std::fs::read_to_string(w.dir.join(format!("member-{first}/log"))).unwrap();
    assert!(log.contains("was removed from its cluster"), "the removal is logged: {log}");
    all_there(w, &load.end());
    // Its directory cannot be used again by mistake.
    let config = w.dir.join(format!("member-{first}/quorum.yaml"));
    let program = w.cluster().binaries.join("lattice-quorum");
    let again = lattice_lab::process::run(std::process::Command::new(program).arg("--config").arg(config), JOB).unwrap();
    assert!(again.code() == 3 && again.err().contains("move the folder away"), "{} {}", again.code(), again.err());
}

fn transfer(w: &World) {
    let load = Load::begin(&w.lattice);
    let old = w.leader();
    let new = votes(w).into_iter().find(|id| *id != old).unwrap();
    let output = w.ok(&["quorum", "transfer-leader", &new.to_string()]);
    assert!(output.contains(&format!("member {new} leads")), "{output}");
    assert_eq!(w.leader(), new);
    w.ok(&["quorum", "transfer-leader"]);
    assert_ne!(w.leader(), new);
    all_there(w, &load.end());
}

fn replace(w: &World) {
    let load = Load::begin(&w.lattice);
    let old = w.leader();
    faults::kill_member(&w.dir, old).unwrap();
    let new = faults::begin_member(&w.dir).unwrap();
    let cluster = w.cluster();
    let member = cluster.member(new).unwrap();
    let (old_id, new_id) = (old.to_string(), new.to_string());
    w.ok(&["quorum", "replace", &old_id, &new_id, "--service", &member.service, "--raft", &member.raft]);
    let now = votes(w);
    assert!(now.len() == 3 && now.contains(&new) && !now.contains(&old), "{now:?}");
    all_there(w, &load.end());
    // The old member was dead when it was removed. It learns of the removal when it restarts.
    faults::start_member(&w.dir, old).unwrap();
    w.wait("the old member to end", || !w.cluster().member(old).unwrap().daemon.alive());
    faults::forget_member(&w.dir, old).unwrap();
}

fn refusals(w: &World) {
    let members = votes(w);
    let first = *members.first().unwrap();
    let some = first.to_string();
    let nobody = w.run_as(crate::harness::NOBODY, &["quorum", "remove", &some]);
    assert!(nobody.code() == 4 && nobody.err().contains("or an operator's credential"), "{} {}", nobody.code(), nobody.err());
    let unknown = w.run(&["quorum", "remove", "77"]);
    assert!(unknown.code() == 3 && unknown.err().contains("no member 77") && unknown.err().contains(&some), "{}", unknown.err());
    let nowhere = w.run(&["quorum", "add", "77", "--service", "127.0.0.1:1", "--raft", "127.0.0.1:2"]);
    assert!(nowhere.code() == 4 && nowhere.err().contains("does not answer"), "{} {}", nowhere.code(), nowhere.err());
    let cluster = w.cluster();
    let known = cluster.member(first).unwrap();
    let taken = w.run(&["quorum", "add", "77", "--service", &known.service, "--raft", &known.raft]);
    assert!(taken.code() == 4 && taken.err().contains("has that address"), "{} {}", taken.code(), taken.err());
    assert_eq!(w.run(&["quorum", "add", "77", "--service", "x", "--raft", "y"]).code(), 2);
    assert_eq!(votes(w), members);
    let history = w.ok(&["quorum", "members"]);
    assert!(history.contains("leader") && !history.lines().any(|line| line.starts_with("77 ")), "{history}");
}

fn moved(w: &World) {
    // The only member in n2's configuration leaves, if it has not left in a test before.
    if votes(w).contains(&1) {
        while votes(w).len() < 4 {
            faults::join_member(&w.dir).unwrap();
        }
        faults::leave_member(&w.dir, 1).unwrap();
    }
    faults::kill_node(&w.dir, "n2").unwrap();
    // Of the members that n2 knew, one remains in the end.
    for _ in 0..2 {
        let old = *votes(w).first().unwrap();
        faults::join_member(&w.dir).unwrap();
        faults::leave_member(&w.dir, old).unwrap();
    }
    faults::start_node(&w.dir, "n2").unwrap();
    w.completed(&w.submit(&["--nodes", "2", "--", "/bin/true"]));
}
