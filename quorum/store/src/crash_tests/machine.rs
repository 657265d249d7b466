//! The state machine: what is applied, and which snapshot is used.

use super::{Scratch, entry, entry_of, id, no_reserve, segment};
use crate::audit::AuditChain;
use crate::directory::Directory;
use crate::machine::{Agreed, AuditError, Machine};
use crate::raft::SnapshotMeta;
use crate::retained_snapshots::RetainedSnapshots;
use crate::synced::{Synced, SyncedMark};
use crate::{StoreError, snapshot_file};
use lattice_ledger::test_builders::of_level;
use lattice_ledger::{Action, AuditHead, LEVEL_MAX, MembersStep};
use lattice_model::{AuditRecord, Principal, Revision, Timestamp};
use openraft::RaftSnapshotBuilder;
use openraft::storage::RaftStateMachine;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

#[tokio::test]
async fn an_entry_is_applied_only_when_it_is_on_disk() {
    let scratch = Scratch::new();
    let (directory, _released) = Directory::open(&scratch.0, "c", 1).unwrap();
    let mark = SyncedMark::new(Some(id(1)));
    let mut machine = open(&directory, 0..=0, mark.reader()).unwrap();
    machine.apply([entry(1)]).await.unwrap();
    {
        let mut applying = std::pin::pin!(machine.apply([entry(2)]));
        assert!(futures::poll!(&mut applying).is_pending());
        mark.set(Some(id(2)));
        applying.await.unwrap();
    }
    assert_eq!(machine.agreed().ledger().revision(), Revision(2));
    let mut applying = std::pin::pin!(machine.apply([entry(3)]));
    assert!(futures::poll!(&mut applying).is_pending());
    mark.fail();
    assert!(applying.await.is_err(), "the disk failed");
}

/// `/dev/full`, on which every write fails for lack of space, takes the place of the first audit
/// segment.
#[tokio::test]
async fn applied_entries_are_in_the_history_while_their_audit_records_wait_for_space() {
    let scratch = Scratch::new();
    let (directory, _released) = Directory::open(&scratch.0, "c", 1).unwrap();
    let mut machine = open(&directory, 0..=0, on_disk(2)).unwrap();
    let agreed = machine.agreed();
    let since = agreed.ledger().place();
    let full = segment(&scratch.0.join("audit"), 1);
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let revisions = || agreed.changes.after(since, 9).unwrap().iter().map(|set| set.revision.0).collect::<Vec<_>>();
    let mut newer = agreed.changes.newer();
    {
        let mut applying = std::pin::pin!(machine.apply([entry(1), entry(2)]));
        assert!(futures::poll!(&mut applying).is_pending());
        // A watch that resumes now reads all sets after its place, and then considers the ledger's
        // revision as known.
        assert_eq!(agreed.ledger().revision(), Revision(2));
        assert_eq!(revisions(), [1, 2], "a watch that resumes now considers revision 2 as known, so it must get both changes");
        assert!(newer.has_changed().unwrap(), "a waiting watch is woken");
        newer.mark_unchanged();
        assert_eq!((agreed.ledger().audit_head().seq, agreed.audit_head().seq), (2, 0), "readers see no record that is not written");
        std::fs::remove_file(&full).unwrap();
        applying.await.unwrap();
    }
    assert_eq!(revisions(), [1, 2], "each once, also after the retry");
    assert_eq!(verify(&agreed).unwrap().seq, 2);
}

#[tokio::test]
async fn the_records_of_one_call_are_written_at_once_and_those_of_a_long_one_in_parts() {
    let scratch = Scratch::new();
    let (directory, _released) = Directory::open(&scratch.0, "c", 1).unwrap();
    let mut machine = open(&directory, 0..=0, on_disk(3000)).unwrap();
    let agreed = machine.agreed();
    let mut appended = 0;
    let mut appends = || {
        let before = std::mem::replace(&mut appended, agreed.hold_audit().appends);
        appended - before
    };
    // One record each.
    let root = Principal { name: "root".into(), uid: 0, gid: 0, groups: Vec::new() };
    let entry = |index| entry_of(index, vec![Action::Members { by: root.clone(), step: MembersStep::Forget { id: index } }]);
    machine.apply([entry(1)]).await.unwrap();
    assert_eq!(appends(), 1);
    assert_eq!(machine.apply((2..=900).map(entry)).await.unwrap().len(), 899);
    assert_eq!(appends(), 1);
    machine.apply((901..=3000).map(entry)).await.unwrap();
    assert_eq!(appends(), 3, "1024, 1024 and the rest");
    assert_eq!(verify(&agreed).unwrap().seq, 3000);
    assert_eq!(agreed.audit_head(), *agreed.ledger().audit_head());
}

/// Fails, and does not hang, if the ledger is locked while records are written.
#[test]
fn the_ledger_is_free_while_audit_records_are_written() {
    let scratch = Scratch::new();
    let (directory, _released) = Directory::open(&scratch.0, "c", 1).unwrap();
    let mut machine = open(&directory, 0..=0, on_disk(2)).unwrap();
    let agreed = machine.agreed();
    let held = agreed.hold_audit();
    let applying = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(machine.apply([entry(1), entry(2)])).unwrap().len()
    });
    // The records cannot be written before the chain is released.
    let until = Instant::now() + Duration::from_secs(60);
    while agreed.try_ledger().is_none_or(|ledger| ledger.revision() != Revision(2)) {
        assert!(Instant::now() < until, "the ledger is locked, or the entries are not applied to it");
        std::thread::yield_now();
    }
    assert!(!applying.is_finished(), "nobody gets an answer before the records are written");
    drop(held);
    assert_eq!(applying.join().unwrap(), 2);
    assert_eq!(agreed.audit_head(), *agreed.ledger().audit_head());
}

