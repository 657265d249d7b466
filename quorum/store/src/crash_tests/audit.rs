//! The audit chain after a crash at any byte, and with damage.

use super::{Scratch, segment};
use crate::StoreError;
use crate::audit::{AuditChain, SEGMENT_RECORDS, Step};
use lattice_model::{AuditAction, AuditFilter, AuditRecord, Revision, Timestamp};

/// Consecutive records; their hashes are tested elsewhere.
pub(super) fn chained(count: u64) -> Vec<AuditRecord> {
    let hash = |seq: u64| format!("{seq:064x}");
    let record = |seq| AuditRecord {
        seq,
        revision: Revision(seq),
        at: Timestamp(seq),
        actor: "u".into(),
        token: None,
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

pub(super) fn seqs(chain: &AuditChain, after: u64, upto: u64) -> Vec<u64> {
    chain.records(after, upto).map(|r| r.unwrap().seq).collect()
}

pub(super) fn checkpoint(chain: &mut AuditChain) {
    let checked = chain.checkpoint().unwrap().run().unwrap();
    chain.checked(checked);
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
    // A record that does not follow, or is a different one, is not appended.
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

/// The number of bytes that a start reads of a chain of `count` records.
fn start_bytes(count: u64) -> u64 {
    let scratch = Scratch::new();
    let mut chain = AuditChain::open(&scratch.0).unwrap();
    chain.append(&chained(count)).unwrap();
    checkpoint(&mut chain);
    drop(chain);
    let chain = AuditChain::open(&scratch.0).unwrap();
    assert_eq!((chain.head().seq, chain.sealed().len() as u64), (count, count / SEGMENT_RECORDS));
    chain.opened_bytes()
}

#[test]
fn a_start_reads_the_open_segment_and_only_the_seal_of_a_sealed_one() {
    let (one, four) = (start_bytes(SEGMENT_RECORDS + 10), start_bytes(4 * SEGMENT_RECORDS + 10));
    assert!(four - one < 3 * 2048, "three more segments made it read {} bytes more", four - one);
    assert!(four < 16_384, "it read {four} bytes");
}

#[test]
fn damage_in_a_sealed_segment_is_found_by_its_check_and_nothing_is_read_from_it_then() {
    let scratch = Scratch::new();
    let mut chain = AuditChain::open(&scratch.0).unwrap();
    chain.append(&chained(2 * SEGMENT_RECORDS + 5)).unwrap();
    checkpoint(&mut chain);
    drop(chain);
    let second = segment(&scratch.0, SEGMENT_RECORDS + 1);
    let whole = std::fs::read(&second).unwrap();
    let read_only = std::fs::metadata(&second).unwrap().permissions();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    std::fs::remove_file(&second).unwrap();
    std::fs::write(&second, &damaged).unwrap();
    std::fs::set_permissions(&second, read_only).unwrap();
    let mut chain = AuditChain::open(&scratch.0).unwrap();
    let sealed = chain.sealed().to_vec();
    let [good, bad] = &sealed[..] else { panic!("two segments are sealed") };
    good.check().unwrap();
    let error = bad.check().unwrap_err();
    assert!(matches!(&error, StoreError::Corrupt { path, .. } if *path == second), "{error}");
    // Before the check, its records up to the damage can be read; after it, none.
    let begins = SEGMENT_RECORDS + 1;
    assert!(chain.records(SEGMENT_RECORDS, begins).next().unwrap().is_ok());
    assert!(chain.has_sealed(bad));
    chain.set_damaged(bad, &error.to_string());
    assert_eq!(chain.damaged(), 1);
    let refused = chain.records(SEGMENT_RECORDS, begins).next().unwrap().unwrap_err();
    assert_eq!(refused.to_string(), error.to_string());
    let everything = AuditFilter::default();
    let one_user = AuditFilter { user: Some("u".into()), ..AuditFilter::default() };
    for filter in [everything, one_user] {
        let mut search = chain.search(&filter, SEGMENT_RECORDS, 2 * SEGMENT_RECORDS);
        let refused = loop {
            match search.step() {
                Ok(step) => assert!(matches!(step, Some(Step::Looked)), "it finds a record, or ends"),
                Err(refused) => break refused,
            }
        };
        assert_eq!(refused.to_string(), error.to_string());
    }
    // The other segments can be read.
    assert_eq!(seqs(&chain, 0, SEGMENT_RECORDS).len() as u64, SEGMENT_RECORDS);
    assert_eq!(seqs(&chain, 2 * SEGMENT_RECORDS, u64::MAX).len(), 5);
    let mut other = bad.clone();
    other.first = 7;
    assert!(!chain.has_sealed(&other), "of another chain");
    assert!(crate::audit::check(&scratch.0).is_err(), "a complete check finds it too");
}

#[test]
fn a_full_segment_is_sealed_and_never_changes_again() {
    let scratch = Scratch::new();
    let records = chained(2 * SEGMENT_RECORDS + 5);
    let mut chain = AuditChain::open(&scratch.0).unwrap();
    chain.append(&records[..records.len() - 5]).unwrap();
    assert!(chain.sealed().is_empty(), "sealing waits for the checkpoint: it reads and syncs");
    chain.append(&records).unwrap();
    // A crash before the first segment is sealed, at some of its bytes: the following segment is
    // dropped too, and everything is created again.
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
    // If the sealing of a segment was interrupted, the next start reads it once and makes it read-only.
    std::fs::remove_file(&first).unwrap();
    std::fs::write(&first, &sealed).unwrap();
    let chain = AuditChain::open(&scratch.0).unwrap();
    assert!(chain.opened_bytes() > sealed.len() as u64);
    assert!(std::fs::metadata(&first).unwrap().permissions().readonly());
    drop(chain);
    assert!(AuditChain::open(&scratch.0).unwrap().opened_bytes() < sealed.len() as u64);
    // A missing segment is reported by name.
    std::fs::remove_file(&first).unwrap();
    let missed = AuditChain::open(&scratch.0).unwrap_err().to_string();
    assert!(missed.contains("record 1 should follow"), "{missed}");
}
