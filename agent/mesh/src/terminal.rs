//! What travels of a terminal between the agent that a user asked and the one that has the allocation.

use lattice_runtime::pty::Size;
use rkyv::{Archive, Deserialize, Serialize};

/// A terminal that a user wants.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct AttachOpen {
    pub allocation: [u8; 16],
    pub epoch: u64,
    /// Empty: the owner's shell.
    pub argv: Vec<String>,
    /// The caller's kind of terminal; empty: none.
    pub term: String,
    pub rows: u16,
    pub columns: u16,
    pub input_is_terminal: bool,
    pub output_is_terminal: bool,
    /// The user for whom the calling agent vouches.
    pub uid: u32,
    pub user: String,
}

/// What the user does.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum ToTerminal {
    Input(Vec<u8>),
    Size {
        rows: u16,
        columns: u16,
    },
    /// Nothing more will be typed.
    EndOfInput,
}

impl ToTerminal {
    /// About how many bytes it takes to keep.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Input(bytes) => size_of::<Self>() + bytes.len(),
            Self::Size { .. } | Self::EndOfInput => size_of::<Self>(),
        }
    }
}

/// What the user sees. The last is `Ended` or `Refused`; a stream that ends without is one that broke.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum FromTerminal {
    Started,
    Output(Vec<u8>),
    Notice(String),
    Ended { code: i32 },
    Refused { why: String },
}

/// A terminal's size; without one, the usual.
pub fn size(rows: u16, columns: u16) -> Size {
    if rows == 0 || columns == 0 { Size::default() } else { Size { rows, columns } }
}
