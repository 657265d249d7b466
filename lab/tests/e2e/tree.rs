//! Launches through a tree of seven agents, each of which communicates with at most two below it.
//!
//! ```text
//!   0 ─┬─ 1 ─┬─ 2
//!      │     ╰─ 3
//!      ╰─ 4 ─┬─ 5
//!            ╰─ 6
//! ```

use crate::harness::{Group, Need, World, ms};
use crate::mpi::{submit_ring, whole_log};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use lattice_lab::networks::{Direction, From};
use lattice_lab::up::Options;
use libtest_mimic::Trial;
use serde_json::Value;

/// A fence timeout shorter than the detection of a missing agent: the launch survives only if the clock stops
/// meanwhile.
const FENCE_SECONDS: u64 = 4;
const NODES: [&str; 4] = ["--nodes", "7", "--tasks-per-node", "2"];

static TREE: Group = Group { theme: "tree", name: "tree", nodes: 7, quorum: 1, tweak: narrow };

/// Seven agents in three levels.
pub fn narrow(o: &mut Options) {
    o.agent_lines = "launch: {fanout: 2}".to_owned();
    o.fence_timeout_seconds = FENCE_SECONDS;
}

/// A group in which a single link can be cut: the head, two agents below it, and one below the first of these.
static LINKS: Group = Group {
    theme: "tree",
    name: "tree-links",
    nodes: 4,
    quorum: 1,
    tweak: |o| {
        o.netns = true;
        o.agent_lines = "launch: {fanout: 2}".to_owned();
    },
};

pub fn trials() -> Vec<Trial> {
    vec![
        TREE.test("a_hundred_fences_of_seven_agents", &[], fences),
        TREE.test("inner_agents_and_the_head_are_killed_in_the_middle_of_fences", &[], killed),
        TREE.test("a_rank_that_dies_on_a_leaf_ends_all_of_it_in_time", &[], dead_leaf),
        TREE.test("a_fence_that_waits_too_long_names_rank_and_node", &[], absent),
        TREE.test("a_rank_may_come_late_to_the_last_fence", &[], late),
        LINKS.test("a_node_that_only_its_parent_does_not_reach_is_served_by_the_head", &[Need::Hosts], cut_link),
    ]
}

/// The node of a part, as the allocation has it.
fn node(now: &Value, part: usize) -> String {
    now["nodes"][part].as_str().unwrap().to_owned()
}

fn daemons_log(w: &World, node: &str) -> String {
    std::fs::read_to_string(&w.cluster().node(node).unwrap().daemon.log).unwrap()
}

/// How often an agent forwarded a launch to three nodes, including its own.
fn passed_on(w: &World, node: &str) -> usize {
    daemons_log(w, node).lines().filter(|l| l.contains("passes a launch on") && l.contains("nodes=3")).count()
}

fn fences(w: &World) {
    let before: Vec<usize> = (1..=7).map(|n| passed_on(w, &format!("n{n}"))).collect();
    let id = submit_ring(w, &NODES, "100", "0", &["--fence-every", "1"]);
    whole_log(w, &id, 14, 100);
    let now = w.status(&id);
    for part in 0..7 {
        let name = node(&now, part);
        let at: usize = name[1..].parse().unwrap();
        let expected = usize::from(part == 1 || part == 4);
        assert_eq!(passed_on(w, &name) - before[at - 1], expected, "part {part}, {name}");
    }
    w.assert_nothing_left();
}

fn killed(w: &World) {
    let id = submit_ring(w, &NODES, "100", "30", &["--fence-every", "1"]);
    w.wait_log(&id, "line 5 ");
    let now = w.status(&id);
    let (head, inner, other) = (node(&now, 0), node(&now, 1), node(&now, 4));
    // The fence waits for its node; the head serves the nodes below it.
    faults::kill_node(&w.dir, &inner).unwrap();
    w.wait("the head to go round it", || {
        daemons_log(w, &head).lines().any(|l| l.contains("this agent serves the nodes below it") && l.contains(&format!("node={inner}")))
    });
    assert_eq!(text(&w.status(&id), "state"), "Running", "the fence's clock is stopped");
    faults::start_node(&w.dir, &inner).unwrap();
    w.wait_log(&id, "line 20 ");
    for node in [&other, &head, &inner] {
        faults::kill_node(&w.dir, node).unwrap();
        faults::start_node(&w.dir, node).unwrap();
    }
    whole_log(w, &id, 14, 100);
    w.assert_nothing_left();
}

