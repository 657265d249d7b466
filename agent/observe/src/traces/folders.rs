//! The folders of raw measurements.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The folders of allocations; empty if `dir` does not exist yet.
pub(super) fn folders(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Ok(entries) => Ok(entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
