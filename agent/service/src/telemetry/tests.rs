use super::*;
use lattice_agent_common::config::logs::StoreSettings;
use lattice_model::{AllocationId, Epoch};
use std::fs;
use tonic::Code;

/// The lines of one node or of all, and the error at the end.
async fn read(store: &LogStore, place: &Place, node: Option<&str>, most: usize) -> (Vec<String>, Option<Status>) {
    let (out, mut pieces) = mpsc::channel(100);
    let error = send(store, place, node.map(|node| node.parse().unwrap()), most, &out).await.err();
    drop(out);
    let mut lines = Vec::new();
    while let Some(piece) = pieces.recv().await {
        lines.push(String::from_utf8(piece.unwrap().lines).unwrap());
    }
    (lines, error)
}

#[tokio::test]
async fn readable_files_are_sent_and_unreadable_ones_are_named() {
    let dir = std::env::temp_dir().join(format!("lattice-read-telemetry-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    let url = format!("file://{}", dir.display());
    let store = LogStore::open(&StoreSettings { url, ..StoreSettings::default() }).unwrap();
    let (tenant, project) = ("physics".to_owned(), String::new());
    let place = Place { tenant, project, allocation: AllocationId(Uuid::from_u128(1)), epoch: Epoch(3) };
    let (none, error) = read(&store, &place, None, 9).await;
    assert!(none.is_empty() && error.is_none(), "{error:?}");
    for (node, names) in [("n1", &["2-7-b", "1-8-a", "1-5-c"][..]), ("n2", &["1-6-d"]), ("n3", &["1-6-e"])] {
        for name in names {
            let lines = zstd::bulk::compress(name.as_bytes(), 1).unwrap();
            store.put_trace(&place, &node.parse().unwrap(), &format!("{name}.jsonl.zst"), lines).await.unwrap();
        }
    }
    let (lines, error) = read(&store, &place, None, 3).await;
    assert_eq!(lines, ["1-5-c", "2-7-b", "1-8-a", "1-6-d", "1-6-e"], "by node and time");
    assert!(error.is_none(), "{error:?}");
    assert_eq!(read(&store, &place, Some("n3"), 3).await.0, ["1-6-e"]);
    // One node has more files than can be listed, and a file of another is damaged.
    fs::write(dir.join(place.of_traces()).join("n2/1-6-d.jsonl.zst"), "nothing of the kind").unwrap();
    let (lines, error) = read(&store, &place, None, 2).await;
    assert_eq!(lines, ["1-6-e"], "what comes after them is told");
    let error = error.unwrap();
    assert_eq!(error.code(), Code::DataLoss);
    assert!(error.message().contains("more than 2 files") && error.message().contains("n2/1-6-d.jsonl.zst"), "{error}");
    fs::remove_dir_all(dir).unwrap();
}
