//! The wire form of a launch's standard input.

use super::frame::FrameError;
use lattice_model::input::{PIECE_BYTES_MAX, Place, Taken};
use rkyv::{Archive, Deserialize, Serialize};

/// A piece of standard input, for every rank below that reads it.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireInputChunk {
    /// Position of the piece: bytes before it.
    pub offset: u64,
    pub bytes: Vec<u8>,
    /// Whether this is the last piece.
    pub last: bool,
}

impl WireInputChunk {
    /// The piece's place in the input; an error if the piece is too long.
    pub fn place(&self) -> Result<Place, FrameError> {
        let place = Place { offset: self.offset, bytes: self.bytes.len(), last: self.last };
        if place.bytes > PIECE_BYTES_MAX { Err(FrameError::Malformed) } else { Ok(place) }
    }
}

/// The wire form of [`Taken`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum WireInputAck {
    UpTo(u64),
    Closed,
}

impl From<Taken> for WireInputAck {
    fn from(taken: Taken) -> Self {
        match taken {
            Taken::UpTo(bytes) => Self::UpTo(bytes),
            Taken::Closed => Self::Closed,
        }
    }
}

impl From<WireInputAck> for Taken {
    fn from(taken: WireInputAck) -> Self {
        match taken {
            WireInputAck::UpTo(bytes) => Self::UpTo(bytes),
            WireInputAck::Closed => Self::Closed,
        }
    }
}
