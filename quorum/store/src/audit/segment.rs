//! Segments of the audit chain.
//!
//! ```text
//!   | magic, version: 16 bytes | record | record | …
//!   | seal: a record of its own kind | offset of the seal u64 | "SEALED\0\1" |
//! ```
//!
//! Records are framed as in the log ([`crate::record`]); their payload is MessagePack. A
//! segment without the last sixteen bytes is open. The seal contains the checksum of everything
//! before it. A start reads the seal alone (some 500 bytes), so that it does not take longer for a
//! longer log; the records are compared with the checksum later ([`Sealed::check`]).

use super::index::{Candidates, Postings};
use super::layout::{MAGIC, START, STRIDE};
use super::reading::Extent;
use super::sealed::{SEGMENT_RECORDS, Sealed};
use crate::StoreError;
use crate::directory::sync_parent;
use crate::record::{self, Ending, HEADER, KIND_AUDIT, KIND_AUDIT_SEAL};
use lattice_api::pack;
use lattice_ledger::AuditHead;
use lattice_model::{AuditFilter, AuditRecord};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

const SEALED: &[u8; 8] = b"SEALED\0\x01";
const TRAILER: usize = 16;
/// Largest size of a seal, in bytes.
const SEAL_BYTES_MAX: u64 = 64 * 1024;

/// What is wrong with a file that does not begin with [`MAGIC`].
const FOREIGN: &str = "it does not begin as an audit segment of this version";

/// The content of the seal.
#[derive(Serialize, Deserialize)]
struct Seal {
    first: u64,
    last: AuditHead,
    previous: String,
    /// CRC-32 of the file up to the seal.
    crc: u32,
    places: Vec<u64>,
}

/// An unsealed segment: being appended to, or full.
#[derive(Debug)]
pub struct Active {
    path: PathBuf,
    file: File,
    first: u64,
    previous: String,
    last: AuditHead,
    end: u64,
    /// The offset up to which its records are on disk.
    synced: u64,
    places: Vec<u64>,
    postings: Postings,
}

/// The result of opening a file.
pub enum Found {
    Sealed(Sealed),
    /// `torn`: an incomplete record was cut off.
    Open {
        active: Active,
        torn: bool,
    },
    /// Its creation was interrupted: the file is removed.
    Nothing,
}

/// The path of the segment whose first record is `first`.
pub fn path(dir: &Path, first: u64) -> PathBuf {
    dir.join(format!("{first:020}.audit"))
}

/// All segments in `dir` by the number of their first record.
pub fn list(dir: &Path) -> Result<Vec<(u64, PathBuf)>, StoreError> {
    let mut found = Vec::new();
    for file in fs::read_dir(dir).map_err(StoreError::io(dir, "cannot be listed"))? {
        let path = file.map_err(StoreError::io(dir, "cannot be listed"))?.path();
        let first = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_suffix(".audit")).and_then(|n| n.parse().ok());
        found.extend(first.map(|first| (first, path)));
    }
    found.sort_unstable();
    Ok(found)
}

