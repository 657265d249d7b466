//! What a disk has too little room for.

use lattice_model::resources::bytes_text;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What there is no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Lack {
    /// Nothing new is taken; what ends work, gives something back or keeps nodes in touch is.
    New,
    /// Nothing is taken.
    All,
}

/// A disk with too little room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shortage {
    /// The member's folder there.
    pub dir: String,
    /// Bytes that are free, the reserve not counted.
    pub free_bytes: u64,
    /// As many must be free before everything is taken again.
    pub wanted_bytes: u64,
    /// What is therefore not taken.
    pub lack: Lack,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (free, wanted) = (bytes_text(self.free_bytes), bytes_text(self.wanted_bytes));
        let taken = match self.lack {
            Lack::New => "nothing new is taken",
            Lack::All => "nothing is taken",
        };
        write!(f, "the disk of {} is full ({free} are free, {wanted} are needed): {taken}", self.dir)
    }
}
