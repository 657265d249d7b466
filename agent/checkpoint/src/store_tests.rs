use super::*;
use crate::restore::verify;
use lattice_agent_common::config::checkpoint::CHECKPOINT_STORE;
use std::path::PathBuf;

/// A directory that is removed with its content at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("lattice-ckpt-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Self(dir)
    }

    fn store(&self) -> CheckpointStore {
        let store = StoreSettings { url: format!("file://{}", self.0.display()), ..StoreSettings::default() };
        CheckpointStore::open(CHECKPOINT_STORE, &store).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn owner() -> Owner {
    let allocation = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap();
    Owner { tenant: String::new(), project: String::new(), allocation }
}

fn id(number: u128) -> CheckpointId {
    CheckpointId(uuid::Uuid::from_u128(number))
}

fn manifest(owner: &Owner, epoch: u64) -> Manifest {
    Manifest {
        version: VERSION,
        id: "2f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap(),
        allocation: owner.allocation,
        epoch: Epoch(epoch),
        parent: None,
        round: 1,
        step: None,
        created_at_ms: epoch,
        took_ms: None,
        owner: "u".to_owned(),
        owner_uid: 1000,
        nodes: Vec::new(),
    }
}

#[tokio::test]
async fn attempts_with_one_id_share_no_key_and_a_manifest_is_not_overwritten() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("store");
    let (store, owner) = (folder.store(), owner());
    assert_eq!(std::fs::metadata(&folder.0).unwrap().permissions().mode() & 0o777, 0o700);
    let first = manifest(&owner, 3);
    let part = |epoch| Part { owner: owner.clone(), id: first.id, epoch: Epoch(epoch), round: 1, index: 0, node: "n1".parse().unwrap() };
    assert_ne!(store.part_key(&part(3), "node.json"), store.part_key(&part(4), "node.json"));
    store.put_manifest(&owner, &first).await.unwrap();
    let again = Manifest { created_at_ms: 77, ..first.clone() };
    store.put_manifest(&owner, &again).await.unwrap();
    let other = store.put_manifest(&owner, &manifest(&owner, 4)).await.unwrap_err();
    assert!(matches!(&other, StoreError::Unfit(why) if why.contains("under epoch 3")), "{other}");
    assert_eq!(store.manifest(&owner, first.id).await.unwrap(), first);
}

#[tokio::test]
async fn an_earlier_claims_leftovers_are_discarded_and_other_manifests_stay() {
    let folder = Folder::new("discard");
    let (store, owner) = (folder.store(), owner());
    let made = manifest(&owner, 3);
    let part = |epoch| Part { owner: owner.clone(), id: made.id, epoch: Epoch(epoch), round: 2, index: 0, node: "n1".parse().unwrap() };
    let bring = async |epoch| store.objects.store.put(&store.part_key(&part(epoch), "node.json"), PutPayload::from_static(b"{}")).await;
    let there = async || {
        let mut there = Vec::new();
        for epoch in [3, 4, 33] {
            if !store.objects_of(&part(epoch)).await.unwrap().is_empty() {
                there.push(epoch);
            }
        }
        there
    };
    for epoch in [3, 4, 33] {
        bring(epoch).await.unwrap();
    }
    store.put_manifest(&owner, &made).await.unwrap();
    store.discard(&owner, made.id, Epoch(3)).await.unwrap();
    assert_eq!(there().await, [4, 33]);
    assert!(matches!(store.manifest(&owner, made.id).await, Err(StoreError::NoSuch(_))));
    // Another claim's manifest, and a part that arrives after the first removal.
    let other = manifest(&owner, 4);
    store.put_manifest(&owner, &other).await.unwrap();
    bring(3).await.unwrap();
    store.discard(&owner, made.id, Epoch(3)).await.unwrap();
    assert_eq!((there().await, store.manifest(&owner, made.id).await.unwrap()), (vec![4, 33], other));
    // Nothing is left of the checkpoint.
    store.discard(&owner, made.id, Epoch(3)).await.unwrap();
    store.discard(&owner, id(9), Epoch(3)).await.unwrap();
}

