//! Long lists in pages, and answers from a single member.

use crate::lab::{Lab, PATIENCE, owner, spec};
use futures::StreamExt;
use lattice_model::{AllocationId, AllocationState};
use lattice_quorum_client::wire::{Answer, ListCursor, ListFilter, Request};
use std::collections::BTreeSet;
use uuid::Uuid;

const ALLOCATIONS: usize = 2300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_list_comes_in_pages_each_allocation_once() {
    let mut lab = Lab::new(1, |_| {});
    let member = lab.start(1, true).await;
    let client = lab.api(&[1]);
    let submitted: Vec<AllocationId> = (0..ALLOCATIONS).map(|_| AllocationId(Uuid::new_v4())).collect();
    let commits = submitted.iter().map(|id| {
        let request =
            Request::Submit { id: *id, spec: Box::new(spec(1)), owner: owner(), claim: None, life: None, login_tenants: [].into() };
        let client = client.clone();
        async move { assert!(matches!(client.call(&request, PATIENCE).await, Ok(Answer::Done { .. }))) }
    });
    futures::stream::iter(commits).buffer_unordered(64).collect::<Vec<()>>().await;
    let page = async |before, stale: bool, limit: u32| {
        let question =
            Request::ListAllocations { uid: None, states: vec![AllocationState::Pending], limit, before, filter: ListFilter::default() };
        let question = if stale { Request::Stale(Box::new(question)) } else { question };
        match client.call(&question, PATIENCE).await.unwrap() {
            Answer::AllocationPage { allocations, more } if !stale => (allocations, more),
            Answer::Stale { age_ms, answer } => {
                assert!(stale && age_ms < 1000, "{age_ms} ms without a majority of one");
                let Answer::AllocationPage { allocations, more } = *answer else { panic!("{answer:?}") };
                (allocations, more)
            }
            other => panic!("{other:?}"),
        }
    };
    // The last page is marked as such.
    let mut all = Vec::new();
    for stale in [false, true] {
        let (mut seen, mut sizes, mut before) = (Vec::new(), Vec::new(), None);
        loop {
            let (found, more) = page(before, stale, 0).await;
            sizes.push(found.len());
            seen.extend(found.iter().map(|a| ListCursor { submitted_at: a.submitted_at, id: a.id }));
            before = seen.last().copied();
            if !more {
                break;
            }
        }
        assert_eq!(sizes, [1000, 1000, 300]);
        assert!(seen.is_sorted_by(|newer, older| newer > older));
        all.clone_from(&seen);
        assert_eq!(seen.iter().map(|p| p.id).collect::<BTreeSet<_>>(), submitted.iter().copied().collect());
    }
    // Exactly to the end, and one short of it.
    for (limit, more) in [(300, false), (299, true)] {
        let before = all[all.len() - 301];
        assert_eq!(page(Some(before), false, limit).await.1, more);
    }
    let filtered = async |filter: ListFilter| {
        let question = Request::ListAllocations { uid: None, states: vec![], limit: 5, before: None, filter };
        match client.call(&question, PATIENCE).await.unwrap() {
            Answer::AllocationPage { allocations, more } => (allocations.len(), more),
            other => panic!("{other:?}"),
        }
    };
    let nothing = ListFilter::default;
    let name = Some(spec(1).name);
    let queue = Some("default".to_owned());
    assert_eq!(filtered(ListFilter { user: Some(owner().name), name, vcluster: queue, ..nothing() }).await, (5, true));
    let (other, node) = (Some("another".to_owned()), Some("n1".parse().unwrap()));
    for none in [
        ListFilter { user: other.clone(), ..nothing() },
        ListFilter { name: other.clone(), ..nothing() },
        ListFilter { vcluster: other.clone(), ..nothing() },
        ListFilter { tenant: other, ..nothing() },
        ListFilter { node, ..nothing() },
    ] {
        assert_eq!(filtered(none).await, (0, false));
    }
    drop(client);
    member.stop().await;
}
