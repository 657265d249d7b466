//! Crashes at every byte, and damage.

use super::audit::{AuditChain, SEGMENT_RECORDS};
use super::directory::Directory;
use super::kept::Kept;
use super::log::Log;
use super::machine::Machine;
use super::room::Room;
use super::segments::{SEGMENT_HEADER, Segments};
use super::{StoreError, snapshot_file};
use crate::ledger::scenarios::of_level;
use crate::ledger::{Action, Command, LEVEL_MAX};
use crate::raft::{Entry, LogId, Proposal, SnapshotMeta, Vote};
use lattice_model::{AuditAction, AuditRecord, Revision, Timestamp};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use openraft::{CommittedLeaderId, EntryPayload, RaftLogReader, RaftSnapshotBuilder};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use tokio_util::sync::CancellationToken;

/// A folder that goes away with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("lattice-store-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

fn payloads(dir: &Path) -> Result<Vec<Vec<u8>>, StoreError> {
    let mut found = Vec::new();
    Segments::open(dir, |stored| {
        found.push(stored.payload);
        Ok(())
    })?;
    Ok(found)
}

/// Three entries, each synced; the file without the zeros behind it, and where the last entry begins.
fn three_entries(dir: &Path) -> (PathBuf, Vec<u8>, usize) {
    let mut segments = Segments::open(dir, |_| Ok(())).unwrap();
    let mut last = 0;
    for index in 1..=3u64 {
        let payload = vec![u8::try_from(index).unwrap() | 0x80; 40];
        last = usize::try_from(segments.append(index, &[payload]).unwrap()[0].offset).unwrap();
        segments.sync().unwrap();
    }
    let file = std::fs::read_dir(dir).unwrap().next().unwrap().unwrap().path();
    let bytes = std::fs::read(&file).unwrap();
    let end = bytes.iter().rposition(|b| *b != 0).unwrap() + 1;
    (file, bytes[..end].to_vec(), last)
}

#[test]
fn a_last_entry_torn_at_any_byte_is_cut_off_and_the_log_goes_on() {
    let scratch = Scratch::new();
    let (file, bytes, last) = three_entries(&scratch.0);
    for torn in last + 1..bytes.len() {
        for zeros in [0, 100] {
            let mut left = bytes[..torn].to_vec();
            left.resize(torn + zeros, 0);
            std::fs::write(&file, &left).unwrap();
            // What of it was synced is not known: the one that the last turn of this loop noted was another file.
            let _none = std::fs::remove_file(scratch.0.join("synced"));
            assert_eq!(payloads(&scratch.0).unwrap().len(), 2, "torn at {torn}");
            let mut segments = Segments::open(&scratch.0, |_| Ok(())).unwrap();
            segments.append(3, &[b"again".to_vec()]).unwrap();
            segments.sync().unwrap();
            assert_eq!(payloads(&scratch.0).unwrap().last().unwrap(), b"again");
        }
    }
}

#[test]
fn a_flipped_byte_in_the_middle_refuses_to_start_and_names_the_place() {
    let scratch = Scratch::new();
    let (file, bytes, last) = three_entries(&scratch.0);
    for at in 0..last {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        std::fs::write(&file, &flipped).unwrap();
        match payloads(&scratch.0) {
            Err(StoreError::Corrupt { path, offset, .. }) => {
                assert_eq!(path, file);
                assert!(offset <= at as u64, "byte {at}, named {offset}");
            }
            other => panic!("byte {at}: {other:?}"),
        }
        assert_eq!(std::fs::read(&file).unwrap(), flipped, "nothing is changed");
    }
}

/// The log, its check by who changes nothing, and a start.
fn is_refused(dir: &Path, what: &str) -> (PathBuf, u64) {
    let before = std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().path()).map(|path| (path.clone(), std::fs::read(path).unwrap()));
    let before: Vec<_> = before.collect();
    let Err(StoreError::Corrupt { path, offset, .. }) = super::segments::check(dir) else { panic!("{what}: the check finds nothing") };
    match payloads(dir) {
        Err(StoreError::Corrupt { path: named, offset: at, .. }) => assert_eq!((named, at), (path.clone(), offset), "{what}"),
        other => panic!("{what}: {other:?}"),
    }
    assert!(before.iter().all(|(path, bytes)| std::fs::read(path).unwrap() == *bytes), "{what}: nothing is changed");
    (path, offset)
}

