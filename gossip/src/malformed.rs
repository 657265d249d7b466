//! What decoders give for bytes that they cannot read.

use thiserror::Error;

/// Bytes that cannot be read, or something that does not fit any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub(crate) struct Malformed(pub &'static str);
