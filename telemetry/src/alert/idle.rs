//! Detects a launch that hangs: all its ranks, on all its nodes, have been idle for a long time. Pure.
//!
//! Each node reports how long its ranks of a launch have been idle; a node with the reports of all nodes decides. A
//! rank that waits in a busy loop looks like one that computes. So a reported launch does hang, but not every hang is
//! reported.

/// Ranks that each used less than this share of a processor since the last measurement are idle.
const IDLE_CORES_PER_PROCESS: f64 = 0.01;
/// Ranks that together use this many processors are not idle, however many they are: one computes, and the others wait
/// for it.
const IDLE_CORES_MAX: f64 = 0.25;

/// One launch's ranks on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle {
    /// Processor time at the last measurement, in microseconds.
    pub used_us: u64,
    /// When that was.
    pub at_ms: u64,
    /// Since when they have been idle, as far as was measured.
    pub since_ms: u64,
    /// Whether they were active at [`Self::since_ms`]; else that was the first measurement.
    pub moved: bool,
}

impl Idle {
    /// The first measurement.
    pub fn new(at_ms: u64, used_us: u64) -> Self {
        Self { used_us, at_ms, since_ms: at_ms, moved: false }
    }

    /// Adds a measurement. `processes`: their number; `also`: whether anything else of them changed.
    pub fn look(&mut self, at_ms: u64, used_us: u64, processes: u64, also: bool) {
        let Some(passed_ms) = at_ms.checked_sub(self.at_ms).filter(|ms| *ms > 0) else { return };
        let used_ms = used_us.saturating_sub(self.used_us) as f64 / 1e3;
        let idle_cores = (IDLE_CORES_PER_PROCESS * processes.max(1) as f64).min(IDLE_CORES_MAX);
        // A count that fell belongs to other processes.
        if also || used_us < self.used_us || used_ms > passed_ms as f64 * idle_cores {
            (self.since_ms, self.moved) = (at_ms, true);
        }
        (self.used_us, self.at_ms) = (used_us, at_ms);
    }

    /// How long they have been idle, until the last measurement: nothing is known of the time since.
    pub fn idle_ms(&self) -> u64 {
        self.at_ms.saturating_sub(self.since_ms)
    }

    /// This node's report of them.
    pub fn report(&self) -> IdleReport {
        IdleReport::There { idle_ms: self.idle_ms(), moved: self.moved }
    }
}

/// One node's report of its ranks of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleReport {
    /// It has no ranks (any more).
    None,
    /// They have been idle for this long; `moved`: they were seen active before, else it may be longer.
    There { idle_ms: u64, moved: bool },
    /// The node has not reported.
    Unknown,
}

/// The result from the reports of all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All of them have been idle for that long.
    Hangs,
    /// One of them was active, or none is left.
    Moves,
    /// Too few reports to decide.
    Unknown,
}

/// Whether a launch hangs; `limit_ms` is how long it may be idle.
pub fn verdict(reports: impl IntoIterator<Item = IdleReport>, limit_ms: u64) -> Verdict {
    let (mut there, mut unknown) = (false, false);
    for report in reports {
        match report {
            IdleReport::None => {}
            IdleReport::There { idle_ms, .. } if idle_ms >= limit_ms => there = true,
            IdleReport::There { moved: true, .. } => return Verdict::Moves,
            IdleReport::There { moved: false, .. } | IdleReport::Unknown => unknown = true,
        }
    }
    match (unknown, there) {
        (true, _) => Verdict::Unknown,
        (false, true) => Verdict::Hangs,
        (false, false) => Verdict::Moves,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activity_restarts_the_idle_time_and_slight_activity_does_not() {
        let mut idle = Idle::new(1000, 0);
        assert_eq!(idle.report(), IdleReport::There { idle_ms: 0, moved: false });
        idle.look(6000, 49_000, 1, false);
        assert_eq!(idle.report(), IdleReport::There { idle_ms: 5000, moved: false }, "less than a hundredth of 5 s");
        idle.look(11_000, 49_000 + 190_000, 4, false);
        assert_eq!(idle.report(), IdleReport::There { idle_ms: 10_000, moved: false }, "of four processes");
        idle.look(16_000, 300_000, 1, false);
        assert_eq!(idle.report(), IdleReport::There { idle_ms: 0, moved: true });
        idle.look(21_000, 300_000, 1, true);
        assert_eq!(idle.report(), IdleReport::There { idle_ms: 0, moved: true }, "something else of theirs moved");
        idle.look(26_000, 10, 1, false);
        assert_eq!(idle.since_ms, 26_000, "others under the same name");
        idle.look(26_000, 1_000_000, 1, false);
        assert_eq!(idle.used_us, 10, "no time has passed");
    }

    #[test]
    fn one_that_computes_among_many_that_wait_is_seen() {
        let mut idle = Idle::new(0, 0);
        idle.look(5000, 500_000, 128, false);
        assert_eq!(idle.report(), IdleReport::There { idle_ms: 5000, moved: false }, "a tenth of a processor, of 128 processes");
        idle.look(10_000, 5_500_000, 128, false);
        assert_eq!(idle.report(), IdleReport::There { idle_ms: 0, moved: true }, "one whole processor");
    }

    #[test]
    fn a_launch_hangs_if_all_its_nodes_do_and_moves_if_one_does() {
        let there = |idle_ms, moved| IdleReport::There { idle_ms, moved };
        for (reports, verdict_is) in [
            (vec![there(60, true), IdleReport::None, there(61, false)], Verdict::Hangs),
            (vec![there(60, true), there(59, true)], Verdict::Moves),
            (vec![there(60, true), there(59, false)], Verdict::Unknown),
            (vec![there(60, true), IdleReport::Unknown], Verdict::Unknown),
            (vec![IdleReport::Unknown, there(0, true)], Verdict::Moves),
            (vec![IdleReport::None], Verdict::Moves),
        ] {
            assert_eq!(verdict(reports.clone(), 60), verdict_is, "{reports:?}");
        }
    }
}
