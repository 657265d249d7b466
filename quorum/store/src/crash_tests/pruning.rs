//! Segments of the audit chain that are deleted, with a crash between any two of the steps.

use super::audit::{chained, checkpoint, seqs};
use super::{Scratch, segment};
use crate::StoreError;
use crate::audit::{AuditChain, SEGMENT_RECORDS, begin_after, has_earlier, remove_before};
use lattice_ledger::AuditHead;
use std::path::{Path, PathBuf};

const N: u64 = SEGMENT_RECORDS;

fn head(seq: u64) -> AuditHead {
    AuditHead { seq, hash: format!("{seq:064x}") }
}

/// A chain of four sealed segments and five records.
fn four_segments(dir: &Path) -> AuditChain {
    let mut chain = AuditChain::open(dir).unwrap();
    chain.append(&chained(4 * N + 5)).unwrap();
    checkpoint(&mut chain);
    assert_eq!(chain.sealed().len(), 4);
    chain
}

/// Forgets the segments that may be deleted; returns the new base, if there is one.
fn prune(chain: &mut AuditChain, checkpoint: &AuditHead, kept: usize) -> Result<Option<AuditHead>, StoreError> {
    let upto = chain.prunable(checkpoint, kept)?;
    upto.iter().for_each(|upto| chain.prune(upto));
    Ok(upto)
}

fn present(dir: &Path) -> Vec<u64> {
    (0..5).map(|number| number * N + 1).filter(|first| segment(dir, *first).exists()).collect()
}

#[test]
fn segments_up_to_a_checkpoint_are_deleted_except_the_newest() {
    let scratch = Scratch::new();
    let mut chain = four_segments(&scratch.0);
    // The checkpoint's own segment must be here, and have its hash.
    assert_eq!(prune(&mut chain, &head(5 * N), 1).unwrap(), None);
    assert_eq!(prune(&mut chain, &head(N + 1), 1).unwrap(), None);
    let other = AuditHead { hash: "f".repeat(64), ..head(3 * N) };
    assert!(matches!(prune(&mut chain, &other, 1), Err(StoreError::Corrupt { .. })));
    assert_eq!(prune(&mut chain, &head(3 * N), 4).unwrap(), None, "the newest four are kept");
    assert_eq!((chain.base().seq, seqs(&chain, 0, u64::MAX).len() as u64), (0, 4 * N + 5));
    assert_eq!(prune(&mut chain, &head(2 * N), 1).unwrap(), Some(head(2 * N)), "not beyond the checkpoint");
    assert_eq!(seqs(&chain, 2 * N, 2 * N + 2), [2 * N + 1, 2 * N + 2]);
    let missed = chain.records(2 * N - 1, u64::MAX).next().unwrap().unwrap_err().to_string();
    assert!(missed.contains("are not on this disk"), "{missed}");
    remove_before(&scratch.0, chain.base()).unwrap();
    assert_eq!(present(&scratch.0), [2 * N + 1, 3 * N + 1, 4 * N + 1]);
    drop(chain);
    let mut chain = AuditChain::open(&scratch.0).unwrap();
    assert_eq!((chain.base(), chain.head().seq), (&head(2 * N), 4 * N + 5));
    chain.append(&chained(4 * N + 9)[usize::try_from(4 * N).unwrap()..]).unwrap();
    assert_eq!(seqs(&chain, 4 * N + 5, u64::MAX).len(), 4);
    // The next checkpoint continues from there.
    assert_eq!(prune(&mut chain, &head(4 * N), 1).unwrap(), Some(head(3 * N)));
}

#[test]
fn a_crash_between_any_two_deletions_leaves_a_chain_that_opens_and_misses_nothing_after_its_base() {
    for removed in 0..=3u64 {
        for is_written in [false, true] {
            if removed > 0 && !is_written {
                continue; // Nothing is deleted before the base is on disk.
            }
            let scratch = Scratch::new();
            let mut chain = four_segments(&scratch.0);
            let base = prune(&mut chain, &head(3 * N), 1).unwrap().unwrap();
            if is_written {
                begin_after(&scratch.0, &base).unwrap();
            }
            for number in 0..removed {
                std::fs::remove_file(segment(&scratch.0, number * N + 1)).unwrap();
            }
            drop(chain);
            let chain = AuditChain::open(&scratch.0).unwrap();
            let begins = if is_written { 3 * N } else { 0 };
            assert_eq!((chain.base().seq, chain.head()), (begins, &head(4 * N + 5)), "{removed} removed");
            assert_eq!(seqs(&chain, begins, u64::MAX).len() as u64, 4 * N + 5 - begins);
            // The next attempt deletes the rest.
            remove_before(&scratch.0, chain.base()).unwrap();
            assert_eq!(present(&scratch.0).first(), Some(&(begins + 1)));
        }
    }
}

