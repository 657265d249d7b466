//! The index of a segment: the offsets of the records of an allocation, a node, a user, a kind of
//! action or a token.
//!
//! ```text
//!   audit/00000000000000000001.audit    a sealed segment
//!   audit/00000000000000000001.index    its index
//!     | magic, version: 16 | header length u32 | header crc u32 | header, MessagePack | blocks … |
//!     block: up to 256 postings (key u64, offset u64) sorted by (key, offset), then their crc u32
//! ```
//!
//! The header contains the first key of each block, so a search reads the header and one or two
//! blocks. An index is *derived*: if it is missing, damaged, or belongs to other records, it is
//! created again from the segment. An unsealed segment has its postings in memory.
//!
//! Keys may collide (names are hashed), so the results are candidates, and the records themselves
//! must be checked.

use super::reading::{Extent, Scan};
use lattice_api::pack;
use lattice_model::{AuditAction, AuditFilter, AuditRecord, Timestamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 16] = b"LATTICE-AINDEX\0\x01";
const PREFIX: usize = MAGIC.len() + 8;
/// Number of postings in a block.
const BLOCK: usize = 256;
/// Size of a posting in bytes.
const POSTING: usize = 16;
/// Largest accepted size of a header, in bytes.
const HEADER_BYTES_MAX: usize = 1024 * 1024;

/// The kinds of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Allocation,
    Node,
    User,
    Action,
    Token,
}

const ALL: [By; 5] = [By::Allocation, By::Node, By::User, By::Action, By::Token];

/// A key and the offset of a record with it.
type Posting = (u64, u64);

/// The postings of a segment in memory.
#[derive(Clone, Debug, Default)]
pub struct Postings {
    lists: [Vec<Posting>; ALL.len()],
    times: Times,
}

/// The earliest and the latest time of some records. The leader's clock may have been set back in
/// between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Times {
    first: Timestamp,
    last: Timestamp,
}

impl Default for Times {
    fn default() -> Self {
        Self { first: Timestamp(u64::MAX), last: Timestamp(0) }
    }
}

impl Times {
    fn add(&mut self, at: Timestamp) {
        self.first = self.first.min(at);
        self.last = self.last.max(at);
    }

    fn may_have(&self, filter: &AuditFilter) -> bool {
        filter.since.is_none_or(|since| self.last >= since) && filter.until.is_none_or(|until| self.first < until)
    }
}

/// The records that may match a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Candidates {
    /// All: the filter has no indexed field.
    All,
    /// The records at these offsets, ascending.
    At(Vec<u64>),
}

fn key_of_name(name: &str) -> u64 {
    let digest = Sha256::digest(name.as_bytes());
    u64::from_be_bytes([digest[0], digest[1], digest[2], digest[3], digest[4], digest[5], digest[6], digest[7]])
}

fn key_of_action(action: AuditAction) -> u64 {
    key_of_name(action.name())
}

/// The first 8 bytes of an id, so that ids with the same prefix have adjacent keys.
fn key_of_id(id: u128) -> u64 {
    u64::try_from(id >> 64).expect("64 bits are left")
}

/// For each kind of key, the ranges that match a filter. Kinds that the filter does not use are
/// left out.
fn asked(filter: &AuditFilter) -> Vec<(By, Vec<RangeInclusive<u64>>)> {
    let one = |key: u64| vec![key..=key];
    let mut asked = Vec::new();
    if let Some(prefix) = &filter.allocation {
        let (least, greatest) = prefix.bounds();
        asked.push((By::Allocation, vec![key_of_id(least)..=key_of_id(greatest)]));
    }
    if let Some(node) = &filter.node {
        asked.push((By::Node, one(key_of_name(node.as_str()))));
    }
    if let Some(user) = &filter.user {
        asked.push((By::User, one(key_of_name(user))));
    }
    if !filter.actions.is_empty() {
        asked.push((By::Action, filter.actions.iter().map(|a| key_of_action(*a)..=key_of_action(*a)).collect()));
    }
    if let Some(token) = &filter.token {
        asked.push((By::Token, one(key_of_name(token))));
    }
    asked
}

