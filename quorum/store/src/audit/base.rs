//! Where the chain on this disk begins.
//!
//! ```text
//!   audit/begins     {"seq":…,"hash":"…"}: the record before the first one; missing: the chain is whole
//! ```
//!
//! It is written before the segments up to there are deleted, so that a crash between the two leaves
//! only segments that the next start does not read.

use super::sealed::SEGMENT_RECORDS;
use super::{index, segment};
use crate::StoreError;
use crate::directory::{replace, sync_folder};
use lattice_ledger::AuditHead;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The name of the file.
const FILE: &str = "begins";

fn path_of(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

/// The record before the first one of the chain in `dir`.
pub fn read(dir: &Path) -> Result<AuditHead, StoreError> {
    let path = path_of(dir);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(AuditHead::default()),
        Err(error) => return Err(StoreError::io(&path, "cannot be read")(error)),
    };
    serde_json::from_slice(&text)
        .ok()
        .filter(is_base)
        .ok_or_else(|| StoreError::corrupt(&path, 0, "it does not name the record before the first one of the audit chain"))
}

/// Durably records where the chain in `dir` begins.
pub fn write(dir: &Path, base: &AuditHead) -> Result<(), StoreError> {
    let path = path_of(dir);
    if !is_base(base) {
        return Err(StoreError::corrupt(&path, 0, format!("record {} is not the last one of a segment", base.seq)));
    }
    let text = serde_json::to_vec(base).map_err(|e| StoreError::io(&path, "cannot be written")(e.into()))?;
    replace(&path, &text)
}

fn is_base(base: &AuditHead) -> bool {
    base.seq.is_multiple_of(SEGMENT_RECORDS) && base.hash.len() == 64 && base.hash.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Whether `dir` has segments up to `base`.
pub fn has_earlier(dir: &Path, base: &AuditHead) -> Result<bool, StoreError> {
    Ok(segment::list(dir)?.first().is_some_and(|(first, _)| *first <= base.seq))
}

/// Deletes the segments in `dir` up to `base`, the oldest first. `base` must be the chain's base, and
/// covered by a checkpoint of the ledger. First records durably that the chain begins there.
pub fn remove_before(dir: &Path, base: &AuditHead) -> Result<(), StoreError> {
    if read(dir)? != *base {
        write(dir, base)?;
    }
    let mut removed = false;
    for (first, path) in segment::list(dir)? {
        if first > base.seq {
            break;
        }
        fs::remove_file(&path).map_err(StoreError::io(&path, "cannot be removed"))?;
        // It may not exist.
        let _none = fs::remove_file(index::path_of(&path));
        removed = true;
    }
    if removed { sync_folder(dir) } else { Ok(()) }
}
