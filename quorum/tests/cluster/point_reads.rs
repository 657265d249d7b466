//! Reads of single allocations that share requests.

use crate::lab::{Lab, PATIENCE, owner, spec, submit};
use futures::future::join_all;
use lattice_model::AllocationId;
use lattice_quorum_client::CallError;
use lattice_quorum_client::wire::{ALLOCATIONS_ASKED_MAX, Answer, Refusal, Request};
use uuid::Uuid;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_many_reads_sees_what_was_committed_before_it_through_every_member() {
    let mut lab = Lab::new(3, |_| {});
    let members = [lab.start(1, true).await, lab.start(2, false).await, lab.start(3, false).await];
    for member in &members {
        tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
    }
    let submitting = lab.api(&[1, 2, 3]);
    for member in 1..=3 {
        let reading = lab.api(&[member]);
        let (submitting, reading) = (&submitting, &reading);
        let reads = (0..60).map(|_| async move {
            let id = submit(submitting, 1).await;
            assert_eq!(reading.find_allocation(id.to_string()).await.map(|found| found.id), Ok(id), "it was committed");
            let unknown = reading.find_allocation(Uuid::new_v4().to_string()).await;
            assert!(matches!(&unknown, Err(CallError::Refused(Refusal::NoSuchAllocation { .. }))), "{unknown:?}");
        });
        join_all(reads).await;
    }
    for member in members {
        member.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_has_no_space_for_all_reads_loses_none() {
    let mut lab = Lab::new(1, |_| {});
    let member = lab.start(1, true).await;
    tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
    let client = lab.api(&[1]);
    let id = AllocationId(Uuid::new_v4());
    let mut large = spec(1);
    large.env.insert("LARGE".to_owned(), "x".repeat(50 * 1024));
    let request = Request::Submit { id, spec: Box::new(large), owner: owner(), claim: None, life: None, login_tenants: [].into() };
    client.call(&request, PATIENCE).await.unwrap();
    let key = id.to_string();
    let keys = vec![key.clone(); ALLOCATIONS_ASKED_MAX];
    let answer = client.call(&Request::GetAllocations { keys }, PATIENCE).await;
    let Ok(Answer::Allocations(found)) = answer else { panic!("{answer:?}") };
    assert!((1..ALLOCATIONS_ASKED_MAX).contains(&found.len()), "{} outcomes", found.len());
    // Some of them do not fit in the answer to their first request.
    let reads = (0..2 * ALLOCATIONS_ASKED_MAX).map(|_| client.find_allocation(key.clone()));
    for found in join_all(reads).await {
        assert_eq!(found.map(|found| found.id), Ok(id));
    }
    member.stop().await;
}
