//! Detects that an allocation's work is idle. While it is, the values that only its own processes change are not read
//! again: those of the last reading are used.
//!
//! ```text
//!   Signs, read first ── same as in the last two measurements ─▶ idle: processes, threads, faults, /proc are not read
//!                     ╰─ different, unknown, or after REUSE_MAX ──▶ everything is read
//! ```
//!
//! One sign is not enough. A rank that computes makes no switch, but its processor time rises. A process that runs for
//! less than a microsecond makes a switch. A process that begins or ends is counted. While work is idle, its
//! resident memory falls only if the kernel reclaims memory. Waiting for disks and for memory happens without
//! running, and is read separately (see `v2`).
//!
//! No process of the work is read for this. Changes from outside (a sleeping process that is moved into the group,
//! memory written by another process) show at the next full reading, after at most 10 s.
//!
//! Pressure of memory and disks continues to rise while a process waits and does not run. Such a wait begins in a
//! running process, so while work is idle, the file is read only as long as its value rises.

use std::time::{Duration, Instant};

/// Measurements in a row that must each show the same signs as the one before. With one alone, time that a processor
/// has not accounted yet would be missed: accounting happens at each tick, and without ticks once a second.
const SAME_SIGNS_MIN: u32 = 2;
/// Greatest age of values that are not read again.
const REUSE_MAX: Duration = Duration::from_secs(10);

/// Counters of which at least one rises when a process of the work runs, begins or ends, or when the kernel reclaims
/// memory. `None`: unknown here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// Its processor time in microseconds.
    pub cpu_us: Option<u64>,
    /// Its switches, plus its processes that began and that ended.
    pub events: Option<u64>,
    /// Pages of the node that the kernel scanned to reclaim memory, whoever owned them.
    pub scanned: Option<u64>,
}

impl Signs {
    /// `None`: a sign is unknown, so nothing can be concluded.
    fn whole(self) -> Option<[u64; 3]> {
        Some([self.cpu_us?, self.events?, self.scanned?])
    }
}

/// The signs of the last measurements.
#[derive(Debug, Default)]
pub(super) struct Rest {
    last: Option<[u64; 3]>,
    /// How many measurements in a row had the same signs as the one before.
    same: u32,
    /// When everything was last read.
    read_at: Option<Instant>,
}

impl Rest {
    /// Adds a measurement. `true`: the values read before are still right; else everything must be read now.
    pub(super) fn look(&mut self, now: Instant, signs: Signs) -> bool {
        let signs = signs.whole();
        let is_same = signs.is_some() && signs == self.last;
        self.last = signs;
        self.same = if is_same { self.same.saturating_add(1) } else { 0 };
        let is_fresh = self.read_at.is_some_and(|at| now.saturating_duration_since(at) < REUSE_MAX);
        let is_idle = self.same >= SAME_SIGNS_MIN && is_fresh;
        if !is_idle {
            self.read_at = Some(now);
        }
        is_idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn signs(cpu_us: u64, events: u64, scanned: u64) -> Signs {
        Signs { cpu_us: Some(cpu_us), events: Some(events), scanned: Some(scanned) }
    }

    #[test]
    fn work_rests_from_the_third_look_with_the_same_signs_and_is_read_again_after_ten_seconds() {
        let (mut rest, began) = (Rest::default(), Instant::now());
        let mut look = |second: u64| rest.look(began + Duration::from_secs(second), signs(5, 5, 5));
        let idle: Vec<bool> = (0..14).map(&mut look).collect();
        let read: Vec<usize> = (0..14).filter(|at| !idle[*at]).collect();
        assert_eq!(read, [0, 1, 11]);
        assert!(!look(40), "however few looks there were");
    }

    #[test]
    fn unknown_signs_never_count_as_the_same() {
        let whole = signs(1, 1, 1);
        for lacking in [Signs { cpu_us: None, ..whole }, Signs { events: None, ..whole }, Signs { scanned: None, ..whole }] {
            let (mut rest, now) = (Rest::default(), Instant::now());
            assert!((0..5).all(|_| !rest.look(now, lacking)), "{lacking:?}");
            // After an unknown value the signs do not count as unchanged either.
            assert_eq!(
                [whole, whole, whole, lacking, whole, whole, whole].map(|now_signs| rest.look(now, now_signs)),
                [false, false, true, false, false, false, true]
            );
        }
    }

    /// An event between two measurements.
    #[derive(Clone, Copy, Debug)]
    enum Happening {
        Nothing,
        /// It computes without a switch.
        Computes,
        /// It runs too briefly for any clock.
        Flickers,
        Forks,
        Exits,
        /// The kernel reclaims memory of the node.
        Reclaims,
        /// It runs, and its processor accounts that only in the next interval.
        RunsUnaccounted,
    }

    proptest! {
        /// The state of the work is the number of changes. A measurement that reads nothing must be right, except for
        /// time that a processor had not accounted at that moment: that shows one measurement later.
        #[test]
        fn a_change_of_any_kind_is_seen_by_the_first_look_that_can_see_it(
            looks in proptest::collection::vec((0..40u8, 1..4000u64), 1..300),
        ) {
            let (mut rest, mut now) = (Rest::default(), Instant::now());
            let (mut cpu, mut events, mut scanned, mut owed) = (0, 0, 0, 0);
            // The number of changes; that number at the last reading, and its time.
            let (mut changed, mut read, mut read_at) = (0u32, 0u32, now);
            for (kind, ms) in looks {
                now += Duration::from_millis(ms);
                cpu += std::mem::take(&mut owed);
                // The number of changes that the signs show.
                let mut shown = changed;
                let happening = match kind {
                    0 => Happening::Computes,
                    1 => Happening::Flickers,
                    2 => Happening::Forks,
                    3 => Happening::Exits,
                    4 => Happening::Reclaims,
                    5 => Happening::RunsUnaccounted,
                    _ => Happening::Nothing,
                };
                match happening {
                    Happening::Nothing => {}
                    Happening::Computes => cpu += 1000,
                    Happening::Flickers => events += 1,
                    Happening::Forks | Happening::Exits => (cpu, events) = (cpu + 1, events + 1),
                    Happening::Reclaims => scanned += 32,
                    Happening::RunsUnaccounted => owed = 1000,
                }
                if !matches!(happening, Happening::Nothing) {
                    changed += 1;
                }
                if !matches!(happening, Happening::RunsUnaccounted) {
                    shown = changed;
                }
                if rest.look(now, signs(cpu, events, scanned)) {
                    prop_assert!(read >= shown, "{happening:?}: {read} of {changed} changes were read");
                    prop_assert!(now - read_at < REUSE_MAX);
                } else {
                    (read, read_at) = (changed, now);
                }
            }
        }
    }
}
