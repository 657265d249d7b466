//! One step of the loop that scales a service.
//!
//! ```text
//!              ┌── above the target ──for up_window──▶ one more, up to replicas_max
//!   a look ────┼── within
//!              ├── below the floor ──for down_window──▶ one less, down to replicas_min
//!              └── no value: nothing changes; after three in a row the windows begin anew
//! ```
//!
//! After a change nothing happens for the cooldown, and the windows begin anew. They also begin anew
//! after a time without looks ([`resume`]). No replica is added while an earlier one does not run yet:
//! the metric does not show its effect. A value that returns across a bound by less than a twentieth of
//! it still counts as beyond it, but only a value beyond the bound leads to a step. The ledger checks
//! each step again, by its own clock.

use super::amount::Amount;
use super::policy::{ScalePolicy, Scaling};
use super::state::{ALTERNATIONS_ALERT, Look, MISSING_ALERT, Reading, ScaleChange, ScalingState};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A request of the loop to the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Record that the metric's side, or its number of missing values, has changed.
    Note {
        /// The metric's value, or why it has none.
        found: Result<Amount, String>,
    },
    /// The same after a gap without looks: the windows begin anew.
    Restart {
        /// The metric's value, or why it has none.
        found: Result<Amount, String>,
    },
    /// Want this number of replicas from now on.
    Want {
        /// The number, one more or one less than is wanted.
        replicas: u32,
        /// The metric's value.
        value: Amount,
    },
}

/// Why the number of replicas does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The metric asks for no change.
    Fits,
    /// The metric has no value.
    Missing,
    /// The metric has not been beyond its bound for long enough: this many milliseconds are left.
    Window(u64),
    /// The last change is too recent: this many milliseconds are left.
    Cooldown(u64),
    /// There are as many replicas as there may be.
    AtMost,
    /// There are as few replicas as there may be.
    AtLeast,
    /// Replicas that are wanted already do not run yet.
    NotYet,
}

/// Why the ledger refuses a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// The service does not scale by itself.
    #[error("it does not scale by itself")]
    NoPolicy,
    /// More than one replica at once, or none.
    #[error("{wanted} replicas are wanted: the loop changes this by one")]
    NotByOne {
        /// The wanted number.
        wanted: u32,
    },
    /// The metric does not ask for it.
    #[error("the metric does not ask for that now")]
    NotAsked,
}

/// A value that was above the target counts as above it down to this part of the target.
const LEAVES_ABOVE: Amount = Amount(950_000);
/// A value that was below the floor counts as below it up to this multiple of the floor.
const LEAVES_BELOW: Amount = Amount(1_050_000);

/// The side of a value, whatever the metric was before.
fn side(policy: &ScalePolicy, value: Amount) -> Look {
    if value > policy.target {
        Look::Above
    } else if value < policy.floor() {
        Look::Below
    } else {
        Look::Within
    }
}

/// The side of a value, after the metric was at `earlier`: a value that goes to and fro across a
/// bound stays beyond it.
fn look(policy: &ScalePolicy, earlier: Option<Look>, value: Amount) -> Look {
    match (side(policy, value), earlier) {
        (Look::Within, Some(Look::Above)) if value >= policy.target.times(LEAVES_ABOVE) => Look::Above,
        (Look::Within, Some(Look::Below)) if value <= policy.floor().times(LEAVES_BELOW) => Look::Below,
        (side, _) => side,
    }
}

impl Reading {
    /// This look, made at `at`, after an earlier one.
    pub fn after(earlier: Option<&Self>, policy: &ScalePolicy, found: &Result<Amount, String>, at: Timestamp) -> Self {
        match found {
            Ok(value) => {
                let look = look(policy, earlier.map(|earlier| earlier.look), *value);
                let since = earlier.filter(|earlier| earlier.look == look).map_or(at, |earlier| earlier.since);
                Self { look, since, value: Some(*value), why: String::new(), missing: 0 }
            }
            Err(why) => {
                let missing = earlier.map_or(0, |earlier| earlier.missing).saturating_add(1).min(MISSING_ALERT);
                // A few missing values do not end a window.
                let (look, since) = match earlier {
                    Some(earlier) if earlier.look == Look::Missing || missing < MISSING_ALERT => (earlier.look, earlier.since),
                    Some(_) | None => (Look::Missing, at),
                };
                Self { look, since, value: None, why: why.clone(), missing }
            }
        }
    }
}

