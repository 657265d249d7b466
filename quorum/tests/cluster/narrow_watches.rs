//! Watches of one node and of one allocation: each gets all changes that concern it, and no others.

use crate::lab::{Agent, Lab, PATIENCE, claim, lease, owner, submit};
use lattice_ledger::Action;
use lattice_model::shares::PhaseRun;
use lattice_model::{Allocation, AllocationId, AllocationState, NodeId, ReportItem, SharePhase};
use lattice_pki::identity::Role;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::following::{Following, News};
use lattice_quorum_client::wire::{Answer, Change, Request, WatchAllocations, WatchRequest};
use std::time::Duration;
use tokio::time::timeout;

fn live() -> WatchRequest {
    WatchRequest { nodes: true, allocations: WatchAllocations::Live, ..WatchRequest::nothing() }
}

async fn cancel(client: &QuorumClient, id: AllocationId) {
    let answer = client.call(&Request::from(Action::Cancel { id, by: owner() }), PATIENCE).await.unwrap();
    assert!(matches!(answer, Answer::Done { .. }), "{answer:?}");
}

/// The contents of one delivery, in its order; `true` if it is a list.
fn contents(news: News) -> (bool, Vec<NodeId>, Vec<(AllocationId, AllocationState)>) {
    let (is_list, changes) = match news {
        News::List { all, .. } => (true, all),
        News::Changes { changes, .. } => (false, changes),
        News::Resync { why } => panic!("{why}"),
    };
    let (mut nodes, mut allocations) = (Vec::new(), Vec::new());
    for change in changes {
        match change {
            Change::Node(node) => nodes.push(node.id),
            Change::Allocation(allocation) => allocations.push((allocation.id, allocation.state)),
            other => panic!("{other:?}"),
        }
    }
    (is_list, nodes, allocations)
}

