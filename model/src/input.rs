//! Standard input of a launch: which ranks read it, and how it is buffered until they have read it.
//!
//! ```text
//!   pipe ─▶ CLI ─▶ head ─▶ agents of the tree ─▶ shims ─▶ pipes of ranks      pieces, each with its offset
//!            ◀────────────── Taken ──────────────────      the offset that all of them have reached
//! ```
//!
//! Everyone on the path except the shims buffers unacknowledged pieces in a [`Window`]. A shim
//! accepts each byte once, identified by its offset. After a reconnection the sender resends from
//! the offset that the shims have reached, so nothing is lost or duplicated.
//!
//! Acknowledgements come from the shims and not from each hop: an agent that acknowledged input and
//! failed before forwarding it would lose it, and unlike fences and exits, input cannot be
//! generated again. Input ends with the CLI. If the CLI is killed, the ranks see no end of file,
//! because they would mistake half of the input for all of it. Requeued work cannot get its input a
//! second time, so `--requeue` and `--stdin` are refused together. The first rank reads by default,
//! as with `mpiexec`.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The environment variable by which a launch states which of its ranks read standard input: one of
/// [`Stdin`]'s names. Unset: none. It is a variable and not a field for the same reasons as
/// [`crate::launch::PMI_VARIABLE`].
pub const STDIN_VARIABLE: &str = "LATTICE_STDIN";
/// Largest size of one piece, in bytes.
pub const PIECE_BYTES_MAX: usize = 64 * 1024;
/// Largest amount of unacknowledged input of one launch, in bytes.
pub const WINDOW_BYTES: usize = 1024 * 1024;
/// Largest number of unacknowledged pieces of one launch.
pub const WINDOW_PIECES: usize = 64;

/// Which ranks of a launch read the standard input of the user who started it. Other ranks have an
/// empty input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Stdin {
    #[default]
    None,
    Rank(u32),
    All,
}

impl Stdin {
    /// Whether this rank reads the input.
    pub fn is_for(self, rank: u32) -> bool {
        match self {
            Self::None => false,
            Self::Rank(reader) => reader == rank,
            Self::All => true,
        }
    }

    /// Whether a launch of this many ranks can use this setting; `pty`: its first rank has a
    /// terminal.
    ///
    /// # Errors
    /// The reason why not.
    pub fn check(self, ranks: u32, pty: bool) -> Result<(), NoSuchStdin> {
        match self {
            Self::None => Ok(()),
            _ if pty => Err(NoSuchStdin::Terminal),
            Self::Rank(rank) if rank >= ranks => Err(NoSuchStdin::Rank { rank, ranks }),
            Self::Rank(_) | Self::All => Ok(()),
        }
    }
}

impl fmt::Display for Stdin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Rank(rank) => rank.fmt(f),
            Self::All => f.write_str("all"),
        }
    }
}

impl FromStr for Stdin {
    type Err = NoSuchStdin;

    fn from_str(asked: &str) -> Result<Self, NoSuchStdin> {
        match asked {
            "none" => Ok(Self::None),
            "all" => Ok(Self::All),
            rank => rank.parse().map(Self::Rank).map_err(|_| NoSuchStdin::Unknown { asked: asked.to_owned() }),
        }
    }
}

/// Why standard input cannot be delivered as requested.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoSuchStdin {
    #[error("standard input for {asked}: give all, none or a rank's number")]
    Unknown { asked: String },
    #[error("standard input for rank {rank}: the launch has {ranks} ranks, the first is 0")]
    Rank { rank: u32, ranks: u32 },
    #[error("standard input cannot be sent to a launch whose first rank has a terminal: give none")]
    Terminal,
}

/// How much of the input all receivers have accepted; values are ordered, and the least of several
/// applies to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Taken {
    /// This many bytes from the beginning, by each rank that still reads.
    UpTo(u64),
    /// No rank reads any more, or each has received the end of file.
    Closed,
}

/// The position of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of bytes before it.
    pub offset: u64,
    pub bytes: usize,
    /// Whether it is the last piece.
    pub last: bool,
}

impl Place {
    /// The offset of its end.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes as u64)
    }

    fn is_taken(&self, taken: Taken) -> bool {
        match taken {
            Taken::UpTo(bytes) => self.end() <= bytes && !self.last,
            Taken::Closed => true,
        }
    }
}

/// The result of adding a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    New,
    /// The piece was already there.
    Known,
    /// The piece does not follow the previous one, or precedes the window, or the window is full.
    Astray,
}

/// Buffered pieces that are not acknowledged yet.
#[derive(Clone, Debug)]
pub struct Window<P> {
    pieces: VecDeque<(Place, P)>,
    bytes: usize,
    /// The offsets where the first piece began and where the next one begins; `None`: any offset is
    /// accepted.
    span: Option<(u64, u64)>,
    /// Whether the last piece has arrived.
    over: bool,
}

impl<P> Default for Window<P> {
    fn default() -> Self {
        Self { pieces: VecDeque::new(), bytes: 0, span: None, over: false }
    }
}

