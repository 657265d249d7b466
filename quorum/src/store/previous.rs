//! What the version before this one wrote: snapshots that carry the audit chain, and the chain once more in `audit.log`.
//!
//! ```text
//!   snapshot:  "LATTICE-SNAP\0\0\0\1" | meta | ledger | audit chain; each `| length u64 | bytes | crc u32 |`
//!   audit.log: "LATTICE-AUDIT\0\0\1" | length u32 | crc u32 | record, MessagePack | …
//! ```
//!
//! The chain is put into segments, and `audit.log` removed, at the first start of this version.

use super::StoreError;
use super::audit::AuditChain;
use super::directory::sync_parent;
use super::snapshot_file::{About, Loaded};
use crate::ledger::Ledger;
use crate::pack;
use crate::raft::SnapshotMeta;
use lattice_model::{AuditRecord, Timestamp};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// How a snapshot begins.
pub const SNAPSHOT_MAGIC: &[u8; 16] = b"LATTICE-SNAP\0\0\0\x01";
/// The longest part of a snapshot that is believed.
const SECTION_BYTES_MAX: u64 = 8 * 1024 * 1024 * 1024;
const MAGIC: &[u8; 16] = b"LATTICE-AUDIT\0\0\x01";
/// The longest record that is believed.
const RECORD_BYTES_MAX: u32 = 64 * 1024;
/// Records that are put into the chain at once.
const BATCH: usize = 4096;

/// A part of a snapshot's file.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// Where its bytes begin.
    pub at: u64,
    /// How many they are.
    pub length: u64,
}

/// Reads a snapshot whole behind its magic, and checks every part of it.
pub fn load_snapshot(path: &Path, file: File, bytes: u64) -> Result<Loaded, StoreError> {
    let mut input = Sections { path, reader: BufReader::new(file), at: SNAPSHOT_MAGIC.len() as u64, bytes };
    let meta: SnapshotMeta = input.decode()?;
    let ledger: Ledger = input.decode()?;
    let audit = Some(input.skip()?);
    if input.at != bytes {
        return Err(input.corrupt("something follows its end"));
    }
    Ok(Loaded { about: About::of(meta, &ledger, Timestamp(0)), ledger, audit, path: path.to_owned() })
}

struct Sections<'a> {
    path: &'a Path,
    reader: BufReader<File>,
    at: u64,
    bytes: u64,
}

impl Sections<'_> {
    fn corrupt(&self, what: impl Into<String>) -> StoreError {
        StoreError::corrupt(self.path, self.at, what)
    }

    fn exact(&mut self, buffer: &mut [u8]) -> Result<(), StoreError> {
        self.reader.read_exact(buffer).map_err(|e| self.corrupt(e.to_string()))?;
        self.at += buffer.len() as u64;
        Ok(())
    }

    fn number(&mut self) -> Result<u64, StoreError> {
        let mut length = [0; 8];
        self.exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > SECTION_BYTES_MAX || length > self.bytes.saturating_sub(self.at) {
            return Err(self.corrupt("a section's length is damaged"));
        }
        Ok(length)
    }

    fn check(&mut self, crc: u32) -> Result<(), StoreError> {
        let mut stored = [0; 4];
        self.exact(&mut stored)?;
        if u32::from_le_bytes(stored) == crc { Ok(()) } else { Err(self.corrupt("a section does not have its checksum")) }
    }

    fn decode<T: serde::de::DeserializeOwned>(&mut self) -> Result<T, StoreError> {
        let length = usize::try_from(self.number()?).map_err(|e| self.corrupt(e.to_string()))?;
        let mut bytes = vec![0; length];
        self.exact(&mut bytes)?;
        self.check(crc32fast::hash(&bytes))?;
        pack::from_bytes(&bytes).map_err(|e| self.corrupt(pack::with_causes(&e)))
    }

    /// Checks a section without keeping it.
    fn skip(&mut self) -> Result<Section, StoreError> {
        let length = self.number()?;
        let start = self.at;
        let mut crc = crc32fast::Hasher::new();
        let mut buffer = vec![0; 128 * 1024];
        while self.at < start + length {
            let want = buffer.len().min(usize::try_from(start + length - self.at).unwrap_or(usize::MAX));
            self.exact(&mut buffer[..want])?;
            crc.update(&buffer[..want]);
        }
        self.check(crc.finalize())?;
        Ok(Section { at: start, length })
    }
}

/// Takes over what a folder's `audit.log` holds, and removes it.
pub fn take_over_file(dir: &Path, chain: &mut AuditChain) -> Result<(), StoreError> {
    let path = dir.join("audit.log");
    let fail = |what| StoreError::io(&path, what);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fail("cannot be opened")(error)),
    };
    tracing::info!(file = %path.display(), "the audit chain is put into segments");
    // What is torn at its end comes again with the log; what is missing before that is in the snapshot.
    append(&path, 0, BufReader::new(file), chain)?;
    let checked = chain.checkpoint()?.run()?;
    chain.checked(checked);
    std::fs::remove_file(&path).map_err(fail("cannot be removed"))?;
    sync_parent(&path)
}

/// Takes over the audit chain that a snapshot of the version before carries.
pub fn take_over_section(path: &Path, section: Section, chain: &mut AuditChain) -> Result<(), StoreError> {
    let mut file = File::open(path).map_err(StoreError::io(path, "cannot be opened"))?;
    file.seek(SeekFrom::Start(section.at)).map_err(StoreError::io(path, "cannot be read"))?;
    append(path, section.at, BufReader::new(file.take(section.length)), chain)?;
    let checked = chain.checkpoint()?.run()?;
    chain.checked(checked);
    Ok(())
}

fn append(path: &Path, at: u64, mut from: impl Read, chain: &mut AuditChain) -> Result<(), StoreError> {
    let mut magic = [0; MAGIC.len()];
    let begins = from.read_exact(&mut magic).is_ok();
    if begins && magic != *MAGIC {
        return Err(StoreError::corrupt(path, at, "it does not begin as an audit file of the version before this one"));
    }
    let mut batch = Vec::new();
    while let Some(record) = begins.then(|| read(&mut from)).flatten() {
        batch.push(record);
        if batch.len() == BATCH {
            chain.append(&std::mem::take(&mut batch))?;
        }
    }
    chain.append(&batch)
}

/// The next record; `None` at the end or where what follows is not whole.
fn read(from: &mut impl Read) -> Option<AuditRecord> {
    let mut header = [0; 8];
    from.read_exact(&mut header).ok()?;
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    let crc = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
    if length > RECORD_BYTES_MAX {
        return None;
    }
    let mut payload = vec![0; length as usize];
    from.read_exact(&mut payload).ok()?;
    (crc32fast::hash(&payload) == crc).then(|| pack::from_bytes(&payload).ok()).flatten()
}