/// The number of replicas that the latest reading asks for at this time, or why there is no change.
fn asked(scaling: &Scaling, policy: &ScalePolicy, state: &ScalingState, now: Timestamp) -> Result<u32, Wait> {
    let Some(reading) = &state.reading else { return Err(Wait::Missing) };
    if reading.missing > 0 {
        return Err(Wait::Missing);
    }
    let (window_ms, wanted) = match reading.look {
        Look::Missing => return Err(Wait::Missing),
        Look::Within => return Err(Wait::Fits),
        Look::Above if state.wanted >= scaling.replicas_max => return Err(Wait::AtMost),
        Look::Above if state.serving < state.wanted => return Err(Wait::NotYet),
        Look::Above => (policy.up_window_ms, state.wanted + 1),
        Look::Below if state.wanted <= scaling.replicas_min => return Err(Wait::AtLeast),
        Look::Below => (policy.down_window_ms, state.wanted - 1),
    };
    let left = |ms: u64, since: Timestamp| Some(ms.saturating_sub(now.since_ms(since))).filter(|left| *left > 0);
    if let Some(left) = state.change.as_ref().and_then(|change| left(policy.cooldown_ms, change.at)) {
        return Err(Wait::Cooldown(left));
    }
    left(window_ms, reading.since).map_or(Ok(wanted), |left| Err(Wait::Window(left)))
}

/// The step to request after a look at the metric, or why there is none. `state` is what the ledger knows,
/// and `now` a time of this machine's clock.
pub fn next(scaling: &Scaling, state: &ScalingState, found: Result<Amount, String>, now: Timestamp) -> Result<Step, Wait> {
    let Some(policy) = &scaling.policy else { return Err(Wait::Fits) };
    let reading = Reading::after(state.reading.as_ref(), policy, &found, now);
    let is_news = match &state.reading {
        None => true,
        Some(known) => known.look != reading.look || known.missing != reading.missing,
    };
    if is_news {
        return Ok(Step::Note { found });
    }
    let replicas = asked(scaling, policy, state, now)?;
    let value = found.map_err(|_| Wait::Missing)?;
    if side(policy, value) == Look::Within {
        return Err(Wait::Fits);
    }
    Ok(Step::Want { replicas, value })
}

/// As [`next`], for the first look after a gap: the metric in between is not known, so the time for
/// which it has been above or below counts from now on.
///
/// # Errors
/// [`Wait`]: there is no step to request.
pub fn resume(scaling: &Scaling, state: &ScalingState, found: Result<Amount, String>, now: Timestamp) -> Result<Step, Wait> {
    let Some(policy) = &scaling.policy else { return Err(Wait::Fits) };
    let reading = Reading::after(state.reading.as_ref(), policy, &found, now);
    match reading.look {
        Look::Above | Look::Below if reading.since != now => Ok(Step::Restart { found }),
        Look::Above | Look::Below | Look::Within | Look::Missing => next(scaling, state, found, now),
    }
}

/// Whether the ledger accepts a step, by its own clock.
///
/// # Errors
/// [`Refused`]: nothing changes.
pub fn check(scaling: &Scaling, state: &ScalingState, step: &Step, now: Timestamp) -> Result<(), Refused> {
    let policy = scaling.policy.as_ref().ok_or(Refused::NoPolicy)?;
    match step {
        Step::Note { .. } | Step::Restart { .. } => Ok(()),
        Step::Want { replicas, .. } if replicas.abs_diff(state.wanted) != 1 => Err(Refused::NotByOne { wanted: state.wanted }),
        Step::Want { replicas, .. } => match asked(scaling, policy, state, now) {
            Ok(wanted) if wanted == *replicas => Ok(()),
            Ok(_) | Err(_) => Err(Refused::NotAsked),
        },
    }
}

