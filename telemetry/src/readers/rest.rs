//! Whether an allocation's work rests: then the numbers that only its own processes change are as they were read last.
//!
//! ```text
//!   Signs, read first ── the same as with the last two looks ──▶ rests: processes, threads, faults and /proc are not read
//!                     ╰─ any other, or one unknown, or after RESTS_MAX ──▶ all is read
//! ```
//!
//! One sign would not do. A rank that computes makes no switch, and its processor time rises; who runs for less than a microsecond makes
//! a switch; who begins or ends is counted as such; and of work that rests, what is resident grows less where the kernel takes memory
//! back. Waiting for disks and for memory is no running, goes on by itself, and is read for itself (see `v2`).
//!
//! Nothing of it needs a process of the work: what others do to it (one who moves a process that sleeps into the group, or writes to
//! another's memory) shows with the next look at everything.
//!
//! Two looks, because a processor without ticks accounts once a second. Pressure of memory and
//! disks goes on rising while a process waits and does not run; such a wait begins with a process
//! that runs, so a rising value is read again. What no count shows (a process that is moved in
//! asleep) is seen after 10 s, when everything is read.

use std::time::{Duration, Instant};

/// Looks in a row that have to show the same. With one alone, what a processor has not yet accounted would be overlooked: of a task that
/// runs that is done with each tick, which a processor without ticks makes once a second.
const SAME_LOOKS: u32 = 2;
/// How old numbers that are not read again can get.
const RESTS_MAX: Duration = Duration::from_secs(10);

/// Counts that only rise, of which one at least does so when something of the work runs, begins or ends. `None`: it is not known here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// Its processor time in microseconds.
    pub cpu_us: Option<u64>,
    /// Its switches, and its processes that began and that ended, together.
    pub events: Option<u64>,
    /// Pages of the node that the kernel scanned to reclaim memory, whoever had them.
    pub scanned: Option<u64>,
}

impl Signs {
    /// `None`: something is not known, so that nothing follows.
    fn whole(self) -> Option<[u64; 3]> {
        Some([self.cpu_us?, self.events?, self.scanned?])
    }
}

/// The signs of the last measurements.
#[derive(Debug, Default)]
pub(super) struct Rest {
    last: Option<[u64; 3]>,
    /// So many measurements in a row had the same signs as the one before.
    same: u32,
    /// When everything was read last.
    read_at: Option<Instant>,
}

impl Rest {
    /// One more measurement. `true`: the numbers read before are still right; else everything is read now.
    pub(super) fn look(&mut self, now: Instant, signs: Signs) -> bool {
        let signs = signs.whole();
        let is_same = signs.is_some() && signs == self.last;
        self.last = signs;
        self.same = if is_same { self.same.saturating_add(1) } else { 0 };
        let is_fresh = self.read_at.is_some_and(|at| now.saturating_duration_since(at) < RESTS_MAX);
        let rests = self.same >= SAME_LOOKS && is_fresh;
        if !rests {
            self.read_at = Some(now);
        }
        rests
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
    fn work_rests_from_the_third_look_that_shows_the_same_and_is_read_again_after_ten_seconds() {
        let (mut rest, began) = (Rest::default(), Instant::now());
        let mut look = |second: u64| rest.look(began + Duration::from_secs(second), signs(5, 5, 5));
        let rests: Vec<bool> = (0..14).map(&mut look).collect();
        let read: Vec<usize> = (0..14).filter(|at| !rests[*at]).collect();
        assert_eq!(read, [0, 1, 11]);
        assert!(!look(40), "however few looks there were");
    }

    #[test]
    fn what_is_not_known_is_never_the_same() {
        let whole = signs(1, 1, 1);
        for lacking in [Signs { cpu_us: None, ..whole }, Signs { events: None, ..whole }, Signs { scanned: None, ..whole }] {
            let (mut rest, now) = (Rest::default(), Instant::now());
            assert!((0..5).all(|_| !rest.look(now, lacking)), "{lacking:?}");
            // Nor is it the same as before, once it is known again.
            assert_eq!(
                [whole, whole, whole, lacking, whole, whole, whole].map(|now_signs| rest.look(now, now_signs)),
                [false, false, true, false, false, false, true]
            );
        }
    }

    /// What happens between two measurements.
    #[derive(Clone, Copy, Debug)]
    enum Happening {
        Nothing,
        /// It computes, and is not switched.
        Computes,
        /// It runs for so short that no clock shows it.
        Flickers,
        Forks,
        Exits,
        /// The kernel takes memory of the node back.
        Reclaims,
        /// It runs, and its processor tells of that only in the next interval.
        RunsUnaccounted,
    }

    proptest! {
        /// The work is what all that happened to it made of it. Whatever a look lets stand is how it is, but for what a processor had not
        /// accounted at that moment: that shows one look later.
        #[test]
        fn a_change_of_any_kind_is_seen_by_the_next_look_in_which_it_could_be(
            looks in proptest::collection::vec((0..40u8, 1..4000u64), 1..300),
        ) {
            let (mut rest, mut now) = (Rest::default(), Instant::now());
            let (mut cpu, mut events, mut scanned, mut owed) = (0, 0, 0, 0);
            // How often it changed; how often it had when it was read last, and when that was.
            let (mut changed, mut read, mut read_at) = (0u32, 0u32, now);
            for (kind, ms) in looks {
                now += Duration::from_millis(ms);
                cpu += std::mem::take(&mut owed);
                // Changes that the signs show.
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
                    prop_assert!(now - read_at < RESTS_MAX);
                } else {
                    (read, read_at) = (changed, now);
                }
            }
        }
    }
}
