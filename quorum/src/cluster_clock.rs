//! The time of log entries: no single clock determines it, and a jump of a clock does not move it.
//!
//! ```text
//!   each member's clock ──answers to Raft's messages──▶ compare: which clocks does a majority agree on?
//!                                                          │ agreed time
//!   the machine's uptime ──elapsed time──▶ ClusterClock ──▶ Command::at
//! ```
//!
//! During a term, the time advances with the leader's uptime, which nobody can set, corrected
//! towards the agreed time by at most a tenth of the elapsed time. Only the first agreed time of a
//! term may be far ahead, because nobody has measured how long there was no leader. Decision 0064.

use lattice_model::{Timestamp, millis};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Largest difference between clocks that agree, in milliseconds.
pub const APART_MS_MAX: u64 = 5_000;
/// How long a reading of another member's clock can be used.
const READING_AGE_MAX: Duration = Duration::from_secs(10);
/// The largest correction towards the agreed time: this fraction (1/10) of the elapsed time.
const SLEW_PART: u32 = 10;

/// A reading of another member's clock, with this member's uptime at the reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    pub shows: Timestamp,
    pub at: Duration,
}

impl Reading {
    /// The time of that clock now; `None`: the reading is too old.
    fn by(&self, now: Duration) -> Option<Timestamp> {
        let passed = now.saturating_sub(self.at);
        (passed <= READING_AGE_MAX).then(|| Timestamp(self.shows.0.saturating_add(millis(passed))))
    }
}

/// The comparison of the members' clocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// The time on which a majority of clocks agrees: this member's own, if it belongs to that
    /// majority.
    pub agreed: Option<Timestamp>,
    /// Members whose clocks show another time, with the number of milliseconds that they are ahead
    /// of the agreed time.
    pub apart: BTreeMap<u64, i64>,
    /// Members whose clocks could be read.
    pub read: BTreeSet<u64>,
}

/// Compares the clocks of the voters. `votes`: the sets of voters; a majority of each set must agree.
/// `shown`: the time of this member's own clock at `now`.
pub fn compare(votes: &[BTreeSet<u64>], (this, shown): (u64, Timestamp), readings: &BTreeMap<u64, Reading>, now: Duration) -> Comparison {
    let voters: BTreeSet<u64> = votes.iter().flatten().copied().collect();
    let shows = |id: u64| if id == this { Some(shown) } else { readings.get(&id)?.by(now) };
    let mut clocks: Vec<(Timestamp, u64)> = voters.iter().filter_map(|id| Some((shows(*id)?, *id))).collect();
    clocks.sort_unstable();
    let is_majority = |some: &[(Timestamp, u64)]| {
        let of = |set: &BTreeSet<u64>| some.iter().filter(|(_, id)| set.contains(id)).count() * 2 > set.len();
        !votes.is_empty() && votes.iter().all(of)
    };
    let together = (0..clocks.len()).map(|first| {
        let upto = clocks.partition_point(|(shows, _)| shows.0 <= clocks[first].0.0.saturating_add(APART_MS_MAX));
        &clocks[first..upto]
    });
    let has_this = |some: &&[(Timestamp, u64)]| some.iter().any(|(_, id)| *id == this);
    let majority = together.filter(|some| is_majority(some)).max_by_key(|some| (has_this(some), some.len()));
    let agreed = majority.map(|some| if has_this(&some) { shown } else { some[some.len() / 2].0 });
    let apart = agreed.map(|agreed| {
        let ahead = |shows: Timestamp| i64::try_from(i128::from(shows.0) - i128::from(agreed.0)).unwrap_or(i64::MAX);
        let apart = clocks.iter().map(|(shows, id)| (*id, ahead(*shows)));
        apart.filter(|(_, ahead)| ahead.unsigned_abs() > APART_MS_MAX).collect()
    });
    Comparison { agreed, apart: apart.unwrap_or_default(), read: clocks.into_iter().map(|(_, id)| id).collect() }
}

/// The time of one term.
#[derive(Debug, Default)]
pub struct ClusterClock {
    term: u64,
    /// Since 1970, at the uptime `at`.
    time: Duration,
    at: Duration,
    /// Whether a majority has agreed on a time in this term.
    is_settled: bool,
    /// The time of the last entry that was proposed, or applied before this term.
    stamped: Timestamp,
}

