//! Messages and log entries as MessagePack with field names, so that adjacent versions can read
//! each other's data and fields can be added.

mod decoder;

pub use decoder::{DecodeError, Decoder};

use crate::v1::Packed;
use lattice_model::with_causes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::Read;
use thiserror::Error;

/// A value that could not be encoded or decoded as MessagePack.
#[derive(Debug, Error)]
pub enum PackError {
    /// The value has no MessagePack form (such as a path that is not UTF-8).
    #[error("a message cannot be encoded")]
    Encode(#[source] rmp_serde::encode::Error),
    /// The bytes are not a valid encoding of the type.
    #[error("a message cannot be decoded")]
    Decode(#[source] DecodeError),
}

/// Encodes `value`.
pub fn to_bytes<T: Serialize>(value: &T) -> Result<Vec<u8>, PackError> {
    rmp_serde::to_vec_named(value).map_err(PackError::Encode)
}

/// Largest nesting depth of values. Our values stay far below. Without a limit that fits the stack,
/// a few kilobytes of nested lists would crash the process.
const DEPTH_MAX: usize = 64;

/// Decodes bytes from a network or a disk.
pub fn from_bytes<T: DeserializeOwned>(mut bytes: &[u8]) -> Result<T, PackError> {
    from_reader(&mut bytes)
}

/// Decodes one value from a reader.
pub fn from_reader<T: DeserializeOwned>(from: &mut dyn Read) -> Result<T, PackError> {
    T::deserialize(&mut Decoder::new(from, DEPTH_MAX)).map_err(PackError::Decode)
}

/// Encodes `value` as a gRPC body.
pub fn pack<T: Serialize>(value: &T) -> Result<Packed, PackError> {
    Ok(Packed { body: to_bytes(value)?.into() })
}

/// Decodes a gRPC body.
pub fn unpack<T: DeserializeOwned>(packed: &Packed) -> Result<T, PackError> {
    from_bytes(&packed.body)
}

impl From<PackError> for tonic::Status {
    fn from(error: PackError) -> Self {
        let text = with_causes(&error);
        match error {
            PackError::Encode(_) => Self::internal(text),
            PackError::Decode(_) => Self::invalid_argument(text),
        }
    }
}
