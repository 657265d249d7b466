//! Whether a service is alive, from the results of its probes.
//!
//! ```text
//!   begin ──initial delay──▶ probe ──well──▶ probe after the period …
//!                              │ failed (too often in a row)
//!                              ▼
//!                            Dead
//! ```
//!
//! The watch begins anew with each life of the agent and does not count earlier failures, so that
//! no service is ended because its agent was down.

use lattice_model::LivenessProbe;
use lattice_model::count::counted;
use std::time::Duration;

/// The longest error text that is stored, in bytes.
const WHY_BYTES_MAX: usize = 160;

/// The watch over one service. Times count from the beginning of the watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeWatch {
    probe: LivenessProbe,
    due: Duration,
    failures: u32,
}

/// What the result of a probe means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The service is alive.
    Alive,
    /// The service may be alive: too few probes in a row have failed to tell.
    Doubtful { why: String },
    /// The service is dead, for this reason. It is not probed any more.
    Dead { why: String },
}

impl ProbeWatch {
    /// Begins to watch now.
    pub fn new(probe: LivenessProbe) -> Self {
        Self { due: probe.initial_delay, failures: 0, probe }
    }

    /// When the next probe is to be made.
    pub fn due(&self) -> Duration {
        self.due
    }

    /// The due probe ended at `now`; `Err` has its error.
    pub fn probed(&mut self, now: Duration, outcome: Result<(), &str>) -> Verdict {
        // If a probe took longer than the period, the next one follows at once, but only one.
        self.due = (self.due + self.probe.period).max(now);
        let error = match outcome {
            Ok(()) => {
                self.failures = 0;
                return Verdict::Alive;
            }
            Err(error) => bounded(error),
        };
        self.failures = self.failures.saturating_add(1);
        let why = match (self.failures, self.probe.failures_max) {
            (1, 1) => format!("{} failed: {error}", self.probe),
            (failures, most) if failures >= most => format!("{} failed {}: {error}", self.probe, counted(failures, "time")),
            (failures, most) => format!("{} failed ({failures} of {most}): {error}", self.probe),
        };
        if self.failures >= self.probe.failures_max { Verdict::Dead { why } } else { Verdict::Doubtful { why } }
    }
}

fn bounded(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(WHY_BYTES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::ProbeCheck;

    fn watch(failures_max: u32) -> ProbeWatch {
        ProbeWatch::new(LivenessProbe {
            check: ProbeCheck::Http { path: "/health".into() },
            port: 8080,
            initial_delay: Duration::from_secs(10),
            period: Duration::from_secs(30),
            timeout: Duration::from_secs(5),
            failures_max,
        })
    }

    const REFUSED: Result<(), &str> = Err("connection refused");

    #[test]
    fn only_failures_in_a_row_end_it_and_the_reason_says_what_failed() {
        let mut watch = watch(3);
        let at = Duration::from_secs;
        assert_eq!(watch.due(), at(10));
        let doubt = |n| Verdict::Doubtful { why: format!("HTTP GET 127.0.0.1:8080/health failed ({n} of 3): connection refused") };
        assert_eq!(watch.probed(at(10), REFUSED), doubt(1));
        assert_eq!(watch.probed(at(40), REFUSED), doubt(2));
        assert_eq!(watch.probed(at(70), Ok(())), Verdict::Alive);
        assert_eq!(watch.probed(at(100), REFUSED), doubt(1));
        assert_eq!(watch.probed(at(130), REFUSED), doubt(2));
        let why = "HTTP GET 127.0.0.1:8080/health failed 3 times: connection refused".to_owned();
        assert_eq!(watch.probed(at(160), REFUSED), Verdict::Dead { why });
    }

    #[test]
    fn the_period_is_kept_and_what_was_missed_is_not_made_up() {
        let mut watch = watch(3);
        let at = Duration::from_secs;
        watch.probed(at(12), Ok(()));
        assert_eq!(watch.due(), at(40), "from the beginning of one to the beginning of the next");
        watch.probed(at(500), Ok(()));
        assert_eq!(watch.due(), at(500));
        watch.probed(at(501), Ok(()));
        assert_eq!(watch.due(), at(530));
    }

    #[test]
    fn one_failure_can_be_enough_and_an_answer_cannot_fill_the_log() {
        let loud = format!("status 500\n{}", "x".repeat(10_000));
        match watch(1).probed(Duration::ZERO, Err(&loud)) {
            Verdict::Dead { why } => {
                assert!(why.starts_with("HTTP GET 127.0.0.1:8080/health failed: status 500x") && why.len() < 300, "{why}");
            }
            other => panic!("{other:?}"),
        }
    }
}