impl ClusterClock {
    /// Starts a new term of this member as leader: the time continues from the last applied entry,
    /// or, if there is none, from this member's own clock.
    pub fn begin(&mut self, term: u64, last: Timestamp, shown: Timestamp, now: Duration) {
        if self.term == term {
            return;
        }
        let from = if last == Timestamp(0) { shown } else { last };
        *self = Self { term, time: Duration::from_millis(from.0), at: now, is_settled: false, stamped: last };
    }

    /// Advances the time to `now`, corrected towards the agreed time. It never goes back.
    pub fn advance(&mut self, agreed: Option<Timestamp>, now: Duration) -> Timestamp {
        let passed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        let steady = self.time.saturating_add(passed);
        self.time = match agreed.map(|agreed| Duration::from_millis(agreed.0)) {
            None => steady,
            Some(agreed) if !self.is_settled => {
                self.is_settled = true;
                steady.max(agreed)
            }
            Some(agreed) => {
                let slew = passed / SLEW_PART;
                agreed.clamp(steady.saturating_sub(slew), steady.saturating_add(slew))
            }
        };
        self.time()
    }

    /// The time as of the last [`Self::advance`].
    pub fn time(&self) -> Timestamp {
        Timestamp(millis(self.time))
    }

    /// The time for an entry that is being proposed, and the number of milliseconds since the
    /// previous entry.
    pub fn stamp(&mut self) -> (Timestamp, u64) {
        let time = self.time();
        let since_ms = time.since_ms(self.stamped);
        self.stamped = self.stamped.max(time);
        (time, since_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: fn(u64) -> Duration = Duration::from_secs;
    const TEN_YEARS_MS: u64 = 10 * 365 * 86_400_000;
    /// The correct time at the uptime 0.
    const EPOCH_MS: u64 = 1_772_704_812_000;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(EPOCH_MS + seconds * 1000)
    }

    fn three() -> Vec<BTreeSet<u64>> {
        vec![BTreeSet::from([1, 2, 3])]
    }

    fn readings(of: &[(u64, Timestamp, Duration)]) -> BTreeMap<u64, Reading> {
        of.iter().map(|(id, shows, at)| (*id, Reading { shows: *shows, at: *at })).collect()
    }

    #[test]
    fn a_majority_decides_and_other_clocks_are_named_with_their_difference() {
        let wrong = Timestamp(at(0).0 + TEN_YEARS_MS);
        let others = readings(&[(2, at(0), S(0)), (3, at(1), S(0))]);
        let all_well = compare(&three(), (1, at(2)), &others, S(1));
        assert_eq!((all_well.agreed, all_well.apart), (Some(at(2)), BTreeMap::new()), "its own, where it is one of them");
        let leader_wrong = compare(&three(), (1, wrong), &others, S(0));
        assert_eq!(leader_wrong.agreed, Some(at(1)));
        assert_eq!(leader_wrong.apart.keys().copied().collect::<Vec<_>>(), [1]);
        let other = compare(&three(), (1, at(1)), &readings(&[(2, at(0), S(0)), (3, wrong, S(0))]), S(1));
        assert_eq!((other.agreed, other.apart), (Some(at(1)), BTreeMap::from([(3, i64::try_from(TEN_YEARS_MS).unwrap())])));
    }

    #[test]
    fn without_a_majority_that_agrees_there_is_no_time() {
        let none = |votes: &[BTreeSet<u64>], others: &BTreeMap<u64, Reading>, now| compare(votes, (1, at(now)), others, S(now)).agreed;
        assert_eq!(none(&three(), &BTreeMap::new(), 0), None, "nobody was asked");
        assert_eq!(none(&three(), &readings(&[(2, at(60), S(0))]), 0), None, "one says so, one says otherwise");
        let one = readings(&[(2, at(0), S(0))]);
        assert_eq!((none(&three(), &one, 10), none(&three(), &one, 11)), (Some(at(10)), None), "what was read long ago says nothing");
        assert_eq!(none(&[BTreeSet::from([1])], &BTreeMap::new(), 7), Some(at(7)), "one member believes itself");
        // During a membership change: a majority of both sets.
        let joint = [BTreeSet::from([1, 2]), BTreeSet::from([1, 2, 3, 4, 5])];
        assert_eq!(none(&joint, &one, 0), None);
        assert_eq!(none(&joint, &readings(&[(2, at(0), S(0)), (5, at(0), S(0))]), 0), Some(at(0)));
        assert_eq!(none(&[], &one, 0), None);
    }

    #[test]
    fn a_term_begins_with_the_agreed_time_however_long_nobody_led() {
        let month = 30 * 86_400;
        let mut clock = ClusterClock::default();
        clock.begin(5, at(0), at(month), S(100));
        assert_eq!(clock.advance(None, S(101)), at(1), "the others' clocks are not known yet");
        assert_eq!(clock.stamp(), (at(1), 1000));
        assert_eq!(clock.advance(Some(at(month)), S(102)), at(month));
        assert_eq!(clock.stamp(), (at(month), u64::from(u32::try_from(month - 1).unwrap()) * 1000));
        // Only once.
        assert_eq!(clock.advance(Some(at(month * 2)), S(112)), at(month + 11));
        clock.begin(5, at(0), at(0), S(120));
        assert_eq!(clock.time(), at(month + 11), "the same term");
        // A clock that is behind the last entry does not move the time back.
        clock.begin(6, at(month), at(0), S(200));
        assert_eq!(clock.advance(Some(at(0)), S(210)), at(month + 10));
        assert_eq!(clock.advance(Some(at(0)), S(220)), at(month + 19), "it is drawn there slowly");
        // The very first term.
        clock.begin(7, Timestamp(0), at(3), S(300));
        assert_eq!(clock.time(), at(3));
    }

    proptest! {
        /// Whatever the leader's own clock shows, and whichever members answer: during a term, the
        /// time never goes back and differs from the uptime by at most a tenth; with two correct
        /// clocks of three it stays correct.
        #[test]
        fn no_jump_of_the_leaders_clock_moves_the_time(
            jumps in proptest::collection::vec((1u64..20_000, prop_oneof![
                Just(0i64),
                Just(i64::try_from(TEN_YEARS_MS).unwrap()),
                Just(-i64::try_from(TEN_YEARS_MS).unwrap()),
                -20_000i64..20_000,
            ]), 1..60),
        ) {
            let mut clock = ClusterClock::default();
            let (mut now, mut last) = (Duration::ZERO, at(0));
            clock.begin(1, at(0), at(0), now);
            let right = |now: Duration| Timestamp(EPOCH_MS + millis(now));
            for (pause, jump) in jumps {
                now += Duration::from_millis(pause);
                let others = readings(&[(2, right(now), now), (3, right(now), now)]);
                let shown = Timestamp(right(now).0.saturating_add_signed(jump));
                let agreed = compare(&three(), (1, shown), &others, now).agreed;
                let time = clock.advance(agreed, now);
                let passed = time.since_ms(last);
                prop_assert!(time >= last && (pause * 9 / 10..=pause * 11 / 10 + 1 + APART_MS_MAX).contains(&passed), "{passed} in {pause}");
                prop_assert!(time.0.abs_diff(right(now).0) <= APART_MS_MAX + 1, "{time} and not {}", right(now));
                last = time;
            }
        }

        /// A single member has no other clock to compare with: a jump moves the time only by a
        /// tenth of its duration.
        #[test]
        fn the_jump_of_a_lone_members_clock_is_followed_slowly(lasts_ms in 1u64..3_600_000, ahead in any::<bool>()) {
            let mut clock = ClusterClock::default();
            clock.begin(1, at(0), at(0), S(0));
            clock.advance(Some(at(0)), S(0));
            let right = EPOCH_MS + lasts_ms;
            let shown = Timestamp(if ahead { right + TEN_YEARS_MS } else { right - TEN_YEARS_MS });
            let time = clock.advance(Some(shown), Duration::from_millis(lasts_ms));
            prop_assert!(time.0.abs_diff(right) <= lasts_ms / 10 + 1);
        }
    }
}