/// The offsets that match all of `asked`; `find` returns the offsets of one range of one kind, in
/// any order.
fn common(filter: &AuditFilter, mut find: impl FnMut(By, &RangeInclusive<u64>) -> io::Result<Vec<u64>>) -> io::Result<Candidates> {
    let mut common: Option<Vec<u64>> = None;
    for (by, ranges) in asked(filter) {
        let mut offsets = Vec::new();
        for range in &ranges {
            offsets.extend(find(by, range)?);
        }
        offsets.sort_unstable();
        offsets.dedup();
        common = Some(match common {
            None => offsets,
            Some(mut common) => {
                common.retain(|offset| offsets.binary_search(offset).is_ok());
                common
            }
        });
        if common.as_ref().is_some_and(Vec::is_empty) {
            break;
        }
    }
    Ok(common.map_or(Candidates::All, Candidates::At))
}

impl Postings {
    /// Adds the record at `offset`.
    pub fn add(&mut self, offset: u64, record: &AuditRecord) {
        self.times.add(record.at);
        let mut put = |by: By, key: u64| self.lists[by as usize].push((key, offset));
        if let Some(id) = record.allocation {
            put(By::Allocation, key_of_id(id.0.as_u128()));
        }
        if let Some(node) = &record.node {
            put(By::Node, key_of_name(node.as_str()));
        }
        put(By::User, key_of_name(&record.actor));
        if let Some((person, _)) = record.actor.split_once('@') {
            put(By::User, key_of_name(person));
        }
        if let Some(owner) = record.owner.as_ref().filter(|owner| **owner != record.actor) {
            put(By::User, key_of_name(owner));
        }
        if let Some(account) = record.token_account() {
            put(By::User, key_of_name(account));
        }
        put(By::Action, key_of_action(record.action));
        if let Some(token) = &record.token {
            put(By::Token, key_of_name(token));
        }
    }

    /// Adds all postings of `other`.
    pub fn extend(&mut self, other: Self) {
        for (list, more) in self.lists.iter_mut().zip(other.lists) {
            list.extend(more);
        }
        self.times.first = self.times.first.min(other.times.first);
        self.times.last = self.times.last.max(other.times.last);
    }

    /// The records that may match `filter`.
    pub fn search(&self, filter: &AuditFilter) -> Candidates {
        if !self.times.may_have(filter) {
            return Candidates::At(Vec::new());
        }
        let find = |by: By, range: &RangeInclusive<u64>| {
            let list = &self.lists[by as usize];
            Ok(list.iter().filter(|(key, _)| range.contains(key)).map(|(_, offset)| *offset).collect())
        };
        common(filter, find).expect("memory can be read")
    }

    /// Writes the index of a sealed segment. `last`: the hash of its last record.
    pub fn write(&self, segment: &Path, last: &str) -> io::Result<()> {
        let mut lists = Vec::new();
        let mut blocks = Vec::new();
        for by in ALL {
            let mut postings = self.lists[by as usize].clone();
            postings.sort_unstable();
            let fences = postings.chunks(BLOCK).map(|block| block[0].0).collect();
            lists.push(List { begins: blocks.len() as u64, postings: postings.len() as u64, fences });
            for block in postings.chunks(BLOCK) {
                let start = blocks.len();
                for (key, offset) in block {
                    blocks.extend_from_slice(&key.to_le_bytes());
                    blocks.extend_from_slice(&offset.to_le_bytes());
                }
                let crc = crc32fast::hash(&blocks[start..]);
                blocks.extend_from_slice(&crc.to_le_bytes());
            }
        }
        let header = pack::to_bytes(&Header { last: last.to_owned(), times: self.times, lists }).map_err(io::Error::other)?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&u32::try_from(header.len()).map_err(io::Error::other)?.to_le_bytes());
        bytes.extend_from_slice(&crc32fast::hash(&header).to_le_bytes());
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(&blocks);
        let path = path_of(segment);
        let temporary = path.with_extension("index-new");
        // Not synced: an index that a crash damages is created again.
        fs::write(&temporary, &bytes)?;
        fs::rename(&temporary, &path)
    }

    /// Creates the postings of a segment from its records.
    fn of(segment: &Extent) -> io::Result<Self> {
        let mut postings = Self::default();
        for found in Scan::new(segment)? {
            let (offset, record) = found?;
            postings.add(offset, &record);
        }
        Ok(postings)
    }
}

