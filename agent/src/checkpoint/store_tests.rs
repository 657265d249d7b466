use super::*;

fn manifest(owner: &Owner, epoch: u64) -> Manifest {
    Manifest {
        version: VERSION,
        id: "2f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap(),
        allocation: owner.allocation,
        epoch: Epoch(epoch),
        parent: None,
        round: 1,
        step: None,
        made_at_ms: epoch,
        took_ms: None,
        owner: "u".to_owned(),
        owner_uid: 1000,
        nodes: Vec::new(),
    }
}

#[tokio::test]
async fn attempts_by_one_id_share_no_key_and_a_manifest_is_not_written_over() {
    use std::os::unix::fs::PermissionsExt;
    let dir = std::env::temp_dir().join(format!("lattice-ckpt-store-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let url = format!("file://{}", dir.display());
    let store = CheckpointStore::open("checkpoint_store", &url, &BTreeMap::new(), Path::new("")).unwrap();
    assert_eq!(std::fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
    let allocation = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap();
    let owner = Owner { tenant: String::new(), project: String::new(), allocation };
    let first = manifest(&owner, 3);
    let part = |epoch| Part { owner: owner.clone(), id: first.id, epoch: Epoch(epoch), round: 1, index: 0, node: "n1".parse().unwrap() };
    assert_ne!(store.part_key(&part(3), "node.json"), store.part_key(&part(4), "node.json"));
    store.put_manifest(&owner, &first).await.unwrap();
    let again = Manifest { made_at_ms: 77, ..first.clone() };
    store.put_manifest(&owner, &again).await.unwrap();
    let other = store.put_manifest(&owner, &manifest(&owner, 4)).await.unwrap_err();
    assert!(matches!(&other, StoreError::Unfit(why) if why.contains("under epoch 3")), "{other}");
    assert_eq!(store.manifest(&owner, first.id).await.unwrap(), first);
    std::fs::remove_dir_all(&dir).unwrap();
}