fn dead_leaf(w: &World) {
    let id = submit_ring(w, &NODES, "100000", "10", &["--culprit", "13", "--at-line", "5", "--deed", "kill"]);
    let ended = w.ended(&id);
    let log = w.log(&id);
    let at = log.lines().find_map(|l| l.strip_prefix("rank 13 misbehaves at ")?.strip_suffix(" ms")?.parse::<u64>().ok());
    let took = ms(&ended, "ended_at").saturating_sub(at.unwrap_or_else(|| panic!("{ended}\n{log}")));
    assert!(took <= 2_000, "ended {took} ms after the death, which is more than 2 s");
    let reason = text(&ended, "reason");
    assert!(reason.contains("launch_aborted") && reason.contains(&format!("{}: rank 13 ", node(&ended, 6))), "{ended}");
    w.assert_nothing_left();
}

fn absent(w: &World) {
    let culprit = ["--culprit", "11", "--at-line", "5", "--deed", "stay", "--fence-every", "1"];
    let ended = w.ended(&submit_ring(w, &NODES, "100000", "10", &culprit));
    let reason = text(&ended, "reason");
    let expected = format!("PMI fence timeout: after {FENCE_SECONDS} s fence 6 still waits for rank 11 on node {}", node(&ended, 5));
    assert!(reason.contains(&expected), "{ended}");
    w.assert_nothing_left();
}

/// Like a rank that writes results before `MPI_Finalize`, while the others have entered it already.
fn late(w: &World) {
    let rank = format!(
        "ask() {{ echo \"$*\" >&3; read -r answer <&3; }}; ask cmd=init pmi_version=1 pmi_subversion=1; ask cmd=get_my_kvsname; \
         ask cmd=put kvsname=${{answer##*kvsname=}} key=a-$LATTICE_RANK value=b; ask cmd=barrier_in; \
         [ $LATTICE_RANK -ne 5 ] || sleep {}; ask cmd=barrier_in; echo \"$answer\"; ask cmd=finalize",
        FENCE_SECONDS + 3
    );
    let id = w.submit(&[&NODES[..2], &["--", "/bin/sh", "-c", &rank]].concat());
    w.completed(&id);
    assert_eq!(w.log(&id).matches("cmd=barrier_out").count(), 7, "{}", w.log(&id));
    w.assert_nothing_left();
}

fn cut_link(w: &World) {
    // Each node has its own loopback: the ranks communicate only with their shims.
    let ranks = "ask() { echo \"$*\" >&3; read -r answer <&3; }; ask cmd=init pmi_version=1 pmi_subversion=1; i=0; \
                 while [ $i -lt 50 ]; do i=$((i+1)); ask cmd=barrier_in; echo \"line $i \"; sleep 0.05; done; ask cmd=finalize";
    let id = w.submit(&["--nodes", "4", "--", "/bin/sh", "-c", ranks]);
    w.wait_log(&id, "line 5 ");
    let now = w.status(&id);
    let (head, parent, leaf) = (node(&now, 0), node(&now, 1), node(&now, 2));
    faults::cut_node(&w.dir, &leaf, &From::Peer(parent.clone()), Direction::Both).unwrap();
    w.wait("the head to serve it itself", || {
        let named = [format!("node={leaf} "), format!("parent={parent}")];
        daemons_log(w, &head).lines().any(|l| l.contains("serves it itself") && l.contains("WARN") && named.iter().all(|n| l.contains(n)))
    });
    // The cut was not healed: the launch completes all the same.
    w.completed(&id);
    faults::heal_node(&w.dir, &leaf).unwrap();
    w.wait("every rank's last line", || w.log(&id).matches("line 50 ").count() == 4);
    w.assert_nothing_left();
}
