//! When the metric of each service is looked at: after a random part of its interval first, and then
//! once in each interval, one look at a time.

use lattice_model::AllocationId;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How many looks are under way at once.
pub const LOOKS_AT_ONCE_MAX: usize = 16;
/// The first look at a service comes this soon, however long its interval is. A lease that often goes
/// from agent to agent must not keep it from ever being looked at.
const FIRST_LOOK_MAX: Duration = Duration::from_secs(60);

/// Looks at a service are further apart than this many of its intervals: nobody knows what was between.
const GAP_INTERVALS: u32 = 3;
/// But a shorter pause than this is no gap: slow looks at other services may have kept this one waiting.
const GAP_MIN: Duration = Duration::from_secs(60);

/// Where a service is in its interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The next look is due at this time.
    Due(Instant),
    /// A look that began at this time is under way.
    UnderWay(Instant),
}

/// See the module documentation.
#[derive(Default)]
pub struct Looks {
    /// The services that are looked at, each with its interval.
    intervals: BTreeMap<AllocationId, Duration>,
    /// Also of services that are no longer looked at, while a look at them is under way.
    turns: BTreeMap<AllocationId, Turn>,
    /// When the last look with a result ended, for each service that is looked at.
    results: BTreeMap<AllocationId, Instant>,
}

impl Looks {
    /// From now on these services are looked at, each with its interval. `part_of` gives a random part
    /// of a time, for the first look at each new one.
    pub fn follow(&mut self, intervals: BTreeMap<AllocationId, Duration>, now: Instant, mut part_of: impl FnMut(Duration) -> Duration) {
        self.turns.retain(|id, turn| intervals.contains_key(id) || matches!(turn, Turn::UnderWay(_)));
        self.results.retain(|id, _| intervals.contains_key(id));
        for (id, interval) in &intervals {
            let turn = self.turns.entry(*id).or_insert_with(|| Turn::Due(now + part_of(FIRST_LOOK_MAX.min(*interval))));
            // With a shorter interval than before, the next look comes earlier.
            if let Turn::Due(at) = turn {
                *at = (*at).min(now + *interval);
            }
        }
        self.intervals = intervals;
    }

    /// The services at which a look begins now, those that are due for the longest time first. Each look
    /// must be [ended](Self::end).
    pub fn begin(&mut self, now: Instant) -> Vec<AllocationId> {
        let is_under_way = |turn: &&Turn| matches!(turn, Turn::UnderWay(_));
        let room = LOOKS_AT_ONCE_MAX.saturating_sub(self.turns.values().filter(is_under_way).count());
        let due_at = |turn: &Turn| match turn {
            Turn::Due(at) => Some(*at),
            Turn::UnderWay(_) => None,
        };
        let mut due: Vec<(Instant, AllocationId)> =
            self.turns.iter().filter_map(|(id, turn)| Some((due_at(turn).filter(|at| *at <= now)?, *id))).collect();
        due.sort_unstable();
        due.truncate(room);
        for (_, id) in &due {
            self.turns.insert(*id, Turn::UnderWay(now));
        }
        due.into_iter().map(|(_, id)| id).collect()
    }

    /// Whether a look that begins now does not follow the last one closely: it is the first one here, or
    /// earlier ones came to no result.
    pub fn is_after_gap(&self, id: AllocationId, now: Instant) -> bool {
        let (Some(interval), Some(last)) = (self.intervals.get(&id), self.results.get(&id)) else { return true };
        now.saturating_duration_since(*last) > interval.saturating_mul(GAP_INTERVALS).max(GAP_MIN)
    }

