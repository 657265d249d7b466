//! Folders that earlier versions wrote.

use crate::lab::{Lab, PATIENCE, submit};
use lattice_quorum::wire::{Answer, Request};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A member's folder as 0.1.0 wrote it before audit segments: a snapshot with the chain in it, `audit.log`, some log
/// behind it; and its ledger as JSON.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(file.file_name());
        if file.file_type().unwrap().is_dir() {
            copy(&file.path(), &target);
        } else {
            std::fs::copy(file.path(), target).unwrap();
        }
    }
}

/// Whether everything that `was` has is in `now`; a newer version may have more.
fn still_there(was: &Value, now: &Value, at: &str) {
    match (was, now) {
        (Value::Object(was), Value::Object(now)) => {
            for (key, was) in was {
                let at = format!("{at}.{key}");
                still_there(was, now.get(key).unwrap_or_else(|| panic!("{at} is gone")), &at);
            }
        }
        (Value::Array(was), Value::Array(now)) if was.len() == now.len() => {
            was.iter().zip(now).for_each(|(was, now)| still_there(was, now, at));
        }
        _ => assert_eq!(was, now, "{at}"),
    }
}

fn script(allocation: &lattice_model::Allocation) -> Option<std::sync::Arc<str>> {
    match &allocation.spec.entrypoint {
        lattice_model::Entrypoint::Script { text, .. } => Some(text.clone()),
        lattice_model::Entrypoint::Command { .. } => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_folder_of_the_version_before_is_taken_over_whole() {
    // The level of that version: raising it would change what is compared.
    let mut lab = Lab::new(1, |c| c.level_max = 1);
    let dir = lab.config(1).data_dir.clone();
    copy(&fixture("format-1"), &dir);
    let was: Value = serde_json::from_slice(&std::fs::read(fixture("format-1.json")).unwrap()).unwrap();
    for _ in 0..2 {
        let member = lab.start(1, false).await;
        tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
        let client = lab.api(&[1]);
        // A read waits until the log is applied.
        let nodes = client.call(&Request::ListNodes, PATIENCE).await;
        assert!(matches!(nodes, Ok(Answer::Nodes(_))), "nodes are listed: {nodes:?}");
        let ledger = member.agreed().ledger().clone();
        let mut now = serde_json::to_value(&ledger).unwrap();
        now["allocations"] = ledger.allocations().map(|a| (a.id.to_string(), serde_json::to_value(&**a).unwrap())).collect();
        still_there(&was, &now, "ledger");
        let scripts: Vec<_> = ledger.allocations().filter_map(|a| script(a)).collect();
        assert!(scripts.len() == 2 && std::sync::Arc::ptr_eq(&scripts[0], &scripts[1]), "one script, kept once");
        let head = crate::auditing::walk(&client).await.unwrap().head;
        assert_eq!((head.seq, Some(head.hash.as_str())), (was["audit"]["seq"].as_u64().unwrap(), was["audit"]["hash"].as_str()));
        assert!(!dir.join("audit.log").exists() && dir.join("audit").is_dir());
        member.stop().await;
    }
    let member = lab.start(1, false).await;
    submit(&lab.api(&[1]), 1).await;
    member.stop().await;
}
