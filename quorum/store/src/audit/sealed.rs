//! Sealed segments, which no longer change.

use super::layout::START;
use super::reading::Extent;
use crate::StoreError;
use lattice_ledger::AuditHead;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;

/// Number of records in a segment. A segment ends where the number of its last record is a multiple
/// of this.
pub const SEGMENT_RECORDS: u64 = 32_768;

/// How much of a segment is read at once for its checksum, in bytes.
const PIECE_BYTES: usize = 256 * 1024;

/// A sealed segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Its path.
    pub path: PathBuf,
    /// The number of its first record.
    pub first: u64,
    /// Its last record.
    pub last: AuditHead,
    /// The hash of the record before its first one.
    pub previous: String,
    /// The file's length in bytes, including the seal.
    pub bytes: u64,
    /// The offset of the end of its records.
    pub(super) records_end: u64,
    /// CRC-32 of the file up to there.
    pub(super) crc: u32,
    /// The offsets of some of its records; see [`STRIDE`](super::layout::STRIDE).
    pub(super) places: Arc<[u64]>,
    /// The damage that a check has found, if any.
    pub(super) damage: Option<Arc<str>>,
}

impl Sealed {
    /// Whether both have the same records; known damage is not compared.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.first, &self.last) == (other.first, &other.last)
    }

    /// Reads the whole segment and compares it with the checksum in its seal. Takes as long as the
    /// disk needs to read it: call it where blocking is allowed.
    pub fn check(&self) -> Result<(), StoreError> {
        let fail = |what| StoreError::io(&self.path, what);
        let mut records = File::open(&self.path).map_err(fail("cannot be opened"))?.take(self.records_end);
        let mut crc = crc32fast::Hasher::new();
        let mut piece = vec![0; PIECE_BYTES];
        let mut read = 0;
        loop {
            match records.read(&mut piece) {
                Ok(0) => break,
                Ok(length) => {
                    crc.update(&piece[..length]);
                    read += length as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(fail("cannot be read")(error)),
            }
        }
        if (read, crc.finalize()) != (self.records_end, self.crc) {
            return Err(StoreError::corrupt(&self.path, START, "a sealed segment does not have its checksum"));
        }
        Ok(())
    }

    /// Its records.
    pub(super) fn extent(&self) -> Extent {
        let (before, last) = (self.first - 1, self.last.seq);
        let (path, places) = (self.path.clone(), Arc::clone(&self.places));
        Extent { path, before, last, end: self.records_end, places, damage: self.damage.clone() }
    }
}
