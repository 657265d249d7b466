//! Mixed versions in one quorum: members that support the next cluster level, and one that does not. A debug build has
//! a second level for this test. A member with `level_max: 2` supports it, and leases whose names begin with `trial/`
//! need it.

use crate::harness::{Group, JOB, Need, World};
use lattice_lab::faults;
use lattice_lab::quorum::members::certificate;
use lattice_ledger::{LEVEL_KNOWN, LEVEL_MAX};
use lattice_pki::credentials::Credentials;
use lattice_pki::identity::Role;
use lattice_pki::tls::ClientTls;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{Answer, Request};
use libtest_mimic::Trial;
use std::collections::BTreeSet;

/// So few that the log no longer has what an absent member missed: it needs a snapshot.
const SNAPSHOT_ENTRIES: u32 = 20;
/// A command that needs the second level.
const TRIAL: &[&str] = &["lease", "grant", "trial/a"];

static LEVELS: Group = Group {
    theme: "levels",
    name: "levels",
    nodes: 2,
    quorum: 3,
    tweak: |o| o.member_lines = format!("snapshot_entries: {SNAPSHOT_ENTRIES}\n"),
};

pub fn trials() -> Vec<Trial> {
    vec![LEVELS.test("a_member_of_the_earlier_level_follows_and_leads_and_the_level_does_not_rise", &[Need::SecondLevel], mixed)]
}

/// Restarts a member with this `level_max`.
fn start_as(w: &World, id: u64, level_max: u32) {
    faults::kill_member(&w.dir, id).unwrap();
    let config = w.dir.join(format!("member-{id}/quorum.yaml"));
    let text = std::fs::read_to_string(&config).unwrap();
    let others = text.lines().filter(|line| !line.starts_with("level_max:"));
    let lines: Vec<String> = others.map(str::to_owned).chain([format!("level_max: {level_max}\n")]).collect();
    std::fs::write(&config, lines.join("\n")).unwrap();
    faults::start_member(&w.dir, id).unwrap();
}

fn too_early(w: &World) {
    let refused = w.run(TRIAL);
    let expected = ["not yet at this cluster level", "needs level 2", "agreed on 1", "lattice quorum status"];
    assert!(refused.code() == 4 && expected.iter().all(|part| refused.err().contains(part)), "{}", refused.err());
}

fn level(w: &World) -> u64 {
    w.lattice.json(&["quorum", "status"]).unwrap()["level"].as_u64().unwrap()
}

/// The level that each member supports, once the leader has received it from all.
fn each_level(w: &World) -> Option<Vec<u64>> {
    let rows = w.lattice.json(&["quorum", "members"]).ok()?;
    rows.as_array()?.iter().map(|m| m["level"].as_u64()).collect()
}

fn wait_for_levels(w: &World, wanted: &[u32]) {
    let wanted: Vec<u64> = wanted.iter().map(|level| u64::from(*level)).collect();
    w.wait(&format!("members of levels {wanted:?}"), || each_level(w).as_ref() == Some(&wanted));
}

/// Submissions that stay Pending: they need more nodes than there are.
fn submissions(w: &World, many: u32) {
    for _ in 0..many {
        w.submit(&["--nodes", "9", "--wait-for-nodes", "--", "/bin/true"]);
    }
}

/// Whether all members have the same state at the same revision.
pub fn agree(w: &World, tls: &ClientTls) -> bool {
    let cluster = w.cluster();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let states: BTreeSet<_> = runtime.block_on(async {
        let mut states = BTreeSet::new();
        for member in &cluster.members {
            let client = QuorumClient::new(vec![member.service.clone()], Credentials::new(tls.clone()).unwrap()).unwrap();
            let Ok(Answer::StateHash { revision, hash }) = client.call(&Request::StateHash, JOB).await else {
                panic!("member {}", member.id)
            };
            states.insert((revision, hash));
        }
        states
    });
    states.len() == 1
}

fn mixed(w: &World) {
    let tls = certificate(&w.cluster(), "levels", Role::Api).unwrap();
    assert_eq!(level(w), u64::from(LEVEL_KNOWN));
    start_as(w, 1, LEVEL_MAX);
    start_as(w, 2, LEVEL_MAX);
    wait_for_levels(w, &[LEVEL_MAX, LEVEL_MAX, LEVEL_KNOWN]);
    w.completed(&w.submit(&["--nodes", "2", "--", "/bin/true"]));
    assert_eq!(level(w), u64::from(LEVEL_KNOWN), "member 3 supports no higher level");
    too_early(w);

    // Member 3 is absent for longer than the log reaches back, so it gets a snapshot of a member that supports more.
    faults::kill_member(&w.dir, 3).unwrap();
    submissions(w, 4 * SNAPSHOT_ENTRIES);
    faults::start_member(&w.dir, 3).unwrap();
    w.wait("all members to agree", || agree(w, &tls));
    let log = std::fs::read_to_string(&w.cluster().member(3).unwrap().daemon.log).unwrap();
    assert!(log.contains("the leader's snapshot is installed"), "no snapshot was needed: the test proves nothing");

    // Member 3 leads members that support more, and follows them again.
    for leader in ["3", "1"] {
        w.ok(&["quorum", "transfer-leader", leader]);
        w.wait("the new leader", || w.lattice.leader().ok().flatten().map(|id| id.to_string()).as_deref() == Some(leader));
        w.completed(&w.submit(&["--nodes", "2", "--", "/bin/true"]));
        submissions(w, SNAPSHOT_ENTRIES);
        assert_eq!(w.run(&["audit", "verify"]).code(), 0);
        w.wait("all members to agree", || agree(w, &tls));
    }
    assert_eq!(level(w), u64::from(LEVEL_KNOWN));
    too_early(w);

    start_as(w, 3, LEVEL_MAX);
    w.wait("the level", || level(w) == u64::from(LEVEL_MAX));
    wait_for_levels(w, &[LEVEL_MAX; 3]);
    w.ok(TRIAL);
    w.wait("all members to agree", || agree(w, &tls));
    // The level never falls, whatever a member reports.
    start_as(w, 2, LEVEL_KNOWN);
    wait_for_levels(w, &[LEVEL_MAX, LEVEL_KNOWN, LEVEL_MAX]);
    assert_eq!(level(w), u64::from(LEVEL_MAX));
    w.ok(TRIAL);
}
