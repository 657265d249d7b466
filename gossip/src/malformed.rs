//! The error of decoders for bytes that they cannot read.

use thiserror::Error;

/// Bytes that cannot be decoded, or an encoding that does not fit into its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub(crate) struct Malformed(pub &'static str);
