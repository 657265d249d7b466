//! Messages and log entries as MessagePack with field names, so that adjacent versions can read
//! each other's data and fields can be added.

use crate::v1::Packed;
use lattice_model::with_causes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// A value that could not be encoded or decoded as MessagePack.
#[derive(Debug, Error)]
pub enum PackError {
    /// The value has no MessagePack form (such as a path that is not UTF-8).
    #[error("a message cannot be encoded")]
    Encode(#[source] rmp_serde::encode::Error),
    /// The bytes are not a valid encoding of the type.
    #[error("a message cannot be decoded")]
    Decode(#[source] rmp_serde::decode::Error),
}

/// Encodes `value`.
pub fn to_bytes<T: Serialize>(value: &T) -> Result<Vec<u8>, PackError> {
    rmp_serde::to_vec_named(value).map_err(PackError::Encode)
}

/// Largest nesting depth of values. Our values stay far below. Without a limit that fits the stack,
/// a few kilobytes of nested lists would crash the process.
const DEPTH_MAX: usize = 64;

/// Decodes bytes from a network or a disk.
pub fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, PackError> {
    let mut decoder = rmp_serde::Deserializer::from_read_ref(bytes);
    decoder.set_max_depth(DEPTH_MAX);
    T::deserialize(&mut decoder).map_err(PackError::Decode)
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