pub(super) fn open(directory: &Directory, log: RangeInclusive<u64>, synced: Synced) -> Result<Machine, StoreError> {
    Machine::open(directory, RetainedSnapshots::default(), &log, synced, no_reserve(directory.path()), || Timestamp(1))
}

/// Checks every link of the chain on disk up to the ledger's head.
fn verify(agreed: &Agreed) -> Result<AuditHead, AuditError> {
    let want = agreed.ledger().audit_head().clone();
    let mut head = AuditHead::default();
    for record in agreed.audit_records(0, want.seq) {
        head.follow(&record?)?;
    }
    assert_eq!(head, want);
    Ok(head)
}

/// The mark of a log that is on disk up to this entry.
pub(super) fn on_disk(index: u64) -> Synced {
    SyncedMark::new(Some(id(index))).reader()
}

async fn machine_with(scratch: &Scratch, entries: u64) -> (Machine, Directory) {
    let (directory, _released) = Directory::open(&scratch.0, "c", 1).unwrap();
    let mut machine = open(&directory, 0..=0, on_disk(30)).unwrap();
    let replies = machine.apply((1..=entries).map(entry)).await.unwrap();
    assert!(replies.iter().all(|r| r.0.iter().all(Result::is_ok)));
    (machine, directory)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_restores_the_ledger_its_audit_chain_is_completed_and_a_damaged_one_refuses() {
    let scratch = Scratch::new();
    let (mut machine, directory) = machine_with(&scratch, 30).await;
    let snapshot = machine.get_snapshot_builder().await.build_snapshot().await.unwrap();
    let want = machine.agreed().ledger().clone();
    drop((machine, directory, snapshot));
    let reopen = || {
        let (directory, _released) = Directory::open(&scratch.0, "c", 1).unwrap();
        open(&directory, 1..=1, on_disk(30)).map(|machine| (machine, directory))
    };
    {
        let (mut machine, _directory) = reopen().unwrap();
        assert_eq!(*machine.agreed().ledger(), want);
        assert_eq!(verify(&machine.agreed()).unwrap(), *want.audit_head());
        assert_eq!(machine.applied_state().await.unwrap().0, Some(id(30)));
    }
    // A chain that lacks records of the snapshot is completed from another member before the start.
    let audit = segment(&scratch.0.join("audit"), 1);
    let whole = std::fs::read(&audit).unwrap();
    let records: Vec<AuditRecord> = AuditChain::open(&scratch.0.join("audit")).unwrap().records(0, 99).map(|r| r.unwrap()).collect();
    for left in [0, whole.len() / 2] {
        std::fs::write(&audit, &whole[..left]).unwrap();
        let (machine, _directory) = reopen().unwrap();
        let agreed = machine.agreed();
        let (have, lacks) = agreed.lacks_audit().unwrap();
        assert!(have.seq < 30 && lacks == *want.audit_head());
        let mut foreign = records[usize::try_from(have.seq).unwrap()].clone();
        foreign.detail.push('!');
        assert!(agreed.take_audit(&[foreign]).is_err(), "what is not the next link is not taken");
        agreed.take_audit(&records).unwrap();
        assert!(agreed.lacks_audit().is_none() && agreed.has_audit(&lacks));
        verify(&agreed).unwrap();
    }
    let path = snapshot_file::path_of(&scratch.0, 30);
    let whole = std::fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(101) {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x40;
        std::fs::write(&path, &flipped).unwrap();
        match reopen() {
            Err(StoreError::Corrupt { path: named, .. }) => assert_eq!(named, path),
            other => panic!("byte {at}: {:?}", other.is_ok()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_audit_record_is_found() {
    let scratch = Scratch::new();
    let (machine, _directory) = machine_with(&scratch, 5).await;
    let agreed = machine.agreed();
    verify(&agreed).unwrap();
    let path = segment(&scratch.0.join("audit"), 1);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(9).position(|w| w == b"node:n1\xa6" || w.starts_with(b"node:n1")).unwrap();
    bytes[at + 6] = b'2';
    std::fs::write(&path, &bytes).unwrap();
    assert!(verify(&agreed).is_err());
}

#[test]
fn a_snapshot_of_a_level_that_this_program_does_not_know_is_refused_and_stays() {
    let scratch = Scratch::new();
    let meta = SnapshotMeta { last_log_id: Some(id(3)), ..SnapshotMeta::default() };
    let open_level = |level| {
        let ledger = of_level(level);
        let about = snapshot_file::About::of(meta.clone(), &ledger, Timestamp(1));
        let path = snapshot_file::write(&scratch.0, &about, &ledger).unwrap();
        let (directory, _released) = Directory::open(&scratch.0, "c", 1).unwrap();
        let opened = open(&directory, 4..=4, on_disk(3));
        assert!(path.exists());
        opened.map(|machine| machine.agreed().ledger().level())
    };
    assert_eq!(open_level(LEVEL_MAX).unwrap(), LEVEL_MAX);
    let refused = open_level(LEVEL_MAX + 1).unwrap_err();
    assert!(matches!(&refused, StoreError::Newer { .. }) && refused.to_string().contains("cluster level"), "{refused}");
}