impl Active {
    /// Creates a segment after `head`.
    pub fn create(dir: &Path, head: &AuditHead) -> Result<Self, StoreError> {
        let path = path(dir, head.seq + 1);
        let fail = |what| StoreError::io(&path, what);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).map_err(fail("cannot be made"))?;
        file.write_all_at(MAGIC, 0).map_err(fail("cannot be written"))?;
        // Before any record: a later page may reach the disk before the first one.
        file.sync_data().map_err(fail("cannot be synced"))?;
        sync_parent(&path)?;
        let (first, previous) = (head.seq + 1, head.hash.clone());
        Ok(Self {
            path,
            file,
            first,
            previous,
            last: head.clone(),
            end: START,
            synced: START,
            places: Vec::new(),
            postings: Postings::default(),
        })
    }

    /// The number of its first record.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Its last record; if it is empty, the last one of the previous segment.
    pub fn last(&self) -> &AuditHead {
        &self.last
    }

    /// Appends records, each of which must follow from the previous one.
    pub fn append(&mut self, records: &[AuditRecord]) -> Result<(), StoreError> {
        let mut bytes = Vec::new();
        let mut places = Vec::new();
        let mut postings = Postings::default();
        let mut head = self.last.clone();
        for record in records {
            if record.seq != head.seq + 1 || record.previous != head.hash {
                let what = format!("record {} of the log does not follow record {} of the file", record.seq, head.seq);
                return Err(StoreError::corrupt(&self.path, self.end, what));
            }
            if (record.seq - self.first).is_multiple_of(STRIDE) {
                places.push(self.end + bytes.len() as u64);
            }
            postings.add(self.end + bytes.len() as u64, record);
            let payload = pack::to_bytes(record).map_err(StoreError::Encode)?;
            record::write(&mut bytes, KIND_AUDIT, self.synced, &payload);
            head = AuditHead { seq: record.seq, hash: record.hash.clone() };
        }
        self.file.write_all_at(&bytes, self.end).map_err(StoreError::io(&self.path, "cannot be written"))?;
        self.end += bytes.len() as u64;
        self.places.extend(places);
        self.postings.extend(postings);
        self.last = head;
        Ok(())
    }

    /// The parts of a sync: the path, a separate file descriptor, and the offset up to which the file
    /// is on disk after the sync.
    pub fn to_sync(&self) -> Result<(PathBuf, File, u64), StoreError> {
        let file = self.file.try_clone().map_err(StoreError::io(&self.path, "cannot be opened"))?;
        Ok((self.path.clone(), file, self.end))
    }

    /// Records that everything up to this offset is on disk.
    pub fn is_synced(&mut self, path: &Path, upto: u64) {
        if self.path == path {
            self.synced = self.synced.max(upto);
        }
    }

    /// Its current records.
    pub fn extent(&self) -> Extent {
        Extent {
            path: self.path.clone(),
            before: self.first - 1,
            last: self.last.seq,
            end: self.end,
            places: self.places.as_slice().into(),
            damage: None,
        }
    }

    /// The records that may match `filter`.
    pub fn search(&self, filter: &AuditFilter) -> Candidates {
        self.postings.search(filter)
    }

    /// Seals it durably. May be repeated after a crash.
    pub fn seal(&self) -> Result<Sealed, StoreError> {
        let fail = |what| StoreError::io(&self.path, what);
        let mut bytes = vec![0; usize::try_from(self.end).unwrap_or(usize::MAX)];
        self.file.read_exact_at(&mut bytes, 0).map_err(fail("cannot be read"))?;
        let seal = Seal {
            first: self.first,
            last: self.last.clone(),
            previous: self.previous.clone(),
            crc: crc32fast::hash(&bytes),
            places: self.places.clone(),
        };
        let mut tail = Vec::new();
        record::write(&mut tail, KIND_AUDIT_SEAL, self.synced, &pack::to_bytes(&seal).map_err(StoreError::Encode)?);
        tail.extend_from_slice(&self.end.to_le_bytes());
        tail.extend_from_slice(SEALED);
        // A seal on the disk says that its records are there.
        self.file.sync_data().map_err(StoreError::unsynced(&self.path))?;
        self.file.write_all_at(&tail, self.end).map_err(fail("cannot be written"))?;
        self.file.sync_all().map_err(StoreError::unsynced(&self.path))?;
        fs::set_permissions(&self.path, read_only()).map_err(fail("cannot be made read-only"))?;
        if let Err(error) = self.postings.write(&self.path, &seal.last.hash) {
            tracing::warn!(segment = %self.path.display(), %error, "its index cannot be written: the first search makes it");
        }
        Ok(Sealed {
            path: self.path.clone(),
            first: self.first,
            last: seal.last,
            previous: seal.previous,
            bytes: self.end + tail.len() as u64,
            records_end: self.end,
            crc: seal.crc,
            places: seal.places.into(),
            damage: None,
        })
    }
}

/// Checks all records of one segment without changing anything.
pub fn check(path: &Path) -> Result<(), StoreError> {
    if let Some((sealed, _)) = sealed(path)? {
        return sealed.check();
    }
    let bytes = fs::read(path).map_err(StoreError::io(path, "cannot be read"))?;
    match record::scan(&bytes, MAGIC.len()).1 {
        Ending::Clean | Ending::Torn { .. } => Ok(()),
        Ending::Damaged { offset } => {
            Err(StoreError::corrupt(path, offset as u64, "a record does not have its checksum, and it was once whole"))
        }
    }
}

/// Opens a segment that follows `head`, and checks the records of one that is not sealed. Also
/// returns how many bytes it read.
pub fn open(path: &Path, head: &AuditHead) -> Result<(Found, u64), StoreError> {
    let fail = |what| StoreError::io(path, what);
    if let Some((sealed, read)) = sealed(path)? {
        if (sealed.first, &sealed.previous) != (head.seq + 1, &head.hash) {
            return Err(StoreError::corrupt(path, sealed.records_end, "it does not follow the segment before it"));
        }
        let read = read + check_unless_read_only(path, &sealed)?;
        return Ok((Found::Sealed(sealed), read));
    }
    let bytes = fs::read(path).map_err(fail("cannot be read"))?;
    let read = bytes.len() as u64;
    if bytes.get(..MAGIC.len()) != Some(MAGIC) {
        if bytes.get(MAGIC.len()..).unwrap_or_default().iter().all(|b| *b == 0) {
            tracing::warn!(file = %path.display(), "a segment whose creation was interrupted is removed");
            fs::remove_file(path).map_err(fail("cannot be removed"))?;
            sync_parent(path)?;
            return Ok((Found::Nothing, read));
        }
        return Err(StoreError::corrupt(path, 0, FOREIGN));
    }
    Ok((scan(path, &bytes, head)?, read))
}