impl<P> Window<P> {
    /// Whether there is room for one more piece of any size.
    pub fn has_room(&self) -> bool {
        self.bytes + PIECE_BYTES_MAX <= WINDOW_BYTES && self.pieces.len() < WINDOW_PIECES
    }

    /// Adds the next piece.
    pub fn push(&mut self, place: Place, piece: P) -> Pushed {
        let (begin, end) = self.span.unwrap_or((place.offset, place.offset));
        if self.span.is_some() && begin <= place.offset && place.end() <= end && (self.over || !place.last) {
            return Pushed::Known;
        }
        if self.over || place.offset != end || place.bytes > PIECE_BYTES_MAX || !self.has_room() {
            return Pushed::Astray;
        }
        self.bytes += place.bytes;
        (self.span, self.over) = (Some((begin, place.end())), place.last);
        self.pieces.push_back((place, piece));
        Pushed::New
    }

    /// Drops the acknowledged pieces.
    pub fn let_go(&mut self, taken: Taken) {
        while let Some((place, _)) = self.pieces.front().filter(|(place, _)| place.is_taken(taken)) {
            self.bytes -= place.bytes;
            self.pieces.pop_front();
        }
    }

    /// The pieces beyond the acknowledged offset, in order.
    pub fn beyond(&self, taken: Taken) -> impl Iterator<Item = &P> {
        self.pieces.iter().filter(move |(place, _)| !place.is_taken(taken)).map(|(_, piece)| piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(offset: u64, bytes: usize, last: bool) -> Place {
        Place { offset, bytes, last }
    }

    #[test]
    fn valid_readers_are_parsed_and_impossible_ones_refused() {
        for stdin in [Stdin::None, Stdin::All, Stdin::Rank(0), Stdin::Rank(7)] {
            assert_eq!(stdin.to_string().parse(), Ok(stdin));
        }
        for text in ["", "-1", "every", "1,2"] {
            assert!(text.parse::<Stdin>().is_err(), "{text}");
        }
        assert_eq!(Stdin::Rank(3).check(4, false), Ok(()));
        assert_eq!(Stdin::Rank(4).check(4, false), Err(NoSuchStdin::Rank { rank: 4, ranks: 4 }));
        assert_eq!((Stdin::All.check(1, true), Stdin::None.check(1, true)), (Err(NoSuchStdin::Terminal), Ok(())));
    }

    #[test]
    fn unacknowledged_pieces_are_kept_in_order() {
        let mut window = Window::default();
        for (at, piece) in [(0, 'a'), (10, 'b'), (20, 'c')] {
            assert_eq!(window.push(place(at, 10, false), piece), Pushed::New);
        }
        assert_eq!(window.push(place(20, 10, false), 'c'), Pushed::Known);
        assert_eq!(window.push(place(40, 10, false), 'x'), Pushed::Astray);
        window.let_go(Taken::UpTo(15));
        let kept = |window: &Window<char>, taken| window.beyond(taken).copied().collect::<String>();
        assert_eq!((kept(&window, Taken::UpTo(15)), kept(&window, Taken::UpTo(20))), ("bc".into(), "c".into()));
        // The end-of-input piece stays until it is acknowledged itself, whatever was acknowledged
        // before; and it is accepted once.
        assert_eq!(window.push(place(30, 0, true), 'e'), Pushed::New);
        assert_eq!(window.push(place(30, 0, true), 'e'), Pushed::Known);
        assert_eq!(window.push(place(30, 1, false), 'x'), Pushed::Astray);
        window.let_go(Taken::UpTo(30));
        assert_eq!(kept(&window, Taken::UpTo(30)), "e");
        window.let_go(Taken::Closed);
        assert_eq!(kept(&window, Taken::UpTo(0)), "");
        let mut late = Window::default();
        assert_eq!((late.push(place(10, 10, false), 'b'), late.push(place(10, 10, false), 'b')), (Pushed::New, Pushed::Known));
        assert_eq!(late.push(place(0, 10, false), 'a'), Pushed::Astray, "it was never here");
        assert!(Taken::UpTo(5).min(Taken::Closed) == Taken::UpTo(5) && Taken::UpTo(u64::MAX) < Taken::Closed);
    }

    #[test]
    fn a_window_is_full_by_bytes_and_by_pieces_and_then_takes_nothing() {
        let full = |bytes: usize| {
            let mut window = Window::default();
            let mut at = 0;
            while window.has_room() {
                assert_eq!(window.push(place(at, bytes, false), ()), Pushed::New);
                at += bytes as u64;
            }
            assert_eq!(window.push(place(at, bytes, false), ()), Pushed::Astray);
            window.pieces.len()
        };
        assert_eq!((full(PIECE_BYTES_MAX), full(1)), (WINDOW_BYTES / PIECE_BYTES_MAX, WINDOW_PIECES));
        assert_eq!(Window::default().push(place(0, PIECE_BYTES_MAX + 1, false), ()), Pushed::Astray);
    }
}
