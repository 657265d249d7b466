//! Hashes and compresses one file in one pass, in this process or in a process among the
//! allocation's work ([`super::packers`]).

use std::fs::File;
use std::io::{self, Read, Write};

/// Bytes read at once.
pub(super) const READ_BYTES: usize = 1 << 20;

/// Why a file was not compressed.
#[derive(Debug)]
pub enum PackError {
    /// Nobody waits for the result any more.
    GivenUp,
    /// The file changed while it was read.
    Changed,
    Io(io::Error),
    /// The compressing process failed.
    Broke(String),
}

/// Reads, hashes and compresses a file that must not change meanwhile. Returns the BLAKE3 of its
/// content.
pub fn pack(mut file: &File, size: u64, to: &mut impl Write, is_given_up: &impl Fn() -> bool) -> Result<blake3::Hash, PackError> {
    let before = file.metadata().map_err(PackError::Io)?;
    let mut encoder = zstd::stream::write::Encoder::new(to, 0).map_err(PackError::Io)?;
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0u8; READ_BYTES];
    let mut left = size;
    loop {
        // A sparse file may produce no output for a long time, so the check is here.
        if is_given_up() {
            return Err(PackError::GivenUp);
        }
        let read = match file.read(&mut piece) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(PackError::Io(error)),
        };
        if read as u64 > left {
            return Err(PackError::Changed);
        }
        if read == 0 {
            break;
        }
        left -= read as u64;
        hasher.update(&piece[..read]);
        encoder.write_all(&piece[..read]).map_err(PackError::Io)?;
    }
    let after = file.metadata().map_err(PackError::Io)?;
    if left > 0 || after.modified().ok() != before.modified().ok() || after.len() != size {
        return Err(PackError::Changed);
    }
    encoder.finish().map_err(PackError::Io)?;
    Ok(hasher.finalize())
}
