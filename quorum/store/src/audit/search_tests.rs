//! A search finds the same as reading everything: with an index, with one that had to be created
//! again, and without one.

use super::{AuditChain, SEGMENT_RECORDS, Step, index};
use lattice_api::pack;
use lattice_model::{AllocationId, AuditAction, AuditFilter, AuditRecord, Revision, Timestamp};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use uuid::Uuid;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lattice-search-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

fn id(number: u64) -> AllocationId {
    AllocationId(Uuid::from_u128(u128::from(number) << 112 | 7))
}

/// Consecutive records; their hashes are tested elsewhere.
fn records(count: u64) -> Vec<AuditRecord> {
    let hash = |seq: u64| format!("{seq:064x}");
    let record = |seq: u64| AuditRecord {
        seq,
        revision: Revision(seq),
        // The clock is set back once.
        at: Timestamp(if seq > 20_000 { seq - 5000 } else { seq }),
        // Some actors include the machine.
        actor: format!("u{}{}", seq % 7, if seq.is_multiple_of(13) { "@n4" } else { "" }),
        token: seq.is_multiple_of(17).then(|| format!("{:016x}", seq % 5)),
        action: AuditAction::ALL[usize::try_from(seq % 5).unwrap()],
        allocation: (!seq.is_multiple_of(3)).then(|| id(seq % 997)),
        owner: seq.is_multiple_of(2).then(|| format!("u{}", seq % 3)),
        node: seq.is_multiple_of(11).then(|| format!("n{}", seq % 13).parse().unwrap()),
        detail: "x".repeat(usize::try_from(seq % 50).unwrap()),
        previous: hash(seq - 1),
        hash: hash(seq),
    };
    (1..=count).map(record).collect()
}

fn filters() -> Vec<AuditFilter> {
    let all = AuditFilter::default();
    vec![
        all.clone(),
        AuditFilter { allocation: Some(id(5).into()), ..all.clone() },
        AuditFilter { allocation: Some("0005".parse().unwrap()), user: Some("u1".into()), ..all.clone() },
        AuditFilter { user: Some("u2".into()), actions: vec![AuditAction::ALL[1], AuditAction::ALL[3]], ..all.clone() },
        AuditFilter { node: Some("n4".parse().unwrap()), since: Some(Timestamp(14_000)), until: Some(Timestamp(16_000)), ..all.clone() },
        AuditFilter { node: Some("n99".parse().unwrap()), ..all.clone() },
        AuditFilter { token: Some(format!("{:016x}", 3)), ..all.clone() },
        AuditFilter { token: Some(format!("{:016x}", 3)), user: Some("u2".into()), ..all.clone() },
        AuditFilter { token: Some(format!("{:016x}", 99)), ..all.clone() },
        AuditFilter { since: Some(Timestamp(u64::MAX)), ..all },
    ]
}

fn found(chain: &AuditChain, filter: &AuditFilter, after: u64, upto: u64) -> Vec<u64> {
    let mut search = chain.search(filter, after, upto);
    let (mut seqs, mut reached) = (Vec::new(), 0);
    while let Some(step) = search.step().unwrap() {
        if let Step::Found(record) = step {
            assert_eq!(search.reached(), record.seq, "who stops here goes on behind it");
            seqs.push(record.seq);
        }
        assert!(search.reached() >= reached, "it goes forward");
        reached = search.reached();
    }
    assert_eq!(search.reached(), upto);
    seqs
}

fn finds_the_same(chain: &AuditChain, records: &[AuditRecord], why: &str) {
    let count = records.len() as u64;
    for filter in filters() {
        for (after, upto) in [(0, count), (SEGMENT_RECORDS - 3, SEGMENT_RECORDS + 700), (20_001, 20_002)] {
            let within = records.iter().filter(|r| r.seq > after && r.seq <= upto && filter.matches(r));
            let want: Vec<u64> = within.map(|r| r.seq).collect();
            assert!(found(chain, &filter, after, upto) == want, "{why}: {filter:?} behind {after}, up to {upto}");
        }
    }
}

fn checkpoint(chain: &mut AuditChain) {
    let checked = chain.checkpoint().unwrap().run().unwrap();
    chain.checked(checked);
}

