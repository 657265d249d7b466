//! The phases of shares, by rank.

use crate::claim::SharePhase;

/// Shares in one word, two bits each.
const WORD_SHARES: usize = 32;

/// Two bits for each share, and how many shares are in each phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Phases {
    /// Those of the first 32 ranks: few allocations have more, and these alone have a block of
    /// memory for the rest.
    first: u64,
    rest: Box<[u64]>,
    /// By the number of the phase.
    counts: [u32; 3],
}

/// The bits of a phase, which is also its place among the counts.
fn number(phase: SharePhase) -> usize {
    match phase {
        SharePhase::Claimed => 0,
        SharePhase::Prepared => 1,
        SharePhase::Released => 2,
    }
}

fn of_number(number: u64) -> SharePhase {
    match number & 0b11 {
        0 => SharePhase::Claimed,
        1 => SharePhase::Prepared,
        // The bits are written by `set` alone.
        _ => SharePhase::Released,
    }
}

/// The word of a rank, and the place of its bits there.
fn place(rank: u32) -> (usize, usize) {
    (rank as usize / WORD_SHARES, rank as usize % WORD_SHARES * 2)
}

impl Phases {
    /// Of this many shares, all claimed. There are at most `u32::MAX`.
    pub fn claimed(len: usize) -> Self {
        let words = len.div_ceil(WORD_SHARES);
        let claimed = u32::try_from(len).unwrap_or(u32::MAX);
        Self { first: 0, rest: vec![0; words.saturating_sub(1)].into(), counts: [claimed, 0, 0] }
    }

    /// The phase of a rank.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn get(&self, rank: u32) -> SharePhase {
        let (word, bits) = place(rank);
        let word = if word == 0 { self.first } else { self.rest[word - 1] };
        of_number(word >> bits)
    }

    /// Sets the phase of a rank. Returns whether it was another one.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn set(&mut self, rank: u32, phase: SharePhase) -> bool {
        let before = self.get(rank);
        if before == phase {
            return false;
        }
        let (word, bits) = place(rank);
        let word = if word == 0 { &mut self.first } else { &mut self.rest[word - 1] };
        *word = *word & !(0b11 << bits) | (number(phase) as u64) << bits;
        self.counts[number(before)] -= 1;
        self.counts[number(phase)] += 1;
        true
    }

    /// The number of shares in this phase.
    pub fn count(&self, phase: SharePhase) -> usize {
        self.counts[number(phase)] as usize
    }
}
