//! Segments that do not change any more.

use super::reading::Extent;
use lattice_ledger::AuditHead;
use std::path::PathBuf;
use std::sync::Arc;

/// Records in a segment. A segment ends where the number of its last record is a multiple of this.
pub const SEGMENT_RECORDS: u64 = 32_768;

/// A segment that does not change any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Where it lies.
    pub path: PathBuf,
    /// The number of its first record.
    pub first: u64,
    /// Its last record.
    pub last: AuditHead,
    /// The hash of the record before its first.
    pub previous: String,
    /// The file's length in bytes, the seal included.
    pub bytes: u64,
    /// Where its records end.
    pub(super) records_end: u64,
    /// Where some of its records begin; see [`STRIDE`](super::layout::STRIDE).
    pub(super) places: Arc<[u64]>,
}

impl Sealed {
    /// Its records.
    pub(super) fn extent(&self) -> Extent {
        let (before, last) = (self.first - 1, self.last.seq);
        Extent { path: self.path.clone(), before, last, end: self.records_end, places: Arc::clone(&self.places) }
    }
}
