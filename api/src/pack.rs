//! Messages and log entries as MessagePack with field names: additive, and readable by the neighbouring versions.

use crate::v1::Packed;
use lattice_model::with_causes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Something that could not be written or read as MessagePack.
#[derive(Debug, Error)]
pub enum PackError {
    /// A value that has no MessagePack form (a path that is not UTF-8).
    #[error("a message cannot be encoded")]
    Encode(#[source] rmp_serde::encode::Error),
    /// Bytes that are not such a message.
    #[error("a message cannot be decoded")]
    Decode(#[source] rmp_serde::decode::Error),
}

/// The bytes of `value`.
pub fn to_bytes<T: Serialize>(value: &T) -> Result<Vec<u8>, PackError> {
    rmp_serde::to_vec_named(value).map_err(PackError::Encode)
}

/// How deep values may lie in each other. Ours stay far below; without a bound that fits the stack, a few kilobytes of
/// nested lists end the process.
const DEPTH_MAX: usize = 64;

/// Reads bytes that came from a network or a disk.
pub fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, PackError> {
    let mut decoder = rmp_serde::Deserializer::from_read_ref(bytes);
    decoder.set_max_depth(DEPTH_MAX);
    T::deserialize(&mut decoder).map_err(PackError::Decode)
}

/// The gRPC body of `value`.
pub fn pack<T: Serialize>(value: &T) -> Result<Packed, PackError> {
    Ok(Packed { body: to_bytes(value)?.into() })
}

/// Reads a gRPC body.
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
