//! Segments and the log after a crash at any byte, and with damage.

use super::{Scratch, entry, id, no_reserve};
use crate::StoreError;
use crate::directory::Directory;
use crate::log::Log;
use crate::raft::{Entry, Proposal, Vote};
use crate::retained_snapshots::RetainedSnapshots;
use crate::segments::{SEGMENT_HEADER, Segments};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use openraft::{EntryPayload, RaftLogReader};
use std::path::{Path, PathBuf};

fn payloads(dir: &Path) -> Result<Vec<Vec<u8>>, StoreError> {
    let mut found = Vec::new();
    Segments::open(dir, |stored| {
        found.push(stored.payload);
        Ok(())
    })?;
    Ok(found)
}

/// Writes three entries, each synced. Returns the path, the file without the trailing zeros, and
/// the offset of the last entry.
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
fn a_last_entry_torn_at_any_byte_is_cut_off_and_the_log_continues() {
    let scratch = Scratch::new();
    let (file, bytes, last) = three_entries(&scratch.0);
    for torn in last + 1..bytes.len() {
        for zeros in [0, 100] {
            let mut left = bytes[..torn].to_vec();
            left.resize(torn + zeros, 0);
            std::fs::write(&file, &left).unwrap();
            // Remove the note of the previous iteration, which was about another file.
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
        let (path, offset) = is_refused(&scratch.0, &format!("byte {at}"));
        assert_eq!(path, file);
        assert!(offset <= at as u64, "byte {at}, named {offset}");
        assert_eq!(std::fs::read(&file).unwrap(), flipped, "nothing is changed");
    }
}

/// Checks that the log is refused, both by a check without changes and at a start.
fn is_refused(dir: &Path, what: &str) -> (PathBuf, u64) {
    let before = std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().path()).map(|path| (path.clone(), std::fs::read(path).unwrap()));
    let before: Vec<_> = before.collect();
    let Err(StoreError::Corrupt { path, offset, .. }) = crate::segments::check(dir) else { panic!("{what}: the check finds nothing") };
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
    // Some of the trailing zeros are enough.
    whole.truncate(end + 200);
    for at in last..synced.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        std::fs::write(&file, &flipped).unwrap();
        assert_eq!(is_refused(&scratch.0, &format!("byte {at}")), (file.clone(), last as u64));
        // Also if nothing follows, and if the disk returns zeros or nothing in its place.
        for left in [&flipped[..synced.len()], &[&whole[..at], &[0; 500]].concat(), &whole[..at]] {
            std::fs::write(&file, left).unwrap();
            assert_eq!(is_refused(&scratch.0, &format!("byte {at}")), (file.clone(), last as u64));
        }
    }
    std::fs::remove_file(&file).unwrap();
    assert_eq!(is_refused(&scratch.0, "the segment"), (file.clone(), 0));
    std::fs::write(&file, [0; 64]).unwrap();
    assert!(crate::segments::check(&scratch.0).is_err() && payloads(&scratch.0).is_err(), "zeros");
    let note = std::fs::read(scratch.0.join("synced")).unwrap();
    for at in synced.len()..end {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        std::fs::write(&file, &flipped).unwrap();
        std::fs::write(scratch.0.join("synced"), &note).unwrap();
        assert_eq!(payloads(&scratch.0).unwrap().len(), 3, "byte {at}");
    }
    // A damaged note claims nothing.
    std::fs::write(&file, &whole[..end - 1]).unwrap();
    std::fs::write(scratch.0.join("synced"), &note[1..]).unwrap();
    assert_eq!(payloads(&scratch.0).unwrap().len(), 3);
}

#[test]
fn entries_removed_on_purpose_are_not_reported_as_missing() {
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
    // The entry fills a segment.
    let large = 33 << 20;
    let mut segments = Segments::open(&scratch.0, |_| Ok(())).unwrap();
    let first = append(&mut segments, 1, large, true);
    append(&mut segments, 2, 20, true);
    segments.truncate(first).unwrap();
    drop(segments);
    assert!(lengths().is_empty());
    let mut segments = Segments::open(&scratch.0, |_| Ok(())).unwrap();
    append(&mut segments, 1, large, true);
    // As if the newest note had not reached the disk: it names the segment that is removed now.
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

async fn reopen(scratch: &Scratch) -> (Log, Directory) {
    let (directory, _released) = Directory::open(&scratch.0, "c", 1).unwrap();
    // As if the newest snapshot and the one before it contained all entries up to there.
    let retained = RetainedSnapshots::default();
    retained.set(vec![100, 99]);
    (Log::open(&directory, 1, retained, no_reserve(&scratch.0)).unwrap(), directory)
}

/// Closes the log and waits until its directory is free.
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
    // After a received snapshot.
    log.purge(id(100)).await.unwrap();
    log.blocking_append([entry(101)]).await.unwrap();
    close(&scratch, log, directory).await;
    let (mut log, directory) = reopen(&scratch).await;
    assert_eq!(indices(&mut log).await, [101]);
    close(&scratch, log, directory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_start_notices_damage_to_an_acknowledged_entry() {
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
    let refused = Log::open(&directory, 1, RetainedSnapshots::default(), no_reserve(&scratch.0)).unwrap_err().to_string();
    for expected in ["00000000000000000001.log", "acknowledged", "lattice quorum replace"] {
        assert!(refused.contains(expected), "{refused}");
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
    // A leader's own entries: acknowledged before they are on disk, and on disk a moment later.
    log.save_vote(&Vote::new_committed(1, 1)).await.unwrap();
    log.blocking_append((1..=5).map(entry)).await.unwrap();
    synced.reached(5).await.unwrap();
    assert_eq!(synced.upto(), Some(id(5)));
    // A follower's entries of the same term: acknowledged when they are on disk.
    log.save_vote(&Vote::new_committed(2, 2)).await.unwrap();
    log.blocking_append([entry(6)]).await.unwrap();
    assert_eq!(synced.upto(), Some(id(6)));
    log.truncate(id(3)).await.unwrap();
    assert_eq!(synced.upto(), Some(id(2)));
    log.purge(id(50)).await.unwrap();
    assert_eq!(synced.upto(), Some(id(50)));
    close(&scratch, log, directory).await;
}

#[test]
fn a_power_loss_removes_unsynced_entries() {
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
    // Replication reads some at a time, and always at least one.
    assert_eq!(log.limited_get_log_entries(1, 20).await.unwrap().len(), 1);
    assert!(std::fs::read_dir(scratch.0.join("log")).unwrap().count() > 1, "more than one segment");
    log.truncate(id(2)).await.unwrap();
    assert_eq!(indices(&mut log).await, [1]);
    close(&scratch, log, directory).await;
    let (mut log, directory) = reopen(&scratch).await;
    assert_eq!(indices(&mut log).await, [1]);
    close(&scratch, log, directory).await;
}