#[test]
fn damage_to_the_last_record_that_was_synced_refuses_to_start_and_one_that_was_not_is_cut_off() {
    let scratch = Scratch::new();
    let (file, synced, last) = three_entries(&scratch.0);
    let mut segments = Segments::open(&scratch.0, |_| Ok(())).unwrap();
    segments.append(4, &[vec![0xff; 40]]).unwrap();
    drop(segments);
    let mut whole = std::fs::read(&file).unwrap();
    let end = whole.iter().rposition(|b| *b != 0).unwrap() + 1;
    // Some of the zeros behind it are enough.
    whole.truncate(end + 200);
    for at in last..synced.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        std::fs::write(&file, &flipped).unwrap();
        assert_eq!(is_refused(&scratch.0, &format!("byte {at}")), (file.clone(), last as u64));
        // Also where nothing follows, and where the disk gives zeros for it, or nothing.
        for left in [&flipped[..synced.len()], &[&whole[..at], &[0; 500]].concat(), &whole[..at]] {
            std::fs::write(&file, left).unwrap();
            assert_eq!(is_refused(&scratch.0, &format!("byte {at}")), (file.clone(), last as u64));
        }
    }
    std::fs::remove_file(&file).unwrap();
    assert_eq!(is_refused(&scratch.0, "the segment"), (file.clone(), 0));
    std::fs::write(&file, [0; 64]).unwrap();
    assert!(super::segments::check(&scratch.0).is_err() && payloads(&scratch.0).is_err(), "zeros");
    let note = std::fs::read(scratch.0.join("synced")).unwrap();
    for at in synced.len()..end {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        std::fs::write(&file, &flipped).unwrap();
        std::fs::write(scratch.0.join("synced"), &note).unwrap();
        assert_eq!(payloads(&scratch.0).unwrap().len(), 3, "byte {at}");
    }
    // A note that is damaged itself claims nothing.
    std::fs::write(&file, &whole[..end - 1]).unwrap();
    std::fs::write(scratch.0.join("synced"), &note[1..]).unwrap();
    assert_eq!(payloads(&scratch.0).unwrap().len(), 3);
}

#[test]
fn what_is_cut_off_or_removed_on_purpose_is_not_missed() {
    let scratch = Scratch::new();
    let append = |segments: &mut Segments, index, bytes, noted| {
        let place = segments.append(index, &[vec![7; bytes]]).unwrap()[0];
        segments.sync().unwrap();
        if noted {
            segments.note_synced();
        }
        place
    };
    let lengths = || payloads(&scratch.0).unwrap().iter().map(Vec::len).collect::<Vec<_>>();
    // It fills a segment.
    let large = 33 << 20;
    let mut segments = Segments::open(&scratch.0, |_| Ok(())).unwrap();
    let first = append(&mut segments, 1, large, true);
    append(&mut segments, 2, 20, true);
    segments.truncate(first).unwrap();
    drop(segments);
    assert!(lengths().is_empty());
    let mut segments = Segments::open(&scratch.0, |_| Ok(())).unwrap();
    append(&mut segments, 1, large, true);
    // As if the newest note had not reached the disk: it names the segment that goes now.
    let second = append(&mut segments, 2, 20, false);
    segments.purge(1).unwrap();
    drop(segments);
    assert_eq!(lengths(), [20]);
    let mut segments = Segments::open(&scratch.0, |_| Ok(())).unwrap();
    let third = append(&mut segments, 3, 30, true);
    segments.truncate(third).unwrap();
    drop(segments);
    assert_eq!(lengths(), [20]);
    let mut segments = Segments::open(&scratch.0, |_| Ok(())).unwrap();
    segments.truncate(second).unwrap();
    append(&mut segments, 2, 10, false);
    drop(segments);
    assert_eq!(lengths(), [10]);
    Segments::open(&scratch.0, |_| Ok(())).unwrap().clear().unwrap();
    assert!(lengths().is_empty());
}

