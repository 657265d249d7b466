//! When an alert is raised and cleared. Pure: the caller gives the time and the value.
//!
//! ```text
//!               beyond raised_at                 so for for_ms
//!    Quiet ───────────────────────▶ Suspected ─────────────────▶ Raised
//!      ▲                             │                            │  ▲
//!      │ ◀── no more, or not known ──┘        within cleared_at   ▼  │ no more, or not known
//!      └──────────────────────── so for for_ms ────────────── Recovering
//! ```
//!
//! An alert has two bounds, so that a value that oscillates around one of them makes one alert and not many. A time
//! without measurements proves nothing: it neither raises nor clears an alert.

pub mod idle;
pub mod rules;

pub use rules::{AlertSettings, Rule, Severity};

/// The state of an alert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AlertState {
    /// Not raised.
    #[default]
    Quiet,
    /// Beyond its bound, not for long enough yet.
    Suspected { since_ms: u64 },
    /// It is raised.
    Raised { since_ms: u64 },
    /// It is still raised: the value has been well again for too short a time.
    Recovering { since_ms: u64, well_since_ms: u64 },
}

impl AlertState {
    /// Since when it is raised.
    pub fn raised_since(self) -> Option<u64> {
        match self {
            Self::Quiet | Self::Suspected { .. } => None,
            Self::Raised { since_ms } | Self::Recovering { since_ms, .. } => Some(since_ms),
        }
    }

    /// Its state after one more measurement. `value`: `None` if there was none.
    #[must_use]
    pub fn look(self, rule: &Rule, now_ms: u64, value: Option<f64>) -> Self {
        let lasted = |since: u64| now_ms.saturating_sub(since) >= rule.for_ms;
        let Some(value) = value.filter(|value| value.is_finite()) else {
            return match self {
                Self::Suspected { .. } => Self::Quiet,
                Self::Recovering { since_ms, .. } => Self::Raised { since_ms },
                Self::Quiet | Self::Raised { .. } => self,
            };
        };
        match self {
            Self::Quiet | Self::Suspected { .. } if !rule.is_beyond(value) => Self::Quiet,
            Self::Quiet if rule.for_ms == 0 => Self::Raised { since_ms: now_ms },
            Self::Quiet => Self::Suspected { since_ms: now_ms },
            Self::Suspected { since_ms } if lasted(since_ms) => Self::Raised { since_ms: now_ms },
            Self::Suspected { .. } => self,
            Self::Raised { since_ms } | Self::Recovering { since_ms, .. } if !rule.is_well(value) => Self::Raised { since_ms },
            Self::Raised { .. } if rule.for_ms == 0 => Self::Quiet,
            Self::Raised { since_ms } => Self::Recovering { since_ms, well_since_ms: now_ms },
            Self::Recovering { well_since_ms, .. } if lasted(well_since_ms) => Self::Quiet,
            Self::Recovering { .. } => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rule(for_ms: u64) -> Rule {
        Rule { for_ms, ..Rule::above("busy", "cpu_cores", 10.0, 5.0) }
    }

    #[test]
    fn it_is_raised_after_its_time_and_cleared_below_the_other_bound_after_its_time() {
        let rule = rule(2);
        let mut state = AlertState::default();
        let mut look = |now, value| {
            state = state.look(&rule, now, value);
            state.raised_since()
        };
        assert_eq!(look(0, Some(11.0)), None);
        assert_eq!(look(1, Some(11.0)), None);
        assert_eq!(look(2, Some(11.0)), Some(2));
        for (now, value) in [(3, Some(7.0)), (4, None), (5, Some(4.0)), (6, Some(4.0)), (7, None), (8, Some(4.0)), (9, Some(7.0))] {
            assert_eq!(look(now, value), Some(2), "at {now}");
        }
        assert_eq!([look(10, Some(4.0)), look(11, Some(4.0)), look(12, Some(4.0))], [Some(2), Some(2), None]);
        assert_eq!([look(13, Some(f64::NAN)), look(14, Some(11.0)), look(15, None), look(17, Some(11.0))], [None; 4]);
    }

    proptest! {
        #[test]
        fn no_alert_comes_or_goes_without_its_time(
            for_ms in 0..5u64, looks in proptest::collection::vec((1..3u64, proptest::option::of(0.0..15.0f64)), 1..200),
        ) {
            let rule = rule(for_ms);
            let (mut state, mut now) = (AlertState::default(), 0);
            let mut seen: Vec<(u64, Option<f64>)> = Vec::new();
            for (step, value) in looks {
                now += step;
                seen.push((now, value));
                let before = state.raised_since().is_some();
                state = state.look(&rule, now, value);
                let after = state.raised_since().is_some();
                // How long all measurements until now have agreed.
                let lasted = |holds: &dyn Fn(f64) -> bool| {
                    let first = seen.iter().rev().take_while(|(_, value)| value.is_some_and(holds)).last();
                    first.map(|(at, _)| now - at)
                };
                if after && !before {
                    prop_assert!(lasted(&|value| rule.is_beyond(value)).is_some_and(|ms| ms >= for_ms));
                }
                if before && !after {
                    prop_assert!(lasted(&|value| rule.is_well(value)).is_some_and(|ms| ms >= for_ms));
                }
                if !before && !after {
                    // No condition that lasted long enough is missed.
                    prop_assert!(lasted(&|value| rule.is_beyond(value)).is_none_or(|ms| ms < for_ms));
                }
            }
        }
    }
}
