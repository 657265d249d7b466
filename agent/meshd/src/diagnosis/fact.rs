//! Builds findings, and reads kernel files for them.

use lattice_mesh::diagnosis::{WireFact, plain};

/// Builds a finding. `source`: where it was read; `problem`: whether it is a problem.
pub(super) fn fact(part: &str, subject: &str, source: &str, text: String, problem: bool) -> WireFact {
    WireFact { part: part.to_owned(), subject: plain(subject), text: plain(&text), source: source.to_owned(), problem }
}

/// Reads at most the first 256 KiB of a kernel file.
pub(super) fn text_of(path: &str) -> Option<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(256 << 10).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
