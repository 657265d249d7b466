//! Messages and log entries as MessagePack with field names: additive, and readable by the neighbouring versions.

use lattice_api::v1::Packed;
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

/// Reads bytes that came from a network or a disk.
pub fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, PackError> {
    rmp_serde::from_slice(bytes).map_err(PackError::Decode)
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

/// An error and its causes in one line, for people.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Command, Ledger};
    use crate::wire::{Answer, Change, Down, HeartbeatSummary, Refusal, Request, Up, WatchRequest};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_make_a_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..256), at in any::<prop::sample::Index>(), flip in 1..=255u8) {
            // As they are, and as a true message with one byte changed.
            let list = Request::ListAllocations { uid: Some(7), states: vec![lattice_model::AllocationState::Running], limit: 3 };
            let mut changed = to_bytes(&list).unwrap();
            prop_assert_eq!(from_bytes::<Request>(&changed).unwrap(), list);
            let at = at.index(changed.len());
            changed[at] ^= flip;
            for bytes in [&bytes, &changed] {
                let _request = from_bytes::<Request>(bytes);
                let _answer = from_bytes::<Result<Answer, Refusal>>(bytes);
                let _up = from_bytes::<Up>(bytes);
                let _down = from_bytes::<Down>(bytes);
                let _watch = from_bytes::<WatchRequest>(bytes);
                let _change = from_bytes::<Change>(bytes);
                let _summary = from_bytes::<HeartbeatSummary>(bytes);
                let _commands = from_bytes::<Vec<Command>>(bytes);
                let _entry = from_bytes::<crate::raft::Entry>(bytes);
                let _ledger = from_bytes::<Ledger>(bytes);
            }
        }
    }
}