#[test]
fn a_segment_that_never_began_is_removed() {
    let scratch = Scratch::new();
    three_entries(&scratch.0);
    for bytes in [&b""[..], &b"LATT"[..], &[0; 64][..]] {
        std::fs::write(scratch.0.join(format!("{:020}.log", 4)), bytes).unwrap();
        assert_eq!(payloads(&scratch.0).unwrap().len(), 3);
    }
    assert_eq!(SEGMENT_HEADER, 16);
}

fn id(index: u64) -> LogId {
    LogId::new(CommittedLeaderId::new(1, 1), index)
}

fn entry(index: u64) -> Entry {
    let command = Command {
        at: Timestamp(index),
        action: Action::GrantLease { name: format!("l{index}"), holder: "n1".parse().unwrap(), ttl_ms: 1000, user: None },
    };
    Entry { log_id: id(index), payload: EntryPayload::Normal(Proposal::new(vec![command]).unwrap()) }
}

fn no_reserve(dir: &Path) -> Room {
    Room::open(dir, 0, CancellationToken::new()).unwrap()
}

async fn reopen(scratch: &Scratch) -> (Log, Directory) {
    let (directory, _released) = Directory::open(&scratch.0, "c", 1).unwrap();
    // As if every entry up to there were in the newest snapshot and in the one before it.
    let kept = Kept::default();
    kept.are(vec![100, 99]);
    (Log::open(&directory, 1, kept, no_reserve(&scratch.0)).unwrap(), directory)
}

/// Closes the log and waits until its folder is free.
async fn close(scratch: &Scratch, log: Log, directory: Directory) {
    drop((log, directory));
    while matches!(Directory::open(&scratch.0, "c", 1), Err(StoreError::Locked { .. })) {
        tokio::task::yield_now().await;
    }
}

