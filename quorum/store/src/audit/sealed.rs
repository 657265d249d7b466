//! Sealed segments, which no longer change.

use super::reading::Extent;
use lattice_ledger::AuditHead;
use std::path::PathBuf;
use std::sync::Arc;

/// Number of records in a segment. A segment ends where the number of its last record is a multiple
/// of this.
pub const SEGMENT_RECORDS: u64 = 32_768;

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
    /// The offsets of some of its records; see [`STRIDE`](super::layout::STRIDE).
    pub(super) places: Arc<[u64]>,
}

impl Sealed {
    /// Its records.
    pub(super) fn extent(&self) -> Extent {
        let (before, last) = (self.first - 1, self.last.seq);
        Extent { path: self.path.clone(), before, last, end: self.records_end, places: Arc::clone(&self.places) }
    }
}
