//! The audit chain on disk: `| length u32 | crc u32 | record, MessagePack | …`, after a header.
//!
//! What it holds behind the last snapshot is made again by applying the log: a bad record there is cut off and written
//! again. What is missing before it comes from the snapshot.

use super::directory::sync_parent;
use super::{StoreError, segments};
use crate::ledger::AuditHead;
use crate::pack;
use lattice_model::AuditRecord;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 16] = b"LATTICE-AUDIT\0\0\x01";
const _: () = assert!(MAGIC.len() as u64 == segments::SEGMENT_HEADER);
const HEADER: u64 = MAGIC.len() as u64;
/// The longest record that is believed.
const RECORD_BYTES_MAX: u32 = 64 * 1024;
/// One record in so many is remembered by its place.
const STRIDE: u64 = 1024;

/// The chain's file, appended to.
#[derive(Debug)]
pub struct AuditFile {
    path: PathBuf,
    file: File,
    end: u64,
    head: AuditHead,
    /// Where every [`STRIDE`]th record begins, the first one included.
    places: Vec<u64>,
}

/// A range of the file that does not change any more.
#[derive(Debug)]
pub struct AuditExtent {
    /// The file, at a position of its own.
    pub file: File,
    /// Its records end here.
    pub end: u64,
}

impl AuditFile {
    /// Opens or makes the file and finds its last whole record.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let fail = |what| StoreError::io(path, what);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(fail("cannot be opened"))?;
        let length = file.metadata().map_err(fail("cannot be read"))?.len();
        if length < HEADER {
            file.set_len(0).and_then(|()| file.write_all_at(MAGIC, 0)).map_err(fail("cannot be written"))?;
            sync_parent(path)?;
        }
        let mut this = Self { path: path.to_owned(), file, end: HEADER, head: AuditHead::default(), places: Vec::new() };
        let mut magic = [0; MAGIC.len()];
        this.file.read_exact_at(&mut magic, 0).map_err(fail("cannot be read"))?;
        if magic != *MAGIC {
            return Err(StoreError::corrupt(path, 0, "it does not begin as an audit file of this version"));
        }
        let mut records = this.records(0, u64::MAX)?;
        let mut end = HEADER;
        let mut places = Vec::new();
        let mut head = AuditHead::default();
        while let Some(Ok(record)) = records.next() {
            if record.seq != head.seq + 1 {
                break;
            }
            if head.seq.is_multiple_of(STRIDE) {
                places.push(end);
            }
            head = AuditHead { seq: record.seq, hash: record.hash };
            end = records.at;
        }
        (this.end, this.places, this.head) = (end, places, head);
        if this.end < length {
            tracing::warn!(file = %path.display(), offset = this.end, "the audit file is cut here and written again from the log");
            this.file.set_len(this.end).map_err(fail("cannot be cut"))?;
        }
        Ok(this)
    }

    /// The last record's place and hash.
    pub fn head(&self) -> &AuditHead {
        &self.head
    }

    /// Appends what follows; what is there already (a replay) is left as it is.
    pub fn append(&mut self, records: &[AuditRecord]) -> Result<(), StoreError> {
        let mut bytes = Vec::new();
        for record in records {
            if record.seq <= self.head.seq {
                continue;
            }
            if record.seq != self.head.seq + 1 || record.previous != self.head.hash {
                let what = format!("record {} of the log does not follow record {} of the file", record.seq, self.head.seq);
                return Err(StoreError::corrupt(&self.path, self.end, what));
            }
            if self.head.seq.is_multiple_of(STRIDE) {
                self.places.push(self.end + bytes.len() as u64);
            }
            let payload = pack::to_bytes(record).map_err(StoreError::Encode)?;
            let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(&crc32fast::hash(&payload).to_le_bytes());
            bytes.extend_from_slice(&payload);
            self.head = AuditHead { seq: record.seq, hash: record.hash.clone() };
        }
        if !bytes.is_empty() {
            self.file.write_all_at(&bytes, self.end).map_err(StoreError::io(&self.path, "cannot be written"))?;
            self.end += bytes.len() as u64;
        }
        Ok(())
    }

    /// What is there now, to be read elsewhere.
    pub fn extent(&self) -> Result<AuditExtent, StoreError> {
        let file = File::open(&self.path).map_err(StoreError::io(&self.path, "cannot be opened"))?;
        Ok(AuditExtent { file, end: self.end })
    }

    /// Records behind `after`, up to `upto`.
    pub fn records(&self, after: u64, upto: u64) -> Result<Records, StoreError> {
        let fail = |what| StoreError::io(&self.path, what);
        let stride = usize::try_from(after / STRIDE).unwrap_or(usize::MAX);
        let (at, seq) = match self.places.get(stride) {
            Some(place) => (*place, (after / STRIDE) * STRIDE),
            None if self.places.is_empty() => (HEADER, 0),
            None => (self.end, self.head.seq),
        };
        let mut file = File::open(&self.path).map_err(fail("cannot be opened"))?;
        file.seek(SeekFrom::Start(at)).map_err(fail("cannot be read"))?;
        Ok(Records { reader: BufReader::new(file), at, before: seq, after, upto })
    }
}

/// Reads records one by one.
pub struct Records {
    reader: BufReader<File>,
    at: u64,
    before: u64,
    after: u64,
    upto: u64,
}

impl Iterator for Records {
    type Item = io::Result<AuditRecord>;

    fn next(&mut self) -> Option<io::Result<AuditRecord>> {
        loop {
            if self.before >= self.upto {
                return None;
            }
            match read_record(&mut self.reader) {
                Ok(None) => return None,
                Ok(Some((record, length))) => {
                    self.at += length;
                    self.before += 1;
                    if record.seq > self.after {
                        return Some(Ok(record));
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

fn read_record(reader: &mut impl Read) -> io::Result<Option<(AuditRecord, u64)>> {
    let mut header = [0; 8];
    if reader.by_ref().take(1).read(&mut header[..1])? == 0 {
        return Ok(None);
    }
    reader.read_exact(&mut header[1..])?;
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    let crc = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
    if length > RECORD_BYTES_MAX {
        return Err(io::Error::other("a record's length is damaged"));
    }
    let mut payload = vec![0; length as usize];
    reader.read_exact(&mut payload)?;
    if crc32fast::hash(&payload) != crc {
        return Err(io::Error::other("a record does not have its checksum"));
    }
    let record = pack::from_bytes(&payload).map_err(io::Error::other)?;
    Ok(Some((record, 8 + u64::from(length))))
}

/// Puts the chain that `source` holds in the place of the file: after a crash there is the old one or the new one.
pub fn replace_with(path: &Path, source: &mut impl Read) -> Result<AuditFile, StoreError> {
    let temporary = path.with_extension("new");
    let fail = |what| StoreError::io(path, what);
    let mut file = File::create(&temporary).map_err(fail("cannot be written"))?;
    io::copy(source, &mut file).map_err(fail("cannot be written"))?;
    file.flush().and_then(|()| file.sync_all()).map_err(fail("cannot be synced"))?;
    std::fs::rename(&temporary, path).map_err(fail("cannot be replaced"))?;
    sync_parent(path)?;
    AuditFile::open(path)
}