#[test]
fn the_base_is_on_disk_before_anything_is_deleted_and_the_oldest_segments_go_first() {
    let scratch = Scratch::new();
    let mut chain = four_segments(&scratch.0);
    let base = prune(&mut chain, &head(3 * N), 1).unwrap().unwrap();
    // The base cannot be written: a folder has the name of its temporary file.
    let in_the_way = scratch.0.join("begins.new");
    std::fs::create_dir(&in_the_way).unwrap();
    assert!(remove_before(&scratch.0, &base).is_err());
    assert_eq!(present(&scratch.0), [1, N + 1, 2 * N + 1, 3 * N + 1, 4 * N + 1]);
    std::fs::remove_dir(&in_the_way).unwrap();
    // The second segment cannot be deleted.
    let (second, elsewhere) = (segment(&scratch.0, N + 1), scratch.0.join("elsewhere"));
    std::fs::rename(&second, &elsewhere).unwrap();
    std::fs::create_dir(&second).unwrap();
    assert!(remove_before(&scratch.0, &base).is_err());
    assert_eq!(present(&scratch.0), [N + 1, 2 * N + 1, 3 * N + 1, 4 * N + 1]);
    drop(chain);
    let chain = AuditChain::open(&scratch.0).unwrap();
    assert_eq!((chain.base(), chain.head()), (&base, &head(4 * N + 5)));
    std::fs::remove_dir(&second).unwrap();
    std::fs::rename(&elsewhere, &second).unwrap();
    assert!(has_earlier(&scratch.0, &base).unwrap());
    remove_before(&scratch.0, &base).unwrap();
    assert_eq!(present(&scratch.0), [3 * N + 1, 4 * N + 1]);
    assert!(!has_earlier(&scratch.0, &base).unwrap());
}

#[test]
fn a_chain_that_begins_at_a_later_checkpoint_keeps_its_old_segments_until_they_are_removed() {
    let scratch = Scratch::new();
    let mut chain = AuditChain::open(&scratch.0).unwrap();
    chain.append(&chained(N + 7)).unwrap();
    checkpoint(&mut chain);
    chain.begin_at(head(N)).unwrap();
    assert_eq!(chain.base().seq, 0, "it has that record");
    assert!(chain.begin_at(head(2 * N + 1)).is_err(), "no segment ends there");
    chain.begin_at(head(3 * N)).unwrap();
    assert_eq!((chain.base(), chain.head()), (&head(3 * N), &head(3 * N)));
    assert!(chain.append(&chained(3 * N + 1)[usize::try_from(3 * N).unwrap()..]).is_ok());
    drop(chain);
    let mut chain = AuditChain::open(&scratch.0).unwrap();
    assert_eq!((chain.base().seq, chain.head().seq), (3 * N, 3 * N + 1));
    assert_eq!(present(&scratch.0), [1, N + 1, 3 * N + 1], "nothing is deleted");
    // Replayed entries of the time before are skipped.
    chain.append(&chained(N + 9)[usize::try_from(N).unwrap()..]).unwrap();
    assert_eq!(chain.head().seq, 3 * N + 1);
    remove_before(&scratch.0, chain.base()).unwrap();
    assert_eq!(present(&scratch.0), [3 * N + 1]);
}

#[test]
fn a_damaged_beginning_refuses_to_start_and_a_lost_one_too() {
    let scratch = Scratch::new();
    let mut chain = four_segments(&scratch.0);
    let base = prune(&mut chain, &head(3 * N), 1).unwrap().unwrap();
    remove_before(&scratch.0, &base).unwrap();
    drop(chain);
    let file: PathBuf = scratch.0.join("begins");
    let whole = std::fs::read(&file).unwrap();
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        std::fs::write(&file, &flipped).unwrap();
        assert!(AuditChain::open(&scratch.0).is_err(), "byte {at}: {}", String::from_utf8_lossy(&flipped));
    }
    std::fs::remove_file(&file).unwrap();
    let missed = AuditChain::open(&scratch.0).unwrap_err().to_string();
    assert!(missed.contains("a segment before it is missing"), "{missed}");
    std::fs::write(&file, &whole).unwrap();
    assert_eq!(AuditChain::open(&scratch.0).unwrap().base(), &base);
}