impl ScalingState {
    /// Applies a checked step, at this time.
    pub fn take(&mut self, scaling: &Scaling, step: Step, now: Timestamp) {
        match (step, &scaling.policy) {
            (Step::Note { found }, Some(policy)) => {
                self.reading = Some(Reading::after(self.reading.as_ref(), policy, &found, now));
            }
            (Step::Restart { found }, Some(policy)) => {
                self.reading = Some(Reading { since: now, ..Reading::after(self.reading.as_ref(), policy, &found, now) });
            }
            (Step::Want { replicas, value }, Some(_)) => self.set_wanted(replicas, None, Some(value), now),
            (Step::Note { .. } | Step::Restart { .. } | Step::Want { .. }, None) => {}
        }
    }

    /// Sets the wanted number of replicas, as asked by the user `by`, or by the loop because of
    /// `value`. The windows begin anew.
    pub fn set_wanted(&mut self, replicas: u32, by: Option<String>, value: Option<Amount>, now: Timestamp) {
        let is_up = |change: &ScaleChange| change.to > change.from;
        let change = ScaleChange { at: now, from: self.wanted, to: replicas, by, value };
        self.alternations = match self.change.as_ref().filter(|last| last.by.is_none() && change.by.is_none()) {
            Some(last) if is_up(last) != is_up(&change) => self.alternations.saturating_add(1),
            Some(_) | None => 0,
        };
        self.wanted = replicas;
        self.change = Some(change);
        if let Some(reading) = &mut self.reading {
            reading.since = now;
        }
    }

    /// What the loop waits for according to the latest reading, for people. `None`: it would make a
    /// change with its next look.
    pub fn waits_for(&self, scaling: &Scaling, now: Timestamp) -> Option<Wait> {
        asked(scaling, scaling.policy.as_ref()?, self, now).err()
    }