/// Reads until the allocation is in this state; only its changes and those of n1 may come.
async fn until(following: &mut Following, id: AllocationId, state: AllocationState) {
    loop {
        let news = timeout(PATIENCE, following.next()).await.expect("a change comes").unwrap();
        let (_, nodes, allocations) = contents(news);
        assert!(nodes.iter().all(|node| node.as_str() == "n1") && allocations.iter().all(|(of, _)| *of == id), "{nodes:?} {allocations:?}");
        if allocations.contains(&(id, state)) {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_gets_all_of_its_own_changes_and_no_others() {
    let mut lab = Lab::new(1, |_| {});
    let member = lab.start(1, true).await;
    let api = lab.api(&[1]);
    let (_n1, _n2) = (Agent::register(&api, "n1").await, Agent::register(&lab.client(&[1], "n2", Role::Api), "n2").await);
    let token = lease(&api, "n1").await;
    let elsewhere = submit(&api, 1).await;
    claim(&api, elsewhere, token, &["n2"]).await.unwrap();

    let node = lab.client(&[1], "n1", Role::Node);
    let mut following = Following::new(node.clone(), live());
    let (is_list, nodes, allocations) = contents(following.next().await.unwrap());
    assert!(is_list && nodes.iter().map(NodeId::as_str).eq(["n1"]) && allocations.is_empty(), "{nodes:?} {allocations:?}");
    // The watch gets nothing while other records change.
    let before = following.place().unwrap();
    cancel(&api, elsewhere).await;
    for _ in 0..50 {
        submit(&api, 1).await;
    }
    let quiet = timeout(Duration::from_millis(500), following.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    let own = submit(&api, 1).await;
    claim(&api, own, token, &["n1"]).await.unwrap();
    until(&mut following, own, AllocationState::Staging).await;
    assert!(following.place().unwrap().revision.0 > before.revision.0 + 50, "the entries between are skipped");

    // Changes made while the watch is not open are sent when it resumes.
    let place = following.place();
    drop(following);
    submit(&api, 1).await;
    cancel(&api, own).await;
    let mut following = Following::new(node.clone(), WatchRequest { since: place, ..live() });
    until(&mut following, own, AllocationState::Cancelled).await;

    // After very many entries the watch gets a list, because that is shorter.
    let place = following.place();
    drop(following);
    for _ in 0..1100 {
        submit(&api, 1).await;
    }
    let mut following = Following::new(node, WatchRequest { since: place, ..live() });
    assert!(matches!(following.next().await, Ok(News::Resync { why }) if why.contains("the list is shorter")));
    let (is_list, nodes, _) = contents(following.next().await.unwrap());
    assert!(is_list && nodes.len() == 1);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_watch_of_one_allocation_has_each_of_its_states_whatever_else_changes() {
    let mut lab = Lab::new(1, |_| {});
    let member = lab.start(1, true).await;
    let api = lab.api(&[1]);
    let _n1 = Agent::register(&api, "n1").await;
    let token = lease(&api, "n1").await;
    let watched = submit(&api, 1).await;
    let one = WatchRequest { allocations: WatchAllocations::One(watched), ..WatchRequest::nothing() };
    let mut following = Following::new(api.clone(), one);
    assert_eq!(contents(following.next().await.unwrap()), (true, vec![], vec![(watched, AllocationState::Pending)]));
    let others = async {
        for _ in 0..50 {
            submit(&api, 1).await;
        }
    };
    let its = async {
        claim(&api, watched, token, &["n1"]).await.unwrap();
        cancel(&api, watched).await;
    };
    futures::join!(others, its);
    for state in [AllocationState::Staging, AllocationState::Cancelled] {
        let news = timeout(PATIENCE, following.next()).await.expect("a change comes").unwrap();
        assert_eq!(contents(news), (false, vec![], vec![(watched, state)]));
    }
    member.stop().await;
}

/// The changes of the next delivery that has some.
async fn next_changes(following: &mut Following) -> Vec<Change> {
    loop {
        match timeout(PATIENCE, following.next()).await.expect("a change comes").unwrap() {
            News::List { all: changes, .. } | News::Changes { changes, .. } if !changes.is_empty() => return changes,
            News::List { .. } | News::Changes { .. } => {}
            News::Resync { why } => panic!("{why}"),
        }
    }
}

fn record(changes: Vec<Change>) -> Allocation {
    let record = changes.into_iter().find_map(|change| if let Change::Allocation(record) = change { Some(*record) } else { None });
    record.expect("the record is sent whole")
}

/// Takes phases until two shares are prepared.
async fn two_prepared(following: &mut Following, record: &mut Allocation) {
    while record.shares.count(SharePhase::Prepared) < 2 {
        for change in next_changes(following).await {
            match change {
                Change::Phases(change) => change.apply(record).unwrap(),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_is_sent_as_the_phase_of_its_share_and_to_its_own_node_alone() {
    let mut lab = Lab::new(1, |_| {});
    let member = lab.start(1, true).await;
    let api = lab.api(&[1]);
    let mut n1 = Agent::register(&api, "n1").await;
    let mut n2 = Agent::register(&lab.client(&[1], "n2", Role::Api), "n2").await;
    let mut n3 = Agent::register(&lab.client(&[1], "n3", Role::Api), "n3").await;
    let token = lease(&api, "n1").await;
    let wide = submit(&api, 3).await;
    claim(&api, wide, token, &["n2", "n3", "n1"]).await.unwrap();
    let mut all = Following::new(api.clone(), live());
    let mut own = Following::new(lab.client(&[1], "n1", Role::Node), live());
    let listed = record(next_changes(&mut all).await);
    assert_eq!(record(next_changes(&mut own).await), listed);
    let (place, epoch) = (all.place(), listed.epoch);

    let prepared = || ReportItem::Prepared { allocation: wide, epoch };
    n3.report(prepared()).await;
    n1.report(prepared()).await;
    let mut followed = listed.clone();
    two_prepared(&mut all, &mut followed).await;
    assert_eq!(followed.shares.phase_of(&"n2".parse().unwrap()), Some(SharePhase::Claimed));
    let changes = next_changes(&mut own).await;
    let [Change::Phases(change)] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((change.previous_revision, &change.phases[..]), (None, &[PhaseRun { first: 2, len: 1, phase: SharePhase::Prepared }][..]));
    // A watch that resumes gets the same changes.
    let mut resumed = Following::new(api.clone(), WatchRequest { since: place, ..live() });
    let mut again = listed.clone();
    two_prepared(&mut resumed, &mut again).await;
    assert_eq!(again, followed);

    n2.report(prepared()).await;
    for following in [&mut all, &mut own, &mut resumed] {
        let running = record(next_changes(following).await);
        assert!(running.state == AllocationState::Running && running.shares.all_prepared(), "{running:?}");
    }
    member.stop().await;
}
