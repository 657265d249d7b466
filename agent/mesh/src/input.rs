//! Standard input of a launch, on the wire.

use super::frame::FrameError;
use lattice_model::input::{PIECE_BYTES_MAX, Place, Taken};
use rkyv::{Archive, Deserialize, Serialize};

/// A piece of it, for every rank below that reads it.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WirePiece {
    /// Bytes before it.
    pub offset: u64,
    pub bytes: Vec<u8>,
    /// Nothing follows.
    pub last: bool,
}

impl WirePiece {
    /// Where it belongs, of one that is not too long.
    pub fn place(&self) -> Result<Place, FrameError> {
        let place = Place { offset: self.offset, bytes: self.bytes.len(), last: self.last };
        if place.bytes > PIECE_BYTES_MAX { Err(FrameError::Malformed) } else { Ok(place) }
    }
}

/// [`Taken`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum WireTaken {
    UpTo(u64),
    Over,
}

impl From<Taken> for WireTaken {
    fn from(taken: Taken) -> Self {
        match taken {
            Taken::UpTo(bytes) => Self::UpTo(bytes),
            Taken::Over => Self::Over,
        }
    }
}

impl From<WireTaken> for Taken {
    fn from(taken: WireTaken) -> Self {
        match taken {
            WireTaken::UpTo(bytes) => Self::UpTo(bytes),
            WireTaken::Over => Self::Over,
        }
    }
}
