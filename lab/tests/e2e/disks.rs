//! The disk of one member is slow, or returns other data than was written.

use crate::harness::{Need, alone};
use crate::hosts::{Load, on_hosts, others, submit, term};
use lattice_lab::quorum::agents::Session;
use lattice_lab::quorum::hosts::Hosts;
use lattice_lab::quorum::members::{Members, NAME};
use lattice_ledger::SCHEDULER_LEASE;
use lattice_model::Claim;
use lattice_model::claim::ClaimShare;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{Answer, Down, Request};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The additional time of each sync.
const SLOW: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(2)];
/// Timeout of one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

pub fn trials() -> Vec<Trial> {
    vec![
        alone("disks::a_slow_disk_of_a_follower_is_not_noticed", &[Need::Hosts], || {
            on_hosts("disks-follower", |_| {}, follower);
        }),
        alone("disks::a_slow_disk_of_the_leader_makes_commits_slow_and_nothing_else", &[Need::Hosts], || {
            on_hosts("disks-leader", |_| {}, leader);
        }),
        alone("disks::a_follower_that_lags_behind_gives_no_old_list", &[Need::Hosts], || {
            on_hosts("disks-list", |_| {}, list);
        }),
        alone("disks::a_snapshot_damaged_under_load_costs_nothing", &[Need::Hosts], || {
            on_hosts("disks-snapshot", |o| "snapshot_entries: 50\n".clone_into(&mut o.member_lines), snapshot);
        }),
    ]
}

/// The times of this many submissions, one after the other; sorted.
async fn takes(client: &QuorumClient, submissions: usize) -> Vec<Duration> {
    let mut times = Vec::new();
    for _ in 0..submissions {
        times.push(submit(client).await.unwrap().1);
    }
    times.sort_unstable();
    times
}

fn median(times: &[Duration]) -> Duration {
    times[times.len() / 2]
}

async fn follower(hosts: &Hosts, members: &mut Members) {
    let leader = members.leader().await.unwrap();
    let before = term(members, leader).await;
    let client = members.client().unwrap();
    let usual = median(&takes(&client, 40).await);
    for slow in SLOW {
        hosts.slow_disk(others(leader)[0], slow).unwrap();
        // Long enough for a follower that is behind to believe that there is no leader.
        let (began, mut times) = (Instant::now(), Vec::new());
        while began.elapsed() < slow * 4 {
            times.extend(takes(&client, 10).await);
        }
        times.sort_unstable();
        let (median, longest) = (median(&times), *times.last().unwrap());
        eprintln!(
            "a follower's syncs take {slow:?}: {} submissions, median {median:?} (usual {usual:?}), longest {longest:?}",
            times.len()
        );
        assert!(median < usual * 3 + Duration::from_millis(20), "it is noticed: median {median:?} (usual {usual:?})");
        assert_eq!((members.leader_of(&[leader]).await.unwrap(), term(members, leader).await), (leader, before), "an election at {slow:?}");
        hosts.slow_disk(others(leader)[0], Duration::ZERO).unwrap();
        members.caught_up().await.unwrap();
    }
    members.assert_same().await.unwrap();
    members.assert_audited().await.unwrap();
}

async fn leader(hosts: &Hosts, members: &mut Members) {
    let leader = members.leader().await.unwrap();
    let before = term(members, leader).await;
    let (client, reader) = (members.client().unwrap(), members.client().unwrap());
    for slow in SLOW {
        hosts.slow_disk(leader, slow).unwrap();
        let load = Load::begin(members);
        let times = takes(&client, 5).await;
        // Nothing is acknowledged before it is on the leader's own disk: a submission waits for the sync in progress,
        // then for its own.
        assert!(times[0] >= slow, "acknowledged after {:?}", times[0]);
        assert!(median(&times) < slow * 3 + Duration::from_secs(1), "{times:?}");
        // A pending entry is in the answer once it is on that disk.
        let asked = Instant::now();
        reader.call(&Request::ListNodes, ANSWER_TIMEOUT).await.unwrap();
        let read = asked.elapsed();
        assert!(read < slow * 2 + Duration::from_secs(1), "a question took {read:?}");
        eprintln!("the leader's syncs take {slow:?}: submissions {times:?}, a question {read:?}");
        assert_eq!((members.leader().await.unwrap(), term(members, leader).await), (leader, before), "an election at {slow:?}");
        hosts.slow_disk(leader, Duration::ZERO).unwrap();
        load.goes_on(20).await;
        load.end(members).await;
    }
}

