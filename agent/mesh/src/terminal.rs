//! Messages of a terminal session, between the agent that a user called and the one that has the
//! allocation.

use lattice_runtime::pty::Size;
use rkyv::{Archive, Deserialize, Serialize};

/// A request for a terminal.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct AttachOpen {
    pub allocation: [u8; 16],
    pub epoch: u64,
    /// The program; empty: the owner's shell.
    pub argv: Vec<String>,
    /// The caller's terminal type (`TERM`); empty: none.
    pub term: String,
    pub rows: u16,
    pub columns: u16,
    pub input_is_terminal: bool,
    pub output_is_terminal: bool,
    /// The user for whom the calling agent vouches.
    pub uid: u32,
    pub user: String,
}

/// The user's actions.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum ToTerminal {
    Input(Vec<u8>),
    Size {
        rows: u16,
        columns: u16,
    },
    /// The user closed the input.
    EndOfInput,
}

impl ToTerminal {
    /// Approximate size in memory, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Input(bytes) => size_of::<Self>() + bytes.len(),
            Self::Size { .. } | Self::EndOfInput => size_of::<Self>(),
        }
    }
}

/// Messages to the user. The last one is `Ended` or `Refused`; if the stream ends without it, the
/// connection broke.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum FromTerminal {
    Started,
    Output(Vec<u8>),
    Notice(String),
    Ended { code: i32 },
    Refused { why: String },
}

/// A terminal's size; the default size if one of the two is 0.
pub fn size(rows: u16, columns: u16) -> Size {
    if rows == 0 || columns == 0 { Size::default() } else { Size { rows, columns } }
}