    /// Whether its number of replicas goes up and down all the time.
    pub fn oscillates(&self) -> bool {
        self.alternations >= ALTERNATIONS_ALERT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scaling::{Drain, ScaleMetric};
    use proptest::prelude::*;

    fn scaling() -> Scaling {
        let policy = ScalePolicy::new(ScaleMetric::CpuUtilization, "0.8".parse().unwrap());
        Scaling { replicas_min: 2, replicas_max: 6, policy: Some(policy), drain: Drain::default() }
    }

    /// A service in virtual time, with the ledger's part of each step.
    struct Trial {
        scaling: Scaling,
        state: ScalingState,
        now: Timestamp,
    }

    impl Trial {
        fn new() -> Self {
            Self {
                scaling: scaling(),
                state: ScalingState { wanted: 2, running: 2, serving: 2, ..ScalingState::default() },
                now: Timestamp(1_000_000),
            }
        }

        /// Looks once a minute for this many minutes, and returns the new numbers of wanted replicas.
        fn look(&mut self, minutes: u32, found: Result<f64, &str>) -> Vec<u32> {
            let found = found.map(|value| Amount::of(value).unwrap()).map_err(str::to_owned);
            let mut wanted = Vec::new();
            for _ in 0..minutes {
                self.now = Timestamp(self.now.0 + 60_000);
                if let Ok(step) = next(&self.scaling, &self.state, found.clone(), self.now) {
                    check(&self.scaling, &self.state, &step, self.now).unwrap();
                    self.state.take(&self.scaling, step, self.now);
                    (self.state.running, self.state.serving) = (self.state.wanted, self.state.wanted);
                }
                wanted.push(self.state.wanted);
            }
            wanted
        }
    }

    #[test]
    fn a_busy_service_grows_by_one_after_the_window_and_each_cooldown() {
        let mut trial = Trial::new();
        assert_eq!(trial.look(12, Ok(0.95)), [2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6]);
        assert_eq!(trial.look(9, Ok(0.95)), [6; 9], "as many as there may be");
        assert_eq!(trial.state.waits_for(&trial.scaling, trial.now), Some(Wait::AtMost));
    }

    #[test]
    fn an_idle_service_shrinks_slowly_down_to_its_least() {
        let mut trial = Trial::new();
        trial.state.wanted = 4;
        (trial.state.running, trial.state.serving) = (4, 4);
        assert_eq!(trial.look(6, Ok(0.1)), [4, 4, 4, 4, 4, 3]);
        assert_eq!(trial.look(5, Ok(0.1)), [3, 3, 3, 3, 2]);
        assert_eq!(trial.look(9, Ok(0.1)), [2; 9]);
        assert_eq!(trial.look(9, Ok(0.6)), [2; 9], "within");
    }

    #[test]
    fn a_short_peak_and_a_missing_metric_change_nothing() {
        let mut trial = Trial::new();
        trial.look(2, Ok(0.95));
        trial.look(1, Ok(0.7));
        assert_eq!(trial.look(2, Ok(0.95)), [2, 2], "the window has begun anew");
        assert_eq!(trial.look(9, Err("the store does not answer")), [2; 9]);
        assert_eq!(trial.state.reading.as_ref().map(|r| (r.look, r.missing)), Some((Look::Missing, MISSING_ALERT)));
        assert_eq!(trial.look(3, Ok(0.95)), [2, 2, 3], "it goes on when the metric is there again");
    }

    #[test]
    fn nothing_is_added_while_a_replica_does_not_run_yet() {
        let mut trial = Trial::new();
        trial.look(3, Ok(0.95));
        // The third replica has a node, which is being prepared.
        trial.state.serving = 2;
        let before = trial.state.clone();
        let found = Ok(Amount::of(0.95).unwrap());
        trial.state.take(&trial.scaling, Step::Note { found: found.clone() }, trial.now);
        trial.now = Timestamp(trial.now.0 + 3_600_000);
        assert_eq!(next(&trial.scaling, &trial.state, found.clone(), trial.now), Err(Wait::NotYet));
        assert_eq!(check(&trial.scaling, &before, &Step::Want { replicas: 4, value: Amount(0) }, trial.now), Err(Refused::NotAsked));
    }

    #[test]
    fn a_value_that_moves_around_the_target_is_noted_once() {
        let mut trial = Trial::new();
        trial.look(1, Ok(0.81));
        let noted = trial.state.clone();
        trial.look(1, Ok(0.77));
        assert_eq!(trial.state, noted, "no step was taken");
        assert_eq!(trial.look(1, Ok(0.79)), [2], "the window is over, but this value needs no other replica");
        assert_eq!((trial.state.clone(), trial.look(1, Ok(0.81))), (noted, vec![3]));
        trial.look(1, Ok(0.75));
        assert_eq!(trial.state.reading.as_ref().map(|reading| reading.look), Some(Look::Within));
        trial.look(1, Ok(0.39));
        let below = |trial: &Trial| trial.state.reading.as_ref().map(|reading| (reading.look, reading.since));
        let noted = below(&trial);
        trial.look(1, Ok(0.42));
        assert_eq!((noted.map(|(look, _)| look), below(&trial)), (Some(Look::Below), noted));
        trial.look(1, Ok(0.43));
        assert_eq!(below(&trial), Some((Look::Within, trial.now)));
    }

    #[test]
    fn a_value_that_is_missing_once_or_twice_does_not_begin_the_windows_anew() {
        let mut trial = Trial::new();
        trial.look(1, Ok(0.95));
        let since = trial.state.reading.as_ref().unwrap().since;
        assert_eq!(trial.look(2, Err("away")), [2, 2]);
        let reading = trial.state.reading.clone().unwrap();
        assert_eq!((reading.look, reading.since, reading.value, reading.missing), (Look::Above, since, None, 2));
        assert_eq!(trial.state.waits_for(&trial.scaling, trial.now), Some(Wait::Missing));
        assert_eq!(trial.look(2, Ok(0.95)), [2, 3], "first that it has a value again is noted");
        let mut trial = Trial::new();
        trial.look(1, Ok(0.95));
        trial.look(3, Err("away"));
        assert_eq!(trial.state.reading.as_ref().map(|r| (r.look, r.since)), Some((Look::Missing, trial.now)));
        assert_eq!(trial.look(3, Ok(0.95)), [2, 2, 3]);
    }

    #[test]
    fn after_a_gap_the_windows_begin_anew() {
        let mut trial = Trial::new();
        trial.look(2, Ok(0.95));
        trial.now = Timestamp(trial.now.0 + 3_600_000);
        let found = |value| Ok(Amount::of(value).unwrap());
        let resumed = |trial: &Trial, value| resume(&trial.scaling, &trial.state, found(value), trial.now);
        // Within the bounds no window begins anew; above the target, it begins now.
        assert_eq!(resumed(&trial, 0.5), Ok(Step::Note { found: found(0.5) }));
        let step = resumed(&trial, 0.95).unwrap();
        assert_eq!(step, Step::Restart { found: found(0.95) });
        check(&trial.scaling, &trial.state, &step, trial.now).unwrap();
        trial.state.take(&trial.scaling, step, trial.now);
        assert_eq!(trial.state.reading.as_ref().map(|r| (r.look, r.since)), Some((Look::Above, trial.now)));
        assert_eq!(trial.look(2, Ok(0.95)), [2, 3]);
    }

    #[test]
    fn the_ledger_takes_no_step_that_its_own_clock_does_not_allow() {
        let mut trial = Trial::new();
        trial.look(2, Ok(0.95));
        let step = |replicas| Step::Want { replicas, value: Amount(0) };
        let at = |ms: u64| Timestamp(trial.now.0 + ms);
        let check = |step: &Step, now| check(&trial.scaling, &trial.state, step, now);
        assert_eq!(check(&step(3), at(59_999)), Err(Refused::NotAsked));
        assert_eq!(check(&step(3), at(60_000)), Ok(()));
        assert_eq!(check(&step(4), at(60_000)), Err(Refused::NotByOne { wanted: 2 }));
        assert_eq!(check(&step(1), at(60_000)), Err(Refused::NotAsked));
        assert_eq!(check(&step(2), at(60_000)), Err(Refused::NotByOne { wanted: 2 }));
    }

    #[test]
    fn a_service_that_goes_up_and_down_all_the_time_oscillates() {
        let mut trial = Trial::new();
        trial.state.wanted = 3;
        (trial.state.running, trial.state.serving) = (3, 3);
        for _ in 0..3 {
            assert!(!trial.state.oscillates());
            trial.look(4, Ok(0.95));
            trial.look(7, Ok(0.1));
        }
        assert!(trial.state.oscillates(), "{:?}", trial.state);
        let by_hand = ScaleChange { by: Some("ada".into()), ..trial.state.change.clone().unwrap() };
        trial.state.set_wanted(3, by_hand.by, None, trial.now);
        assert!(!trial.state.oscillates(), "somebody has looked after it");
    }

    proptest! {
        /// Whatever the metric does, changes are by one, within the bounds and a cooldown apart.
        #[test]
        fn changes_are_by_one_within_bounds_and_a_cooldown_apart(
            looks in prop::collection::vec((1..200_000_u64, prop::option::of(0.0..2.0_f64)), 1..200)
        ) {
            let mut trial = Trial::new();
            let mut changed_at: Option<Timestamp> = None;
            for (ms, value) in looks {
                trial.now = Timestamp(trial.now.0 + ms);
                let found = value.and_then(Amount::of).ok_or_else(|| "away".to_owned());
                let Ok(step) = next(&trial.scaling, &trial.state, found, trial.now) else { continue };
                prop_assert_eq!(check(&trial.scaling, &trial.state, &step, trial.now), Ok(()));
                let before = trial.state.wanted;
                trial.state.take(&trial.scaling, step, trial.now);
                let after = trial.state.wanted;
                (trial.state.running, trial.state.serving) = (after, after);
                prop_assert!(before.abs_diff(after) <= 1 && (2..=6).contains(&after));
                if before != after {
                    prop_assert!(changed_at.is_none_or(|at| trial.now.since_ms(at) >= 180_000));
                    changed_at = Some(trial.now);
                }
            }
        }
    }
}
