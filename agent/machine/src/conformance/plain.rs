//! Components in the form that the quorum accepts.

use lattice_model::conformance::VALUE_BYTES_MAX;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;

/// The text on one line, or its hash if the text is too long. `None`: the text is empty.
pub(super) fn plain(text: &str) -> Option<String> {
    let text = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    if text.is_empty() {
        return None;
    }
    if text.len() <= VALUE_BYTES_MAX {
        return Some(text);
    }
    let digest = Sha256::digest(text.as_bytes());
    Some(digest.iter().fold("sha256:".to_owned(), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    }))
}