/// Checks a sealed segment that is not read-only: a crash interrupted its sealing, or it is a copy.
/// A segment is made read-only after its records and its seal were synced. Returns how many bytes it
/// read.
fn check_unless_read_only(path: &Path, sealed: &Sealed) -> Result<u64, StoreError> {
    let fail = |what| StoreError::io(path, what);
    let file = File::open(path).map_err(fail("cannot be opened"))?;
    if file.metadata().map_err(fail("cannot be read"))?.permissions().mode() & 0o222 == 0 {
        return Ok(0);
    }
    sealed.check()?;
    file.sync_all().map_err(StoreError::unsynced(path))?;
    if let Err(error) = file.set_permissions(read_only()) {
        tracing::warn!(segment = %path.display(), %error, "a segment of the audit log cannot be made read-only: each start reads it again");
    }
    Ok(sealed.records_end)
}

fn read_only() -> fs::Permissions {
    fs::Permissions::from_mode(0o440)
}

/// Whether a segment ends with a seal.
pub fn is_sealed(path: &Path) -> Result<bool, StoreError> {
    let read = || {
        let file = File::open(path)?;
        let Some(at) = file.metadata()?.len().checked_sub(SEALED.len() as u64) else { return Ok(false) };
        let mut end = [0; SEALED.len()];
        file.read_exact_at(&mut end, at)?;
        Ok(end == *SEALED)
    };
    read().map_err(StoreError::io(path, "cannot be read"))
}

/// A sealed segment according to its seal, and how many bytes were read; `None`: it is not sealed.
/// Reads only its beginning and its end.
fn sealed(path: &Path) -> Result<Option<(Sealed, u64)>, StoreError> {
    let fail = || StoreError::io(path, "cannot be read");
    let file = File::open(path).map_err(fail())?;
    let bytes = file.metadata().map_err(fail())?.len();
    let Some(seal_end) = bytes.checked_sub(TRAILER as u64) else { return Ok(None) };
    let mut trailer = [0; TRAILER];
    file.read_exact_at(&mut trailer, seal_end).map_err(fail())?;
    let [at @ .., _, _, _, _, _, _, _, _] = trailer;
    if trailer[at.len()..] != *SEALED {
        return Ok(None);
    }
    let at = u64::from_le_bytes(at);
    let damaged = |what: &str| StoreError::corrupt(path, at.min(bytes), what);
    let length = seal_end.checked_sub(at).filter(|length| at >= START && (1..=SEAL_BYTES_MAX).contains(length));
    let length = length.and_then(|length| usize::try_from(length).ok());
    let mut seal = vec![0; length.ok_or_else(|| damaged("its seal is not where its end points"))?];
    file.read_exact_at(&mut seal, at).map_err(fail())?;
    let read = MAGIC.len() + seal.len() + TRAILER;
    let seal: Seal = record::payload(&seal)
        .and_then(|payload| pack::from_bytes(payload).ok())
        .ok_or_else(|| damaged("its seal does not have its checksum"))?;
    let mut magic = [0; MAGIC.len()];
    file.read_exact_at(&mut magic, 0).map_err(fail())?;
    if magic != *MAGIC {
        return Err(StoreError::corrupt(path, 0, FOREIGN));
    }
    let sealed = Sealed {
        path: path.to_owned(),
        first: seal.first,
        last: seal.last,
        previous: seal.previous,
        bytes,
        records_end: at,
        crc: seal.crc,
        places: seal.places.into(),
        damage: None,
    };
    Ok(Some((sealed, read as u64)))
}

fn scan(path: &Path, bytes: &[u8], head: &AuditHead) -> Result<Found, StoreError> {
    let fail = |what| StoreError::io(path, what);
    let (found, ending) = record::scan(bytes, MAGIC.len());
    if let Ending::Damaged { offset } = ending {
        return Err(StoreError::corrupt(path, offset as u64, "a record does not have its checksum, and it was once whole"));
    }
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(fail("cannot be opened"))?;
    let (mut last, mut end, mut places, mut postings) = (head.clone(), START, Vec::new(), Postings::default());
    for record in found.iter().take_while(|r| r.kind == KIND_AUDIT) {
        let damaged = |what: String| StoreError::corrupt(path, record.offset as u64, what);
        let start = record.offset + HEADER;
        let read: AuditRecord =
            pack::from_bytes(&bytes[start..start + record.length]).map_err(|e| damaged(lattice_model::with_causes(&e)))?;
        if read.seq != last.seq + 1 || read.previous != last.hash {
            return Err(damaged(format!("record {} does not follow record {}", read.seq, last.seq)));
        }
        if (read.seq - head.seq - 1).is_multiple_of(STRIDE) {
            places.push(record.offset as u64);
        }
        postings.add(record.offset as u64, &read);
        last = AuditHead { seq: read.seq, hash: read.hash };
        end = (start + record.length) as u64;
        if last.seq.is_multiple_of(SEGMENT_RECORDS) {
            break;
        }
    }
    let torn = matches!(ending, Ending::Torn { .. });
    if end < bytes.len() as u64 {
        tracing::warn!(file = %path.display(), offset = end, "the audit chain is cut here and written again from the log");
        file.set_len(end).and_then(|()| file.sync_all()).map_err(fail("cannot be cut"))?;
    }
    let (path, previous) = (path.to_owned(), head.hash.clone());
    let active = Active { path, file, first: head.seq + 1, previous, last, end, synced: end, places, postings };
    Ok(Found::Open { active, torn })
}
