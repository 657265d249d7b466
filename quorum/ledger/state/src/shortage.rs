//! A shortage of disk space.

use lattice_model::resources::bytes_text;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What is refused because of the shortage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RefusedCommands {
    /// Commands that begin something; commands that end work, release something or keep nodes in
    /// contact are accepted.
    New,
    /// All commands.
    All,
}

/// A disk without enough free space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shortage {
    /// The member's directory on that disk.
    pub dir: String,
    /// Free bytes, without the reserve.
    pub free_bytes: u64,
    /// Free bytes required before everything is accepted again.
    pub wanted_bytes: u64,
    /// What is refused meanwhile.
    pub refuses: RefusedCommands,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (free, wanted) = (bytes_text(self.free_bytes), bytes_text(self.wanted_bytes));
        let taken = match self.refuses {
            RefusedCommands::New => "nothing new is accepted",
            RefusedCommands::All => "nothing is accepted",
        };
        write!(f, "the disk of {} is full ({free} are free, {wanted} are needed): {taken}", self.dir)
    }
}