    /// A look has ended, with a result or without one. The next one begins an interval after it began, or
    /// now if it took longer.
    pub fn end(&mut self, id: AllocationId, now: Instant, has_result: bool) {
        let Some(Turn::UnderWay(began)) = self.turns.remove(&id) else { return };
        if let Some(interval) = self.intervals.get(&id) {
            self.turns.insert(id, Turn::Due((began + *interval).max(now)));
            if has_result {
                self.results.insert(id, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u64) -> AllocationId {
        format!("00000000-0000-4000-8000-{n:012x}").parse().unwrap()
    }

    /// Services in virtual time.
    struct Trial {
        looks: Looks,
        start: Instant,
        second: u64,
    }

    impl Trial {
        fn new() -> Self {
            Self { looks: Looks::default(), start: Instant::now(), second: 0 }
        }

        fn now(&self) -> Instant {
            self.start + Duration::from_secs(self.second)
        }

        /// Services with their intervals in seconds; the first look comes after half of it.
        fn follow(&mut self, services: &[(u64, u64)]) {
            let intervals = services.iter().map(|(n, seconds)| (id(*n), Duration::from_secs(*seconds))).collect();
            let now = self.now();
            self.looks.follow(intervals, now, |time| time / 2);
        }

        /// The seconds in which looks begin, up to `until`; each ends `took` seconds later.
        fn run(&mut self, until: u64, took: u64) -> Vec<(u64, Vec<AllocationId>)> {
            let mut begun = Vec::new();
            let mut under_way: Vec<(AllocationId, u64)> = Vec::new();
            while self.second < until {
                let now = self.now();
                under_way.retain(|(id, end)| {
                    if *end <= self.second {
                        self.looks.end(*id, now, true);
                    }
                    *end > self.second
                });
                let all = self.looks.begin(now);
                under_way.extend(all.iter().map(|id| (*id, self.second + took)));
                if !all.is_empty() {
                    begun.push((self.second, all));
                }
                self.second += 1;
            }
            begun
        }
    }

    fn at(seconds: &[u64], n: u64) -> Vec<(u64, Vec<AllocationId>)> {
        seconds.iter().map(|second| (*second, vec![id(n)])).collect()
    }

    #[test]
    fn the_first_look_is_within_the_interval_and_each_other_one_an_interval_later() {
        let mut trial = Trial::new();
        trial.follow(&[(1, 60)]);
        assert_eq!(trial.run(300, 5), at(&[30, 90, 150, 210, 270], 1));
    }

    #[test]
    fn a_look_that_takes_longer_than_the_interval_never_overlaps_another() {
        let mut trial = Trial::new();
        trial.follow(&[(1, 4)]);
        assert_eq!(trial.run(40, 10), at(&[2, 12, 22, 32], 1));
    }

    #[test]
    fn a_service_with_a_long_interval_is_looked_at_within_a_minute() {
        let mut trial = Trial::new();
        trial.follow(&[(1, 86_400)]);
        assert_eq!(trial.run(200, 1), at(&[30], 1));
    }

    #[test]
    fn a_shorter_interval_holds_at_once_and_a_longer_one_from_the_next_look_on() {
        let mut trial = Trial::new();
        trial.follow(&[(1, 3600)]);
        assert_eq!(trial.run(100, 1), at(&[30], 1));
        trial.follow(&[(1, 10)]);
        assert_eq!(trial.run(125, 1), at(&[110, 120], 1));
        trial.follow(&[(1, 60)]);
        assert_eq!(trial.run(200, 1), at(&[130, 190], 1));
    }

    #[test]
    fn of_many_due_services_the_longest_waiting_come_first() {
        let mut trial = Trial::new();
        trial.follow(&[(9, 2)]);
        trial.second = 1;
        let late: Vec<(u64, u64)> = (1..=20).map(|n| (n, 4)).collect();
        trial.follow(&late);
        trial.second = 10;
        let begun = trial.looks.begin(trial.now());
        assert_eq!(begun.len(), LOOKS_AT_ONCE_MAX);
        assert_eq!(begun[0], id(9), "it was due at the first second");
        assert_eq!(begun[1..], [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16].map(id));
        assert_eq!(trial.looks.begin(trial.now()), []);
        trial.looks.end(id(3), trial.now(), true);
        assert_eq!(trial.looks.begin(trial.now()), [id(17)], "the next of those that wait");
    }

    #[test]
    fn the_first_look_and_one_after_a_long_pause_follow_no_other() {
        let mut trial = Trial::new();
        trial.follow(&[(1, 10)]);
        assert!(trial.looks.is_after_gap(id(1), trial.now()));
        // A look that takes longer than the interval is no pause.
        assert_eq!(trial.run(60, 50), at(&[5, 55], 1));
        assert!(!trial.looks.is_after_gap(id(1), trial.now()));
        trial.second = 105;
        trial.looks.end(id(1), trial.now(), true);
        trial.second = 135;
        assert!(!trial.looks.is_after_gap(id(1), trial.now()));
        assert_eq!(trial.looks.begin(trial.now()), [id(1)]);
        trial.second = 166;
        trial.looks.end(id(1), trial.now(), false);
        assert!(trial.looks.is_after_gap(id(1), trial.now()), "the quorum did not answer");
        trial.looks.begin(trial.now() + Duration::from_secs(10));
        trial.looks.end(id(1), trial.now(), true);
        assert!(!trial.looks.is_after_gap(id(1), trial.now()));
        trial.follow(&[]);
        trial.follow(&[(1, 10)]);
        assert!(trial.looks.is_after_gap(id(1), trial.now()), "another agent had the lease");
    }

    #[test]
    fn a_service_that_comes_back_during_a_look_has_no_second_one() {
        let mut trial = Trial::new();
        trial.follow(&[(1, 10)]);
        trial.second = 5;
        assert_eq!(trial.looks.begin(trial.now()), [id(1)]);
        trial.follow(&[]);
        trial.second = 6;
        trial.follow(&[(1, 10)]);
        trial.second = 100;
        assert_eq!(trial.looks.begin(trial.now()), []);
        trial.looks.end(id(1), trial.now(), true);
        assert_eq!(trial.looks.begin(trial.now()), [id(1)]);
        // A service that is not followed again is forgotten.
        trial.follow(&[]);
        trial.looks.end(id(1), trial.now(), true);
        assert!(trial.looks.turns.is_empty() && trial.looks.results.is_empty());
    }
}
