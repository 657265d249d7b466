//! Segments of the audit chain.
//!
//! ```text
//!   | magic, version: 16 bytes | record | record | …
//!   | seal: a record of its own kind | offset of the seal u64 | "SEALED\0\1" |
//! ```
//!
//! Records are framed as in the log ([`crate::record`]); their payload is MessagePack. A
//! segment without the last sixteen bytes is open. The seal contains the checksum of everything
//! before it, so a start reads a sealed segment once without decoding it.

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

    /// What must be synced: the path, a separate file descriptor, and the offset up to which it
    /// will then be on disk.
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
        self.file.write_all_at(&tail, self.end).map_err(fail("cannot be written"))?;
        self.file.sync_all().map_err(StoreError::unsynced(&self.path))?;
        fs::set_permissions(&self.path, fs::Permissions::from_mode(0o440)).map_err(fail("cannot be made read-only"))?;
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
            places: seal.places.into(),
        })
    }
}

/// Checks the seal of one segment, or its records if it is unsealed, without changing anything.
pub fn check(path: &Path) -> Result<(), StoreError> {
    let bytes = fs::read(path).map_err(StoreError::io(path, "cannot be read"))?;
    if sealed(path, &bytes)?.is_some() {
        return Ok(());
    }
    match record::scan(&bytes, MAGIC.len()).1 {
        Ending::Clean | Ending::Torn { .. } => Ok(()),
        Ending::Damaged { offset } => {
            Err(StoreError::corrupt(path, offset as u64, "a record does not have its checksum, and it was once whole"))
        }
    }
}

/// Opens a segment that follows `head` and checks it.
pub fn open(path: &Path, head: &AuditHead) -> Result<Found, StoreError> {
    let fail = |what| StoreError::io(path, what);
    let bytes = fs::read(path).map_err(fail("cannot be read"))?;
    if bytes.get(..MAGIC.len()) != Some(MAGIC) {
        if bytes.get(MAGIC.len()..).unwrap_or_default().iter().all(|b| *b == 0) {
            tracing::warn!(file = %path.display(), "a segment whose making was interrupted is removed");
            fs::remove_file(path).map_err(fail("cannot be removed"))?;
            sync_parent(path)?;
            return Ok(Found::Nothing);
        }
        return Err(StoreError::corrupt(path, 0, "it does not begin as an audit segment of this version"));
    }
    if let Some((sealed, at)) = sealed(path, &bytes)? {
        if (sealed.first, &sealed.previous) != (head.seq + 1, &head.hash) {
            return Err(StoreError::corrupt(path, at, "it does not follow the segment before it"));
        }
        return Ok(Found::Sealed(sealed));
    }
    scan(path, &bytes, head)
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

/// A sealed segment, after a check of its seal and checksum; `None`: it is not sealed.
fn sealed(path: &Path, bytes: &[u8]) -> Result<Option<(Sealed, u64)>, StoreError> {
    let Some((body, trailer)) = bytes.split_last_chunk::<TRAILER>().filter(|(_, t)| &t[8..] == SEALED) else { return Ok(None) };
    let at = u64::from_le_bytes([trailer[0], trailer[1], trailer[2], trailer[3], trailer[4], trailer[5], trailer[6], trailer[7]]);
    let damaged = |what: &str| StoreError::corrupt(path, at.min(bytes.len() as u64), what);
    let start = usize::try_from(at).ok().filter(|at| *at >= MAGIC.len() && *at < body.len());
    let start = start.ok_or_else(|| damaged("its seal is not where its end points"))?;
    let seal: Seal = record::payload(&body[start..])
        .and_then(|payload| pack::from_bytes(payload).ok())
        .ok_or_else(|| damaged("its seal does not have its checksum"))?;
    if crc32fast::hash(&body[..start]) != seal.crc {
        return Err(StoreError::corrupt(path, MAGIC.len() as u64, "a sealed segment does not have its checksum"));
    }
    let sealed = Sealed {
        path: path.to_owned(),
        first: seal.first,
        last: seal.last,
        previous: seal.previous,
        bytes: bytes.len() as u64,
        records_end: at,
        places: seal.places.into(),
    };
    Ok(Some((sealed, at)))
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