/// The path of a segment's index.
pub fn path_of(segment: &Path) -> PathBuf {
    segment.with_extension("index")
}

#[derive(Serialize, Deserialize)]
struct Header {
    /// The hash of the segment's last record: if it differs, the index belongs to other records.
    last: String,
    times: Times,
    lists: Vec<List>,
}

/// One list; its blocks are consecutive.
#[derive(Serialize, Deserialize)]
struct List {
    /// The offset of its first block, relative to the end of the header.
    begins: u64,
    postings: u64,
    /// The first key of each block.
    fences: Vec<u64>,
}

/// One index at a time is created again: several would read the same segment, and write the same file.
static CREATING: Mutex<()> = Mutex::new(());

/// The candidates in a sealed segment whose last record has the hash `last`.
pub fn search(segment: &Extent, last: &str, filter: &AuditFilter) -> io::Result<Candidates> {
    if let Ok(candidates) = search_file(&segment.path, last, filter) {
        return Ok(candidates);
    }
    let _one_at_a_time = CREATING.lock();
    // Another search may have created it meanwhile.
    let error = match search_file(&segment.path, last, filter) {
        Ok(candidates) => return Ok(candidates),
        Err(error) => error,
    };
    match error.kind() {
        io::ErrorKind::NotFound => {}
        io::ErrorKind::Unsupported => tracing::info!(segment = %segment.path.display(), %error, "an index is made again"),
        _ => tracing::warn!(segment = %segment.path.display(), %error, "an index cannot be used and is made again"),
    }
    let postings = Postings::of(segment)?;
    if let Err(error) = postings.write(&segment.path, last) {
        tracing::warn!(segment = %segment.path.display(), %error, "its index cannot be written: each search reads the segment");
    }
    Ok(postings.search(filter))
}

fn search_file(segment: &Path, last: &str, filter: &AuditFilter) -> io::Result<Candidates> {
    let file = File::open(path_of(segment))?;
    let damaged = || io::Error::other("it is damaged");
    let mut prefix = [0; PREFIX];
    file.read_exact_at(&mut prefix, 0)?;
    let number = |at: usize| u32::from_le_bytes([prefix[at], prefix[at + 1], prefix[at + 2], prefix[at + 3]]);
    let (length, crc) = (number(MAGIC.len()) as usize, number(MAGIC.len() + 4));
    if prefix[..MAGIC.len()] != *MAGIC || length > HEADER_BYTES_MAX {
        return Err(damaged());
    }
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, PREFIX as u64)?;
    if crc32fast::hash(&bytes) != crc {
        return Err(damaged());
    }
    let header: Header = pack::from_bytes(&bytes).map_err(io::Error::other)?;
    if header.last != last {
        return Err(io::Error::other("it is of other records"));
    }
    if !header.times.may_have(filter) {
        return Ok(Candidates::At(Vec::new()));
    }
    if header.lists.len() != ALL.len() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "another version made it"));
    }
    let blocks = (PREFIX + length) as u64;
    common(filter, |by, range| header.lists[by as usize].find(&file, blocks, range))
}

impl List {
    fn find(&self, file: &File, blocks: u64, range: &RangeInclusive<u64>) -> io::Result<Vec<u64>> {
        // The block before the first fence that is not less than the key may end with the key.
        let first = self.fences.partition_point(|fence| fence < range.start()).saturating_sub(1);
        let mut found = Vec::new();
        for at in first..self.fences.len() {
            if self.fences[at] > *range.end() {
                break;
            }
            let before = at * BLOCK;
            let count = BLOCK.min(usize::try_from(self.postings).unwrap_or(usize::MAX).saturating_sub(before));
            let mut bytes = vec![0; count * POSTING + 4];
            let place = blocks + self.begins + (at * (BLOCK * POSTING + 4)) as u64;
            file.read_exact_at(&mut bytes, place)?;
            let (postings, crc) = bytes.split_at(count * POSTING);
            if crc32fast::hash(postings).to_le_bytes() != *crc {
                return Err(io::Error::other("it is damaged"));
            }
            let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
            let postings = postings.chunks_exact(POSTING).map(|p| (number(&p[..8]), number(&p[8..])));
            found.extend(postings.filter(|(key, _)| range.contains(key)).map(|(_, offset)| offset));
        }
        Ok(found)
    }
}
