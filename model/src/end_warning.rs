//! A signal some time before the walltime ends.

use crate::duration::millis;
use crate::signal::WorkSignal;
use crate::spec_error::SpecError;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long before the end the signal is sent, if a submission does not say.
pub const BEFORE_DEFAULT: Duration = Duration::from_secs(60);

/// The signal, when it is sent, and to what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndWarning {
    /// The signal's number.
    pub signal: i32,
    /// How long before the end of the walltime it is sent.
    pub before: Duration,
    /// Whether it goes to the script's process alone; otherwise to the ranks.
    pub script_only: bool,
}

impl EndWarning {
    /// Checks it for work with this walltime.
    ///
    /// # Errors
    /// An unknown signal, or a time that does not lie within the walltime.
    pub fn validate(&self, walltime: Option<Duration>) -> Result<(), SpecError> {
        let invalid = |why| Err(SpecError::Invalid { field: "signal", why });
        if self.signal.to_string().parse::<WorkSignal>().is_err() {
            return invalid(format!("there is no signal {}: give a name or a number, such as USR1 or 10", self.signal));
        }
        let Some(walltime) = walltime else {
            return invalid("it is sent before the walltime ends, and this work has none: give --walltime as well".to_owned());
        };
        if self.before.is_zero() || self.before >= walltime {
            let (before, walltime) = (self.before.as_secs(), walltime.as_secs());
            return invalid(format!("{before} s before its end do not lie within a walltime of {walltime} s: give fewer, as in USR1@10"));
        }
        Ok(())
    }

    /// When it is due, for a walltime between these times, in milliseconds. At once, if the walltime is shorter than
    /// `before`. `None`: the walltime has no end.
    fn due_ms(&self, since_ms: u64, until_ms: u64) -> Option<u64> {
        (until_ms != u64::MAX).then(|| until_ms.saturating_sub(millis(self.before)).max(since_ms))
    }
}

/// The warning of one attempt, or of one task: it is sent at most once, also if the walltime changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingWarning(Option<EndWarning>);

impl PendingWarning {
    /// A warning that was not sent yet; `None`: there is none.
    pub fn new(warning: Option<EndWarning>) -> Self {
        Self(warning)
    }

    /// When it is due, for a walltime between these times, in milliseconds; `None`: never.
    pub fn due_ms(&self, since_ms: u64, until_ms: u64) -> Option<u64> {
        self.0.as_ref()?.due_ms(since_ms, until_ms)
    }

    /// The warning, once, if it is due.
    pub fn take_due(&mut self, now_ms: u64, since_ms: u64, until_ms: u64) -> Option<EndWarning> {
        if self.due_ms(since_ms, until_ms)? <= now_ms { self.0.take() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning(signal: i32, seconds: u64) -> EndWarning {
        EndWarning { signal, before: Duration::from_secs(seconds), script_only: false }
    }

    #[test]
    fn it_lies_within_the_walltime() {
        let refused = |warning: EndWarning, walltime: Option<u64>| {
            warning.validate(walltime.map(Duration::from_secs)).map_err(|error| error.to_string())
        };
        assert_eq!(refused(warning(10, 59), Some(60)), Ok(()));
        assert_eq!(refused(warning(9, 1), Some(60)), Ok(()));
        let within =
            |before: u64| format!("signal: {before} s before its end do not lie within a walltime of 60 s: give fewer, as in USR1@10");
        assert_eq!(refused(warning(10, 60), Some(60)), Err(within(60)));
        assert_eq!(refused(warning(10, 0), Some(60)), Err(within(0)));
        let none = "signal: it is sent before the walltime ends, and this work has none: give --walltime as well";
        assert_eq!(refused(warning(10, 60), None), Err(none.to_owned()));
        let unknown = "signal: there is no signal 99: give a name or a number, such as USR1 or 10";
        assert_eq!(refused(warning(99, 60), Some(600)), Err(unknown.to_owned()));
    }

    #[test]
    fn it_is_sent_once_and_follows_the_walltime_until_then() {
        let mut pending = PendingWarning::new(Some(warning(10, 60)));
        assert_eq!(pending.due_ms(1_000, 601_000), Some(541_000));
        assert_eq!(pending.take_due(540_999, 1_000, 601_000), None);
        // `lattice update` gave it more time.
        assert_eq!(pending.take_due(541_000, 1_000, 1_201_000), None);
        assert_eq!(pending.take_due(1_141_000, 1_000, 1_201_000), Some(warning(10, 60)));
        assert_eq!(pending.take_due(1_741_000, 1_000, 1_801_000), None, "it was sent");
        assert_eq!(pending.due_ms(1_000, 1_801_000), None);
    }

    #[test]
    fn a_walltime_that_is_too_short_makes_it_due_at_once_and_an_endless_one_never() {
        let mut pending = PendingWarning::new(Some(warning(10, 60)));
        assert_eq!(pending.due_ms(1_000, u64::MAX), None);
        assert_eq!(pending.due_ms(1_000, 31_000), Some(1_000));
        assert_eq!(pending.take_due(1_000, 1_000, 31_000), Some(warning(10, 60)));
        assert_eq!(PendingWarning::default().take_due(u64::MAX, 0, 1), None);
    }
}
