//! The phases of shares, by rank.

use crate::claim::SharePhase;

/// Shares in one word, two bits each.
const WORD_SHARES: usize = 32;

/// The lower bit of each share's two.
const LOWEST_BITS: u64 = u64::MAX / 3;
const PHASES: [SharePhase; 3] = [SharePhase::Claimed, SharePhase::Prepared, SharePhase::Released];

/// Two bits for each share, and how many shares are in each phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Phases {
    /// The phases of the first 32 ranks: few allocations have more, and only those have a block of
    /// memory for the rest.
    first: u64,
    rest: Box<[u64]>,
    /// By the number of the phase.
    counts: [u32; 3],
}

/// The bits of a phase, which are also its index in the counts.
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

    /// The phases of all shares, of which there are `len`, as runs: a number of consecutive ranks,
    /// and their phase. A word of one phase is handled at once.
    pub fn runs(&self, len: usize) -> Vec<(u32, SharePhase)> {
        let mut runs: Vec<(u32, SharePhase)> = Vec::new();
        let mut extend = |count: usize, phase: SharePhase| {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            match runs.last_mut() {
                Some((counted, last)) if *last == phase => *counted += count,
                Some(_) | None => runs.push((count, phase)),
            }
        };
        for (word, begin) in std::iter::once(&self.first).chain(&self.rest).zip((0..len).step_by(WORD_SHARES)) {
            let shares = (len - begin).min(WORD_SHARES);
            if let Some(phase) = PHASES.into_iter().find(|phase| *word == number(*phase) as u64 * LOWEST_BITS) {
                extend(shares, phase);
                continue;
            }
            for place in 0..shares {
                extend(1, of_number(word >> (place * 2)));
            }
        }
        runs
    }

    /// The number of shares in this phase.
    pub fn count(&self, phase: SharePhase) -> usize {
        self.counts[number(phase)] as usize
    }
}
