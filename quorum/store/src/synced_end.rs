//! A small file beside the segments notes how far the log is synced. The note distinguishes a
//! record damaged on the disk from one that was incomplete at a crash.
//!
//! ```text
//!   segment: write ─▶ fdatasync ─▶ answers ─▶ note: written in place ── idle for 500 ms ──▶ fdatasync of the note
//!   cut or remove: note lowered and synced ─▶ segment cut or removed
//! ```
//!
//! The note may claim less than is on the disk, never more. No commit waits for it: it is synced
//! separately, at the latest when the log is idle. Until then, a killed process leaves a correct
//! note. After a power loss there may be an older note, and damaged records after it count as torn,
//! as if there were no note (decision 65).

use super::StoreError;
use super::directory::sync_parent;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The file name in the log's directory.
const FILE: &str = "synced";
const MAGIC: &[u8; 8] = b"LATSYNC\x01";
const LENGTH_BYTES: usize = 28;

/// The end of the synced part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The segment's first index.
    pub segment: u64,
    /// The offset of the end of its last synced record; 0: nothing is claimed.
    pub offset: u64,
}

/// The note, written only by the log's owner.
#[derive(Debug)]
pub struct SyncedEnd {
    path: PathBuf,
    file: File,
    noted: Option<End>,
    /// Whether the latest note may not be on the disk yet.
    is_unsynced: bool,
    has_failed: bool,
}

impl SyncedEnd {
    /// Opens or creates the note in the log's directory.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(FILE);
        let noted = read(dir)?;
        let fail = |what| StoreError::io(&path, what);
        let is_new = !path.exists();
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(fail("cannot be opened"))?;
        if is_new {
            sync_parent(&path)?;
        }
        Ok(Self { path, file, noted, is_unsynced: false, has_failed: false })
    }

    /// The latest note.
    pub fn noted(&self) -> Option<End> {
        self.noted
    }

    /// Records that the log is synced up to there. Not on the disk before [`Self::settle`]. If
    /// writing fails, the older note stays, which claims less.
    pub fn raise(&mut self, end: End) {
        if self.noted != Some(end) {
            let written = self.write(Some(end));
            self.report(written);
        }
    }

    /// Syncs the note.
    pub fn settle(&mut self) {
        if self.is_unsynced {
            let synced = self.sync();
            // A failed sync is not repeated before the next note.
            self.is_unsynced = false;
            self.report(synced);
        }
    }

    /// Whether the note is synced.
    pub fn is_settled(&self) -> bool {
        !self.is_unsynced
    }

    /// Reduces the claim to at most this, durably, before the part after it is removed.
    pub fn lower(&mut self, end: Option<End>) -> Result<(), StoreError> {
        self.write(end)?;
        self.sync()
    }

    fn write(&mut self, end: Option<End>) -> Result<(), StoreError> {
        self.file.write_all_at(&encode(end), 0).map_err(StoreError::io(&self.path, "cannot be written"))?;
        (self.noted, self.is_unsynced) = (end, true);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.file.sync_data().map_err(StoreError::unsynced(&self.path))?;
        self.is_unsynced = false;
        Ok(())
    }

    fn report(&mut self, done: Result<(), StoreError>) {
        let failed = done.is_err();
        if let Err(error) = done
            && !self.has_failed
        {
            let error = lattice_model::with_causes(&error);
            tracing::warn!(error, "the end of the synced log cannot be noted: damage to its last records would count as a torn write");
        }
        self.has_failed = failed;
    }
}

fn encode(end: Option<End>) -> [u8; LENGTH_BYTES] {
    let End { segment, offset } = end.unwrap_or(End { segment: 0, offset: 0 });
    let mut bytes = [0; LENGTH_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&segment.to_le_bytes());
    bytes[16..24].copy_from_slice(&offset.to_le_bytes());
    let crc = crc32fast::hash(&bytes[..24]);
    bytes[24..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<End> {
    let bytes: &[u8; LENGTH_BYTES] = bytes.try_into().ok()?;
    let number = |at: usize| bytes[at..at + 8].iter().rev().fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte));
    let is_whole = &bytes[..8] == MAGIC && bytes[24..] == crc32fast::hash(&bytes[..24]).to_le_bytes();
    is_whole.then_some(End { segment: number(8), offset: number(16) })
}

/// The note in the log's directory; `None`: there is none. A damaged note claims nothing: then only
/// the checksums protect the log, which is sufficient except for its last records.
pub fn read(dir: &Path) -> Result<Option<End>, StoreError> {
    let path = dir.join(FILE);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io(&path, "cannot be read")(error)),
    };
    let end = decode(&bytes);
    if end.is_none() && !bytes.is_empty() {
        tracing::warn!(file = %path.display(), "the checksum of this note of the synced log is wrong: the note is not used");
    }
    Ok(end.filter(|end| end.offset > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written_and_a_damaged_one_claims_nothing() {
        for end in [End { segment: 1, offset: 16 }, End { segment: u64::MAX - 1, offset: 0x0102_0304_0506_0708 }] {
            let bytes = encode(Some(end));
            assert_eq!(decode(&bytes), Some(end));
            for at in 0..LENGTH_BYTES {
                let mut flipped = bytes;
                flipped[at] ^= 0x20;
                assert_eq!(decode(&flipped), None, "byte {at}");
                assert_eq!(decode(&bytes[..at]), None, "{at} bytes");
            }
        }
        assert_eq!(decode(&encode(None)), Some(End { segment: 0, offset: 0 }));
    }
}
