//! Watches that resume: at another member, after all were killed, and as far as changes are kept.

use crate::lab::{Lab, PATIENCE, eventually, owner, spec, status, submit};
use crate::processes::start;
use futures::StreamExt;
use lattice_ledger::Action;
use lattice_model::{AllocationId, AllocationSpec, AllocationState, Entrypoint, Generation, Revision};
use lattice_quorum_client::following::{Following, News};
use lattice_quorum_client::wire::{Answer, Change, Request, WatchAllocations, WatchCursor, WatchRequest};
use lattice_quorum_client::{CallError, QuorumClient};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

fn live() -> WatchRequest {
    WatchRequest { nodes: true, allocations: WatchAllocations::Live, leases: true, ..WatchRequest::nothing() }
}

/// What a watcher received, in order; it resumes after every broken stream.
#[derive(Debug, Default)]
struct Received {
    lists: usize,
    broken: usize,
    states: BTreeMap<AllocationId, Vec<AllocationState>>,
    leases: Vec<(String, Option<u64>)>,
    revision: Revision,
}

impl Received {
    /// Reads until this allocation has ended.
    async fn until_ended(mut following: Following, last: AllocationId) -> Self {
        let mut received = Self::default();
        while received.states.get(&last).is_none_or(|states| states.last() != Some(&AllocationState::Cancelled)) {
            match following.next().await {
                Ok(news) => received.take(news),
                Err(CallError::Unavailable { .. }) => {
                    received.broken += 1;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
        received
    }

    fn take(&mut self, news: News) {
        let (revision, changes) = match news {
            News::List { revision, all } => {
                self.lists += 1;
                (revision, all)
            }
            News::Changes { revision, changes } => {
                assert!(revision > self.revision || changes.is_empty(), "{revision} again, or too late");
                (revision, changes)
            }
            News::Resync { why } => panic!("{why}"),
        };
        self.revision = revision;
        for change in changes {
            match change {
                Change::Allocation(allocation) => self.states.entry(allocation.id).or_default().push(allocation.state),
                Change::Lease(lease) => self.leases.push((lease.name, Some(lease.token))),
                Change::LeaseEnded(name) => self.leases.push((name, None)),
                Change::Node(_) | Change::NodeRemoved(_) => {}
                other => panic!("{other:?} within news"),
            }
        }
    }
}

async fn cancel(client: &QuorumClient, id: AllocationId) {
    let answer = client.call(&Request::from(Action::Cancel { id, by: owner() }), PATIENCE).await.unwrap();
    assert!(matches!(answer, Answer::Done { .. }), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_change_is_delivered_once_whatever_members_are_killed() {
    let mut lab = Lab::new(3, |_| {});
    lab.release_ports();
    let mut members = [Some(start(&lab, 1, true)), Some(start(&lab, 2, false)), Some(start(&lab, 3, false))];
    let client = lab.api(&[1, 2, 3]);
    // Wait for the cluster.
    eventually("a leader", async || status(&client).await.leader, Option::is_some).await;

    let watching = lab.api(&[1, 2, 3]);
    let mut following = Following::new(watching.clone(), live());
    let began = eventually("a list", async || following.next().await, Result::is_ok).await;
    assert!(matches!(&began, Ok(News::List { all, .. }) if all.is_empty()), "{began:?}");
    let last = AllocationId(Uuid::new_v4());
    let received = tokio::spawn(Received::until_ended(following, last));

    let stop = CancellationToken::new();
    let writer = {
        let (client, stop) = (client.clone(), stop.clone());
        tokio::spawn(async move {
            let (mut ids, mut tokens) = (Vec::new(), Vec::new());
            while !stop.is_cancelled() {
                let id = submit(&client, 1).await;
                let name = "work".to_owned();
                let take = Request::AcquireLease { name: name.clone(), holder: "n1".parse().unwrap(), ttl_ms: 60_000, user: None };
                let Ok(Answer::Lease { token, .. }) = client.call(&take, PATIENCE).await else { panic!("it is free") };
                cancel(&client, id).await;
                let release = Request::from(Action::ReleaseLease { name, token, holder: "n1".parse().unwrap(), user: None });
                assert!(matches!(client.call(&release, PATIENCE).await, Ok(Answer::Done { .. })));
                ids.push(id);
                tokens.push(token);
            }
            (ids, tokens)
        })
    };
    let kill = |members: &mut [Option<crate::processes::Process>; 3], id: u64| drop(members[usize::try_from(id - 1).unwrap()].take());
    // First the watcher's own member, then the leader.
    for which in ["own", "leader"] {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let at = match which {
            "own" => {
                let own = watching.watch(&live()).await.unwrap();
                (1..=3).find(|id| lab.config(*id).listens().0 == own.member()).unwrap()
            }
            _ => status(&client).await.leader.unwrap().0,
        };
        kill(&mut members, at);
        tokio::time::sleep(Duration::from_millis(700)).await;
        members[usize::try_from(at - 1).unwrap()] = Some(start(&lab, at, false));
        // Do not kill a second one before this one is back.
        let back = lab.api(&[at]);
        eventually("it to be back", async || back.call(&Request::ListNodes, Duration::from_secs(1)).await.is_ok(), |ok| *ok).await;
    }
    // All of them at once: they rebuild the changes from their own disks.
    (1..=3).for_each(|id| kill(&mut members, id));
    (1..=3).for_each(|id| members[usize::try_from(id - 1).unwrap()] = Some(start(&lab, id, false)));
    tokio::time::sleep(Duration::from_millis(500)).await;
    stop.cancel();
    let (ids, tokens) = writer.await.unwrap();
    let request = Request::Submit { id: last, spec: Box::new(spec(1)), owner: owner(), claim: None, life: None, login_tenants: [].into() };
    assert!(matches!(client.call(&request, PATIENCE).await, Ok(Answer::Done { .. })));
    cancel(&client, last).await;

    let received = tokio::time::timeout(PATIENCE, received).await.expect("all changes arrive").unwrap();
    assert_eq!(received.lists, 0, "it went on each time");
    assert!(received.broken >= 2, "{} streams broke: nothing was proven", received.broken);
    assert_eq!(received.states.len(), ids.len() + 1);
    for id in ids.iter().chain([&last]) {
        assert_eq!(received.states[id], [AllocationState::Pending, AllocationState::Cancelled], "{id}");
    }
    let want: Vec<_> = tokens.iter().flat_map(|token| [("work".to_owned(), Some(*token)), ("work".to_owned(), None)]).collect();
    assert_eq!(received.leases, want);
}

/// Submits `count` allocations at once, each with a script of this size.
async fn submit_many(client: &QuorumClient, count: usize, script_bytes: usize) -> Vec<AllocationId> {
    let commits = (0..count).map(|number| async move {
        let id = AllocationId(Uuid::new_v4());
        let text = format!("#!/bin/sh\n# {number} {}\n", "x".repeat(script_bytes));
        let script = Entrypoint::Script { text: text.into(), args: vec![] };
        let spec = AllocationSpec::new("a", script, Path::new("/"));
        let request = Request::Submit { id, spec: Box::new(spec), owner: owner(), claim: None, life: None, login_tenants: [].into() };
        assert!(matches!(client.call(&request, PATIENCE).await, Ok(Answer::Done { .. })));
        id
    });
    futures::stream::iter(commits).buffer_unordered(64).collect().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_resumes_only_from_a_retained_place_of_its_own_generation() {
    let mut lab = Lab::new(1, |c| c.watch_history_mib = 1);
    let member = lab.start(1, true).await;
    let client = lab.api(&[1]);
    submit(&client, 1).await;
    let mut following = Following::new(client.clone(), live());
    assert!(matches!(following.next().await, Ok(News::List { all, .. }) if all.len() == 1));
    let early = following.place().unwrap();
    drop(following);
    let since = |since| Following::new(client.clone(), WatchRequest { since: Some(since), ..live() });
    submit_many(&client, 10, 100).await;
    let mut received = Received { revision: early.revision, ..Received::default() };
    let mut near = since(early);
    while received.states.len() < 10 {
        received.take(near.next().await.unwrap());
    }
    assert_eq!(received.lists, 0, "they are kept");

    submit_many(&client, 1500, 1000).await;
    let mut far = since(early);
    let Ok(News::Resync { why }) = far.next().await else { panic!("they are not kept any more") };
    assert!(why.contains(&format!("changes after revision {} are not kept any more", early.revision)), "{why}");
    assert_eq!(far.place(), None);
    let Ok(News::List { all, revision }) = far.next().await else { panic!("a list follows") };
    assert_eq!(all.len(), 1511);

    // The place of a watcher that does not know of the recovery.
    let Ok(News::Resync { why }) = since(WatchCursor { generation: Generation(0), revision }).next().await else { panic!() };
    assert!(why.contains("the quorum was recovered since"), "{why}");
    // Ahead of this member's state: it must neither guess nor return old changes.
    for (place, expected) in [
        (WatchCursor { revision: Revision(revision.0 + 1000), ..early }, "lies behind the watcher: it is at revision"),
        (WatchCursor { generation: Generation(9), revision }, "lies behind the watcher: it is of generation 1"),
    ] {
        let Err(CallError::Unavailable { why }) = since(place).next().await else { panic!("it cannot have that") };
        assert!(why.contains(expected), "{why}");
    }
    // It waits for entries in transit.
    let mut ahead = since(WatchCursor { revision: Revision(revision.0 + 1), ..early });
    let waits = tokio::spawn(async move { ahead.next().await });
    submit(&client, 1).await;
    submit(&client, 1).await;
    let news = tokio::time::timeout(PATIENCE, waits).await.unwrap().unwrap();
    assert!(matches!(&news, Ok(News::Changes { .. })), "{news:?}");
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_watcher_is_cut_off_with_the_reason_and_resumes_later() {
    let mut lab = Lab::new(1, |_| {});
    let member = lab.start(1, true).await;
    let client = lab.api(&[1]);
    let mut slow = Following::new(client.clone(), live());
    assert!(matches!(slow.next().await, Ok(News::List { .. })));
    // More than fits in its connection's buffers.
    let ids = submit_many(&client, 300, 60_000).await;
    tokio::time::sleep(Duration::from_secs(11)).await;
    let mut received = Received::default();
    let cut_off = loop {
        match slow.next().await {
            Ok(news) => received.take(news),
            Err(error) => break error.to_string(),
        }
    };
    assert!(cut_off.contains("the watcher is too slow: it took nothing for 10 s"), "{cut_off}");
    assert!(received.states.len() < ids.len(), "nothing was held back, and nothing proven");
    while received.states.len() < ids.len() {
        received.take(slow.next().await.unwrap());
    }
    assert_eq!(received.lists, 0);
    assert!(received.states.values().all(|states| states == &[AllocationState::Pending]), "each once");
    // Changes that do not concern a watch still advance its place, so that the place is not
    // dropped.
    let nobody = WatchRequest { uid: Some(4711), ..live() };
    let mut quiet = Following::new(client.clone(), nobody);
    assert!(matches!(quiet.next().await, Ok(News::List { all, .. }) if all.is_empty()));
    let before = quiet.place().unwrap();
    submit(&client, 1).await;
    let marked = tokio::time::timeout(PATIENCE, quiet.next()).await.unwrap();
    assert!(matches!(&marked, Ok(News::Changes { changes, .. }) if changes.is_empty()), "{marked:?}");
    assert!(quiet.place().unwrap() > before);
    member.stop().await;
}