#[tokio::test]
async fn descendants_of_a_checkpoint_are_found_without_guessing() {
    let folder = Folder::new("lineage");
    let (store, owner) = (folder.store(), owner());
    // 1 is the parent of 2, 2 of 3; the parent of 5 does not exist; 4 was made late by the claim of
    // 2.
    for (number, epoch, parent) in [(1, 2, None), (2, 3, Some(1)), (3, 4, Some(2)), (5, 5, Some(77))] {
        let made = Manifest { id: id(number), parent: parent.map(id), ..manifest(&owner, epoch) };
        store.put_manifest(&owner, &made).await.unwrap();
    }
    for (of, last, leads) in [
        ((3, 4), (3, 4), Some(true)),
        ((2, 3), (3, 4), Some(true)),
        ((1, 2), (3, 4), Some(true)),
        ((4, 3), (3, 4), Some(false)),
        ((4, 3), (2, 3), Some(false)),
        ((4, 3), (1, 2), Some(false)),
        // Reaches the first checkpoint.
        ((6, 1), (3, 4), Some(false)),
        // Made by an earlier claim: no manifest needs to be read.
        ((4, 3), (77, 2), Some(false)),
        ((4, 3), (77, 4), None),
        ((4, 3), (5, 5), None),
    ] {
        let last = CheckpointRef { id: id(last.0), epoch: Epoch(last.1), step: None, bytes: 0 };
        let found = store.leads_to(&owner, (id(of.0), Epoch(of.1)), &last).await.unwrap();
        assert_eq!(found, leads, "{of:?} to {last:?}");
    }
}

#[tokio::test]
async fn a_verification_reports_how_much_it_has_read_and_counts_damaged_files_as_read() {
    let folder = Folder::new("verify");
    let (store, owner) = (folder.store(), owner());
    let mut made = manifest(&owner, 3);
    let file = |path: &str, content: &[u8], object: &str| FileEntry {
        path: path.to_owned(),
        mode: 0o644,
        size: Some(content.len() as u64),
        blake3: Some(blake3::hash(content).to_hex().to_string()),
        object: Some(object.to_owned()),
    };
    // The second file of n1 has no object, and nothing of n2 is in the store.
    let (first, lost) = (vec![7_u8; 1000], vec![8_u8; 200]);
    let list = vec![file("first", &first, "0.zst"), file("lost", &lost, "1.zst")];
    let node: NodeId = "n1".parse().unwrap();
    let of_node = NodeManifest {
        version: VERSION,
        id: made.id,
        allocation: owner.allocation,
        epoch: made.epoch,
        node: node.clone(),
        step: None,
        time_seconds: None,
        files: list,
    };
    let json = serde_json::to_vec(&of_node).unwrap();
    let hash = blake3::hash(&json).to_hex().to_string();
    let part = Part { owner: owner.clone(), id: made.id, epoch: made.epoch, round: made.round, index: 0, node: node.clone() };
    let packed = zstd::encode_all(&first[..], 1).unwrap();
    for (name, content) in [("node.json", json), ("0.zst", packed)] {
        store.objects.store.put(&store.part_key(&part, name), PutPayload::from(content)).await.unwrap();
    }
    made.nodes = vec![
        NodeEntry { node, files: 2, bytes: 1200, manifest: Some(hash) },
        NodeEntry { node: "n2".parse().unwrap(), files: 1, bytes: 300, manifest: Some("0".repeat(64)) },
    ];

    let reported = std::sync::Mutex::new(Vec::new());
    let wrong = verify(&store, &owner, &made, &|read: u64| reported.lock().unwrap().push(read)).await.unwrap();
    assert_eq!(wrong, ["n1: lost: its object 1.zst is missing", "n2: node.json: it is missing"]);
    let reported = reported.into_inner().unwrap();
    assert!(reported.is_sorted() && reported.ends_with(&[1000, 1200, 1500]), "{reported:?}");
    assert_eq!(reported.last().copied(), Some(made.size().1));
}
