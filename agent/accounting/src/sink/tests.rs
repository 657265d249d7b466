//! A sink with a file, and a database in a temporary directory.

use super::*;
use crate::record::tests::ended;
use crate::store::tests::Directory;
use std::fs;
use std::path::PathBuf;
use tokio::time::Instant;

/// A store with this many records, whose agent has the lease.
async fn accounting(directory: &Directory, records: u64) -> Accounting {
    let accounting = Accounting::default();
    accounting.begin();
    let store = directory.open().await.unwrap();
    store.append(0, &(1..=records).map(ended).collect::<Vec<_>>(), records).await.unwrap();
    accounting.set_store(&store);
    accounting.set_lease(Some(Instant::now() + Duration::from_secs(600)));
    accounting
}

fn to_file(path: PathBuf, accounting: &Accounting) -> SinkTask {
    let file_sink = FileSinkSettings { path, ..FileSinkSettings::default() };
    let settings = AccountingSettings { file_sink, ..AccountingSettings::default() };
    sinks(&settings, accounting, &NodeProblems::default()).remove(0)
}

async fn settle(sink: &mut SinkTask) {
    while sink.pass().await.unwrap() == Next::AtOnce {}
}

#[tokio::test]
async fn every_record_is_delivered_once_and_numbers_without_a_record_are_skipped() {
    let directory = Directory::new();
    let accounting = accounting(&directory, 3).await;
    let path = directory.0.join("work.jsonl");
    let mut sink = to_file(path.clone(), &accounting);
    settle(&mut sink).await;
    let store = accounting.store().unwrap();
    // The records 4 and 5 were dropped.
    store.append(3, &[], 5).await.unwrap();
    store.append(5, &[ended(6)], 6).await.unwrap();
    settle(&mut to_file(path.clone(), &accounting)).await;
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 4);
    store.append(6, &[], 8).await.unwrap();
    settle(&mut sink).await;
    let status = accounting.sinks().remove(0);
    assert_eq!((status.kind.as_str(), status.delivered, status.waiting, status.lag_ms, status.problem.as_str()), ("file", 8, 0, 0, ""));
}

#[tokio::test]
async fn records_that_cannot_be_delivered_wait_and_the_status_shows_why() {
    let directory = Directory::new();
    let accounting = accounting(&directory, 2).await;
    let folder = directory.0.join("later");
    let mut sink = to_file(folder.join("work.jsonl"), &accounting);
    let failed = sink.pass().await.unwrap_err();
    sink.fail(&failed);
    let status = accounting.sinks().remove(0);
    assert!(status.problem.contains("later/work.jsonl"), "{status:?}");
    assert_eq!((status.delivered, status.waiting), (0, 2));
    assert!(sink.problems.lines()[0].starts_with("accounting.file_sink: "), "{:?}", sink.problems.lines());
    // Work that ends meanwhile belongs to the next batch.
    accounting.store().unwrap().append(2, &[ended(3)], 3).await.unwrap();
    fs::create_dir(&folder).unwrap();
    assert_eq!(sink.pass().await.unwrap(), Next::AtOnce);
    assert_eq!(accounting.sinks()[0].delivered, 2);
    settle(&mut sink).await;
    assert_eq!((accounting.sinks()[0].delivered, sink.problems.lines()), (3, vec![]));
}

#[tokio::test]
async fn an_agent_without_the_lease_delivers_nothing() {
    let directory = Directory::new();
    let accounting = accounting(&directory, 2).await;
    let mut sink = to_file(directory.0.join("work.jsonl"), &accounting);
    accounting.set_lease(None);
    assert_eq!(sink.pass().await.unwrap(), Next::After(POLL_INTERVAL));
    assert!(!directory.0.join("work.jsonl").exists() && accounting.sinks().is_empty());
}
