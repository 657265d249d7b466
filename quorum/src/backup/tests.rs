//! A backup with sealed segments is put, got and checked; then each of its objects is damaged in
//! turn.

use super::BackupError;
use super::progress::{ReadProgress, Reporter, Stage};
use super::store::{BackupStore, Chain, Segment};
use crate::config::QuorumConfig;
use lattice_ledger::{Action, AuditHead, Command, Ledger, MembersStep};
use lattice_model::{Principal, Revision, Timestamp};
use lattice_store::audit::{AuditChain, SEGMENT_RECORDS};
use lattice_store::raft::SnapshotMeta;
use lattice_store::snapshot_file::{self, About};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;

struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

/// A ledger with more records than fit in a segment, and its chain in `dir`.
fn history(dir: &Path) -> (Ledger, AuditChain) {
    let mut ledger = Ledger::default();
    let mut chain = AuditChain::open(&dir.join("audit")).unwrap();
    let root = Principal { name: "root".into(), uid: 0, gid: 0, groups: vec![] };
    let mut records = Vec::new();
    for index in 1..=SEGMENT_RECORDS + 50 {
        let action = match index {
            1 => Action::Bootstrap { cluster: "c".into() },
            _ => Action::Members { by: root.clone(), step: MembersStep::Forget { id: index } },
        };
        records.extend(ledger.apply(Revision(index), &Command { at: Timestamp(index), action }).audit);
    }
    chain.append(&records).unwrap();
    let checked = chain.checkpoint().unwrap().run().unwrap();
    chain.checked(checked);
    (ledger, chain)
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for file in std::fs::read_dir(dir).unwrap() {
            let path = file.unwrap().path();
            if path.is_dir() { dirs.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn a_flipped_byte_in_any_object_is_found_and_the_object_named() {
    let scratch = Scratch(std::env::temp_dir().join(format!("lattice-backup-{}", std::process::id())));
    let (member, at) = (scratch.0.join("member"), scratch.0.join("place"));
    std::fs::create_dir_all(&member).unwrap();
    let (ledger, chain) = history(&member);
    let about = About::of(SnapshotMeta::default(), &ledger, Timestamp(1_000));
    let snapshot = snapshot_file::write(&member, &about, &ledger).unwrap();
    let store = BackupStore::open(&format!("file://{}", at.display()), &QuorumConfig::default()).unwrap();
    let mut segments = Vec::new();
    for sealed in chain.sealed() {
        let segment = Segment { first: sealed.first, hash: sealed.last.hash.clone() };
        assert!(!store.has_segment(&segment).await.unwrap());
        store.put_segment(&segment, &sealed.path).await.unwrap();
        assert!(store.has_segment(&segment).await.unwrap());
        segments.push(segment);
    }
    assert_eq!(segments.len(), 1);
    let tail = chain.records(SEGMENT_RECORDS, about.audit.seq).collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!(tail.len(), 50);
    let file = tokio::fs::File::open(&snapshot).await.unwrap();
    let name = store.put(&about, &Chain { base: AuditHead::default(), segments, tail }, file, &snapshot).await.unwrap();

    let got = |number: usize| {
        let (dir, store) = (scratch.0.join(format!("got-{number}")), store.clone());
        async move {
            std::fs::create_dir(&dir).unwrap();
            store.get(None, &dir).await
        }
    };
    let reports = Arc::new(Mutex::new(Vec::<ReadProgress>::new()));
    let to = Arc::clone(&reports);
    let watched = store.clone().reporting(Reporter::new(move |report| to.lock().push(report)));
    let dir = scratch.0.join("reported");
    std::fs::create_dir(&dir).unwrap();
    watched.get(None, &dir).await.unwrap();
    let size = std::fs::metadata(at.join("backups").join(&name).join("snapshot")).unwrap().len();
    let last_of = |stage: Stage| reports.lock().iter().rev().find(|report| report.stage == stage).map(|report| (report.done, report.total));
    let all = SEGMENT_RECORDS + 50;
    let want = [(Stage::Snapshot, size), (Stage::Segments, 1), (Stage::Records, all)].map(|(stage, total)| (stage, Some((total, total))));
    assert_eq!(want.map(|(stage, _)| (stage, last_of(stage))), want);
    assert!(reports.lock().iter().filter(|report| report.stage == Stage::Records).count() > 2, "it advances");

    let checked = got(0).await.unwrap();
    assert_eq!((checked.name, checked.chain.head(), checked.loaded.ledger), (name, ledger.audit_head(), ledger.clone()));
    let objects = files(&at);
    assert_eq!(objects.len(), 3, "{objects:?}");
    let mut number = 0;
    for path in objects {
        let whole = std::fs::read(&path).unwrap();
        for part in 0..8 {
            let mut bad = whole.clone();
            bad[(whole.len() - 1) * part / 7] ^= 0x40;
            std::fs::write(&path, bad).unwrap();
            number += 1;
            let error = got(number).await.expect_err(&format!("part {part} of {} is damaged", path.display()));
            let BackupError::Damaged { object, .. } = &error else { panic!("{error}") };
            let is = path.strip_prefix(&at).unwrap().display().to_string();
            assert_eq!(*object, is, "part {part}: {error}");
        }
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        number += 1;
        assert!(matches!(got(number).await, Err(BackupError::Damaged { .. })), "{} is cut short", path.display());
        std::fs::write(&path, whole).unwrap();
    }
    assert!(matches!(store.get(Some("none"), &scratch.0.join("none")).await, Err(BackupError::Unknown { .. })));
    assert!(store.age_of_newest().await.unwrap().is_some());
}
