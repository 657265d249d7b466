//! Standard input of a launch: who reads it, and what is kept of it until they have.
//!
//! ```text
//!   pipe ─▶ CLI ─▶ head ─▶ agents of the tree ─▶ shims ─▶ pipes of ranks      pieces, each with its place
//!            ◀────────────── Taken ──────────────────      the least that all of them took
//! ```
//!
//! Everybody on the way but the shim keeps what was not taken in a [`Window`]. A shim takes each byte once, by its place: whoever is
//! connected anew sends again from where the shims are, and nothing is lost or doubled.
//!
//! Fences and ends are state and can be sent again; input exists once, in the pipe of who typed
//! `lattice launch`. An acknowledgement at each hop would lose what an agent had acknowledged and
//! not passed on. Input does not outlive the CLI: if it is killed the ranks see no end, because
//! half an input that ends properly would be taken for a whole one. Work that may begin again
//! cannot have its input again: `--requeue` and `--stdin` are refused together. The first rank
//! reads by default, as with `mpiexec`.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The variable by which a launch says which of its ranks read standard input: one of [`Stdin`]'s names. Unset: none. A variable
/// and no field, as [`crate::launch::PMI_VARIABLE`].
pub const STDIN_VARIABLE: &str = "LATTICE_STDIN";
/// Bytes of one piece at most.
pub const PIECE_BYTES_MAX: usize = 64 * 1024;
/// Bytes of one launch that were sent and not taken yet, at most.
pub const WINDOW_BYTES: usize = 1024 * 1024;
/// Pieces of it at most.
pub const WINDOW_PIECES: usize = 64;

/// Which ranks of a launch read the standard input of whoever began it. The others find it empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Stdin {
    #[default]
    None,
    Rank(u32),
    All,
}

impl Stdin {
    /// Whether this rank reads it.
    pub fn is_for(self, rank: u32) -> bool {
        match self {
            Self::None => false,
            Self::Rank(reader) => reader == rank,
            Self::All => true,
        }
    }

    /// Whether a launch of so many ranks can have it so; `pty`: its first rank has a terminal.
    ///
    /// # Errors
    /// Why not.
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
            rank => rank.parse().map(Self::Rank).map_err(|_| NoSuchStdin::Word { asked: asked.to_owned() }),
        }
    }
}

/// Why standard input cannot go where it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoSuchStdin {
    #[error("standard input for {asked}: there is all, none, and a rank's number")]
    Word { asked: String },
    #[error("standard input for rank {rank}: the launch has {ranks} ranks, the first is 0")]
    Rank { rank: u32, ranks: u32 },
    #[error("standard input for a launch whose first rank has a terminal: that is its standard input")]
    Terminal,
}

/// How much of the input is taken. What is less was taken by fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Taken {
    /// So many bytes from its beginning, by each rank that still reads.
    UpTo(u64),
    /// No rank reads any more, or each was given the end.
    Over,
}

/// Where a piece belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Bytes before it.
    pub offset: u64,
    pub bytes: usize,
    /// Whether nothing follows.
    pub last: bool,
}

impl Place {
    /// Bytes up to its end.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes as u64)
    }

    fn is_taken(&self, taken: Taken) -> bool {
        match taken {
            Taken::UpTo(bytes) => self.end() <= bytes && !self.last,
            Taken::Over => true,
        }
    }
}

/// What became of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    New,
    /// It was there already.
    Known,
    /// It does not follow what is there, or is from before all that ever was, or there is no room for it.
    Astray,
}

/// Pieces that were sent and not taken yet.
#[derive(Clone, Debug)]
pub struct Window<P> {
    pieces: VecDeque<(Place, P)>,
    bytes: usize,
    /// Where the first piece of all began, and where the next one begins; `None`: anywhere.
    span: Option<(u64, u64)>,
    /// The last one came.
    over: bool,
}

impl<P> Default for Window<P> {
    fn default() -> Self {
        Self { pieces: VecDeque::new(), bytes: 0, span: None, over: false }
    }
}

impl<P> Window<P> {
    /// Whether there is room for any one more.
    pub fn has_room(&self) -> bool {
        self.bytes + PIECE_BYTES_MAX <= WINDOW_BYTES && self.pieces.len() < WINDOW_PIECES
    }

    /// Takes the next piece.
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

    /// Lets go of what is taken.
    pub fn let_go(&mut self, taken: Taken) {
        while let Some((place, _)) = self.pieces.front().filter(|(place, _)| place.is_taken(taken)) {
            self.bytes -= place.bytes;
            self.pieces.pop_front();
        }
    }

    /// What is not taken, in order.
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
    fn words_and_ranks_are_read_back_and_what_cannot_be_is_refused() {
        for stdin in [Stdin::None, Stdin::All, Stdin::Rank(0), Stdin::Rank(7)] {
            assert_eq!(stdin.to_string().parse(), Ok(stdin));
        }
        for word in ["", "-1", "every", "1,2"] {
            assert!(word.parse::<Stdin>().is_err(), "{word}");
        }
        assert_eq!(Stdin::Rank(3).check(4, false), Ok(()));
        assert_eq!(Stdin::Rank(4).check(4, false), Err(NoSuchStdin::Rank { rank: 4, ranks: 4 }));
        assert_eq!((Stdin::All.check(1, true), Stdin::None.check(1, true)), (Err(NoSuchStdin::Terminal), Ok(())));
    }

    #[test]
    fn what_is_not_taken_is_kept_in_order_and_sent_again() {
        let mut window = Window::default();
        for (at, piece) in [(0, 'a'), (10, 'b'), (20, 'c')] {
            assert_eq!(window.push(place(at, 10, false), piece), Pushed::New);
        }
        assert_eq!(window.push(place(20, 10, false), 'c'), Pushed::Known);
        assert_eq!(window.push(place(40, 10, false), 'x'), Pushed::Astray);
        window.let_go(Taken::UpTo(15));
        let kept = |window: &Window<char>, taken| window.beyond(taken).copied().collect::<String>();
        assert_eq!((kept(&window, Taken::UpTo(15)), kept(&window, Taken::UpTo(20))), ("bc".into(), "c".into()));
        // The end is kept until it is passed on, whatever was taken before it; and comes once.
        assert_eq!(window.push(place(30, 0, true), 'e'), Pushed::New);
        assert_eq!(window.push(place(30, 0, true), 'e'), Pushed::Known);
        assert_eq!(window.push(place(30, 1, false), 'x'), Pushed::Astray);
        window.let_go(Taken::UpTo(30));
        assert_eq!(kept(&window, Taken::UpTo(30)), "e");
        window.let_go(Taken::Over);
        assert_eq!(kept(&window, Taken::UpTo(0)), "");
        let mut late = Window::default();
        assert_eq!((late.push(place(10, 10, false), 'b'), late.push(place(10, 10, false), 'b')), (Pushed::New, Pushed::Known));
        assert_eq!(late.push(place(0, 10, false), 'a'), Pushed::Astray, "it was never here");
        assert!(Taken::UpTo(5).min(Taken::Over) == Taken::UpTo(5) && Taken::UpTo(u64::MAX) < Taken::Over);
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
