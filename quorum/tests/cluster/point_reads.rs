//! Reads of single allocations that share requests.

use crate::lab::{Lab, PATIENCE, submit, submit_large};
use futures::future::join_all;
use lattice_quorum_client::CallError;
use lattice_quorum_client::wire::{Answer, Refusal, Request};
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
    let ids = join_all((0..120).map(|_| submit_large(&client))).await;
    let keys: Vec<_> = ids.iter().map(|id| id.to_string()).collect();
    let answer = client.call(&Request::GetAllocations { keys: keys.clone(), node: None }, PATIENCE).await;
    let Ok(Answer::Allocations(found)) = answer else { panic!("{answer:?}") };
    assert!((1..ids.len()).contains(&found.len()), "{} outcomes", found.len());
    // Some of them do not fit in the answer to their first request.
    let found = join_all(keys.into_iter().map(|key| client.find_allocation(key))).await;
    for (found, id) in found.into_iter().zip(ids) {
        assert_eq!(found.map(|found| found.id), Ok(id));
    }
    // The client refuses a long key by itself, with the refusal of the quorum.
    let long = "é".repeat(70);
    let refusal = client.call(&Request::GetAllocation { key: long.clone() }, PATIENCE).await.unwrap_err();
    assert_eq!(client.find_allocation(long).await, Err(refusal));
    member.stop().await;
}
