//! A terminal for a command's first rank.

use crate::v1;
use lattice_model::launch::TerminalSize;

/// Its size; 0 is the usual one, and what no terminal has is the largest there is.
pub(super) fn to_model(size: v1::TerminalSize) -> TerminalSize {
    let of = |given: u32, usual: u16| if given == 0 { usual } else { u16::try_from(given).unwrap_or(u16::MAX) };
    let usual = TerminalSize::default();
    TerminalSize { rows: of(size.rows, usual.rows), columns: of(size.columns, usual.columns) }
}

pub(super) fn from_model(size: TerminalSize) -> v1::TerminalSize {
    v1::TerminalSize { rows: size.rows.into(), columns: size.columns.into() }
}
