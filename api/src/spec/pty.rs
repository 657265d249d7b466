//! The terminal of a command's first rank.

use crate::v1;
use lattice_model::launch::TerminalSize;

/// A size of 0 means the default; a larger size than any terminal has is reduced to the maximum.
pub(super) fn to_model(size: v1::TerminalSize) -> TerminalSize {
    let of = |given: u32, usual: u16| if given == 0 { usual } else { u16::try_from(given).unwrap_or(u16::MAX) };
    let usual = TerminalSize::default();
    TerminalSize { rows: of(size.rows, usual.rows), columns: of(size.columns, usual.columns) }
}

pub(super) fn from_model(size: TerminalSize) -> v1::TerminalSize {
    v1::TerminalSize { rows: size.rows.into(), columns: size.columns.into() }
}
