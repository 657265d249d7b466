//! Whether a launch hangs: all its ranks, on all its nodes, do nothing for a long time. Pure.
//!
//! Each node says how long its own ranks of a launch have done nothing; who has all nodes' words decides. A rank that waits in a loop
//! uses a processor, and is not told apart from one that computes: a launch that is told to hang does, and one that hangs need not be told.

/// Ranks that together used less than this share of a processor each, since the look before, did nothing.
const IDLE_CORES_PER_PROCESS: f64 = 0.01;
/// However many they are, who uses this much together does something: one of many computes, and the others wait for it.
const IDLE_CORES_MAX: f64 = 0.25;

/// One launch's ranks on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle {
    /// Processor time at the last look, in microseconds.
    pub used_us: u64,
    /// When that was.
    pub at_ms: u64,
    /// Since when they do nothing, as far as it was seen.
    pub since_ms: u64,
    /// Whether they were seen to do something at [`Self::since_ms`]; else they were first looked at then.
    pub moved: bool,
}

impl Idle {
    /// Looked at for the first time.
    pub fn new(at_ms: u64, used_us: u64) -> Self {
        Self { used_us, at_ms, since_ms: at_ms, moved: false }
    }

    /// One more look. `processes`: how many they are; `also`: whether something else of theirs moved.
    pub fn look(&mut self, at_ms: u64, used_us: u64, processes: u64, also: bool) {
        let Some(passed_ms) = at_ms.checked_sub(self.at_ms).filter(|ms| *ms > 0) else { return };
        let used_ms = used_us.saturating_sub(self.used_us) as f64 / 1e3;
        let idle_cores = (IDLE_CORES_PER_PROCESS * processes.max(1) as f64).min(IDLE_CORES_MAX);
        // A count that fell is of other processes.
        if also || used_us < self.used_us || used_ms > passed_ms as f64 * idle_cores {
            (self.since_ms, self.moved) = (at_ms, true);
        }
        (self.used_us, self.at_ms) = (used_us, at_ms);
    }

    /// For how long they were seen to do nothing. The time since the last look counts for nothing: they may have gone on in it.
    pub fn idle_ms(&self) -> u64 {
        self.at_ms.saturating_sub(self.since_ms)
    }

    /// What this node says of them.
    pub fn word(&self) -> Word {
        Word::There { idle_ms: self.idle_ms(), moved: self.moved }
    }
}

/// What one node says of its ranks of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// It has none (any more).
    None,
    /// They have done nothing for so long; `moved`: they were seen to do something before, else it may be longer.
    There { idle_ms: u64, moved: bool },
    /// It does not say.
    Silent,
}

/// What follows from all nodes' words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All of them have done nothing for that long.
    Hangs,
    /// One of them did something, or none is left.
    Moves,
    /// What is known changes nothing.
    Unsaid,
}

/// Whether a launch hangs, `limit_ms` being how long it may do nothing.
pub fn verdict(words: impl IntoIterator<Item = Word>, limit_ms: u64) -> Verdict {
    let (mut there, mut unsaid) = (false, false);
    for word in words {
        match word {
            Word::None => {}
            Word::There { idle_ms, .. } if idle_ms >= limit_ms => there = true,
            Word::There { moved: true, .. } => return Verdict::Moves,
            Word::There { moved: false, .. } | Word::Silent => unsaid = true,
        }
    }
    match (unsaid, there) {
        (true, _) => Verdict::Unsaid,
        (false, true) => Verdict::Hangs,
        (false, false) => Verdict::Moves,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_begins_anew_and_what_hardly_moves_does_not() {
        let mut idle = Idle::new(1000, 0);
        assert_eq!(idle.word(), Word::There { idle_ms: 0, moved: false });
        idle.look(6000, 49_000, 1, false);
        assert_eq!(idle.word(), Word::There { idle_ms: 5000, moved: false }, "less than a hundredth of 5 s");
        idle.look(11_000, 49_000 + 190_000, 4, false);
        assert_eq!(idle.word(), Word::There { idle_ms: 10_000, moved: false }, "of four processes");
        idle.look(16_000, 300_000, 1, false);
        assert_eq!(idle.word(), Word::There { idle_ms: 0, moved: true });
        idle.look(21_000, 300_000, 1, true);
        assert_eq!(idle.word(), Word::There { idle_ms: 0, moved: true }, "something else of theirs moved");
        idle.look(26_000, 10, 1, false);
        assert_eq!(idle.since_ms, 26_000, "others under the same name");
        idle.look(26_000, 1_000_000, 1, false);
        assert_eq!(idle.used_us, 10, "no time has passed");
    }

    #[test]
    fn one_that_computes_among_many_that_wait_is_seen() {
        let mut idle = Idle::new(0, 0);
        idle.look(5000, 500_000, 128, false);
        assert_eq!(idle.word(), Word::There { idle_ms: 5000, moved: false }, "a tenth of a processor, of 128 processes");
        idle.look(10_000, 5_500_000, 128, false);
        assert_eq!(idle.word(), Word::There { idle_ms: 0, moved: true }, "one whole processor");
    }

    #[test]
    fn a_launch_hangs_where_all_of_it_does_and_moves_where_one_does() {
        let there = |idle_ms, moved| Word::There { idle_ms, moved };
        for (words, verdict_is) in [
            (vec![there(60, true), Word::None, there(61, false)], Verdict::Hangs),
            (vec![there(60, true), there(59, true)], Verdict::Moves),
            (vec![there(60, true), there(59, false)], Verdict::Unsaid),
            (vec![there(60, true), Word::Silent], Verdict::Unsaid),
            (vec![Word::Silent, there(0, true)], Verdict::Moves),
            (vec![Word::None], Verdict::Moves),
        ] {
            assert_eq!(verdict(words.clone(), 60), verdict_is, "{words:?}");
        }
    }
}
