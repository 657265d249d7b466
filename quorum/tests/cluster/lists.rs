//! Long lists, in pages, and what one member says alone.

use crate::lab::{Lab, PATIENCE, owner, spec};
use futures::StreamExt;
use lattice_model::{AllocationId, AllocationState};
use lattice_quorum::wire::{Answer, ListPlace, Request};
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
        let request = Request::Submit { id: *id, spec: Box::new(spec(1)), owner: owner(), claim: None };
        let client = client.clone();
        async move { assert!(matches!(client.call(&request, PATIENCE).await, Ok(Answer::Done { .. }))) }
    });
    futures::stream::iter(commits).buffer_unordered(64).collect::<Vec<()>>().await;
    let page = async |before, stale: bool| {
        let question = Request::ListAllocations { uid: None, states: vec![AllocationState::Pending], limit: 0, before };
        let question = if stale { Request::Stale(Box::new(question)) } else { question };
        match client.call(&question, PATIENCE).await.unwrap() {
            Answer::Allocations(page) => page,
            Answer::Stale { age_ms, answer } => {
                assert!(stale && age_ms < 1000, "{age_ms} ms without a majority of one");
                let Answer::Allocations(page) = *answer else { panic!("{answer:?}") };
                page
            }
            other => panic!("{other:?}"),
        }
    };
    for stale in [false, true] {
        let (mut seen, mut sizes, mut before) = (Vec::new(), Vec::new(), None);
        loop {
            let found = page(before, stale).await;
            let Some(last) = found.last() else { break };
            before = Some(ListPlace { submitted_at: last.submitted_at, id: last.id });
            sizes.push(found.len());
            seen.extend(found.iter().map(|a| ListPlace { submitted_at: a.submitted_at, id: a.id }));
        }
        assert_eq!(sizes, [1000, 1000, 300]);
        assert!(seen.is_sorted_by(|newer, older| newer > older));
        assert_eq!(seen.iter().map(|p| p.id).collect::<BTreeSet<_>>(), submitted.iter().copied().collect());
    }
    drop(client);
    member.stop().await;
}