async fn indices(log: &mut Log) -> Vec<u64> {
    log.try_get_log_entries(..).await.unwrap().iter().map(|e| e.log_id.index).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vote_truncation_and_purge_outlast_a_restart() {
    let scratch = Scratch::new();
    let (mut log, directory) = reopen(&scratch).await;
    assert!(log.is_empty());
    log.save_vote(&Vote::new(3, 1)).await.unwrap();
    log.blocking_append((1..=10).map(entry)).await.unwrap();
    log.truncate(id(8)).await.unwrap();
    log.blocking_append([entry(8)]).await.unwrap();
    log.purge(id(4)).await.unwrap();
    assert_eq!(indices(&mut log).await, [5, 6, 7, 8]);
    close(&scratch, log, directory).await;

    let (mut log, directory) = reopen(&scratch).await;
    assert!(!log.is_empty());
    assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new(3, 1)));
    assert_eq!(indices(&mut log).await, [5, 6, 7, 8]);
    let state = log.get_log_state().await.unwrap();
    assert_eq!((state.last_purged_log_id, state.last_log_id), (Some(id(4)), Some(id(8))));
    assert_eq!(log.try_get_log_entries(6..=7).await.unwrap(), [entry(6), entry(7)]);
    // Behind a snapshot from elsewhere.
    log.purge(id(100)).await.unwrap();
    log.blocking_append([entry(101)]).await.unwrap();
    close(&scratch, log, directory).await;
    let (mut log, directory) = reopen(&scratch).await;
    assert_eq!(indices(&mut log).await, [101]);
    close(&scratch, log, directory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledged_entry_that_rots_is_missed_at_the_next_start() {
    let scratch = Scratch::new();
    let (mut log, directory) = reopen(&scratch).await;
    log.save_vote(&Vote::new_committed(1, 2)).await.unwrap();
    log.blocking_append((1..=3).map(entry)).await.unwrap();
    log.blocking_append([entry(4)]).await.unwrap();
    close(&scratch, log, directory).await;
    let (directory, _released) = Directory::open(&scratch.0, "c", 1).unwrap();
    let file = scratch.0.join("log").join(format!("{:020}.log", 1));
    let whole = std::fs::read(&file).unwrap();
    let mut rotten = whole.clone();
    rotten[whole.iter().rposition(|b| *b != 0).unwrap()] ^= 4;
    std::fs::write(&file, rotten).unwrap();
    let refused = Log::open(&directory, 1, Kept::default(), no_reserve(&scratch.0)).unwrap_err().to_string();
    for words in ["00000000000000000001.log", "acknowledged", "lattice quorum replace"] {
        assert!(refused.contains(words), "{refused}");
    }
    std::fs::write(&file, whole).unwrap();
    drop(directory);
    let (mut log, directory) = reopen(&scratch).await;
    assert_eq!(indices(&mut log).await, [1, 2, 3, 4]);
    close(&scratch, log, directory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_starts_again_leads_only_when_it_is_elected_again() {
    let scratch = Scratch::new();
    for (saved, read) in [
        (Vote::new_committed(3, 1), Vote::new(3, 1)),
        (Vote::new(4, 1), Vote::new(4, 1)),
        (Vote::new_committed(5, 2), Vote::new_committed(5, 2)),
    ] {
        let (mut log, directory) = reopen(&scratch).await;
        log.save_vote(&saved).await.unwrap();
        assert_eq!(log.read_vote().await.unwrap(), Some(saved));
        close(&scratch, log, directory).await;
        let (mut log, directory) = reopen(&scratch).await;
        assert_eq!(log.read_vote().await.unwrap(), Some(read));
        close(&scratch, log, directory).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mark_follows_the_disk_in_both_directions() {
    let scratch = Scratch::new();
    let (mut log, directory) = reopen(&scratch).await;
    let mut synced = log.synced();
    assert_eq!(synced.upto(), None);
    // Its own entries as a leader: told before they are on disk, and there a moment later.
    log.save_vote(&Vote::new_committed(1, 1)).await.unwrap();
    log.blocking_append((1..=5).map(entry)).await.unwrap();
    synced.reached(5).await.unwrap();
    assert_eq!(synced.upto(), Some(id(5)));
    // As a follower, of entries of the very same term: told when they are.
    log.save_vote(&Vote::new_committed(2, 2)).await.unwrap();
    log.blocking_append([entry(6)]).await.unwrap();
    assert_eq!(synced.upto(), Some(id(6)));
    log.truncate(id(3)).await.unwrap();
    assert_eq!(synced.upto(), Some(id(2)));
    log.purge(id(50)).await.unwrap();
    assert_eq!(synced.upto(), Some(id(50)));
    close(&scratch, log, directory).await;
}

#[tokio::test]
async fn nothing_is_applied_that_is_not_on_disk() {
    let scratch = Scratch::new();
    let (directory, _released) = Directory::open(&scratch.0, "c", 1).unwrap();
    let mark = super::synced::SyncedMark::new(Some(id(1)));
    let mut machine = Machine::open(&directory, Kept::default(), &(0..=0), mark.reader(), no_reserve(&scratch.0)).unwrap();
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

/// The device on which every write fails for want of space stands for the first audit segment.
#[tokio::test]
async fn what_the_ledger_shows_is_in_the_history_while_the_audit_records_wait_for_room() {
    let scratch = Scratch::new();
    let (directory, _released) = Directory::open(&scratch.0, "c", 1).unwrap();
    let mut machine = Machine::open(&directory, Kept::default(), &(0..=0), on_disk(2), no_reserve(&scratch.0)).unwrap();
    let agreed = machine.agreed();
    let since = agreed.ledger().place();
    let full = segment(&scratch.0.join("audit"), 1);
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let revisions = || agreed.changes.after(since, 9).unwrap().iter().map(|set| set.revision.0).collect::<Vec<_>>();
    let mut newer = agreed.changes.newer();
    {
        let mut applying = std::pin::pin!(machine.apply([entry(1), entry(2)]));
        assert!(futures::poll!(&mut applying).is_pending());
        // A watch that resumes now, as it does: all sets behind its place, and then it knows the ledger's revision.
        assert_eq!(agreed.ledger().revision(), Revision(1));
        assert_eq!(revisions(), [1], "whoever resumes now would take revision 1 for known, and never hear of its change");
        assert!(newer.has_changed().unwrap(), "and one that waits is woken");
        newer.mark_unchanged();
        std::fs::remove_file(&full).unwrap();
        applying.await.unwrap();
    }
    assert_eq!(revisions(), [1, 2], "each once, also after the retry");
    assert_eq!(agreed.verify_audit().unwrap().seq, 2);
}

#[test]
fn a_loss_of_power_takes_what_was_not_synced() {
    let scratch = Scratch::new();
    three_entries(&scratch.0);
    let mut segments = Segments::open(&scratch.0, |_| Ok(())).unwrap();
    segments.append(4, &[b"lost".to_vec()]).unwrap();
    segments.lose_unsynced().unwrap();
    assert_eq!(payloads(&scratch.0).unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_that_left_the_memory_are_read_from_disk() {
    let scratch = Scratch::new();
    let (mut log, directory) = reopen(&scratch).await;
    let large = |index| Entry { log_id: id(index), payload: EntryPayload::Normal(Proposal::encoded(vec![7; 3 << 20].into())) };
    for index in 1..=20 {
        log.blocking_append([large(index)]).await.unwrap();
    }
    assert_eq!(log.try_get_log_entries(1..3).await.unwrap(), [large(1), large(2)]);
    // Replication takes some at a time, and always at least one.
    assert_eq!(log.limited_get_log_entries(1, 20).await.unwrap().len(), 1);
    assert!(std::fs::read_dir(scratch.0.join("log")).unwrap().count() > 1, "more than one segment");
    log.truncate(id(2)).await.unwrap();
    assert_eq!(indices(&mut log).await, [1]);
    close(&scratch, log, directory).await;
    let (mut log, directory) = reopen(&scratch).await;
    assert_eq!(indices(&mut log).await, [1]);
    close(&scratch, log, directory).await;
}

/// Records that follow each other; what their hashes are of is checked elsewhere.
fn chained(count: u64) -> Vec<AuditRecord> {
    let hash = |seq: u64| format!("{seq:064x}");
    let record = |seq| AuditRecord {
        seq,
        revision: Revision(seq),
        at: Timestamp(seq),
        actor: "u".into(),
        action: AuditAction::LeaseGranted,
        allocation: None,
        owner: None,
        node: None,
        detail: "x".into(),
        previous: hash(seq - 1),
        hash: hash(seq),
    };
    (1..=count).map(record).collect()
}

fn seqs(chain: &AuditChain, after: u64, upto: u64) -> Vec<u64> {
    chain.records(after, upto).map(|r| r.unwrap().seq).collect()
}

fn checkpoint(chain: &mut AuditChain) {
    let checked = chain.checkpoint().unwrap().run().unwrap();
    chain.checked(checked);
}

fn segment(dir: &Path, first: u64) -> PathBuf {
    dir.join(format!("{first:020}.audit"))
}

#[test]
fn an_audit_segment_torn_at_any_byte_is_written_again_by_the_replay() {
    let scratch = Scratch::new();
    let records = chained(3);
    AuditChain::open(&scratch.0).unwrap().append(&records).unwrap();
    let file = segment(&scratch.0, 1);
    let bytes = std::fs::read(&file).unwrap();
    for torn in 0..bytes.len() {
        std::fs::write(&file, &bytes[..torn]).unwrap();
        let mut chain = AuditChain::open(&scratch.0).unwrap();
        assert!(chain.head().seq < 3, "torn at {torn}");
        chain.append(&records).unwrap();
        drop(chain);
        assert_eq!(seqs(&AuditChain::open(&scratch.0).unwrap(), 0, 9), [1, 2, 3], "torn at {torn}");
    }
    // What does not follow, or is another one, is not appended.
    let mut chain = AuditChain::open(&scratch.0).unwrap();
    let stranger = AuditRecord { previous: "0".repeat(64), ..chained(4).pop().unwrap() };
    assert!(chain.append(&[stranger]).is_err());
    let other = AuditRecord { hash: "0".repeat(64), ..chained(3).pop().unwrap() };
    assert!(chain.append(&[other]).is_err());
    assert_eq!(chain.head().seq, 3);
}

#[test]
fn a_synced_audit_record_that_is_damaged_refuses_to_start_and_names_the_place() {
    let scratch = Scratch::new();
    let records = chained(3);
    let mut chain = AuditChain::open(&scratch.0).unwrap();
    chain.append(&records[..2]).unwrap();
    checkpoint(&mut chain);
    chain.append(&records[2..]).unwrap();
    drop(chain);
    let file = segment(&scratch.0, 1);
    let bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - (bytes.len() - 16) / 3;
    for at in (16..last).step_by(7) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 4;
        std::fs::write(&file, &flipped).unwrap();
        match AuditChain::open(&scratch.0) {
            Err(StoreError::Corrupt { path, offset, .. }) => assert!(path == file && offset <= at as u64, "byte {at}, named {offset}"),
            other => panic!("byte {at}: {other:?}"),
        }
        assert_eq!(std::fs::read(&file).unwrap(), flipped, "nothing is changed");
    }
}

#[test]
fn a_full_segment_is_sealed_and_never_changes_again() {
    let scratch = Scratch::new();
    let records = chained(2 * SEGMENT_RECORDS + 5);
    let mut chain = AuditChain::open(&scratch.0).unwrap();
    chain.append(&records[..records.len() - 5]).unwrap();
    assert!(chain.sealed().is_empty(), "sealing waits for the checkpoint: it reads and syncs");
    chain.append(&records).unwrap();
    // A crash before the first is sealed, at some of its bytes: what follows it goes too, and all comes again.
    let first = segment(&scratch.0, 1);
    let whole = std::fs::read(&first).unwrap();
    drop(chain);
    for torn in [0, 9, 16, 17, 500, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&first, &whole[..torn]).unwrap();
        let mut chain = AuditChain::open(&scratch.0).unwrap();
        assert!(chain.head().seq < SEGMENT_RECORDS && !segment(&scratch.0, 1 + SEGMENT_RECORDS).exists(), "torn at {torn}");
        chain.append(&records).unwrap();
    }
    let mut chain = AuditChain::open(&scratch.0).unwrap();
    assert_eq!(
        chain.sealed().iter().map(|s| (s.first, s.last.seq)).collect::<Vec<_>>(),
        [(1, SEGMENT_RECORDS), (SEGMENT_RECORDS + 1, 2 * SEGMENT_RECORDS)]
    );
    let sealed = std::fs::read(&first).unwrap();
    chain.append(&chained(2 * SEGMENT_RECORDS + 9)[records.len()..]).unwrap();
    checkpoint(&mut chain);
    assert_eq!(std::fs::read(&first).unwrap(), sealed);
    for after in [0, 1, 1023, 1024, 1025, SEGMENT_RECORDS - 1, SEGMENT_RECORDS, SEGMENT_RECORDS + 1, 2 * SEGMENT_RECORDS + 4, 99_999] {
        let want: Vec<u64> = (after + 1..=2 * SEGMENT_RECORDS + 9).take(3).collect();
        let found: Vec<u64> = chain.records(after, u64::MAX).map(|r| r.unwrap().seq).take(3).collect();
        assert_eq!(found, want, "behind {after}");
    }
    assert_eq!(seqs(&chain, SEGMENT_RECORDS - 1, SEGMENT_RECORDS + 1), [SEGMENT_RECORDS, SEGMENT_RECORDS + 1]);
    drop(chain);
    for at in [16, 100, 4096, sealed.len() / 2, sealed.len() - 300, sealed.len() - 20, sealed.len() - 12] {
        let mut flipped = sealed.clone();
        flipped[at] ^= 1;
        std::fs::remove_file(&first).unwrap();
        std::fs::write(&first, &flipped).unwrap();
        assert!(matches!(AuditChain::open(&scratch.0), Err(StoreError::Corrupt { path, .. }) if path == first), "byte {at}");
    }
    // One that is gone is missed by name.
    std::fs::remove_file(&first).unwrap();
    let missed = AuditChain::open(&scratch.0).unwrap_err().to_string();
    assert!(missed.contains("record 1 should follow"), "{missed}");
}

/// A log that is on disk up to there.
fn on_disk(index: u64) -> super::synced::Synced {
    super::synced::SyncedMark::new(Some(id(index))).reader()
}

async fn machine_with(scratch: &Scratch, entries: u64) -> (Machine, Directory) {
    let (directory, _released) = Directory::open(&scratch.0, "c", 1).unwrap();
    let mut machine = Machine::open(&directory, Kept::default(), &(0..=0), on_disk(30), no_reserve(&scratch.0)).unwrap();
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
    let open = || {
        let (directory, _released) = Directory::open(&scratch.0, "c", 1).unwrap();
        Machine::open(&directory, Kept::default(), &(1..=1), on_disk(30), no_reserve(&scratch.0)).map(|machine| (machine, directory))
    };
    {
        let (mut machine, _directory) = open().unwrap();
        assert_eq!(*machine.agreed().ledger(), want);
        assert_eq!(machine.agreed().verify_audit().unwrap(), *want.audit_head());
        assert_eq!(machine.applied_state().await.unwrap().0, Some(id(30)));
    }
    // A chain that lacks what the snapshot relies on is fetched before the member starts.
    let audit = segment(&scratch.0.join("audit"), 1);
    let whole = std::fs::read(&audit).unwrap();
    let records: Vec<AuditRecord> = AuditChain::open(&scratch.0.join("audit")).unwrap().records(0, 99).map(|r| r.unwrap()).collect();
    for left in [0, whole.len() / 2] {
        std::fs::write(&audit, &whole[..left]).unwrap();
        let (machine, _directory) = open().unwrap();
        let agreed = machine.agreed();
        let (have, lacks) = agreed.lacks_audit().unwrap();
        assert!(have.seq < 30 && lacks == *want.audit_head());
        let mut foreign = records[usize::try_from(have.seq).unwrap()].clone();
        foreign.detail.push('!');
        assert!(agreed.take_audit(&[foreign]).is_err(), "what is not the next link is not taken");
        agreed.take_audit(&records).unwrap();
        assert!(agreed.lacks_audit().is_none() && agreed.has_audit(&lacks));
        agreed.verify_audit().unwrap();
    }
    let path = snapshot_file::path_of(&scratch.0, 30);
    let whole = std::fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(101) {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x40;
        std::fs::write(&path, &flipped).unwrap();
        match open() {
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
    agreed.verify_audit().unwrap();
    let path = segment(&scratch.0.join("audit"), 1);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(9).position(|w| w == b"node:n1\xa6" || w.starts_with(b"node:n1")).unwrap();
    bytes[at + 6] = b'2';
    std::fs::write(&path, &bytes).unwrap();
    assert!(agreed.verify_audit().is_err());
}

#[test]
fn a_snapshot_of_a_level_that_this_program_does_not_know_is_refused_and_stays() {
    let scratch = Scratch::new();
    let meta = SnapshotMeta { last_log_id: Some(id(3)), ..SnapshotMeta::default() };
    let open = |level| {
        let ledger = of_level(level);
        let about = snapshot_file::About::of(meta.clone(), &ledger, Timestamp(1));
        let path = snapshot_file::write(&scratch.0, &about, &ledger).unwrap();
        let (directory, _released) = Directory::open(&scratch.0, "c", 1).unwrap();
        let opened = Machine::open(&directory, Kept::default(), &(4..=4), on_disk(3), no_reserve(&scratch.0));
        assert!(path.exists());
        opened.map(|machine| machine.agreed().ledger().level())
    };
    assert_eq!(open(LEVEL_MAX).unwrap(), LEVEL_MAX);
    let refused = open(LEVEL_MAX + 1).unwrap_err();
    assert!(matches!(&refused, StoreError::Newer { .. }) && refused.to_string().contains("cluster level"), "{refused}");
}