/// An agent connects to a member with an older state than the agent has seen: it gets the current state, or nothing.
async fn list(hosts: &Hosts, members: &mut Members) {
    let leader = members.leader().await.unwrap();
    let follower = others(leader)[0];
    let client = members.client_at(leader).unwrap();
    let at_follower = members.client_at(follower).unwrap();
    drop(Session::open(&client, NAME).await.unwrap());
    let lease = Request::AcquireLease { name: SCHEDULER_LEASE.to_owned(), holder: NAME.parse().unwrap(), ttl_ms: 3_600_000, user: None };
    let Ok(Answer::Lease { token, .. }) = client.call(&lease, ANSWER_TIMEOUT).await else { panic!("the lease is free") };
    let Ok(Answer::Nodes(nodes)) = client.call(&Request::ListNodes, ANSWER_TIMEOUT).await else { panic!("nodes were asked for") };
    let (allocation, _) = submit(&client).await.unwrap();

    hosts.slow_disk(follower, Duration::from_millis(700)).unwrap();
    let share = ClaimShare { node: nodes[0].id.clone(), resources: nodes[0].size, hold_revision: nodes[0].hold_revision };
    let claim = Claim { allocation, requeue_count: 0, lease_token: token, shares: vec![share], after: None, by: None, walltime: None };
    let claimed = match client.call(&Request::Claims(vec![claim]), ANSWER_TIMEOUT).await {
        Ok(Answer::Claims(outcomes)) => outcomes[0].as_ref().unwrap().revision,
        other => panic!("{other:?}"),
    };
    let known = members.status(follower).await.unwrap().revision;
    assert!(known < claimed, "the follower does not lag behind: it is at {known:?}, the claim at {claimed:?}");
    let mut session = Session::open(&at_follower, NAME).await.unwrap();
    let first = tokio::time::timeout(ANSWER_TIMEOUT, session.down.next()).await.unwrap().unwrap();
    let Down::Desired(list) = first else { panic!("the first message is no list: {first:?}") };
    assert!(list.revision > claimed && list.shares.iter().any(|share| share.allocation == allocation), "an old list: {list:?}");
    hosts.slow_disk(follower, Duration::ZERO).unwrap();
    members.caught_up().await.unwrap();
    members.assert_same().await.unwrap();
}

fn snapshots(data_dir: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(data_dir).unwrap().map(|f| f.unwrap().path());
    let mut found: Vec<_> = files.filter(|f| f.extension().is_some_and(|e| e == "snapshot")).collect();
    found.sort_unstable();
    found
}

async fn snapshot(_: &Hosts, members: &mut Members) {
    let load = Load::begin(members);
    let member = others(members.leader().await.unwrap())[0];
    let data_dir = members.data_dir(member);
    let end = Instant::now() + ANSWER_TIMEOUT;
    while snapshots(&data_dir).len() < 3 {
        assert!(Instant::now() < end, "only {:?}", snapshots(&data_dir));
        load.goes_on(10).await;
    }
    members.signal(member, Signal::SIGKILL).unwrap();
    load.goes_on(200).await;
    let newest = snapshots(&data_dir).pop().unwrap();
    let mut bytes = std::fs::read(&newest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&newest, bytes).unwrap();
    members.start_again(member).unwrap();
    members.leader().await.unwrap();
    load.goes_on(20).await;
    assert!(newest.with_extension("snapshot-damaged").exists(), "it was used");
    let longest = load.end(members).await;
    assert!(longest < Duration::from_secs(4), "a submission took {longest:?}");
}