#[test]
fn a_search_finds_what_reading_everything_finds() {
    let scratch = Scratch::new("finds");
    let records = records(SEGMENT_RECORDS + 2000);
    let mut chain = AuditChain::open(&scratch.0).unwrap();
    chain.append(&records).unwrap();
    finds_the_same(&chain, &records, "in memory");
    checkpoint(&mut chain);
    let sealed = index::path_of(&chain.sealed()[0].path);
    let whole = std::fs::read(&sealed).unwrap();
    finds_the_same(&chain, &records, "by the index");
    drop(chain);

    let chain = AuditChain::open(&scratch.0).unwrap();
    finds_the_same(&chain, &records, "opened again");
    let spoiled = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    // An index that is missing, truncated, or damaged in its magic, header or blocks is created again,
    // with the same result.
    let one = AuditFilter { allocation: Some(id(5).into()), ..AuditFilter::default() };
    let want: Vec<u64> = records.iter().filter(|r| one.matches(r)).map(|r| r.seq).collect();
    let remake = |what: Option<&[u8]>, why: &str| {
        match what {
            Some(bytes) => std::fs::write(&sealed, bytes).unwrap(),
            None => std::fs::remove_file(&sealed).unwrap(),
        }
        assert!(found(&chain, &one, 0, SEGMENT_RECORDS + 2000) == want, "{why}");
        assert!(std::fs::read(&sealed).unwrap() == whole, "{why}: it is there again");
    };
    remake(None, "missing");
    remake(Some(&whole[..100]), "cut");
    remake(Some(&spoiled(3)), "another magic");
    remake(Some(&spoiled(40)), "a damaged header");
    let block = first_block_of(&whole, &one, &chain);
    remake(Some(&spoiled(block)), "a damaged block");
    let shorter = without_last_list(&whole);
    remake(Some(&shorter), "another version, which had a list less");
    // It is not read for records that are of another time.
    std::fs::write(&sealed, &shorter).unwrap();
    let later = AuditFilter { since: Some(Timestamp(u64::MAX)), ..AuditFilter::default() };
    assert!(found(&chain, &later, 0, SEGMENT_RECORDS).is_empty());
    assert!(std::fs::read(&sealed).unwrap() == shorter, "no record was read");
    // The index of other records, which a member that was restored may have.
    let other = Scratch::new("other");
    foreign(&other.0, &sealed);
    assert!(found(&chain, &one, 0, SEGMENT_RECORDS + 2000) == want, "of other records");
    assert!(std::fs::read(&sealed).unwrap() == whole);
}

/// An index as a version with one kind of key less made it.
fn without_last_list(whole: &[u8]) -> Vec<u8> {
    let (sizes, header) = (16, 24);
    let length = u32::from_le_bytes(whole[sizes..sizes + 4].try_into().unwrap()) as usize;
    let (header, blocks) = whole[header..].split_at(length);
    let mut header: serde_json::Value = pack::from_bytes(header).unwrap();
    header["lists"].as_array_mut().unwrap().pop().unwrap();
    let header = pack::to_bytes(&header).unwrap();
    let (length, crc) = (u32::try_from(header.len()).unwrap(), crc32fast::hash(&header));
    let parts: [&[u8]; 5] = [&whole[..sizes], &length.to_le_bytes(), &crc.to_le_bytes(), &header, blocks];
    parts.concat()
}

#[test]
fn searches_at_the_same_time_create_an_index_once() {
    let scratch = Scratch::new("once");
    let records = records(SEGMENT_RECORDS);
    let mut chain = AuditChain::open(&scratch.0).unwrap();
    chain.append(&records).unwrap();
    checkpoint(&mut chain);
    let sealed = index::path_of(&chain.sealed()[0].path);
    let whole = std::fs::read(&sealed).unwrap();
    std::fs::remove_file(&sealed).unwrap();
    let one = AuditFilter { allocation: Some(id(5).into()), ..AuditFilter::default() };
    let want = records.iter().filter(|r| one.matches(r)).count();
    // Each creation makes a file of its own.
    let files: BTreeSet<u64> = std::thread::scope(|scope| {
        let search = || {
            assert_eq!(found(&chain, &one, 0, SEGMENT_RECORDS).len(), want);
            std::fs::metadata(&sealed).unwrap().ino()
        };
        let searches: Vec<_> = (0..8).map(|_| scope.spawn(search)).collect();
        searches.into_iter().map(|search| search.join().unwrap()).collect()
    });
    assert_eq!(files.len(), 1);
    assert!(std::fs::read(&sealed).unwrap() == whole);
}

/// A byte of a block that the search for `one` reads.
fn first_block_of(whole: &[u8], one: &AuditFilter, chain: &AuditChain) -> usize {
    let seq = found(chain, one, 0, SEGMENT_RECORDS)[0];
    let key = (5u64 << 48).to_le_bytes();
    assert!(seq > 0);
    whole.windows(8).position(|bytes| bytes == key).expect("its postings are there") + 8
}

/// Writes an index for a segment that ends with another hash.
fn foreign(dir: &Path, to: &Path) {
    let mut records = records(SEGMENT_RECORDS);
    records.last_mut().unwrap().hash = "f".repeat(64);
    let mut chain = AuditChain::open(dir).unwrap();
    chain.append(&records).unwrap();
    checkpoint(&mut chain);
    std::fs::copy(index::path_of(&chain.sealed()[0].path), to).unwrap();
}
